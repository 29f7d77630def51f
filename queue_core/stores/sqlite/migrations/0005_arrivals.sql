-- Ready tasks that were added a few at a time, until the next transaction that does anything else with tasks, or the next
-- reader, sorts them in: before that no index has them and nobody has counted them. Their tags have a row in `counts`.
CREATE TABLE arrivals (
  id         INTEGER PRIMARY KEY,
  queue      INTEGER NOT NULL,
  tag        INTEGER NOT NULL,
  added_at   INTEGER NOT NULL,
  max_leases INTEGER,
  payload    BLOB NOT NULL
);

-- An older program that has the file open would not see them, and give out their ids again: it is to fail at once.
ALTER TABLE catalog RENAME COLUMN version TO revision;
