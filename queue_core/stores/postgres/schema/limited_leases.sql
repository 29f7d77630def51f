-- Leases from queues that have limits, a rotation or priorities: see `lanes.sql`.

-- Return the first READY tasks in lease order, not locked. tag_filter: as of `exchange`, but for `oldest`. Those of
-- priority 0 come before the end, unless they are in a lane.
CREATE FUNCTION leasable(q towline.queues, tag_filter int2, tags text[], most int4, end_eta int8, end_id int8)
RETURNS TABLE (state int2, eta int8, id int8, tag text, head int2) LANGUAGE plpgsql STABLE AS $$
DECLARE
    in_lanes CONSTANT bool := q.has_lanes;
BEGIN
    IF tag_filter = 0 AND NOT in_lanes THEN
        RETURN QUERY SELECT a.*, a.state FROM (
            (
                SELECT t.state, t.eta, t.id, t.tag FROM towline.tasks AS t
                WHERE q.has_priorities AND t.queue = q.id AND t.state < 0 ORDER BY t.state, t.eta, t.id LIMIT most
            ) UNION ALL (
                SELECT t.state, t.eta, t.id, t.tag FROM towline.tasks AS t
                WHERE t.queue = q.id AND t.state = 0 AND t.eta >= (towline.floors_of(q.id)).ready
                    AND (t.eta, t.id) < (end_eta, end_id)
                ORDER BY t.eta, t.id LIMIT most
            )
        ) AS a ORDER BY 1, 2, 3 LIMIT most;
    ELSIF tag_filter IN (0, 2) THEN
        RETURN QUERY SELECT a.* FROM (
            (
                SELECT t.state, t.eta, t.id, t.tag, (t.state - 13)::int2 AS head FROM towline.tasks AS t
                WHERE tag_filter = 0 AND t.queue = q.id AND t.state > 3 ORDER BY t.state, t.eta, t.id LIMIT most
            ) UNION ALL (
                SELECT t.state, t.eta, t.id, t.tag, t.state FROM towline.tasks AS t
                WHERE q.has_priorities AND t.queue = q.id AND t.tag IS NULL AND t.state + 0 < 0
                ORDER BY t.tag, t.state + 0, t.eta, t.id LIMIT most
            ) UNION ALL (
                SELECT t.state, t.eta, t.id, t.tag, t.state FROM towline.tasks AS t
                WHERE t.queue = q.id AND t.tag IS NULL AND t.state + 0 = 0 AND (t.eta, t.id) < (end_eta, end_id)
                ORDER BY t.tag, t.eta, t.id LIMIT most
            )
        ) AS a ORDER BY 5, 2, 3 LIMIT most;
    ELSIF in_lanes THEN
        RETURN QUERY SELECT a.* FROM unnest(tags) AS w (tag) CROSS JOIN LATERAL (
            SELECT t.state, t.eta, t.id, t.tag, (t.state - 13)::int2 FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.tag = w.tag AND t.state + 0 > 3
            ORDER BY t.state + 0, t.eta, t.id LIMIT most
        ) AS a ORDER BY 5, 2, 3 LIMIT most;
    ELSE
        RETURN QUERY SELECT a.*, a.state FROM unnest(tags) AS w (tag) CROSS JOIN LATERAL (
            (
                SELECT t.state, t.eta, t.id, t.tag FROM towline.tasks AS t
                WHERE q.has_priorities AND t.queue = q.id AND t.tag = w.tag AND t.state + 0 < 0
                ORDER BY t.state + 0, t.eta, t.id LIMIT most
            ) UNION ALL (
                SELECT t.state, t.eta, t.id, t.tag FROM towline.tasks AS t
                WHERE t.queue = q.id AND t.tag = w.tag AND t.state + 0 = 0 AND (t.eta, t.id) < (end_eta, end_id)
                ORDER BY t.eta, t.id LIMIT most
            )
        ) AS a ORDER BY 1, 2, 3 LIMIT most;
    END IF;
