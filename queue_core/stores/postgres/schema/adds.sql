-- The add verb. Outcomes: 0 added, 1 the name exists, 2 it is still taken by a deleted task.
-- connection, call, meaning: see commit_markers.sql; NULL: the call leaves no marker.

-- Add tasks to one queue, in order. An empty array means: no tag, at once, no name, for all of them; so do NULL bounds
-- of leases and NULL headers. low_ceiling, names_until: of the queue's floors.
CREATE FUNCTION add_run(
    queue_id int4, has_tags bool, slot int8, now int8, payloads bytea[], tags text[], etas int8[], names text[],
    bounds int4[], headers text[], priorities int2[], low_ceiling int8, names_until int8, OUT ids int8[], OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    one text := tags[1];
    total int4 := cardinality(payloads);
    is_named bool := names <> '{}' AND (total > 1 OR names[1] IS NOT NULL);
    is_plain bool := etas = '{}' AND (tags = '{}' OR total = 1 OR tags = array_fill(tags[1], ARRAY[cardinality(tags)]));
BEGIN
    IF NOT has_tags AND tags <> '{}' AND tags <> array_fill(NULL::text, ARRAY[total]) THEN
        UPDATE towline.queues AS e SET has_tags = true WHERE e.id = queue_id;
    END IF;
    IF array_remove(priorities, NULL) <> '{}' THEN
        UPDATE towline.queues AS e SET has_priorities = true, is_limited = true
        WHERE e.id = queue_id AND NOT e.has_priorities;
    END IF;
    IF is_named THEN
        IF total = 1 THEN
            SELECT ARRAY[t.id], ARRAY[t.outcome] INTO ids, outcomes
            FROM towline.take_name(queue_id, now, names[1]) AS t;
        ELSE
            SELECT t.ids, t.outcomes INTO ids, outcomes FROM towline.take_names(queue_id, now, names) AS t;
        END IF;
        PERFORM towline.forget_names(now, total, names_until);
        is_plain := false;
        WITH new AS (
            INSERT INTO towline.tasks AS t (
                id, eta, ready_at, added_at, queue, state, max_leases, tag, name, headers, payload, priority
            )
            SELECT n.id, coalesce(n.eta, now), coalesce(n.eta, now), now, queue_id,
                CASE WHEN n.eta > now THEN 1 ELSE -coalesce(n.priority, 0) END, n.bound, n.tag, n.name, n.headers, n.payload,
                n.priority
            FROM unnest(ids, payloads, tags, etas, names, bounds, headers, priorities)
                AS n (id, payload, tag, eta, name, bound, headers, priority)
            WHERE n.id IS NOT NULL
            RETURNING t.tag, t.eta
        )
        SELECT coalesce(array_agg(new.tag), '{}'), coalesce(array_agg(new.eta), '{}') INTO tags, etas FROM new;
    ELSIF total = 1 THEN
        INSERT INTO towline.tasks AS t (
            id, eta, ready_at, added_at, queue, state, max_leases, tag, headers, payload, priority
        )
        VALUES (
            nextval('towline.task_ids'), coalesce(etas[1], now), coalesce(etas[1], now), now, queue_id,
            CASE WHEN etas[1] > now THEN 1 ELSE -coalesce(priorities[1], 0) END, bounds[1], one, headers[1], payloads[1],
            priorities[1]
        )
        RETURNING ARRAY[t.id] INTO ids;
    ELSE
        WITH new AS (
            INSERT INTO towline.tasks AS t (
            id, eta, ready_at, added_at, queue, state, max_leases, tag, headers, payload, priority
        )
            SELECT nextval('towline.task_ids'), coalesce(n.eta, now), coalesce(n.eta, now), now, queue_id,
                CASE WHEN n.eta > now THEN 1 ELSE -coalesce(n.priority, 0) END, n.bound, n.tag, n.headers, n.payload, n.priority
            FROM unnest(payloads, tags, etas, bounds, headers, priorities)
                AS n (payload, tag, eta, bound, headers, priority)
            RETURNING t.id
        )
        SELECT array_agg(new.id) INTO ids FROM new;
    END IF;
    IF total = 1 AND NOT is_named AND coalesce(etas[1], now) < low_ceiling
        OR (total > 1 OR is_named) AND (now < low_ceiling OR etas <> '{}' AND towline.lowest_of(etas) < low_ceiling)
    THEN
        PERFORM towline.lower_floors(
            queue_id, array_agg(CASE WHEN n.eta > now THEN 1 ELSE 0 END)::int2[], array_agg(n.tag),
            array_agg(coalesce(n.eta, now))
        )
        FROM (
            SELECT r.tag, r.eta FROM unnest(tags, etas, CASE WHEN is_named THEN NULL ELSE payloads END) AS r (tag, eta, payload)
        ) AS n;
    END IF;
    -- The tag comes first: if its row is missing, the row of all tagged tasks is counted with it.
    IF is_plain THEN
        UPDATE towline.counts AS c SET ready = c.ready + total, added = c.added + total, changed_at = now
        WHERE c.queue = queue_id AND c.kind = CASE WHEN one IS NULL THEN 1 ELSE 2 END AND c.tag = coalesce(one, '')
            AND c.slot = add_run.slot;
    END IF;
    IF is_plain AND FOUND THEN
        IF one IS NOT NULL THEN
            UPDATE towline.counts AS c SET ready = c.ready + total, added = c.added + total, changed_at = now
            WHERE c.queue = queue_id AND c.kind = 0 AND c.tag = '' AND c.slot = add_run.slot;
        END IF;
    ELSE
        PERFORM towline.count_added(
            queue_id, slot, now,
            CASE WHEN tags = '{}' AND NOT is_named THEN array_fill(NULL::text, ARRAY[total]) ELSE tags END, etas
        );
    END IF;
END $$;

-- Add tasks. `queues` has one name for all of them, or one for each. NULL `bounds`, `headers`: none has its own.
CREATE FUNCTION add(
    queues text[], now int8, payloads bytea[], tags text[], etas int8[], names text[],
    connection int8 DEFAULT NULL, call int8 DEFAULT NULL, meaning int8 DEFAULT NULL, bounds int4[] DEFAULT NULL, headers text[] DEFAULT NULL,
    priorities int2[] DEFAULT NULL,
    OUT refusal int8, OUT note text, OUT xid int8, OUT ids int8[], OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    lane int2;
    f towline.floors;
    queue_id int4;
    is_limited bool;
    q towline.queues;
    moved text;
    has_tags bool;
    queue_name text;
    total CONSTANT int4 := cardinality(payloads);
    first int4 := 1;
    last int4;
    run record;
    is_marked bool;
BEGIN
    lane := CASE
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 0) THEN 0
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 1) THEN 1
        ELSE towline.take_slot()
    END;
    FOREACH queue_name IN ARRAY CASE
        WHEN cardinality(queues) = 1 THEN queues ELSE towline.distinct_names(queues)
    END LOOP
        IF pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name)) IS NULL THEN
            RETURN;  -- never: in a condition a function is called without a query around it
        END IF;
        SELECT e.id, e.moved_to, e.has_tags, e.is_limited INTO queue_id, moved, has_tags, is_limited
        FROM towline.queues AS e WHERE e.name = queue_name;
        IF queue_id IS NULL THEN
            refusal := 1;
            note := queue_name || ' ' || coalesce(towline.some_queues(), '');
            RETURN;
        ELSIF moved <> '' THEN
            refusal := 2;
            note := queue_name || ' ' || moved;
            RETURN;
        END IF;
    END LOOP;
    IF cardinality(queues) = 1 THEN
        IF total > 0 THEN
            SELECT * INTO f FROM towline.floors AS s WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1;
            run := towline.add_run(
                queue_id, has_tags, coalesce(f.epoch, 0) * 32 + 1 + lane, now, payloads, tags, etas, names, bounds, headers,
                priorities, f.ceiling, coalesce(f.names_until, 0)
            );
            ids := run.ids;
            outcomes := run.outcomes;
            IF is_limited THEN
                SELECT * INTO q FROM towline.queues AS e WHERE e.id = queue_id;
                PERFORM towline.update_added(q, now, tags, total);
            END IF;
        END IF;
    ELSE
        WHILE first <= total LOOP
            last := first;
            WHILE last < total AND queues[last + 1] = queues[first] LOOP
                last := last + 1;
            END LOOP;
            SELECT e.id, e.has_tags INTO queue_id, has_tags FROM towline.queues AS e WHERE e.name = queues[first];
            SELECT * INTO f FROM towline.floors AS s WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1;
            run := towline.add_run(
                queue_id, has_tags, coalesce(f.epoch, 0) * 32 + 1 + lane, now, payloads[first:last], tags[first:last],
                etas[first:last], names[first:last], bounds[first:last], headers[first:last],
                priorities[first:last], f.ceiling,
                coalesce(f.names_until, 0)
            );
            ids := ids || run.ids;
            outcomes := outcomes || coalesce(run.outcomes, array_fill(0::int2, ARRAY[last - first + 1]));
            first := last + 1;
        END LOOP;
        FOR q IN SELECT * FROM towline.queues AS e WHERE e.name = ANY (queues) AND e.is_limited ORDER BY e.name LOOP
            PERFORM towline.update_added(q, now, of.tags, cardinality(of.tags)) FROM (
                SELECT array_agg(u.tag ORDER BY u.place) AS tags
                FROM unnest(queues, tags) WITH ORDINALITY AS u (queue, tag, place) WHERE u.queue = q.name
            ) AS of;
        END LOOP;
    END IF;
    xid := txid_current_if_assigned();
    IF call IS NOT NULL AND xid IS NOT NULL THEN
        is_marked := towline.set_commit_marker(
            connection, call, CASE WHEN outcomes IS NULL THEN ids ELSE towline.added_ids(ids, outcomes) END, meaning
        );
    END IF;
