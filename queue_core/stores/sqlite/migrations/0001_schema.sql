-- The schema of a store's file (ADR 7). Instants are microseconds since the epoch, UTC.
-- A later change is a file of its own, 0002_... and so on: this one never changes once it has been released.

-- `settings` is JSON. `moved_to` says where the queue lives now, when it was moved to another store; '' while it lives here.
CREATE TABLE queues (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  name     TEXT NOT NULL UNIQUE,
  settings TEXT NOT NULL,
  paused   INTEGER NOT NULL DEFAULT 0,
  moved_to TEXT NOT NULL DEFAULT ''
);

-- One row for each tag of each queue, one for each whole queue (tag NULL), and row 0 for the store. A tag's row id is what a
-- task and the tag index carry; that of the untagged tasks (tag '') is the queue's own id, negative.
-- Of row 0, `added` is the last id given to a task in `tasks`, and `catalog_revision` rises when something changes that
-- processes remember: a queue's settings, its first tag, a tag that is forgotten, a worker that is retired, a limit of the
-- payloads. Both stand in one row as a process has to read it anyway when another has written.
CREATE TABLE counts (
  id               INTEGER PRIMARY KEY AUTOINCREMENT,
  queue            INTEGER NOT NULL,
  tag              TEXT,
  ready            INTEGER NOT NULL DEFAULT 0,
  delayed          INTEGER NOT NULL DEFAULT 0,
  leased           INTEGER NOT NULL DEFAULT 0,
  dead             INTEGER NOT NULL DEFAULT 0,
  added            INTEGER NOT NULL DEFAULT 0,
  leases           INTEGER NOT NULL DEFAULT 0,
  deleted          INTEGER NOT NULL DEFAULT 0,
  released         INTEGER NOT NULL DEFAULT 0,
  expired          INTEGER NOT NULL DEFAULT 0,
  died             INTEGER NOT NULL DEFAULT 0,
  changed_at       INTEGER NOT NULL DEFAULT 0,
  catalog_revision INTEGER NOT NULL DEFAULT 0
);

CREATE UNIQUE INDEX counts_by_tag ON counts (queue, tag);

INSERT INTO counts (id, queue) VALUES (0, 0);

-- States: 0 ready, 1 delayed, 2 leased, 3 dead. `max_leases` is the task's own bound; NULL: its queue's holds. `payload` comes
-- last and is NULL when it is long: then it is in `payloads`, so that a lease never rewrites a megabyte.
CREATE TABLE tasks (
  id         INTEGER PRIMARY KEY,
  queue      INTEGER NOT NULL,
  tag        INTEGER NOT NULL,
  state      INTEGER NOT NULL,
  eta        INTEGER NOT NULL,
  ready_at   INTEGER NOT NULL,
  added_at   INTEGER NOT NULL,
  leases     INTEGER NOT NULL,
  leased_at  INTEGER NOT NULL,
  worker     TEXT NOT NULL,
  reason     TEXT NOT NULL,
  name       TEXT,
  spent      TEXT,
  max_leases INTEGER,
  payload    BLOB
);

-- Partial: each holds the tasks of one state only, and SQLite itself keeps them true. Ties in eta fall to the id. A ready
-- task without a tag stands in the second of these only: one page less to write with each add and each lease.
CREATE INDEX tasks_ready ON tasks (queue, eta) WHERE state = 0 AND tag > 0;

CREATE INDEX tasks_ready_by_tag ON tasks (tag, eta) WHERE state = 0;

CREATE INDEX tasks_delayed ON tasks (queue, eta) WHERE state = 1;

CREATE INDEX tasks_leased ON tasks (queue, eta) WHERE state = 2;

CREATE INDEX tasks_dead ON tasks (queue, id) WHERE state = 3;

CREATE TABLE payloads (
  id      INTEGER PRIMARY KEY,
  payload BLOB NOT NULL
);

-- Ready tasks that were added one at a time, until the next transaction that does anything else with tasks, or the next
-- reader, moves them to `tasks` (ADR 21): before that no index has them and nobody has counted them. Their tags have a row
-- in `counts`.
CREATE TABLE arrivals (
  id         INTEGER PRIMARY KEY,
  queue      INTEGER NOT NULL,
  tag        INTEGER NOT NULL,
  added_at   INTEGER NOT NULL,
  max_leases INTEGER,
  payload    BLOB NOT NULL
);

-- Given names only. `task` is NULL once the task is deleted; the name is then taken until `until`.
CREATE TABLE names (
  queue INTEGER NOT NULL,
  name  TEXT NOT NULL,
  task  INTEGER,
  until INTEGER,
  PRIMARY KEY (queue, name)
) WITHOUT ROWID;

CREATE INDEX names_until ON names (until) WHERE until IS NOT NULL;

-- Finished leases, those of one transaction and queue in one row. The id is queue * 2^40 + the number of the last of them.
CREATE TABLE samples (
  id       INTEGER PRIMARY KEY,
  size     INTEGER NOT NULL,
  finished TEXT NOT NULL
);

-- When a worker first asked for a lease, and when it was retired: it then gets none any more (ADR 4).
CREATE TABLE workers (
  worker     TEXT PRIMARY KEY,
  seen_at    INTEGER,
  retired_at INTEGER
) WITHOUT ROWID;

CREATE INDEX workers_retired ON workers (retired_at) WHERE retired_at IS NOT NULL;

-- Which supervisor leads, until when.
CREATE TABLE leads (
  name   TEXT PRIMARY KEY,
  holder TEXT NOT NULL,
  until  INTEGER NOT NULL
) WITHOUT ROWID;

-- What the payloads of all tasks may come to, and what they come to: a row while there is such a limit. Triggers keep it true
-- that are made with the row (`administering.py`), so that a store without a limit pays nothing (ADR 15).
CREATE TABLE storage (
  limit_bytes INTEGER NOT NULL,
  used_bytes  INTEGER NOT NULL
);

-- Answers to clients' calls, those of one transaction in one row: a line each of session, number and answer, between line
-- ends. A repeat finds its line by a search from the newest row on (`sqlite/idempotency.py`, ADR 28).
CREATE TABLE answers (
  id      INTEGER PRIMARY KEY,
  kept_at INTEGER NOT NULL,
  kept    TEXT NOT NULL
);

-- Of a queue that is being moved here from another store, by session: the last part that was written, and how that was answered
-- (ADR 10).
CREATE TABLE sessions (
  session TEXT PRIMARY KEY,
  number  INTEGER NOT NULL,
  answer  BLOB NOT NULL,
  kept_at INTEGER NOT NULL
) WITHOUT ROWID;