END $$;

-- Lock tasks for a lease, in lease order. One that another transaction has locked, or leased since it was read, is
-- passed over.
CREATE FUNCTION pick_in_order(
    q towline.queues, tag_filter int2, tags text[], wanted int4, end_eta int8, end_id int8,
    OUT places tid[], OUT picked_tags text[]
) LANGUAGE plpgsql AS $$
DECLARE
    tried int8[] := '{}';
    candidates int8[];
    heads int2[];
    etas int8[];
    locked tid[];
    locked_tags text[];
    missing int4 := wanted;
BEGIN
    -- Nearly always one index has them all.
    IF tag_filter = 0 AND q.has_lanes AND NOT EXISTS (
        SELECT FROM towline.tasks AS t WHERE t.queue = q.id AND t.tag IS NULL AND t.state + 0 = 0
    ) AND (NOT q.has_priorities OR NOT EXISTS (
        SELECT FROM towline.tasks AS t WHERE t.queue = q.id AND t.tag IS NULL AND t.state + 0 < 0
    )) THEN
        SELECT array_agg(p.ctid), array_agg(p.tag) INTO places, picked_tags FROM (
            SELECT t.ctid, t.tag FROM towline.tasks AS t WHERE t.queue = q.id AND t.state > 3
            ORDER BY t.state, t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
        ) AS p;
        RETURN;
    ELSIF tag_filter = 1 AND q.has_lanes AND cardinality(tags) = 1 THEN
        SELECT array_agg(p.ctid), array_agg(p.tag) INTO places, picked_tags FROM (
            SELECT t.ctid, t.tag FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.tag = tags[1] AND t.state + 0 > 3
            ORDER BY t.state + 0, t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
        ) AS p;
        RETURN;
    END IF;
    places := '{}';
    picked_tags := '{}';
    LOOP
        SELECT array_agg(l.id), array_agg(l.head), array_agg(l.eta) INTO candidates, heads, etas
        FROM towline.leasable(q, tag_filter, tags, missing + cardinality(tried), end_eta, end_id) AS l
        WHERE l.id <> ALL (tried);
        EXIT WHEN candidates IS NULL;
        SELECT array_agg(l.ctid ORDER BY l.number), array_agg(l.tag ORDER BY l.number) INTO locked, locked_tags FROM (
            SELECT t.ctid, t.tag, c.number
            FROM unnest(candidates[:missing], heads, etas) WITH ORDINALITY AS c (id, head, eta, number)
            JOIN towline.tasks AS t ON t.id = c.id
            WHERE t.state - 0 NOT BETWEEN 1 AND 3 AND t.eta + 0 = c.eta
                AND CASE WHEN t.state - 0 > 3 THEN t.state - 13 ELSE t.state END = c.head
            FOR UPDATE OF t SKIP LOCKED
        ) AS l;
        places := places || locked;
        picked_tags := picked_tags || locked_tags;
        missing := wanted - cardinality(places);
        EXIT WHEN missing <= 0 OR cardinality(candidates) < missing;
        tried := tried || candidates;
    END LOOP;
END $$;

-- Lock tasks for a lease from one tag after the other, as the rotation has it; each goes to its end. The lanes are
-- held. room_bytes, each_bytes, fewest: as of `exchange`.
CREATE FUNCTION pick_in_rotation(
    q towline.queues, tag_filter int2, tags text[], wanted int4, room_bytes int8, each_bytes int4, fewest int4,
    OUT places tid[], OUT picked_tags text[], OUT next_tag text, OUT is_full bool
) LANGUAGE plpgsql AS $$
DECLARE
    is_of_one CONSTANT bool := tag_filter = 3;  -- the first in the rotation
    lane_kind int2;
    lane_tag text;
    task record;
    bytes int8 := 0;
    next_head int2;
