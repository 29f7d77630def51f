-- What a program that adds one task at a time does again and again. The same as `add` for one task without a name or a
-- bound of its own, without arrays, or anything that only other cases need.

-- The new task's id; NULL: nothing was done, ask `add`, which tells why. eta NULL: at once.
-- wire, call: see 0018; NULL, it is not marked.
CREATE FUNCTION add_one(
    queue_name text, now int8, payload bytea, tag text, eta int8, wire int8, call int8, OUT xid int8, OUT id int8
) LANGUAGE plpgsql AS $$
DECLARE
    queue_id int4;
    has_tags bool;
    free_slot int2;
    is_delayed CONSTANT int4 := CASE WHEN eta > now THEN 1 ELSE 0 END;
    is_marked bool;
BEGIN
    IF pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name)) IS NULL THEN
        RETURN;  -- never: in a condition a function is called without a query around it
    END IF;
    SELECT e.id, e.has_tags INTO queue_id, has_tags
    FROM towline.queues AS e WHERE e.name = queue_name AND e.moved_to = '';
    IF NOT FOUND THEN
        RETURN;
    END IF;
    free_slot := CASE
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 0) THEN 0
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 1) THEN 1
        ELSE towline.take_slot()
    END;
    IF tag IS NOT NULL AND NOT has_tags THEN
        UPDATE towline.queues AS e SET has_tags = true WHERE e.id = queue_id;
    END IF;

    id := nextval('towline.task_ids');
    INSERT INTO towline.tasks (id, eta, ready_at, added_at, queue, state, tag, payload)
    VALUES (add_one.id, coalesce(eta, now), coalesce(eta, now), now, queue_id, is_delayed, tag, payload);

    -- The tag first: its row may be missing, and then all tagged tasks' is counted with it.
    UPDATE towline.counts AS c SET
        ready = c.ready + 1 - is_delayed, delayed = c.delayed + is_delayed, added = c.added + 1, changed_at = now
    WHERE c.queue = queue_id AND c.kind = CASE WHEN add_one.tag IS NULL THEN 1 ELSE 2 END
        AND c.tag = coalesce(add_one.tag, '') AND c.slot = free_slot;
    IF NOT FOUND THEN
        PERFORM towline.count_added(queue_id, free_slot, now, ARRAY[tag], ARRAY[eta]);
    ELSIF tag IS NOT NULL THEN
        UPDATE towline.counts AS c SET
            ready = c.ready + 1 - is_delayed, delayed = c.delayed + is_delayed, added = c.added + 1, changed_at = now
        WHERE c.queue = queue_id AND c.kind = 0 AND c.tag = '' AND c.slot = free_slot;
    END IF;
    xid := txid_current();
    IF call IS NOT NULL THEN
        is_marked := towline.mark(wire, call, ARRAY[id]);
    END IF;
END $$;

-- Planned as the others are, as far as there is a choice: see 0012. Each setting costs every call 3 us.
ALTER FUNCTION add_one(text, int8, bytea, text, int8, int8, int8)
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off;
