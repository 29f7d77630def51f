-- What the payloads of all tasks may come to, and what they come to: a row while there is such a limit, and triggers that
-- keep it true, so that a store without one pays nothing.
CREATE TABLE storage (limit_bytes INTEGER NOT NULL, used_bytes INTEGER NOT NULL);
