-- The peek verb.

-- The state of a task as of `now`; NULL: time has deleted it.
CREATE FUNCTION settled_state(task towline.tasks, q towline.queues, now int8) RETURNS int2 LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN task.state NOT IN (1, 2) OR task.eta > now THEN task.state
        WHEN task.state = 1 OR (task.leases >= q.max_leases) IS NOT TRUE THEN 0
        WHEN NOT q.deletes_exhausted THEN 3
    END::int2
$$;

-- Tasks by id beyond `after` whose settled state is one of these, of these tags (see `stats`), and of these names unless
-- they are NULL. Few tasks in the states from which those come are read by state and sorted; many are met soon by id, along
-- the primary key: `+ 0` hides a column from the other indexes.
CREATE FUNCTION peek(
    queue_name text, tags text[], states int2[], given text[], after int8, most int4, now int8
) RETURNS SETOF towline.tasks LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
    stored int2[] := states;
    total int8;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF given IS NOT NULL THEN
        RETURN QUERY SELECT t.* FROM (
            SELECT n.task AS id FROM towline.names AS n
            WHERE n.queue = q.id AND n.name = ANY (given) AND n.task IS NOT NULL
            UNION SELECT substr(g.name, 2)::int8 FROM unnest(given) AS g (name) WHERE g.name ~ '^_[0-9]{1,18}$'
        ) AS f CROSS JOIN LATERAL (SELECT * FROM towline.tasks AS each WHERE each.id = f.id) AS t
        WHERE t.queue = q.id AND coalesce(t.name, '_' || t.id) = ANY (given) AND t.id > after
            AND towline.settled_state(t.*, q, now) = ANY (states)
            AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL))
        ORDER BY t.id LIMIT most;
        RETURN;
    END IF;
    IF 0 = ANY (states) THEN
        stored := stored || '{1, 2}'::int2[];
    END IF;
    IF 3 = ANY (states) THEN
        stored := stored || 2::int2;
    END IF;
    total := (SELECT sum(towline.gauge(q.id, d.state, tags)) FROM (SELECT DISTINCT unnest(stored) AS state) AS d);
    IF total = 0 THEN
        RETURN;
    ELSIF total <= 5000 THEN
        RETURN QUERY SELECT t.* FROM (SELECT DISTINCT unnest(stored) AS state) AS d
            CROSS JOIN LATERAL (
                SELECT * FROM towline.tasks AS each WHERE each.queue = q.id AND each.state = d.state
                    AND (tags IS NULL OR each.tag = ANY (tags) OR (tags = '{}' AND each.tag IS NULL))
            ) AS t
            WHERE t.id > after AND towline.settled_state(t.*, q, now) = ANY (states)
            ORDER BY t.id LIMIT most;
    ELSE
        RETURN QUERY SELECT t.* FROM towline.tasks AS t
            WHERE t.id > after AND t.queue + 0 = q.id AND t.state - 0 = ANY (stored)
                AND towline.settled_state(t.*, q, now) = ANY (states)
                AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL))
            ORDER BY t.id LIMIT most;
    END IF;
END $$;
