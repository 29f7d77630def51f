-- The add verb. Outcomes: 0 added, 1 the name exists, 2 it is still taken by a deleted task.

-- Give one name to a task, or tell why not. Whoever gives the same name meanwhile is waited for, and then found.
CREATE FUNCTION take_name(queue_id int4, now int8, given text, OUT id int8, OUT outcome int2) LANGUAGE plpgsql AS $$
DECLARE
    known towline.names;
BEGIN
    LOOP
        SELECT * INTO known FROM towline.names AS n WHERE n.queue = queue_id AND n.name = given FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO towline.names (queue, name, until) VALUES (queue_id, given, 0) ON CONFLICT DO NOTHING;
    END LOOP;
    outcome := CASE WHEN known.task IS NOT NULL THEN 1 WHEN known.until > now THEN 2 ELSE 0 END;
    IF outcome = 0 THEN
        id := nextval('towline.task_ids');
        UPDATE towline.names AS n SET task = take_name.id, until = NULL WHERE n.queue = queue_id AND n.name = given;
    END IF;
END $$;

-- An id for each new task, in order; NULL where its name is taken. Names are locked in their order.
CREATE FUNCTION take_names(queue_id int4, now int8, given text[], OUT ids int8[], OUT outcomes int2[])
LANGUAGE plpgsql AS $$
DECLARE
    is_known bool[];
    missing int8;
    place int4;
    late record;
BEGIN
    SELECT array_agg(CASE j.outcome WHEN 0 THEN nextval('towline.task_ids') END), array_agg(j.outcome),
        array_agg(j.is_known), count(*) FILTER (WHERE j.outcome = 0 AND NOT j.is_known AND j.name IS NOT NULL)
    INTO ids, outcomes, is_known, missing
    FROM (
        SELECT g.name, k.name IS NOT NULL AS is_known, CASE
                WHEN k.task IS NOT NULL THEN 1 WHEN k.until > now THEN 2
                WHEN g.name IS NOT NULL AND row_number() OVER (PARTITION BY g.name ORDER BY g.place) > 1 THEN 1
                ELSE 0
            END AS outcome
        FROM (
            SELECT * FROM unnest(given) WITH ORDINALITY AS o (name, place) ORDER BY o.name
        ) AS g LEFT JOIN LATERAL (
            SELECT * FROM towline.names AS n WHERE n.queue = queue_id AND n.name = g.name FOR UPDATE
        ) AS k ON true
        ORDER BY g.place
    ) AS j;
    UPDATE towline.names AS n SET task = f.id, until = NULL
    FROM unnest(given, ids, is_known) AS f (name, id, is_known)
    WHERE f.is_known AND f.id IS NOT NULL AND n.queue = queue_id AND n.name = f.name;
    IF missing > 0 THEN
        WITH new AS (
            INSERT INTO towline.names AS n (queue, name, task)
            SELECT queue_id, f.name, f.id FROM unnest(given, ids, is_known) AS f (name, id, is_known)
            WHERE NOT f.is_known AND f.id IS NOT NULL AND f.name IS NOT NULL ORDER BY f.name
            ON CONFLICT DO NOTHING RETURNING n.task
        )
        SELECT missing - count(*) INTO missing FROM new;
    END IF;
    IF missing > 0 THEN  -- others gave these names meanwhile
        FOR place IN
            SELECT f.place FROM unnest(given, ids) WITH ORDINALITY AS f (name, id, place)
            WHERE f.id IS NOT NULL AND f.name IS NOT NULL AND NOT EXISTS (
                SELECT FROM towline.names AS n WHERE n.queue = queue_id AND n.name = f.name AND n.task = f.id
            )
            ORDER BY f.name
        LOOP
            late := towline.take_name(queue_id, now, given[place]);
            ids[place] := late.id;
            outcomes[place] := late.outcome;
        END LOOP;
    END IF;
END $$;

-- Forget some names whose time has been over for a minute, as a clock may be set back a little: twice as many as were
-- given.
CREATE FUNCTION forget_names(now int8, given int4) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM towline.names AS n USING (
        SELECT f.queue, f.name FROM towline.names AS f WHERE f.until <= now - 60000000
        ORDER BY f.until LIMIT 2 * given FOR UPDATE SKIP LOCKED
    ) AS free
    WHERE n.queue = free.queue AND n.name = free.name;
END $$;

