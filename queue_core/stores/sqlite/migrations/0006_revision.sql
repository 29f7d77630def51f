-- `revision` of row 0 rises when something that processes remember changes: a queue's settings, its first tag, a tag that is
-- forgotten, a worker that is retired, a limit of the payloads. It stands beside what a process has to read anyway when
-- another has written. An older program that has the file open misses `catalog`, and fails at once.
ALTER TABLE counts ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;

UPDATE counts SET revision = (SELECT revision FROM catalog) WHERE id = 0;

DROP TABLE catalog;
