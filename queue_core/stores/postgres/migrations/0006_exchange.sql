-- Lock up to `wanted` ready tasks of several tags, in lease order, passing over what others have locked.
CREATE FUNCTION pick_of_tags(
    queue_id int4, wanted_tags text[], wanted int4, end_eta int8, end_id int8, OUT places tid[], OUT tags text[]
) LANGUAGE plpgsql AS $$
DECLARE
    candidates int8[];
    last_eta int8 := -9223372036854775808;
    last_id int8 := 0;
    missing int4 := wanted;
    locked tid[];
    locked_tags text[];
BEGIN
    places := '{}';
    tags := '{}';
    LOOP
        SELECT array_agg(first.id ORDER BY first.eta, first.id), max(first.eta) INTO candidates, last_eta
        FROM (
            SELECT head.eta, head.id
            FROM unnest(wanted_tags) AS w (tag) CROSS JOIN LATERAL (
                SELECT t.eta, t.id FROM towline.tasks AS t
                WHERE t.queue = queue_id AND t.tag = w.tag AND t.state + 0 = 0 AND (t.eta, t.id) > (last_eta, last_id)
                    AND (t.eta, t.id) < (end_eta, end_id)
                ORDER BY t.eta, t.id LIMIT missing
            ) AS head
            ORDER BY head.eta, head.id LIMIT missing
        ) AS first;
        EXIT WHEN candidates IS NULL;
        SELECT array_agg(l.ctid), array_agg(l.tag) INTO locked, locked_tags FROM (
            -- Not what has been leased and is back in a later place since it was looked at.
            SELECT t.ctid, t.tag FROM towline.tasks AS t
            WHERE t.id = ANY (candidates) AND t.state - 0 = 0 AND t.eta + 0 <= last_eta
            FOR UPDATE SKIP LOCKED
        ) AS l;
        places := places || locked;
        tags := tags || locked_tags;
        EXIT WHEN cardinality(candidates) < missing OR cardinality(places) >= wanted;
        -- As it was found: whoever leased it meanwhile has moved its eta.
        last_id := candidates[cardinality(candidates)];
        missing := wanted - cardinality(places);
    END LOOP;
END $$;

-- The tag of the oldest ready task, of these tags unless they are empty; `found` tells whether there is one.
CREATE FUNCTION oldest_tag(
    queue_id int4, wanted_tags text[], end_eta int8, end_id int8, OUT is_found bool, OUT tag text
) LANGUAGE plpgsql AS $$
DECLARE
    picked record;
    is_in_place bool;
    place tid;
    last_place tid;
BEGIN
    IF wanted_tags = '{}' THEN
        LOOP
            SELECT t.tag, t.ctid, t.leased_at = 0 INTO tag, place, is_in_place FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = 0 AND (t.eta, t.id) < (end_eta, end_id)
            ORDER BY t.eta, t.id LIMIT 1 FOR UPDATE SKIP LOCKED;
            is_found := FOUND;
            EXIT WHEN NOT is_found OR is_in_place OR place = last_place;  -- see `exchange`
            last_place := place;
        END LOOP;
    ELSE
        SELECT * INTO picked FROM towline.pick_of_tags(queue_id, wanted_tags, 1, end_eta, end_id);
        is_found := picked.places <> '{}';
        tag := picked.tags[1];
    END IF;
END $$;

