-- The verbs that only read; exact as of `now`, although they write no expiry. tags NULL: any; empty: the untagged.

-- Return the etas of the first ready tasks of a queue, or of these tags.
CREATE FUNCTION ready_heads(queue_id int4, tags text[], most int4) RETURNS TABLE (eta int8, id int8, tag text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    f CONSTANT towline.floors := towline.floors_of(queue_id);
    floor int8;
    q towline.queues;
BEGIN
    SELECT * INTO q FROM towline.queues AS e WHERE e.id = queue_id AND e.is_limited;
    IF FOUND THEN
        RETURN QUERY SELECT r.* FROM towline.ready_etas(q, tags, most, false) AS r;
    ELSIF tags IS NULL THEN
        RETURN QUERY SELECT t.eta, t.id, t.tag FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = 0 AND t.eta >= f.ready
            ORDER BY t.eta, t.id LIMIT most;
    ELSIF tags = '{}' THEN
        floor := towline.tag_floor(queue_id, f.effective, f.ready, NULL);
        RETURN QUERY SELECT t.eta, t.id, t.tag FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0 AND t.eta >= floor
            ORDER BY t.tag, t.eta, t.id LIMIT most;
    ELSE
        RETURN QUERY SELECT h.eta, h.id, w.tag FROM (
                SELECT u.tag, towline.tag_floor(queue_id, f.effective, f.ready, u.tag) AS floor FROM unnest(tags) AS u (tag) OFFSET 0
            ) AS w CROSS JOIN LATERAL (
                SELECT t.eta, t.id FROM towline.tasks AS t
                WHERE t.queue = queue_id AND t.tag = w.tag AND t.state + 0 = 0 AND t.eta >= w.floor
                ORDER BY t.eta, t.id LIMIT most
            ) AS h
            ORDER BY h.eta, h.id LIMIT most;
    END IF;
END $$;

-- Return the first tasks that are stored as delayed or leased but are ready by now.
CREATE FUNCTION due_heads(q towline.queues, tags text[], most int4, now int8)
RETURNS TABLE (eta int8, id int8, tag text) LANGUAGE plpgsql STABLE AS $$
DECLARE
    f CONSTANT towline.floors := towline.floors_of(q.id);
BEGIN
    RETURN QUERY SELECT d.eta, d.id, d.tag FROM (
        (
            SELECT t.eta, t.id, t.tag FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.state = 1 AND t.eta >= f.delayed AND t.eta <= now
                AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL))
            ORDER BY t.eta, t.id LIMIT most
        ) UNION ALL (
            SELECT t.eta, t.id, t.tag FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.state = 2 AND t.eta >= f.leased AND t.eta <= now
                AND (t.leases >= coalesce(t.max_leases, q.max_leases)) IS NOT TRUE
                AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL))
            ORDER BY t.eta, t.id LIMIT most
        )
    ) AS d ORDER BY d.eta, d.id LIMIT most;
END $$;

-- Return the eta at the very end of the ready queue.
CREATE FUNCTION last_ready(queue_id int4, tags text[]) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
BEGIN
    SELECT * INTO q FROM towline.queues AS e WHERE e.id = queue_id AND e.is_limited;
    IF FOUND THEN
        RETURN (SELECT r.eta FROM towline.ready_etas(q, tags, 1, true) AS r);
    ELSIF tags IS NULL THEN
        RETURN (
            SELECT t.eta FROM towline.tasks AS t WHERE t.queue = queue_id AND t.state = 0
            ORDER BY t.eta DESC, t.id DESC LIMIT 1
        );
    ELSIF tags = '{}' THEN
        RETURN (
            SELECT t.eta FROM towline.tasks AS t WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0
            ORDER BY t.tag DESC, t.eta DESC, t.id DESC LIMIT 1
        );
    END IF;
    RETURN (
        SELECT max(l.eta) FROM unnest(tags) AS w (tag) CROSS JOIN LATERAL (
            SELECT t.eta FROM towline.tasks AS t WHERE t.queue = queue_id AND t.tag = w.tag AND t.state + 0 = 0
            ORDER BY t.eta DESC, t.id DESC LIMIT 1
        ) AS l
    );