BEGIN
    places := '{}';
    picked_tags := '{}';
    is_full := false;
    IF tag_filter = 3 THEN
        tag_filter := CASE WHEN tags = '{}' THEN 0 ELSE 1 END;
    END IF;
    WHILE cardinality(places) < wanted LOOP
        IF lane_kind IS NULL OR NOT is_of_one THEN
            IF tag_filter = 0 THEN
                SELECT l.kind, nullif(l.tag, '') INTO lane_kind, lane_tag FROM towline.lanes AS l
                WHERE l.queue = q.id AND l.head IS NOT NULL ORDER BY l.head, l.place LIMIT 1;
            ELSIF tag_filter = 2 THEN
                SELECT l.kind, NULL INTO lane_kind, lane_tag FROM (
                    SELECT * FROM towline.lanes AS each
                    WHERE each.queue = q.id AND each.kind = 1 AND each.tag = '' OFFSET 0
                ) AS l WHERE l.head IS NOT NULL;
            ELSE
                SELECT l.kind, l.tag INTO lane_kind, lane_tag FROM unnest(tags) AS w (tag) CROSS JOIN LATERAL (
                    SELECT * FROM towline.lanes AS each
                    WHERE each.queue = q.id AND each.kind = 2 AND each.tag = w.tag OFFSET 0
                ) AS l WHERE l.head IS NOT NULL ORDER BY l.head, l.place LIMIT 1;
            END IF;
            EXIT WHEN NOT FOUND;
        END IF;
        SELECT t.ctid, octet_length(t.payload) + coalesce(octet_length(t.tag), 0) + coalesce(octet_length(t.name), 0)
            + each_bytes AS bytes
        INTO task FROM towline.first_ready(q, lane_tag, places) AS f JOIN towline.tasks AS t ON t.id = f.id
        FOR UPDATE OF t SKIP LOCKED;
        IF FOUND THEN
            bytes := bytes + task.bytes;
            IF bytes > room_bytes AND cardinality(places) >= fewest THEN
                is_full := true;
                next_tag := lane_tag;
                EXIT;
            END IF;
            places := places || task.ctid;
            picked_tags := picked_tags || lane_tag;
            next_head := (towline.first_ready(q, lane_tag, places)).head;
        ELSE
            next_head := NULL;  -- it is in other hands, and looked for anew when they let it go
            INSERT INTO towline.lane_notes (queue, tag) VALUES (q.id, lane_tag);
        END IF;
        UPDATE towline.lanes AS l SET place = nextval('towline.places'), head = next_head
        WHERE l.queue = q.id AND l.kind = lane_kind AND l.tag = coalesce(lane_tag, '');
        EXIT WHEN is_of_one AND next_head IS NULL;
    END LOOP;
END $$;

-- Return those of the picked tasks that fit, in their order; the same as `fitting`, for any order.
CREATE FUNCTION fitting_in_order(
    picked tid[], room_bytes int8, each_bytes int4, fewest int4, OUT places tid[], OUT tags text[], OUT left_over text
) LANGUAGE plpgsql AS $$
BEGIN
    WITH measured AS (
        SELECT t.ctid AS place, t.tag, p.number, sum(
                octet_length(t.payload) + coalesce(octet_length(t.tag), 0) + coalesce(octet_length(t.name), 0)
                + each_bytes
            ) OVER (ORDER BY p.number ROWS UNBOUNDED PRECEDING) AS total
        FROM unnest(picked) WITH ORDINALITY AS p (place, number) JOIN towline.tasks AS t ON t.ctid = p.place
    ), kept AS (
        SELECT m.*, m.total <= room_bytes OR m.number <= fewest AS fits FROM measured AS m
    ), of_tags AS (
        SELECT k.tag, count(*) AS number FROM kept AS k WHERE NOT k.fits GROUP BY k.tag
    )
    SELECT
        (SELECT array_agg(k.place ORDER BY k.number) FROM kept AS k WHERE k.fits),
        (SELECT array_agg(k.tag ORDER BY k.number) FROM kept AS k WHERE k.fits),
        (SELECT json_agg(json_build_array(o.tag, o.number))::text FROM of_tags AS o)
    INTO places, tags, left_over;
