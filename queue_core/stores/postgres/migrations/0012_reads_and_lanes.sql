-- Counters and reads with lanes: see `0007_lanes.sql`. Programs from before call functions of other names.

-- Return the counters of a queue, or of some of its tags (empty: of the untagged), summed over the slots from the
-- newest sum on.
CREATE OR REPLACE FUNCTION sum_counts(queue_id int4, tags text[]) RETURNS towline.counts LANGUAGE plpgsql STABLE AS $$
DECLARE
    sums towline.counts;
    kinds CONSTANT int2[] := CASE WHEN tags IS NULL THEN '{0,1}' WHEN tags = '{}' THEN '{1}' ELSE '{2}' END;
BEGIN
    SELECT queue_id, kinds[1], 0, '', coalesce(sum(c.ready), 0), coalesce(sum(c.delayed), 0),
        coalesce(sum(c.leased), 0), coalesce(sum(c.dead), 0), coalesce(sum(c.added), 0), coalesce(sum(c.leases), 0),
        coalesce(sum(c.deleted), 0), coalesce(sum(c.released), 0), coalesce(sum(c.expired), 0),
        coalesce(sum(c.died), 0), max(c.changed_at), coalesce(sum(c.admitted), 0)
    INTO sums
    -- One index scan for each kind and tag. Of a range or a list of kinds every tag may be read.
    FROM unnest(kinds) AS k (kind) CROSS JOIN unnest(CASE kinds[1] WHEN 2 THEN tags ELSE ARRAY[''] END) AS w (tag)
    CROSS JOIN LATERAL (
        SELECT * FROM towline.counts AS each
        WHERE each.queue = queue_id AND each.kind = k.kind AND each.tag = w.tag AND each.slot >= coalesce((
            SELECT b.slot FROM towline.counts AS b
            WHERE b.queue = queue_id AND b.kind = k.kind AND b.tag = w.tag AND b.slot % 32 = 0
            ORDER BY b.slot DESC LIMIT 1
        ), 0)
        OFFSET 0  -- joined, the planner may read all of them
    ) AS c;
    RETURN sums;
END $$;

-- Return how many tasks of a queue, or of these tags (empty: the untagged), are stored in a state.
CREATE OR REPLACE FUNCTION gauge(queue_id int4, of_state int2, tags text[]) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
DECLARE
    sums towline.counts := towline.sum_counts(queue_id, tags);
BEGIN
    RETURN CASE of_state WHEN 0 THEN sums.ready WHEN 1 THEN sums.delayed WHEN 2 THEN sums.leased WHEN 3 THEN sums.dead ELSE 0 END;
END $$;

-- Fold the slots before an epoch into the first of it, for the queue's own counters and these tags. Only when nobody
-- counts in earlier ones any more. What was folded before is not read again.
CREATE OR REPLACE FUNCTION fold_counts(queue_id int4, epoch int8, tags text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT k.kind, k.tag, coalesce((
            SELECT b.slot FROM towline.counts AS b
            WHERE b.queue = queue_id AND b.kind = k.kind AND b.tag = k.tag AND b.slot < epoch * 32 AND b.slot % 32 = 0
            ORDER BY b.slot DESC LIMIT 1
        ), 0) AS first
        FROM (
            SELECT 0::int2, '' COLLATE "C" UNION ALL SELECT 1, ''
            UNION ALL SELECT DISTINCT 2, u.tag COLLATE "C" FROM unnest(tags) AS u (tag) WHERE u.tag IS NOT NULL
        ) AS k (kind, tag)
        -- Not if it is done, or nothing came after the last sum. In this order: below a sum there are dead rows only.
        WHERE CASE
            WHEN EXISTS (
                SELECT FROM towline.counts AS b
                WHERE b.queue = queue_id AND b.kind = k.kind AND b.tag = k.tag AND b.slot = epoch * 32
            ) THEN false
            ELSE (
                SELECT b.slot % 32 > 0 FROM towline.counts AS b
                WHERE b.queue = queue_id AND b.kind = k.kind AND b.tag = k.tag AND b.slot < epoch * 32
                ORDER BY b.slot DESC LIMIT 1
            )
        END
    ), gone AS (
        DELETE FROM towline.counts AS c USING wanted AS w
        WHERE c.queue = queue_id AND c.kind = w.kind AND c.tag = w.tag AND c.slot >= w.first AND c.slot < epoch * 32
        RETURNING c.*
    )
    INSERT INTO towline.counts AS c (
        queue, kind, slot, tag, ready, delayed, leased, dead, added, leases, deleted, released, expired, died,
        changed_at, admitted
    )
    SELECT queue_id, g.kind, epoch * 32, g.tag, sum(g.ready), sum(g.delayed), sum(g.leased), sum(g.dead), sum(g.added),
        sum(g.leases), sum(g.deleted), sum(g.released), sum(g.expired), sum(g.died), max(g.changed_at), sum(g.admitted)
    FROM gone AS g GROUP BY g.kind, g.tag
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed,
        leased = c.leased + excluded.leased, dead = c.dead + excluded.dead, added = c.added + excluded.added,
        leases = c.leases + excluded.leases, deleted = c.deleted + excluded.deleted,
        released = c.released + excluded.released, expired = c.expired + excluded.expired,
        died = c.died + excluded.died, changed_at = greatest(c.changed_at, excluded.changed_at),
        admitted = c.admitted + excluded.admitted;
