-- Priorities, limits and rotation (ADR 37).

-- A task's priority, NULL for 0. A ready task of priority p has state -p: state, eta and id are the order of leases, and no index
-- of those without a priority knows about it. State 4 is held: its eta has come, but a limit of its tag holds it back.
ALTER TABLE tasks ADD COLUMN priority INTEGER;

CREATE INDEX tasks_urgent ON tasks (queue, state, eta) WHERE state < 0;

CREATE INDEX tasks_urgent_by_tag ON tasks (tag, state, eta) WHERE state < 0;

-- Dead tasks and held ones share an index: each is one more condition to look at when any task is written.
DROP INDEX tasks_dead;

CREATE INDEX tasks_kept_back ON tasks (queue, state, tag, priority DESC, eta) WHERE state > 2;

-- Whether a task of the queue ever had a priority: until then nobody looks for urgent tasks.
ALTER TABLE queues ADD COLUMN has_priorities INTEGER NOT NULL DEFAULT 0;

ALTER TABLE counts ADD COLUMN held INTEGER NOT NULL DEFAULT 0;

-- What limits and the rotation need of a tag, or of a whole queue, beyond its counters; the id is that of its row in `counts`.
-- Only queues with a rate, and fair ones, have any. `full_at`: when its bucket is full again. `opens_at`: when time alone next admits
-- a task. `place` and `head`, while the tag has ready tasks in a fair queue: its place in the rotation, and the state of its first
-- task. In the row of a whole queue `place` is the last one given.
CREATE TABLE lanes (
  id       INTEGER PRIMARY KEY,
  queue    INTEGER NOT NULL,
  full_at  INTEGER NOT NULL DEFAULT 0,
  opens_at INTEGER,
  place    INTEGER,
  head     INTEGER
);

CREATE INDEX lanes_rotation ON lanes (queue, head, place) WHERE head IS NOT NULL;

CREATE INDEX lanes_opening ON lanes (queue, opens_at) WHERE opens_at IS NOT NULL;
