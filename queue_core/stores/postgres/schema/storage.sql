-- The storage limit, and the bytes of all payloads: there are rows, and triggers that keep them exact, only while there
-- is a limit, so that a store without one pays nothing.

-- The limit in bytes: one row, or none without a limit.
CREATE TABLE storage_limit (bytes int8 NOT NULL);

-- The bytes of all payloads, by queue, in slots as the counters are; their sum is the truth.
CREATE TABLE stored (
    slot int8 NOT NULL,
    bytes int8 NOT NULL,
    queue int4 NOT NULL,
    PRIMARY KEY (queue, slot)
) WITH (fillfactor = 50);

-- Count the payloads of rows that were inserted or deleted. Their queues are held.
CREATE FUNCTION count_stored() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO towline.stored AS s (queue, slot, bytes)
    SELECT r.queue, towline.count_slot(r.queue), CASE TG_OP WHEN 'DELETE' THEN -r.bytes ELSE r.bytes END
    FROM (SELECT c.queue, sum(octet_length(c.payload)) AS bytes FROM changed AS c GROUP BY c.queue) AS r
    WHERE r.bytes > 0
    ON CONFLICT ON CONSTRAINT stored_pkey DO UPDATE SET bytes = s.bytes + excluded.bytes;
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
        INSERT INTO towline.stored (queue, slot, bytes)
        SELECT t.queue, 0, sum(octet_length(t.payload)) FROM towline.tasks AS t WHERE t.queue > 0 GROUP BY t.queue;
        CREATE TRIGGER tasks_stored AFTER INSERT ON towline.tasks REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION towline.count_stored();
        CREATE TRIGGER tasks_freed AFTER DELETE ON towline.tasks REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION towline.count_stored();
    END IF;
END $$;

-- Return the newest sum of a queue's stored bytes at or before a slot: they are read from there on.
CREATE FUNCTION stored_from(queue_id int4, slot int8) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((
        SELECT s.slot FROM towline.stored AS s
        WHERE s.queue = queue_id AND s.slot <= stored_from.slot AND s.slot % 32 = 0 ORDER BY s.slot DESC LIMIT 1
    ), 0);
END $$;

-- Return the bytes of all payloads.
CREATE FUNCTION stored_bytes() RETURNS int8 LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT coalesce(sum(e.bytes), 0) FROM towline.queues AS q CROSS JOIN LATERAL (
            SELECT s.bytes FROM towline.stored AS s
            WHERE s.queue = q.id AND s.slot >= towline.stored_from(q.id, 9223372036854775807) OFFSET 0
        ) AS e
    );
END $$;

-- Fold a queue's stored bytes of the epochs before this one; see `fold_counts`.
CREATE FUNCTION fold_stored(queue_id int4, epoch int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first CONSTANT int8 := towline.stored_from(queue_id, epoch * 32);
BEGIN
    IF first < epoch * 32 THEN
        WITH gone AS (
            DELETE FROM towline.stored AS s
            WHERE s.queue = queue_id AND s.slot >= first AND s.slot < epoch * 32 RETURNING s.bytes
        )
        INSERT INTO towline.stored (queue, slot, bytes)
        SELECT queue_id, epoch * 32, sum(g.bytes) FROM gone AS g HAVING count(*) > 0;
    END IF;
END $$;