END $$;

-- Lock the tasks of a lease from a queue that has limits, a rotation or priorities. `is_busy`: another transaction
-- holds the lanes, so nothing is leased now.
CREATE FUNCTION pick_limited(
    q towline.queues, now int8, tag_filter int2, tags text[], wanted int4, end_eta int8, end_id int8, room_bytes int8,
    each_bytes int4, fewest int4, OUT places tid[], OUT picked_tags text[], OUT left_over text, OUT is_busy bool
) LANGUAGE plpgsql AS $$
DECLARE
    first record;
    got record;
BEGIN
    is_busy := q.leases_alone AND NOT towline.hold_lanes(q.id);
    IF is_busy THEN
        RETURN;
    END IF;
    wanted := least(wanted, towline.room_of(q, now));
    IF wanted = 0 THEN
        RETURN;
    END IF;
    IF q.is_fair THEN
        SELECT * INTO got FROM towline.pick_in_rotation(
            q, tag_filter, tags, wanted, coalesce(room_bytes, 9223372036854775807), each_bytes, fewest
        );
        places := nullif(got.places, '{}');
        picked_tags := got.picked_tags;
        left_over := CASE WHEN got.is_full THEN json_build_array(json_build_array(got.next_tag, 1)) END;
        RETURN;
    END IF;
    IF tag_filter = 3 THEN
        SELECT * INTO first FROM towline.leasable(
            q, CASE WHEN tags = '{}' THEN 0 ELSE 1 END::int2, tags, 1, end_eta, end_id
        );
        IF NOT FOUND THEN
            RETURN;
        END IF;
        tag_filter := CASE WHEN first.tag IS NULL THEN 2 ELSE 1 END;
        tags := ARRAY[first.tag];
    END IF;
    SELECT nullif(p.places, '{}'), p.picked_tags INTO places, picked_tags
    FROM towline.pick_in_order(q, tag_filter, tags, wanted, end_eta, end_id) AS p;
    IF room_bytes IS NOT NULL AND cardinality(places) > fewest THEN
        SELECT f.places, f.tags, f.left_over INTO places, picked_tags, left_over
        FROM towline.fitting_in_order(places, room_bytes, each_bytes, fewest) AS f;
    END IF;
END $$;

-- Lease picked tasks, and return them in the order in which they were picked.
CREATE FUNCTION lease_in_order(picked tid[], now int8, end_at int8, worker_name text) RETURNS SETOF towline.lease_row
LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH chosen AS MATERIALIZED (
        SELECT t.id, p.number FROM unnest(picked) WITH ORDINALITY AS p (place, number)
        JOIN towline.tasks AS t ON t.ctid = p.place
    ), leased AS (
        UPDATE towline.tasks AS t SET
            state = 2, ready_at = t.eta, leases = t.leases + 1, leased_at = greatest(now, t.leased_at + 1),
            worker = nullif(worker_name, ''),
            eta = CASE WHEN t.spent IS NULL THEN end_at
                ELSE towline.unspent_end(end_at, towline.ahead_of(t.spent, now)) END,
            spent = CASE WHEN t.spent IS NULL THEN NULL ELSE towline.ahead_of(t.spent, now) END
        FROM chosen AS c WHERE t.id = c.id
        RETURNING c.number, t.*
    )
    SELECT l.id, l.eta, l.ready_at, l.added_at, l.leased_at, l.leases, l.name, l.tag, l.payload, l.headers, l.checkpoint,
        NULL::int8, NULL::text, NULL::int4, NULL::int8, NULL::int8[], NULL::text[], NULL::text
    FROM leased AS l ORDER BY l.number;
END $$;