END $$;

-- Return the values behind waiting times: the number of ready tasks, the first etas stored as ready, those of tasks
-- that came due since, and the last of all. `oldest`: only the tag of the first leasable task counts.
CREATE FUNCTION waiting(
    queue_name text, tags text[], oldest bool, head int4, now int8,
    OUT ready int8, OUT stored int8[], OUT due int8[], OUT newest int8
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
    one record;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF oldest AND q.is_limited THEN
        IF NOT q.is_fair THEN
            -- What is due is not settled here; that of a lane is not counted, as the lane may hold it.
            SELECT t.tag INTO one FROM (
                SELECT l.id FROM towline.leasable(
                    q, CASE WHEN tags IS NULL THEN 0 ELSE 1 END::int2, tags, 1, 9223372036854775807, 0
                ) AS l
                UNION ALL
                SELECT d.id FROM towline.due_heads(q, tags, head, now) AS d WHERE NOT q.has_lanes OR d.tag IS NULL
            ) AS f JOIN towline.tasks AS t ON t.id = f.id
            ORDER BY coalesce(t.priority, 0) DESC, t.eta, t.id LIMIT 1;
            IF NOT FOUND THEN
                RETURN;
            END IF;
            tags := CASE WHEN one.tag IS NULL THEN '{}'::text[] ELSE ARRAY[one.tag] END;
        END IF;
    ELSIF oldest THEN
        SELECT f.tag INTO one FROM (
            (SELECT h.eta, h.id, h.tag FROM towline.ready_heads(q.id, tags, 1) AS h)
            UNION ALL
            (SELECT d.eta, d.id, d.tag FROM towline.due_heads(q, tags, 1, now) AS d)
        ) AS f ORDER BY f.eta, f.id LIMIT 1;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        tags := CASE WHEN one.tag IS NULL THEN '{}'::text[] ELSE ARRAY[one.tag] END;
    END IF;
    ready := (SELECT s.ready FROM towline.current_counts(q, tags, now) AS s);
    IF ready > 0 THEN
        stored := ARRAY(SELECT h.eta FROM towline.ready_heads(q.id, tags, head) AS h ORDER BY h.eta);
        due := ARRAY(SELECT d.eta FROM towline.due_heads(q, tags, head, now) AS d ORDER BY d.eta);
        newest := towline.last_ready(q.id, tags);
    END IF;
END $$;

-- Return the etas, in order, of delayed tasks that become leasable after `now` and until then and were never leased,
-- among the first `most` delayed tasks of the queue; NULL: there is no such queue.
CREATE FUNCTION upcoming(queue_name text, tags text[], now int8, until int8, most int4) RETURNS int8[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    queue_id int4 := (SELECT q.id FROM towline.queues AS q WHERE q.name = queue_name);
BEGIN
    IF queue_id IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(
        SELECT d.eta FROM (
            SELECT t.eta, t.id, t.tag, t.leases FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = 1 AND t.eta > now AND t.eta <= until
            ORDER BY t.eta, t.id LIMIT most
        ) AS d
        WHERE d.leases = 0 AND (tags IS NULL OR d.tag = ANY (tags) OR (tags = '{}' AND d.tag IS NULL))
        ORDER BY d.eta, d.id
    );
END $$;

-- Return the live leases, soonest to end first.
CREATE FUNCTION live_leases(queue_name text, now int8, most int4) RETURNS TABLE (
    name text, tag text, worker text, leases int4, leased_at int8, eta int8, ready_at int8
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    queue_id int4 := (SELECT q.id FROM towline.queues AS q WHERE q.name = queue_name);
BEGIN
    RETURN QUERY
    SELECT coalesce(t.name, '_' || t.id), t.tag, coalesce(t.worker, ''), t.leases, t.leased_at, t.eta, t.ready_at
    FROM towline.tasks AS t WHERE t.queue = queue_id AND t.state = 2 AND t.eta > now ORDER BY t.eta, t.id LIMIT most;
END $$;

-- Return when time alone next makes a task leasable.
CREATE FUNCTION next_eta(queue_name text, now int8) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
    f towline.floors;
    opens int8;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF q.moved_to <> '' THEN
        RETURN NULL;
    END IF;
    f := towline.floors_of(q.id);
    IF q.is_limited THEN
        opens := least(
            (SELECT l.opens_at FROM towline.lanes AS l WHERE l.queue = q.id AND l.opens_at IS NOT NULL
                ORDER BY l.opens_at LIMIT 1),
            -- Another transaction holds the lanes: in a moment.
            CASE WHEN EXISTS (SELECT FROM towline.lane_notes AS n WHERE n.queue = q.id) THEN now + 10000 END,
            CASE WHEN q.token_us IS NOT NULL AND towline.room_of(q, now) < 1
                AND EXISTS (SELECT FROM towline.leasable(q, 0::int2, '{}', 1, 9223372036854775807, 0))
                THEN (
                    SELECT l.full_at - (q.burst - 1) * q.token_us FROM towline.lanes AS l
                    WHERE l.queue = q.id AND l.kind = 0 AND l.tag = ''
                )
            END
        );
    END IF;
    RETURN least(
        (SELECT t.eta FROM towline.tasks AS t WHERE t.queue = q.id AND t.state = 1 AND t.eta >= f.delayed
            ORDER BY t.eta, t.id LIMIT 1),
        (SELECT t.eta FROM towline.tasks AS t WHERE t.queue = q.id AND t.state = 2 AND t.eta >= f.leased
            ORDER BY t.eta, t.id LIMIT 1),
        opens
    );
END $$;

-- Return the state of a task as of `now`; NULL: its expiry deletes it.
CREATE FUNCTION settled_state(task towline.tasks, q towline.queues, now int8) RETURNS int2 LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN task.state > 3 THEN 0
        WHEN task.state <= 0 AND task.tag IS NOT NULL AND q.has_lanes THEN 4
        WHEN task.state <= 0 THEN 0
        WHEN task.state NOT IN (1, 2) OR task.eta > now THEN task.state
        WHEN task.state = 1 OR (task.leases >= coalesce(task.max_leases, q.max_leases)) IS NOT TRUE THEN 0
        WHEN NOT q.deletes_exhausted THEN 3
    END::int2
$$;

-- Return tasks by id beyond `after` whose settled state is one of these, of these tags, and of these names unless they
-- are NULL. Few tasks in the states from which those come are read by state and sorted; many are read by id, along the
-- primary key: `+ 0` hides a column from the other indexes.
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
    IF q.is_limited AND states && '{0,4}'::int2[] THEN
        stored := array_remove(stored, 4::int2) || 0::int2;
    END IF;
    total := (SELECT sum(towline.gauge(q.id, d.state, tags)) FROM (SELECT DISTINCT unnest(stored) AS state) AS d);
    IF q.is_limited AND 0 = ANY (stored) THEN
        stored := stored || '{-1,-2,-3,-4,-5,-6,-7,-8,-9,4,5,6,7,8,9,10,11,12,13}'::int2[];
    END IF;
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

-- Return the room of a queue that has limits itself, else NULL.
CREATE FUNCTION shown_room(q towline.queues, now int8) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN num_nonnulls(q.max_in_flight, q.token_us) > 0 THEN towline.room_of(q, now) END;
END $$;

-- Return the counters of a queue or of some tags, and the tasks that came due since.
CREATE FUNCTION current_counts(
    q towline.queues, tags text[], now int8, OUT ready int8, OUT delayed int8, OUT leased int8, OUT dead int8,
    OUT oldest int8, OUT added int8, OUT leases int8, OUT deleted int8, OUT released int8, OUT expired int8,
    OUT died int8, OUT held int8
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    sums towline.counts;
    ripe int8;
    first int8;
    due record;
    f CONSTANT towline.floors := towline.floors_of(q.id);
BEGIN
    sums := towline.sum_counts(q.id, tags);
    ready := sums.ready;
    held := 0;
    IF q.has_lanes AND (tags IS NULL OR tags <> '{}') THEN
        held := sums.ready - sums.admitted
            - CASE WHEN tags IS NULL THEN (towline.sum_counts(q.id, '{}')).ready ELSE 0 END;
        ready := ready - held;
    END IF;
    delayed := sums.delayed;
    leased := sums.leased;
    dead := sums.dead;
    added := sums.added;
    leases := sums.leases;
    deleted := sums.deleted;
    released := sums.released;
    expired := sums.expired;
    died := sums.died;
    IF ready > 0 THEN
        oldest := (SELECT min(h.eta) FROM towline.ready_heads(q.id, tags, 1) AS h);
    END IF;
    IF delayed > 0 THEN
        SELECT count(*), min(t.eta) INTO ripe, first FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.state = 1 AND t.eta >= f.delayed AND t.eta <= now
            AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL));
        ready := ready + ripe;
        delayed := delayed - ripe;
        oldest := least(oldest, first);
    END IF;
    IF leased > 0 THEN
        SELECT count(*) AS total, count(*) FILTER (WHERE t.leases >= coalesce(t.max_leases, q.max_leases)) AS died,
            min(t.eta) FILTER (WHERE (t.leases >= coalesce(t.max_leases, q.max_leases)) IS NOT TRUE) AS first INTO due
        FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.state = 2 AND t.eta >= f.leased AND t.eta <= now
            AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL));
        ready := ready + due.total - due.died;
        leased := leased - due.total;
        expired := expired + due.total;
        died := died + due.died;
        dead := dead + CASE WHEN q.deletes_exhausted THEN 0 ELSE due.died END;
        oldest := least(oldest, due.first);
    END IF;
