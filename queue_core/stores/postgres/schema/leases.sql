-- The choice of tasks to lease, and the lease of one delayed task.

-- Lock up to `wanted` ready tasks of several tags, in lease order; tasks that others have locked are skipped.
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
    floors int8[];
    f CONSTANT towline.floors := towline.floors_of(queue_id);
BEGIN
    places := '{}';
    tags := '{}';
    floors := ARRAY(
        SELECT towline.tag_floor(queue_id, f.effective, f.ready, w.tag)
        FROM unnest(wanted_tags) WITH ORDINALITY AS w (tag, place) ORDER BY w.place
    );
    LOOP
        SELECT array_agg(first.id ORDER BY first.eta, first.id), max(first.eta) INTO candidates, last_eta
        FROM (
            SELECT head.eta, head.id
            FROM unnest(wanted_tags, floors) AS w (tag, floor) CROSS JOIN LATERAL (
                SELECT t.eta, t.id FROM towline.tasks AS t
                WHERE t.queue = queue_id AND t.tag = w.tag AND t.state + 0 = 0
                    -- One bound: of two, the index begins at either.
                    AND (t.eta, t.id) > (
                        greatest(w.floor, last_eta),
                        CASE WHEN w.floor > last_eta THEN -9223372036854775808 ELSE last_id END
                    )
                    AND (t.eta, t.id) < (end_eta, end_id)
                ORDER BY t.eta, t.id LIMIT missing
            ) AS head
            ORDER BY head.eta, head.id LIMIT missing
        ) AS first;
        EXIT WHEN candidates IS NULL;
        SELECT array_agg(l.ctid), array_agg(l.tag) INTO locked, locked_tags FROM (
            -- Skip a task that was leased and came back in a later place since it was read.
            SELECT t.ctid, t.tag FROM towline.tasks AS t
            WHERE t.id = ANY (candidates) AND t.state - 0 = 0 AND t.eta + 0 <= last_eta
            FOR UPDATE SKIP LOCKED
        ) AS l;
        places := places || locked;
        tags := tags || locked_tags;
        EXIT WHEN cardinality(candidates) < missing OR cardinality(places) >= wanted;
        -- Only with the eta that was read: a lease meanwhile has changed it.
        last_id := candidates[cardinality(candidates)];
        missing := wanted - cardinality(places);
    END LOOP;
END $$;

-- Return the tag of the oldest ready task, of these tags unless they are empty, and whether there is one.
CREATE FUNCTION oldest_tag(
    queue_id int4, wanted_tags text[], end_eta int8, end_id int8, OUT is_found bool, OUT tag text
) LANGUAGE plpgsql AS $$
DECLARE
    picked record;
    is_in_place bool;
    place tid;
    last_place tid;
    f CONSTANT towline.floors := towline.floors_of(queue_id);
BEGIN
    IF wanted_tags = '{}' THEN
        LOOP
            SELECT t.tag, t.ctid, t.leased_at = 0 INTO tag, place, is_in_place FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = 0 AND t.eta >= f.ready AND (t.eta, t.id) < (end_eta, end_id)
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

-- Return, of locked tasks, the first in lease order that fit a lease; their tags; and the number left over of each tag,
-- as JSON: callers that skipped them while they were locked are woken for them.
CREATE FUNCTION fitting(
    picked tid[], room_bytes int8, each_bytes int4, fewest int4, OUT places tid[], OUT tags text[], OUT left_over text
) LANGUAGE sql AS $$
    WITH measured AS (
        SELECT t.ctid AS place, t.tag, row_number() OVER in_order AS number,
            sum(
                octet_length(t.payload) + coalesce(octet_length(t.tag), 0) + coalesce(octet_length(t.name), 0)
                + each_bytes
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

-- Lease one delayed task before its eta, if it is exactly the expected one: a suspected task that must run alone
-- (quarantine). Returns the rows of `exchange`.
CREATE FUNCTION lease_delayed(
    queue_name text, now int8, task_id int8, expected int8, worker_name text, asked_seconds float8
) RETURNS SETOF towline.lease_row LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    task towline.tasks;
    known towline.workers;
    seconds float8;
    end_at int8;
    ahead int8[];
    slot int8;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    -- A transaction that retires the worker waits for the end of this one, or is seen here.
    IF worker_name <> '' THEN
        PERFORM pg_advisory_xact_lock_shared('towline.workers'::regclass::oid::int4, hashtext(worker_name));
    END IF;
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND THEN
        RETURN NEXT towline.lease_outcome_row(1, queue_name || ' ' || coalesce(towline.some_queues(), ''), 0);
        RETURN;
    ELSIF q.moved_to <> '' THEN
        RETURN NEXT towline.lease_outcome_row(2, queue_name || ' ' || q.moved_to, 0);
        RETURN;
    END IF;
    SELECT * INTO known FROM towline.workers AS w WHERE w.worker = worker_name;
    seconds := coalesce(asked_seconds, q.lease_seconds);
    IF known.retired_at IS NOT NULL THEN
        RETURN NEXT towline.lease_outcome_row(3, worker_name, 0);
        RETURN;
    ELSIF seconds > q.max_lease_seconds THEN
        RETURN NEXT towline.lease_outcome_row(4, queue_name || ' ' || seconds || ' ' || q.max_lease_seconds, 0);
        RETURN;
    END IF;
    IF worker_name <> '' AND known.worker IS NULL THEN
        PERFORM towline.remember_worker(worker_name, now);
    END IF;
    SELECT * INTO task FROM towline.tasks AS t WHERE t.id = task_id AND t.queue + 0 = q.id FOR UPDATE;
    IF task.state = 1 AND task.eta = expected AND task.eta > now THEN
        slot := towline.count_slot(q.id);
        IF NOT towline.make_room_for(q, slot, now, task) THEN
            RETURN NEXT towline.lease_outcome_row(0, NULL, 0);
            RETURN;
        END IF;
        end_at := now + round(seconds * 1000000)::int8;
        ahead := towline.ahead_of(task.spent || task.eta, now);
        PERFORM towline.lower_floors(q.id, '{2}', '{NULL}', ARRAY[end_at]);
        RETURN QUERY UPDATE towline.tasks AS t SET
                state = 2, ready_at = now, leases = t.leases + 1, leased_at = greatest(now, t.leased_at + 1),
                worker = nullif(worker_name, ''), eta = towline.unspent_end(end_at, ahead), spent = ahead
            WHERE t.id = task_id
            RETURNING t.id, t.eta, t.ready_at, t.added_at, t.leased_at, t.leases, t.name, t.tag, t.payload,
                t.headers, t.checkpoint, NULL::int8, NULL::text, NULL::int4, NULL::int8, NULL::int8[], NULL::text[],
                NULL::text;
        PERFORM towline.count_tasks(q.id, slot, task.tag, now, ready => 1, delayed => -1);
        IF NOT q.is_limited THEN
            PERFORM towline.count_worked(q.id, slot, now, NULL, ARRAY[task.tag]);
        ELSE
            IF task.tag IS NOT NULL AND q.has_lanes THEN
                PERFORM towline.count_admitted(q.id, slot, now, ARRAY[task.tag], '{1}');  -- which `take_tokens` ends
            END IF;
            PERFORM towline.take_tokens(q, slot, now, ARRAY[task.tag]);
            PERFORM towline.update_lanes(q, slot, now, ARRAY[task.tag], 0);
        END IF;
    END IF;
    RETURN NEXT towline.lease_outcome_row(0, NULL, 0);
END $$;