END $$;

-- Forget those tags among the next `most` after `examined` that had no task for a day; return where to go on, '' for
-- the start. They are read without a lock first, as nearly all are in use and a lock writes to its row. Then either all
-- counters of a tag are locked and deleted, or none; another transaction counts in a row of its own meanwhile.
CREATE OR REPLACE FUNCTION forget_tags(queue_id int4, now int8, examined text, most int4) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    a_day_ago CONSTANT int8 := now - 86400000000;
    number int4;
    last_one text;
    idle text[];
BEGIN
    IF towline.is_floored(queue_id) THEN
        RETURN examined;  -- while dead rows stay, it would read them all
    END IF;
    SELECT count(*), max(few.tag), array_agg(few.tag) FILTER (WHERE few.idle) INTO number, last_one, idle
    FROM (
        SELECT
            c.tag,
            (sum(c.ready), sum(c.delayed), sum(c.leased), sum(c.dead)) = (0, 0, 0, 0)
            AND max(c.changed_at) < a_day_ago AS idle
        FROM towline.counts AS c WHERE c.queue = queue_id AND c.kind = 2 AND c.tag > examined
        GROUP BY c.tag ORDER BY c.tag LIMIT most
    ) AS few;
    IF idle IS NOT NULL THEN
        idle := ARRAY(
            WITH locked AS MATERIALIZED (
                SELECT c.tag, c.ready, c.delayed, c.leased, c.dead, c.changed_at
                FROM unnest(idle) AS i (tag) CROSS JOIN LATERAL (
                    SELECT * FROM towline.counts AS each
                    WHERE each.queue = queue_id AND each.kind = 2 AND each.tag = i.tag FOR UPDATE SKIP LOCKED
                ) AS c
            )
            SELECT l.tag FROM locked AS l GROUP BY l.tag
            HAVING (sum(l.ready), sum(l.delayed), sum(l.leased), sum(l.dead)) = (0, 0, 0, 0)
                AND max(l.changed_at) < a_day_ago
                AND count(*) = (
                    SELECT count(*) FROM towline.counts AS a WHERE a.queue = queue_id AND a.kind = 2 AND a.tag = l.tag
                )
        );
        -- Not while it owes tokens. A tag without tasks has no other use of its lane.
        idle := ARRAY(
            SELECT i.tag FROM unnest(idle) AS i (tag) WHERE NOT EXISTS (
                SELECT FROM towline.lanes AS l
                WHERE l.queue = queue_id AND l.kind = 2 AND l.tag = i.tag AND l.full_at > now
            )
        );
        DELETE FROM towline.lanes AS l WHERE l.queue = queue_id AND l.kind = 2 AND l.tag = ANY (idle);
        DELETE FROM towline.counts AS c WHERE c.queue = queue_id AND c.kind = 2 AND c.tag = ANY (idle);
    END IF;
    RETURN CASE WHEN number < most THEN '' ELSE last_one END;
