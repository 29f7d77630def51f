-- Queues: finding, holding and dropping them.

-- Return some queues' names, for the message that a queue does not exist.
CREATE FUNCTION some_queues() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT string_agg(few.name, ', ')
    FROM (SELECT queues.name FROM towline.queues ORDER BY queues.name LIMIT 5) AS few
$$;

-- Return each name once, in the order in which queues are locked.
CREATE FUNCTION distinct_names(names text[]) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(DISTINCT n.name ORDER BY n.name) FROM unnest(names) AS n (name)
$$;

-- Keep others from fencing or dropping the queue while this transaction lasts.
CREATE FUNCTION hold_queue(queue_name text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name))
$$;

-- Wait until nobody holds the queue, and keep it.
CREATE FUNCTION seize_queue(queue_name text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock('towline.queues'::regclass::oid::int4, hashtext(queue_name))
$$;

-- Drop a seized queue with all its tasks; return their number.
CREATE FUNCTION drop_queue(queue_id int4) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    gone int8;
BEGIN
    DELETE FROM towline.tasks AS t WHERE t.queue = queue_id;
    GET DIAGNOSTICS gone = ROW_COUNT;
    DELETE FROM towline.names AS n WHERE n.queue = queue_id;
    DELETE FROM towline.counts AS c WHERE c.queue = queue_id;
    DELETE FROM towline.stored AS s WHERE s.queue = queue_id;
    DELETE FROM towline.samples AS s WHERE s.queue = queue_id;
    DELETE FROM towline.trimmed AS t WHERE t.queue = queue_id;
    DELETE FROM towline.floors AS f WHERE f.queue = queue_id;
    DELETE FROM towline.tag_floors AS f WHERE f.queue = queue_id;
    DELETE FROM towline.lowered_floors AS f WHERE f.queue = queue_id;
    DELETE FROM towline.lanes AS l WHERE l.queue = queue_id;
    DELETE FROM towline.lane_notes AS n WHERE n.queue = queue_id;
    DELETE FROM towline.queues AS q WHERE q.id = queue_id;
    RETURN gone;
END $$;