END $$;

-- Return the statistics of a queue; no row: there is none.
CREATE FUNCTION queue_stats(queue_name text, tags text[], now int8) RETURNS TABLE (
    paused bool, ready int8, delayed int8, leased int8, dead int8, oldest int8, added int8, leases int8, deleted int8,
    released int8, expired int8, died int8, held int8, room int8
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF FOUND THEN
        RETURN QUERY SELECT q.paused OR q.moved_to <> '', s.*, towline.shown_room(q, now) FROM towline.current_counts(q, tags, now) AS s;
    END IF;
END $$;

-- Return the statistics of tags, a page of them; the untagged come first when `after` is NULL.
CREATE FUNCTION stats_of_tags(queue_name text, after text, most int4, now int8) RETURNS TABLE (
    tag text, paused bool, ready int8, delayed int8, leased int8, dead int8, oldest int8, added int8, leases int8,
    deleted int8, released int8, expired int8, died int8, held int8, room int8
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    RETURN QUERY
    SELECT listed.tag, q.paused OR q.moved_to <> '', s.*, towline.shown_room(q, now)
    FROM (
        (
            SELECT NULL::text AS tag FROM towline.counts AS c
            WHERE c.queue = q.id AND c.kind = 1 AND after IS NULL LIMIT 1
        ) UNION ALL (
            SELECT DISTINCT c.tag FROM towline.counts AS c
            WHERE c.queue = q.id AND c.kind = 2 AND c.tag > coalesce(after, '') ORDER BY c.tag LIMIT most
        ) LIMIT most
    ) AS listed
    CROSS JOIN LATERAL towline.current_counts(
        q, CASE WHEN listed.tag IS NULL THEN '{}'::text[] ELSE ARRAY[listed.tag] END, now
    ) AS s;
END $$;
