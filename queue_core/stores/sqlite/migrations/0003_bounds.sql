-- A task's own bound of leases, instead of its queue's; NULL is the rule. It stands behind the payload, and is read without
-- it: SQLite finds a NULL in the row's header.
ALTER TABLE tasks ADD COLUMN max_leases INTEGER;
