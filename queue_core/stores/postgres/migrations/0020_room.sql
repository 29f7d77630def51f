-- A lease has room for so many bytes: tasks that do not fit into one answer are not leased.

-- Of tasks that are locked, the first in lease order for which there is room; their tags; and how many of each tag are
-- left over, as JSON: whoever passed over them while they were locked is told of them.
CREATE FUNCTION fitting(
    picked tid[], room_bytes int8, each_bytes int4, fewest int4, OUT places tid[], OUT tags text[], OUT left_over text
) LANGUAGE sql AS $$
    WITH measured AS (
        SELECT t.ctid AS place, t.tag, row_number() OVER in_order AS number,
            sum(
                octet_length(t.payload) + coalesce(octet_length(t.tag), 0) + coalesce(octet_length(t.name), 0) + each_bytes
            ) OVER in_order AS total
        FROM towline.tasks AS t WHERE t.ctid = ANY (picked)
        WINDOW in_order AS (ORDER BY t.eta, t.id ROWS UNBOUNDED PRECEDING)
    ), kept AS (
        SELECT m.*, m.total <= room_bytes OR m.number <= fewest AS fits FROM measured AS m
    ), of_tags AS (
        SELECT k.tag, count(*) AS number FROM kept AS k WHERE NOT k.fits GROUP BY k.tag
    )
    SELECT
        (SELECT array_agg(k.place ORDER BY k.number) FROM kept AS k WHERE k.fits),
        (SELECT array_agg(k.tag ORDER BY k.number) FROM kept AS k WHERE k.fits),
        (SELECT json_agg(json_build_array(o.tag, o.number))::text FROM of_tags AS o)
$$;

DROP FUNCTION exchange(text, int8, int8[], int8[], int4, float8, int2, text[], text, int8, int8);

-- As it was, but for the room.
-- Delete what is done (`ids` NULL: nothing; one of `grants` stands for all, if the ids rise), then settle and lease up to `wanted` tasks (0: lease nothing).
-- filter: 0 any, 1 these tags, 2 untagged, 3 the tag of the oldest. wire, call: see 0018; NULL, it is not marked.
-- room_bytes: for the leased tasks together, with each_bytes for each; `fewest` are leased whatever their size. NULL: no bound.
CREATE FUNCTION exchange(
    queue_name text, now int8, ids int8[], grants int8[], wanted int4, asked_seconds float8, filter int2, tags text[],
    worker_name text, wire int8 DEFAULT NULL, call int8 DEFAULT NULL,
    room_bytes int8 DEFAULT NULL, each_bytes int4 DEFAULT 0, fewest int4 DEFAULT 1
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
    picked_bytes int8;  -- of their payloads; NULL: not measured
    left_over text;  -- how many tasks of each tag were picked, and are not leased for want of room
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
                SELECT array_agg(p.ctid), bool_and(p.leased_at = 0), sum(p.bytes)
                INTO picked, are_in_place, picked_bytes FROM (
                    SELECT t.ctid, t.leased_at, octet_length(t.payload) AS bytes FROM towline.tasks AS t
                    WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0 AND (t.eta, t.id) < (end_eta, end_id)
                    ORDER BY t.tag, t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
                ) AS p;
            WHEN 1 THEN
                SELECT array_agg(p.ctid), bool_and(p.leased_at = 0), sum(p.bytes)
                INTO picked, are_in_place, picked_bytes FROM (
                    SELECT t.ctid, t.leased_at, octet_length(t.payload) AS bytes FROM towline.tasks AS t
                    WHERE t.queue = queue_id AND t.tag = tags[1] AND t.state + 0 = 0 AND (t.eta, t.id) < (end_eta, end_id)
                    ORDER BY t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
                ) AS p;
            WHEN 4 THEN
                SELECT p.places, p.tags, true INTO picked, picked_tags, are_in_place
                FROM towline.pick_of_tags(queue_id, tags, wanted, end_eta, end_id) AS p;
            WHEN 5 THEN
                SELECT array_agg(p.ctid), array_agg(p.tag), bool_and(p.leased_at = 0), sum(p.bytes)
                INTO picked, picked_tags, are_in_place, picked_bytes FROM (
                    SELECT t.ctid, t.tag, t.leased_at, octet_length(t.payload) AS bytes FROM towline.tasks AS t
                    WHERE t.queue = queue_id AND t.state = 0 AND (t.eta, t.id) < (end_eta, end_id)
                    ORDER BY t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
                ) AS p;
            ELSE
                are_in_place := true;
            END CASE;
            EXIT WHEN are_in_place OR picked IS NULL OR picked = last_picked;
            last_picked := picked;
        END LOOP;
        -- A tag and a name have 500 bytes at most: only where all may not fit are they counted one by one.
        IF cardinality(picked) > fewest
            AND coalesce(picked_bytes + cardinality(picked) * (1000 + each_bytes) > room_bytes, room_bytes IS NOT NULL)
        THEN
            SELECT * INTO picked, picked_tags, left_over
            FROM towline.fitting(picked, room_bytes, each_bytes, fewest);
        END IF;
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
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, left_over, flags, txid_current_if_assigned(), numbers, texts,
        settled
    )::towline.worked;
END $$;

-- Planned as the others are: see 0012.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = current_schema()::regnamespace AND p.proname IN ('exchange', 'fitting')
    LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SET plan_cache_mode = force_generic_plan SET enable_seqscan = off'
            ' SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off', one
        );
    END LOOP;
END $$;
