-- Instants are microseconds since the epoch, UTC. States: 0 ready, 1 delayed, 2 leased, 3 dead.

-- `version` rises when something that processes remember changes: a queue's settings, or a tag that is forgotten.
CREATE TABLE catalog (version INTEGER NOT NULL);

INSERT INTO catalog VALUES (0);

CREATE TABLE queues (
  id       INTEGER PRIMARY KEY AUTOINCREMENT,
  name     TEXT NOT NULL UNIQUE,
  settings TEXT NOT NULL,
  paused   INTEGER NOT NULL DEFAULT 0
);

-- One row for each tag of each queue, one for each whole queue (tag NULL), and row 0 for the store: its `added` is the
-- last id given to a task. A tag's row id is what a task and the tag index carry; that of the untagged tasks (tag '') is
-- the queue's own id, negative.
CREATE TABLE counts (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  queue      INTEGER NOT NULL,
  tag        TEXT,
  ready      INTEGER NOT NULL DEFAULT 0,
  delayed    INTEGER NOT NULL DEFAULT 0,
  leased     INTEGER NOT NULL DEFAULT 0,
  dead       INTEGER NOT NULL DEFAULT 0,
  added      INTEGER NOT NULL DEFAULT 0,
  leases     INTEGER NOT NULL DEFAULT 0,
  deleted    INTEGER NOT NULL DEFAULT 0,
  released   INTEGER NOT NULL DEFAULT 0,
  expired    INTEGER NOT NULL DEFAULT 0,
  died       INTEGER NOT NULL DEFAULT 0,
  changed_at INTEGER NOT NULL DEFAULT 0
);

CREATE UNIQUE INDEX counts_by_tag ON counts (queue, tag);

INSERT INTO counts (id, queue) VALUES (0, 0);

-- `payload` comes last and is NULL when it is long: then it is in `payloads`, so that a lease never rewrites a megabyte.
CREATE TABLE tasks (
  id        INTEGER PRIMARY KEY,
  queue     INTEGER NOT NULL,
  tag       INTEGER NOT NULL,
  state     INTEGER NOT NULL,
  eta       INTEGER NOT NULL,
  ready_at  INTEGER NOT NULL,
  added_at  INTEGER NOT NULL,
  leases    INTEGER NOT NULL,
  leased_at INTEGER NOT NULL,
  worker    TEXT NOT NULL,
  reason    TEXT NOT NULL,
  name      TEXT,
  spent     TEXT,
  payload   BLOB
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

CREATE TABLE workers (
  worker     TEXT PRIMARY KEY,
  seen_at    INTEGER,
  retired_at INTEGER
) WITHOUT ROWID;

CREATE INDEX workers_retired ON workers (retired_at) WHERE retired_at IS NOT NULL;

CREATE TABLE leads (
  name   TEXT PRIMARY KEY,
  holder TEXT NOT NULL,
  until  INTEGER NOT NULL
) WITHOUT ROWID;