END $$;

-- Add one task without a name or a bound of its own, on the fast path of `add` (ADR 11): no arrays, nothing that only
-- other cases need. Return its id; NULL: nothing was done, so `add` must be called. eta NULL: at once.
CREATE FUNCTION add_one(
    queue_name text, now int8, payload bytea, tag text, eta int8, headers text, connection int8, call int8, meaning int8,
    OUT xid int8, OUT id int8
) LANGUAGE plpgsql AS $$
DECLARE
    queue_id int4;
    has_tags bool;
    free_slot int8;
    epoch int8;
    low_ceiling int8;
    is_delayed CONSTANT int4 := CASE WHEN eta > now THEN 1 ELSE 0 END;
    is_marked bool;
BEGIN
    IF pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name)) IS NULL THEN
        RETURN;  -- never: in a condition a function is called without a query around it
    END IF;
    SELECT e.id, e.has_tags, f.epoch, f.ceiling INTO queue_id, has_tags, epoch, low_ceiling
    FROM towline.queues AS e LEFT JOIN LATERAL (
        SELECT s.epoch, s.ceiling FROM towline.floors AS s WHERE s.queue = e.id ORDER BY s.step DESC LIMIT 1
    ) AS f ON true
    WHERE e.name = queue_name AND e.moved_to = '' AND NOT e.is_limited;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    free_slot := CASE
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 0) THEN 0
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 1) THEN 1
        ELSE towline.take_slot()
    END + 1 + coalesce(epoch, 0) * 32;
    IF coalesce(eta, now) < low_ceiling THEN
        PERFORM towline.lower_floors(queue_id, ARRAY[is_delayed]::int2[], ARRAY[tag], ARRAY[coalesce(eta, now)]);
    END IF;
    IF tag IS NOT NULL AND NOT has_tags THEN
        UPDATE towline.queues AS e SET has_tags = true WHERE e.id = queue_id;
    END IF;

    id := nextval('towline.task_ids');
    INSERT INTO towline.tasks (id, eta, ready_at, added_at, queue, state, tag, headers, payload)
    VALUES (add_one.id, coalesce(eta, now), coalesce(eta, now), now, queue_id, is_delayed, tag, headers, payload);

    -- The tag comes first: if its row is missing, the row of all tagged tasks is counted with it.
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
        is_marked := towline.set_commit_marker(connection, call, ARRAY[id], meaning);
    END IF;
END $$;

-- Update the lanes of tags of which tasks were added. The client must know that they may wait for their lanes.
CREATE FUNCTION update_added(q towline.queues, now int8, of_tags text[], total int4) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF q.has_lanes THEN
        PERFORM towline.tell(json_build_array('lanes', q.name));
    END IF;
    IF total > 0 THEN
        PERFORM towline.update_lanes(
            q, towline.count_slot(q.id), now, CASE WHEN of_tags <> '{}' THEN of_tags ELSE ARRAY[NULL]::text[] END, 0
        );
    END IF;
END $$;