END $$;

-- Return the room of a queue that has limits itself, else NULL.
CREATE FUNCTION shown_room(q towline.queues, now int8) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN num_nonnulls(q.max_in_flight, q.token_us) > 0 THEN towline.room_of(q, now) END;
END $$;

-- Return the state of a task as of `now`; NULL: its expiry deletes it.
CREATE OR REPLACE FUNCTION settled_state(task towline.tasks, q towline.queues, now int8) RETURNS int2 LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN task.state > 3 THEN 0
        WHEN task.state <= 0 AND task.tag IS NOT NULL AND q.has_lanes THEN 4
        WHEN task.state <= 0 THEN 0
        WHEN task.state NOT IN (1, 2) OR task.eta > now THEN task.state
        WHEN task.state = 1 OR (task.leases >= coalesce(task.max_leases, q.max_leases)) IS NOT TRUE THEN 0
        WHEN NOT q.deletes_exhausted THEN 3
    END::int2
$$;

-- Return the etas of the first ready tasks of a queue, or of these tags.
CREATE OR REPLACE FUNCTION ready_heads(queue_id int4, tags text[], most int4) RETURNS TABLE (eta int8, id int8, tag text)
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

-- Return the eta at the very end of the ready queue.
CREATE OR REPLACE FUNCTION last_ready(queue_id int4, tags text[]) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
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

-- Return the values behind waiting times: the number of ready tasks, the first etas stored as ready, those of tasks
-- that came due since, and the last of all. `oldest`: only the tag of the first leasable task counts.
CREATE OR REPLACE FUNCTION waiting(
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
            SELECT f.tag INTO one FROM towline.leasable(
                q, CASE WHEN tags IS NULL THEN 0 ELSE 1 END::int2, tags, 1, 9223372036854775807, 0
            ) AS f;
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

-- Return tasks by id beyond `after` whose settled state is one of these, of these tags, and of these names unless they
-- are NULL. Few tasks in the states from which those come are read by state and sorted; many are read by id, along the
-- primary key: `+ 0` hides a column from the other indexes.
CREATE OR REPLACE FUNCTION peek(
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

-- The planning of the statements inside the functions: once, along the indexes they were written for. By default the
-- planner uses its last statistics, of tables that are now empty and now full (ADR 11).

DO $$
DECLARE
    one record;
    setting text;
BEGIN
    FOR one IN
        SELECT p.oid::regprocedure AS function, g.settings
        FROM (
            VALUES (
                '{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off,
                enable_hashjoin = off, enable_mergejoin = off, jit = off}'::text[],
                '{add, exchange, fitting, settle, renew, release, lease_delayed, hand_over, delete_named, purge, redrive, postpone, drop_queue, retire_worker, release_worker,
                keep_answer, trim_samples, forget_tags, restore, hold_names, held_names, stats, tag_stats, waiting,
                peek, live_leases, next_eta, read_samples}'::text[]
            ),
            ('{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off, jit = off}',
                '{upcoming}'),
            -- A page is read from the index, its order kept, and not all that is kept is sorted first.
            ('{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off,
                enable_hashjoin = off, enable_mergejoin = off, enable_sort = off, jit = off}', '{history}'),
            -- Only where there is a choice, as each setting costs every call 3 us.
            ('{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off}',
                '{exchange_one, exchange_result}'),
            ('{plan_cache_mode = force_generic_plan, enable_seqscan = off}', '{add_one}'),
            -- What the floors need; those that are called by others have the settings of these.
            ('{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off,
                enable_hashjoin = off, enable_mergejoin = off, jit = off}',
                '{propose_floors, raise_floors, end_floors, stored_bytes, set_limits, open_lanes,
                queue_stats, stats_of_tags}')
        ) AS g (settings, names)
        JOIN pg_proc AS p ON p.proname = ANY (g.names)
        WHERE p.pronamespace = current_schema()::regnamespace
    LOOP
        FOREACH setting IN ARRAY one.settings LOOP
            EXECUTE format('ALTER FUNCTION %s SET %s', one.function, setting);
        END LOOP;
    END LOOP;
END $$;