-- Count leases that were granted, take their tokens, and update the lanes of their tags.
CREATE FUNCTION take_tokens(q towline.queues, slot int8, now int8, of_tags text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, leased, leases, admitted, changed_at)
    SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN t.tag ELSE '' END, -count(*), count(*), count(*),
        CASE WHEN q.has_lanes AND k.kind <> 1 THEN -count(*) ELSE 0 END, now
    FROM unnest(of_tags) AS t (tag) CROSS JOIN unnest(towline.kinds_of(t.tag)) AS k (kind) GROUP BY 2, 4
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, leased = c.leased + excluded.leased, leases = c.leases + excluded.leases,
        admitted = c.admitted + excluded.admitted, changed_at = excluded.changed_at;
    IF q.token_us IS NOT NULL OR q.tag_token_us IS NOT NULL THEN
        INSERT INTO towline.lanes AS l (queue, kind, tag, full_at)
        SELECT q.id, 0, '', now + cardinality(of_tags) * q.token_us WHERE q.token_us IS NOT NULL
        UNION ALL SELECT q.id, 2, u.tag, now + count(*) * q.tag_token_us FROM unnest(of_tags) AS u (tag)
        WHERE u.tag IS NOT NULL AND q.tag_token_us IS NOT NULL GROUP BY u.tag
        ON CONFLICT ON CONSTRAINT lanes_pkey DO UPDATE SET
            full_at = greatest(l.full_at, now) + excluded.full_at - now;
    END IF;
    IF q.is_fair OR q.tag_token_us IS NOT NULL THEN
        PERFORM towline.update_lanes(q, slot, now, of_tags, 0);
    END IF;
END $$;

-- Return whether limits let a delayed task be leased, and make room for it (`admission.has_room_for_one`).
CREATE FUNCTION make_room_for(
    q towline.queues, slot int8, now int8, task towline.tasks
) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
    sums record;
BEGIN
    IF NOT q.is_limited THEN
        RETURN true;
    ELSIF NOT towline.hold_lanes(q.id) OR towline.room_of(q, now) < 1 THEN
        RETURN false;
    ELSIF task.tag IS NULL OR NOT q.has_lanes THEN
        RETURN true;
    END IF;
    sums := towline.lane_counts(q.id, task.tag);
    IF q.tag_token_us IS NOT NULL AND sums.admitted >= towline.tokens(q.tag_token_us, q.tag_burst, (
            SELECT l.full_at FROM towline.lanes AS l WHERE l.queue = q.id AND l.kind = 2 AND l.tag = task.tag
        ), now)
    THEN
        RETURN false;
    ELSIF sums.leased >= q.tag_max THEN
        RETURN false;
    ELSIF sums.leased + sums.admitted < q.tag_max OR q.tag_max IS NULL THEN
        RETURN true;
    ELSIF towline.hold_again(q.id, task.tag, 1) = 0 THEN
        RETURN false;  -- all are being leased at this moment
    END IF;
    PERFORM towline.count_admitted(q.id, slot, now, ARRAY[task.tag], '{-1}');
    RETURN true;
END $$;

