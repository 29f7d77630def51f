-- The schema of a store's file (ADR 7). Instants are microseconds since the epoch, UTC.
-- A later change comes in a new file, 0002_... and so on: this one never changes once it has been released.

-- `settings` is JSON. `moved_to` is the URL of the store the queue was moved to, or '' while it is in this one.
CREATE TABLE queues (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  name     TEXT NOT NULL UNIQUE,
  settings TEXT NOT NULL,
  paused   INTEGER NOT NULL DEFAULT 0,
  moved_to TEXT NOT NULL DEFAULT ''
);

-- Counters: one row for each tag of each queue, one for each whole queue (tag NULL), and row 0 for the store. `tasks.tag` is
-- the id of its tag's row; for untagged tasks (tag '') that is the queue's id, negative.
-- In row 0, `added` is the last id given to a task in `tasks`, and `catalog_revision` rises when something changes that
-- processes cache: a queue's settings, its first tag, a tag that is dropped, a worker that is retired, the limit of all
-- payloads. Both are in one row, which a process reads whenever another has written.
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

-- States: 0 ready, 1 delayed, 2 leased, 3 dead. `max_leases` is the task's own limit, NULL where its queue's applies. `headers`
-- is a JSON object, `attempts` a JSON array a line (`attempts/attempt.py`), `progress` the array of a fraction and a text; NULL: none.
-- `payload` comes last and is NULL when it is long: then it is in `payloads`, so that a lease never rewrites a megabyte.
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
  headers    TEXT,
  attempts   TEXT,
  progress   TEXT,
  checkpoint BLOB,
  payload    BLOB
);

-- Partial indexes: each has the tasks of one state only. Tasks of equal eta are in the order of their ids. A ready task without
-- a tag is in the second of these only: one page less to write with each add and each lease.
CREATE INDEX tasks_ready ON tasks (queue, eta) WHERE state = 0 AND tag > 0;

CREATE INDEX tasks_ready_by_tag ON tasks (tag, eta) WHERE state = 0;

CREATE INDEX tasks_delayed ON tasks (queue, eta) WHERE state = 1;

CREATE INDEX tasks_leased ON tasks (queue, eta) WHERE state = 2;

CREATE INDEX tasks_dead ON tasks (queue, id) WHERE state = 3;

CREATE TABLE payloads (
  id      INTEGER PRIMARY KEY,
  payload BLOB NOT NULL
);

-- Staged adds: ready tasks that were added one at a time. The next transaction that does anything else with tasks, and the next
-- reader, flushes them to `tasks` (ADR 21). Until then they are in no index and in no counter. Their tags have a row in `counts`.
CREATE TABLE staged_adds (
  id         INTEGER PRIMARY KEY,
  queue      INTEGER NOT NULL,
  tag        INTEGER NOT NULL,
  added_at   INTEGER NOT NULL,
  max_leases INTEGER,
  headers    TEXT,
  payload    BLOB NOT NULL
);

-- Given names. `task` is NULL once the task is deleted: a tombstone, which keeps the name taken until `until`.
CREATE TABLE names (
  queue INTEGER NOT NULL,
  name  TEXT NOT NULL,
  task  INTEGER,
  until INTEGER,
  PRIMARY KEY (queue, name)
) WITHOUT ROWID;

CREATE INDEX names_until ON names (until) WHERE until IS NOT NULL;

-- Samples: finished leases, those of one transaction and queue in one row; also the queue's history. The id is queue * 2^40 + the number of the last one.
CREATE TABLE samples (
  id       INTEGER PRIMARY KEY,
  size     INTEGER NOT NULL,
  finished TEXT NOT NULL
);

-- When a worker first called `lease`, and when it was retired: it then gets no more leases (ADR 4).
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

-- The limit of the bytes of all payloads, and the bytes in use: one row while there is a limit. Its triggers are created with
-- the row (`admin.py`), so that a store without a limit pays nothing (ADR 15).
CREATE TABLE storage (
  limit_bytes INTEGER NOT NULL,
  used_bytes  INTEGER NOT NULL
);

-- Answers to clients' calls, those of one transaction in one row: a line for each, with session, number and answer. A repeated
-- call finds its line by a search from the newest row on (`idempotency.py`, ADR 28).
CREATE TABLE answers (
  id      INTEGER PRIMARY KEY,
  kept_at INTEGER NOT NULL,
  kept    TEXT NOT NULL
);

-- For each queue that is being moved here from another store: the number of the last chunk written, and its answer (ADR 10).
CREATE TABLE sessions (
  session TEXT PRIMARY KEY,
  number  INTEGER NOT NULL,
  answer  BLOB NOT NULL,
  kept_at INTEGER NOT NULL
) WITHOUT ROWID;
