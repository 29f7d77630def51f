-- Answers to clients' calls, those of one transaction in one row: a line each of session, number and answer, between line
-- ends. A repeat finds its line by a search from the newest row on (`answer_log.py`).
CREATE TABLE answers (
  id      INTEGER PRIMARY KEY,
  kept_at INTEGER NOT NULL,
  kept    TEXT NOT NULL
);
