-- The storage limit, and the bytes of all payloads: there are rows, and triggers that keep them exact, only while there
-- is a limit, so that a store without one pays nothing.

-- The limit in bytes: one row, or none without a limit.
CREATE TABLE storage_limit (bytes int8 NOT NULL);

-- The bytes of all payloads, in slots as the counters are; their sum is the truth.
CREATE TABLE stored (
    slot int2 PRIMARY KEY,
    bytes int8 NOT NULL
) WITH (fillfactor = 50);

-- Count the payloads of rows that were inserted or deleted.
CREATE FUNCTION count_stored() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    change int8 := (SELECT sum(octet_length(r.payload)) FROM changed AS r);
BEGIN
    IF change > 0 THEN
        INSERT INTO towline.stored AS s VALUES (
            towline.take_slot(), CASE WHEN TG_OP = 'DELETE' THEN -change ELSE change END
        )
        ON CONFLICT ON CONSTRAINT stored_pkey DO UPDATE SET bytes = s.bytes + excluded.bytes;
    END IF;
    RETURN NULL;
END $$;

-- Set the limit, or lift it (NULL). The first one locks out transactions that change tasks until it commits.
CREATE FUNCTION set_storage_limit(limit_bytes int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    is_counted bool;
BEGIN
    LOCK TABLE towline.storage_limit IN EXCLUSIVE MODE;
    is_counted := EXISTS (SELECT FROM towline.storage_limit);
    IF is_counted AND limit_bytes IS NOT NULL THEN
        UPDATE towline.storage_limit SET bytes = limit_bytes;
        RETURN;
    ELSIF is_counted = (limit_bytes IS NOT NULL) THEN
        RETURN;
    END IF;
    LOCK TABLE towline.tasks IN ACCESS EXCLUSIVE MODE;
    DELETE FROM towline.stored;
    DELETE FROM towline.storage_limit;
    IF limit_bytes IS NULL THEN
        DROP TRIGGER tasks_stored ON towline.tasks;
        DROP TRIGGER tasks_freed ON towline.tasks;
    ELSE
        INSERT INTO towline.storage_limit VALUES (limit_bytes);
        INSERT INTO towline.stored SELECT 0, coalesce(sum(octet_length(t.payload)), 0) FROM towline.tasks AS t;
        CREATE TRIGGER tasks_stored AFTER INSERT ON towline.tasks REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION towline.count_stored();
        CREATE TRIGGER tasks_freed AFTER DELETE ON towline.tasks REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION towline.count_stored();
    END IF;
END $$;
