-- The course of the store's time on the boot of the host that used it last (`Course`, ADR 36): at most one row. All processes of
-- that boot follow it, so that none of them takes a step of the wall clock for time that has gone by.
CREATE TABLE clock (
  id     INTEGER PRIMARY KEY CHECK (id = 1),
  boot   TEXT NOT NULL,
  offset INTEGER NOT NULL,
  lag    INTEGER NOT NULL,
  at     INTEGER NOT NULL,
  steps  INTEGER NOT NULL,
  step   INTEGER NOT NULL
);