-- Set what the functions here read of a queue's limits, apply it to its tasks, and return whether the queue was there.
-- Its lock is held alone.
CREATE FUNCTION set_limits(
    queue_name text, now int8, new_max int4, new_token_us int8, new_burst int4, new_tag_max int4,
    new_tag_token_us int8, new_tag_burst int4, new_is_fair bool
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    old towline.queues;
    low_tags text[];
    low_etas int8[];
    numbers int8[];
    told json;
BEGIN
    SELECT * INTO STRICT old FROM towline.queues AS each WHERE each.name = queue_name;
    q := old;
    UPDATE towline.queues AS e SET
        max_in_flight = new_max, token_us = new_token_us, burst = new_burst, tag_max = new_tag_max,
        tag_token_us = new_tag_token_us, tag_burst = new_tag_burst, is_fair = new_is_fair,
        is_limited = e.has_priorities OR new_is_fair
            OR num_nonnulls(new_max, new_token_us, new_tag_max, new_tag_token_us) > 0
    WHERE e.id = q.id RETURNING * INTO q;
    slot := towline.count_slot(q.id);
    IF q.has_lanes AND NOT old.has_lanes THEN
        -- What is ready stays so, in its place, as far as the limits let it.
        WITH ready AS (
            UPDATE towline.tasks AS t SET state = t.state + 13
            WHERE t.queue = q.id AND t.state < 1 AND t.tag IS NOT NULL RETURNING t.tag
        )
        SELECT array_agg(r.tag), array_agg(r.number) INTO low_tags, numbers
        FROM (SELECT ready.tag, count(*) AS number FROM ready GROUP BY ready.tag) AS r;
        IF low_tags <> '{}' THEN
            PERFORM towline.count_admitted(q.id, slot, now, low_tags, numbers);
        END IF;
    END IF;
    IF q.has_lanes AND (q.tag_max, q.tag_token_us, q.tag_burst)
        IS DISTINCT FROM (old.tag_max, old.tag_token_us, old.tag_burst) THEN
        SELECT array_agg(h.tag), array_agg(-h.number) INTO low_tags, numbers
        FROM (
            SELECT s.tag, towline.hold_again(q.id, s.tag, s.surplus) AS number
            FROM (
                SELECT c.tag, (c.admitted - greatest(0, least(
                    coalesce(q.tag_max - c.leased, 1000000),
                    CASE WHEN q.tag_token_us IS NULL THEN 1000000 ELSE towline.tokens(
                        q.tag_token_us, q.tag_burst,
                        (SELECT l.full_at FROM towline.lanes AS l WHERE l.queue = q.id AND l.kind = 2 AND l.tag = c.tag),
                        now
                    ) END
                )))::int8 AS surplus
                FROM (
                    SELECT e.tag, sum(e.admitted) AS admitted, sum(e.leased) AS leased
                    FROM towline.counts AS e WHERE e.queue = q.id AND e.kind = 2 GROUP BY e.tag
                ) AS c WHERE c.admitted > 0
            ) AS s WHERE s.surplus > 0
        ) AS h;
        IF low_tags <> '{}' THEN
            PERFORM towline.count_admitted(q.id, slot, now, low_tags, numbers);
        END IF;
        low_tags := NULL;
    END IF;
    IF old.has_lanes AND NOT q.has_lanes THEN
        WITH free AS (
            UPDATE towline.tasks AS t SET eta = now, ready_at = now
            WHERE t.queue = q.id AND t.state < 1 AND t.tag IS NOT NULL RETURNING t.tag
        )
        SELECT array_agg(f.tag), array_agg(now), json_agg(json_build_array(q.name, f.tag, f.number))
        INTO low_tags, low_etas, told
        FROM (SELECT free.tag, count(*) AS number FROM free GROUP BY free.tag) AS f;
        IF low_tags <> '{}' THEN
            PERFORM towline.tell(json_build_array('admitted', told));
        END IF;
        WITH free AS (
            UPDATE towline.tasks AS t SET state = t.state - 13 WHERE t.queue = q.id AND t.state > 3
            RETURNING t.tag, t.eta
        )
        SELECT low_tags || array_agg(f.tag), low_etas || array_agg(f.eta) INTO low_tags, low_etas
        FROM (SELECT free.tag, min(free.eta) AS eta FROM free GROUP BY free.tag) AS f;
        UPDATE towline.counts AS c SET admitted = 0 WHERE c.queue = q.id AND c.admitted <> 0;
        IF low_tags <> '{}' THEN
            PERFORM towline.lower_floors(
                q.id, array_fill(0::int2, ARRAY[cardinality(low_tags)]), low_tags, low_etas
            );
        END IF;
    END IF;
    UPDATE towline.lanes AS l SET
        opens_at = NULL, place = CASE WHEN q.is_fair THEN l.place END, head = CASE WHEN q.is_fair THEN l.head END
    WHERE l.queue = q.id AND (l.opens_at IS NOT NULL OR l.head IS NOT NULL AND NOT q.is_fair);
    PERFORM towline.update_lanes(q, slot, now, ARRAY(
        SELECT c.tag FROM towline.counts AS c WHERE c.queue = q.id AND c.kind = 2
        GROUP BY c.tag HAVING sum(c.ready) > 0 ORDER BY c.tag
    ) || NULL::text, 0);
END $$;

-- Let lanes admit what time alone lets them, of a queue whose limits did not change.
CREATE FUNCTION open_lanes(queue_name text, now int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO STRICT q FROM towline.queues AS each WHERE each.name = queue_name;
    PERFORM towline.update_due_lanes(q, towline.count_slot(q.id), now, '{}', 0);
END $$;

-- Return the etas of READY tasks in their order, the first or the last ones.
CREATE FUNCTION ready_etas(
    q towline.queues, tags text[], most int4, is_last bool
) RETURNS TABLE (eta int8, id int8, tag text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    in_lanes CONSTANT bool := q.has_lanes;
    direction CONSTANT text := CASE WHEN is_last THEN 'DESC' ELSE 'ASC' END;
    plain CONSTANT int4[] := CASE WHEN q.has_priorities THEN '{0,-1,-2,-3,-4,-5,-6,-7,-8,-9}' ELSE '{0}' END;
    lane CONSTANT int4[] := CASE WHEN q.has_priorities THEN '{4,5,6,7,8,9,10,11,12,13}' ELSE '{13}' END;
    part text := '(SELECT t.eta, t.id, t.tag FROM towline.tasks AS t WHERE t.queue = $1 AND t.state = %s'
        || ' ORDER BY t.eta %s, t.id %2$s LIMIT $3)';
    of_none text := '(SELECT t.eta, t.id, t.tag FROM towline.tasks AS t WHERE t.queue = $1 AND t.tag IS NULL AND %s'
        || ' ORDER BY t.tag %s, t.eta %2$s, t.id %2$s LIMIT $3)';
    of_tag text := '(SELECT t.eta, t.id, t.tag FROM unnest($2) AS w (tag) CROSS JOIN LATERAL (SELECT * FROM'
        || ' towline.tasks AS e WHERE e.queue = $1 AND e.tag = w.tag AND %s ORDER BY e.eta %s, e.id %2$s LIMIT $3) AS t)';
    parts text[] := '{}';
BEGIN
    IF tags IS NULL AND NOT in_lanes THEN
        parts := ARRAY(SELECT format(part, s.state, direction) FROM unnest(plain) AS s (state));
    ELSIF tags IS NULL OR tags = '{}' THEN
        parts := ARRAY(SELECT format(
            of_none, CASE s.state WHEN 0 THEN 't.state + 0 = 0'
                ELSE format('t.state + 0 = %s', s.state) END,
            direction
        ) FROM unnest(plain) AS s (state));
        IF tags IS NULL THEN
            parts := parts || ARRAY(SELECT format(part, s.state, direction) FROM unnest(lane) AS s (state));
        END IF;
    ELSE
        parts := ARRAY(SELECT format(
            of_tag, CASE s.state WHEN 0 THEN 'e.state + 0 = 0'
                ELSE format('e.state + 0 = %s', s.state) END,
            direction
        ) FROM unnest(CASE WHEN in_lanes THEN lane ELSE plain END) AS s (state));
    END IF;
    RETURN QUERY EXECUTE format(
        'SELECT * FROM (%s) AS a ORDER BY a.eta %s, a.id %2$s LIMIT $3', array_to_string(parts, ' UNION ALL '), direction
    ) USING q.id, tags, most;
END $$;