-- Count tasks that were added, by their tags and etas.
CREATE FUNCTION count_added(queue_id int4, slot int2, now int8, tags text[], etas int8[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, delayed, added, changed_at)
    SELECT queue_id, k.kind, slot, CASE k.kind WHEN 2 THEN n.tag ELSE '' END,
        count(*) - count(*) FILTER (WHERE n.eta > now), count(*) FILTER (WHERE n.eta > now), count(*), now
    FROM unnest(tags, etas) AS n (tag, eta) CROSS JOIN unnest(towline.kinds_of(n.tag)) AS k (kind) GROUP BY 2, 4
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed, added = c.added + excluded.added,
        changed_at = excluded.changed_at;
END $$;

-- Add tasks to one queue, in order. Arrays of nothing mean: no tag, at once, no name, for all of them.
CREATE FUNCTION add_run(
    queue_id int4, has_tags bool, slot int2, now int8, payloads bytea[], tags text[], etas int8[], names text[],
    OUT ids int8[], OUT outcomes int2[]
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
    IF is_named THEN
        IF total = 1 THEN
            SELECT ARRAY[t.id], ARRAY[t.outcome] INTO ids, outcomes FROM towline.take_name(queue_id, now, names[1]) AS t;
        ELSE
            SELECT t.ids, t.outcomes INTO ids, outcomes FROM towline.take_names(queue_id, now, names) AS t;
        END IF;
        PERFORM towline.forget_names(now, total);
        is_plain := false;
        WITH new AS (
            INSERT INTO towline.tasks AS t (id, eta, ready_at, added_at, queue, state, tag, name, payload)
            SELECT n.id, coalesce(n.eta, now), coalesce(n.eta, now), now, queue_id,
                CASE WHEN n.eta > now THEN 1 ELSE 0 END, n.tag, n.name, n.payload
            FROM unnest(ids, payloads, tags, etas, names) AS n (id, payload, tag, eta, name)
            WHERE n.id IS NOT NULL
            RETURNING t.tag, t.eta
        )
        SELECT coalesce(array_agg(new.tag), '{}'), array_agg(new.eta) INTO tags, etas FROM new;
    ELSIF total = 1 THEN
        INSERT INTO towline.tasks AS t (id, eta, ready_at, added_at, queue, state, tag, payload)
        VALUES (
            nextval('towline.task_ids'), coalesce(etas[1], now), coalesce(etas[1], now), now, queue_id,
            CASE WHEN etas[1] > now THEN 1 ELSE 0 END, one, payloads[1]
        )
        RETURNING ARRAY[t.id] INTO ids;
    ELSE
        WITH new AS (
            INSERT INTO towline.tasks AS t (id, eta, ready_at, added_at, queue, state, tag, payload)
            SELECT nextval('towline.task_ids'), coalesce(n.eta, now), coalesce(n.eta, now), now, queue_id,
                CASE WHEN n.eta > now THEN 1 ELSE 0 END, n.tag, n.payload
            FROM unnest(payloads, tags, etas) AS n (payload, tag, eta)
            RETURNING t.id
        )
        SELECT array_agg(new.id) INTO ids FROM new;
    END IF;
    -- The tag first: its row may be missing, and then all tagged tasks' is counted with it.
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

-- Add tasks. `queues` has one name for all of them, or one for each. wire, call: see 0018; NULL, it is not marked.
CREATE FUNCTION add(
    queues text[], now int8, payloads bytea[], tags text[], etas int8[], names text[],
    wire int8 DEFAULT NULL, call int8 DEFAULT NULL,
    OUT refusal int8, OUT note text, OUT xid int8, OUT ids int8[], OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    free_slot int2;
    queue_id int4;
    moved text;
    has_tags bool;
    queue_name text;
    total CONSTANT int4 := cardinality(payloads);
    first int4 := 1;
    last int4;
    run record;
    is_marked bool;
BEGIN
    free_slot := CASE
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 0) THEN 0
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 1) THEN 1
        ELSE towline.take_slot()
    END;
    FOREACH queue_name IN ARRAY CASE WHEN cardinality(queues) = 1 THEN queues ELSE towline.distinct_names(queues) END LOOP
        IF pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name)) IS NULL THEN
            RETURN;  -- never: in a condition a function is called without a query around it
        END IF;
        SELECT e.id, e.moved_to, e.has_tags INTO queue_id, moved, has_tags
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
            run := towline.add_run(queue_id, has_tags, free_slot, now, payloads, tags, etas, names);
            ids := run.ids;
            outcomes := run.outcomes;
        END IF;
    ELSE
        WHILE first <= total LOOP
            last := first;
            WHILE last < total AND queues[last + 1] = queues[first] LOOP
                last := last + 1;
            END LOOP;
            SELECT e.id, e.has_tags INTO queue_id, has_tags FROM towline.queues AS e WHERE e.name = queues[first];
            run := towline.add_run(
                queue_id, has_tags, free_slot, now, payloads[first:last], tags[first:last], etas[first:last],
                names[first:last]
            );
            ids := ids || run.ids;
            outcomes := outcomes || coalesce(run.outcomes, array_fill(0::int2, ARRAY[last - first + 1]));
            first := last + 1;
        END LOOP;
    END IF;
    xid := txid_current_if_assigned();
    IF call IS NOT NULL AND xid IS NOT NULL THEN
        is_marked := towline.mark(
            wire, call, CASE WHEN outcomes IS NULL THEN ids ELSE towline.added_ids(ids, outcomes) END
        );
    END IF;
END $$;
