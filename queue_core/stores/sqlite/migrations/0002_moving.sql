-- Where the queue lives now, when it was moved to another store; empty while it lives here.
ALTER TABLE queues ADD COLUMN moved_to TEXT NOT NULL DEFAULT '';

-- The last call of each client's session, and how it was answered.
CREATE TABLE sessions (
  session TEXT PRIMARY KEY,
  number  INTEGER NOT NULL,
  answer  BLOB NOT NULL,
  kept_at INTEGER NOT NULL
) WITHOUT ROWID;