-- Keep in mind when a worker was first seen, and forget a few that were retired 30 days ago.
CREATE FUNCTION remember_worker(worker_name text, now int8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO towline.workers (worker, seen_at) VALUES (worker_name, now) ON CONFLICT DO NOTHING;
    DELETE FROM towline.workers AS w USING (
        SELECT f.worker FROM towline.workers AS f WHERE f.retired_at < now - 2592000000000
        ORDER BY f.retired_at LIMIT 4 FOR UPDATE SKIP LOCKED
    ) AS gone
    WHERE w.worker = gone.worker;
END $$;

-- Delete what is done (`ids` NULL: nothing; one of `grants` stands for all, if the ids rise), then settle and lease up to `wanted` tasks (0: lease nothing).
-- filter: 0 any, 1 these tags, 2 untagged, 3 the tag of the oldest. wire, call: see 0018; NULL, it is not marked.
CREATE FUNCTION exchange(
    queue_name text, now int8, ids int8[], grants int8[], wanted int4, asked_seconds float8, filter int2, tags text[],
    worker_name text, wire int8 DEFAULT NULL, call int8 DEFAULT NULL
) RETURNS SETOF towline.worked LANGUAGE plpgsql AS $$
DECLARE
    queue_id int4;
    moved text;
    is_paused bool;
    has_tags bool;
    seconds float8;
    max_seconds float8;
    retention_seconds float8;
    retired int8;
    is_known bool;
    is_due bool;
    q towline.queues;
    free_slot int2 := 0;
    flags int4 := 0;
    end_at int8;
    end_eta int8 := 9223372036854775807;
    end_id int8 := 0;
    numbers int8[];
    texts text[];
    settled text;
    picked tid[];  -- where they are: locked, they stay there
    last_picked tid[];
    are_in_place bool;
    gone_tags text[];
    picked_tags text[];
    one text;  -- the tag of all that is counted, if `is_plain`
    is_plain bool := true;
    gone int4 := 0;
    taken int4 := 0;
    is_marked bool;
BEGIN
    IF pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name)) IS NULL THEN
        RETURN;  -- never: in a condition a function is called without a query around it
    END IF;
    -- Whoever retires the worker waits until this lease is told, or is seen here.
    IF worker_name <> ''
        AND pg_advisory_xact_lock_shared('towline.workers'::regclass::oid::int4, hashtext(worker_name)) IS NULL
    THEN
        RETURN;
    END IF;
    IF NOT pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 0) THEN
        free_slot := towline.take_slot();
    END IF;
    SELECT e.id, e.moved_to, e.paused, e.has_tags, coalesce(asked_seconds, e.lease_seconds), e.max_lease_seconds,
        e.name_retention_seconds, w.retired_at, w.worker IS NOT NULL OR worker_name = '',
        wanted > 0 AND (
            EXISTS (SELECT FROM towline.tasks AS t WHERE t.queue = e.id AND t.state = 1 AND t.eta <= now)
            OR EXISTS (SELECT FROM towline.tasks AS t WHERE t.queue = e.id AND t.state = 2 AND t.eta <= now)
        )
    INTO queue_id, moved, is_paused, has_tags, seconds, max_seconds, retention_seconds, retired, is_known, is_due
    FROM towline.queues AS e LEFT JOIN towline.workers AS w ON w.worker = worker_name WHERE e.name = queue_name;
    IF NOT FOUND THEN
        RETURN NEXT towline.work_answer(1, queue_name || ' ' || coalesce(towline.some_queues(), ''), 0);
        RETURN;
    ELSIF moved <> '' THEN
        RETURN NEXT towline.work_answer(2, queue_name || ' ' || moved, 0);
        RETURN;
    ELSIF retired IS NOT NULL AND wanted > 0 THEN
        IF ids IS NULL THEN
            RETURN NEXT towline.work_answer(3, worker_name, 0);
            RETURN;
        END IF;
        flags := 2;
    END IF;
    IF wanted > 0 AND seconds > max_seconds THEN
        RETURN NEXT towline.work_answer(4, queue_name || ' ' || seconds || ' ' || max_seconds, 0);
        RETURN;
    END IF;

    IF ids IS NOT NULL THEN
        -- The conditions beside the id are so written that no index offers itself for them: without statistics the
        -- planner takes the wrong one. Tasks that were added together are leased together: their ids lie side by side, and
        -- are found by one descent of the index instead of one each.
        IF cardinality(grants) = 1 AND ids[cardinality(ids)] - ids[1] < 4 * cardinality(ids) THEN
            WITH gone AS (
                DELETE FROM towline.tasks AS t
                WHERE t.id BETWEEN ids[1] AND ids[cardinality(ids)] AND t.leased_at = grants[1] AND t.queue + 0 = queue_id
                    AND t.state - 0 = 2 AND t.eta + 0 > now
                    AND (ids[cardinality(ids)] - ids[1] = cardinality(ids) - 1 OR t.id = ANY (ids))
                RETURNING t.id, t.leases, greatest(0, t.leased_at - t.ready_at) AS waited, t.leased_at, t.name, t.tag,
                    t.worker
            )
            INSERT INTO towline.samples AS s (queue, size, outcome, numbers, texts, ended_at)
            SELECT queue_id, count(*), 'deleted', array_agg(ARRAY[g.id, g.leases, g.waited, g.leased_at]),
                array_agg(ARRAY[g.name, g.tag, g.worker]), ARRAY[now]
            FROM gone AS g HAVING count(*) > 0
            RETURNING s.size, s.numbers, s.texts INTO gone, numbers, texts;
        ELSE
            WITH gone AS (
                DELETE FROM towline.tasks AS t USING unnest(ids, grants) AS f (id, leased_at)
                WHERE t.id = f.id AND t.leased_at = coalesce(f.leased_at, grants[1]) AND t.queue + 0 = queue_id
                    AND t.state - 0 = 2 AND t.eta + 0 > now
                RETURNING t.id, t.leases, greatest(0, t.leased_at - t.ready_at) AS waited, t.leased_at, t.name, t.tag,
                    t.worker
            )
            INSERT INTO towline.samples AS s (queue, size, outcome, numbers, texts, ended_at)
            SELECT queue_id, count(*), 'deleted', array_agg(ARRAY[g.id, g.leases, g.waited, g.leased_at]),
                array_agg(ARRAY[g.name, g.tag, g.worker]), ARRAY[now]
            FROM gone AS g HAVING count(*) > 0
            RETURNING s.size, s.numbers, s.texts INTO gone, numbers, texts;
        END IF;
        gone := coalesce(gone, 0);
        IF gone > 0 THEN
            IF texts[:][1:1] <> array_fill(NULL::text, ARRAY[gone, 1]) THEN
                UPDATE towline.names AS n SET task = NULL, until = now + round(retention_seconds * 1000000)::int8
                FROM unnest(texts[:][1:1]) AS g (name) WHERE n.queue = queue_id AND n.name = g.name;
            END IF;
            gone_tags := texts[:][2:2];
            one := gone_tags[1][1];
            is_plain := gone = 1 OR gone_tags = array_fill(one, ARRAY[gone, 1]);
        END IF;
    END IF;

    IF wanted > 0 AND flags = 0 THEN
        IF NOT is_known THEN
            PERFORM towline.remember_worker(worker_name, now);
        END IF;
        IF is_due THEN
            SELECT h.end_eta, h.end_id INTO end_eta, end_id FROM towline.horizon(queue_id, now, 500) AS h;
            flags := CASE WHEN end_id = 0 THEN 0 ELSE 1 END;
            SELECT * INTO q FROM towline.queues AS e WHERE e.id = queue_id;
            settled := towline.settle_before(q, free_slot, now, end_eta, end_id);
        END IF;
        -- Not what is ready from later on: such a row was leased, and is back in another place, since this call began.
        -- By this server's clock: `now` may have been stepped back, and what was ready then is ready still.
        end_eta := least(
            end_eta, greatest(now, (extract(epoch FROM statement_timestamp()) * 1000000)::int8) + 1
        );
        IF is_paused THEN
            filter := -1;
        ELSIF filter = 3 THEN
            SELECT CASE WHEN NOT o.is_found THEN -1 WHEN o.tag IS NULL THEN 2 ELSE 1 END, ARRAY[o.tag] INTO filter, tags
            FROM towline.oldest_tag(queue_id, tags, end_eta, end_id) AS o;
        ELSIF filter = 1 AND cardinality(tags) > 1 THEN
            filter := 4;
        ELSIF filter = 0 AND has_tags THEN
            filter := 5;
        END IF;
        -- A row that others change between a look and its lock is locked as it has become: leased, expired and ready again,
        -- it is in a later place. So what was ever leased is looked for again, until all of it was locked before the look.
        LOOP
            CASE filter
            WHEN 0, 2 THEN
                -- 0: no task had a tag yet; one that came a moment ago is left to the next call, as it would be miscounted.
                SELECT array_agg(p.ctid), bool_and(p.leased_at = 0) INTO picked, are_in_place FROM (
                    SELECT t.ctid, t.leased_at FROM towline.tasks AS t
                    WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0 AND (t.eta, t.id) < (end_eta, end_id)
                    ORDER BY t.tag, t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
                ) AS p;
            WHEN 1 THEN
                SELECT array_agg(p.ctid), bool_and(p.leased_at = 0) INTO picked, are_in_place FROM (
                    SELECT t.ctid, t.leased_at FROM towline.tasks AS t
                    WHERE t.queue = queue_id AND t.tag = tags[1] AND t.state + 0 = 0 AND (t.eta, t.id) < (end_eta, end_id)
                    ORDER BY t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
                ) AS p;
            WHEN 4 THEN
                SELECT p.places, p.tags, true INTO picked, picked_tags, are_in_place
                FROM towline.pick_of_tags(queue_id, tags, wanted, end_eta, end_id) AS p;
            WHEN 5 THEN
                SELECT array_agg(p.ctid), array_agg(p.tag), bool_and(p.leased_at = 0)
                INTO picked, picked_tags, are_in_place FROM (
                    SELECT t.ctid, t.tag, t.leased_at FROM towline.tasks AS t
                    WHERE t.queue = queue_id AND t.state = 0 AND (t.eta, t.id) < (end_eta, end_id)
                    ORDER BY t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
                ) AS p;
            ELSE
                are_in_place := true;
            END CASE;
            EXIT WHEN are_in_place OR picked IS NULL OR picked = last_picked;
            last_picked := picked;
        END LOOP;
        IF picked <> '{}' THEN
            end_at := now + round(seconds * 1000000)::int8;
            RETURN QUERY UPDATE towline.tasks AS t SET
                    state = 2, ready_at = t.eta, leases = t.leases + 1, leased_at = greatest(now, t.leased_at + 1),
                    worker = nullif(worker_name, ''),
                    eta = CASE WHEN t.spent IS NULL THEN end_at
                        ELSE towline.unspent_end(end_at, towline.ahead_of(t.spent, now)) END,
                    spent = CASE WHEN t.spent IS NULL THEN NULL ELSE towline.ahead_of(t.spent, now) END
                WHERE t.ctid = ANY (picked)
                RETURNING t.id, t.eta, t.ready_at, t.added_at, t.leased_at, t.leases, t.name, t.tag, t.payload,
                    NULL::int8, NULL::text, NULL::int4, NULL::int8, NULL::int8[], NULL::text[], NULL::text;
            taken := cardinality(picked);
            picked_tags := coalesce(picked_tags, array_fill(CASE filter WHEN 1 THEN tags[1] END, ARRAY[taken]));
            is_plain := is_plain AND (gone = 0 OR one IS NOT DISTINCT FROM picked_tags[1])
                AND (taken = 1 OR picked_tags = array_fill(picked_tags[1], ARRAY[taken]));
            one := picked_tags[1];
        END IF;
    END IF;

    IF gone > 0 OR taken > 0 THEN
        IF is_plain THEN
            UPDATE towline.counts AS c SET
                ready = c.ready - taken, leased = c.leased + taken - gone, leases = c.leases + taken,
                deleted = c.deleted + gone, changed_at = now
            WHERE c.queue = queue_id AND c.kind = CASE WHEN one IS NULL THEN 1 ELSE 2 END AND c.tag = coalesce(one, '')
                AND c.slot = free_slot;
        END IF;
        IF is_plain AND FOUND THEN
            IF one IS NOT NULL THEN
                UPDATE towline.counts AS c SET
                    ready = c.ready - taken, leased = c.leased + taken - gone, leases = c.leases + taken,
                    deleted = c.deleted + gone, changed_at = now
                WHERE c.queue = queue_id AND c.kind = 0 AND c.tag = '' AND c.slot = free_slot;
            END IF;
        ELSE
            PERFORM towline.count_worked(queue_id, free_slot, now, gone_tags, picked_tags);
        END IF;
    END IF;
    IF call IS NOT NULL AND txid_current_if_assigned() IS NOT NULL THEN
        is_marked := towline.mark(wire, call);
    END IF;
    RETURN NEXT ROW(
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, flags, txid_current_if_assigned(), numbers, texts,
        settled
    )::towline.worked;
END $$;
