-- What who takes one task after the other has done since it was last sorted in (`swapping.py`): a lease of a task that is
-- still ready as `tasks` has it, and once that is deleted, or a task is that `tasks` has as leased, when.
CREATE TABLE swaps (
  id         INTEGER PRIMARY KEY,
  leased_at  INTEGER NOT NULL,
  until      INTEGER,  -- NULL once the task is deleted
  deleted_at INTEGER,
  worker     TEXT NOT NULL
);

-- An older program that has the file open would lease those tasks again: it is to fail at once.
ALTER TABLE counts RENAME COLUMN revision TO catalog_revision;
