-- Leases that cost the same however many dead rows a held snapshot keeps (ADR 35): floors, where a search begins.
--
-- A floor is an eta below which a queue has no task in a state, so that no search walks over what died there. Floors
-- are raised in steps, which are inserted and never updated: the newest is the first row that is read, whatever died
-- behind it. A raise can't see what transactions in progress will put below it, so it takes two steps:
--
-- 1. Propose a generation with a ceiling: none of its floors will be above. From then on a transaction that makes a
--    task ready, delayed or leased below the ceiling writes that down in `lowered_floors`, in the same transaction.
-- 2. When all transactions have ended that held the queue's lock at a look after the proposal was committed, look for
--    the first task, and make the generation effective: its floors are there, or at the ceiling.
--
-- Every verb takes the queue's lock before it reads the step, so it is either waited for or knows the ceiling. Floors
-- count with what was written down for their generation and the proposed one. Wrong floors only hide a task until
-- the next full look, a minute later.

-- The steps of each queue. ready, delayed, leased: the floors of those states, of generation `effective`. newest: the
-- generation whose `ceiling` holds, that one or the proposed next. names_until: where names to be forgotten begin.
-- epoch: see `count_slot`; it began at transaction `epoch_xid`. searched_at: when a look began at no floor.
CREATE TABLE floors (
    queue int4 NOT NULL,
    step int8 NOT NULL,
    effective int8 NOT NULL,
    newest int8 NOT NULL,
    ceiling int8 NOT NULL,
    ready int8 NOT NULL,
    delayed int8 NOT NULL,
    leased int8 NOT NULL,
    names_until int8 NOT NULL,
    epoch_xid int8 NOT NULL,
    epoch int8 NOT NULL,
    searched_at timestamptz NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (queue, step)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- The floors of a generation for the ready tasks of a tag (kind 2) or the untagged ones (kind 1), where they are above
-- the queue's.
CREATE TABLE tag_floors (
    queue int4 NOT NULL,
    generation int8 NOT NULL,
    kind int2 NOT NULL,
    tag text COLLATE "C" NOT NULL,
    eta int8 NOT NULL,
    PRIMARY KEY (queue, generation, kind, tag)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Tasks that were put below the ceiling of a generation. kind: 0 is any task of the state, else as in `tag_floors`.
CREATE TABLE lowered_floors (
    queue int4 NOT NULL,
    generation int8 NOT NULL,
    state int2 NOT NULL,
    kind int2 NOT NULL,
    tag text COLLATE "C" NOT NULL,
    eta int8 NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Find the lowest of a kind and tag. Not unique: an insertion never waits for another.
CREATE INDEX lowered_in_order ON lowered_floors (queue, generation, state, kind, tag, eta);

-- Tasks of no queue, which nothing returns. Of a table in which the last vacuum found no task the planner believes that
-- every index is a page long, and finds a task by its id in the one that has it last, through all dead rows.
INSERT INTO tasks (id, eta, ready_at, added_at, queue, state, payload)
SELECT -n, 0, 0, 0, 0, 3, '' FROM generate_series(1, 10) AS n;

-- Return a floor of the effective generation with what has been lowered since; NULL: there is none.
CREATE FUNCTION lowest(queue_id int4, effective int8, of_state int2, of_kind int2, of_tag text, floor int8) RETURNS int8
LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
    RETURN least(
        floor,
        (
            SELECT l.eta FROM towline.lowered_floors AS l
            WHERE l.queue = queue_id AND l.generation = effective AND l.state = of_state AND l.kind = of_kind
                AND l.tag = of_tag
            ORDER BY l.eta LIMIT 1
        ),
        (
            SELECT l.eta FROM towline.lowered_floors AS l
            WHERE l.queue = queue_id AND l.generation = effective + 1 AND l.state = of_state AND l.kind = of_kind
                AND l.tag = of_tag
            ORDER BY l.eta LIMIT 1
        )
    );
END $$;

-- Return the newest step of a queue, its floors lowered by what was put below them. Without one, no floor.
CREATE FUNCTION floors_of(queue_id int4) RETURNS towline.floors LANGUAGE plpgsql STABLE AS $$
DECLARE
    f towline.floors;
BEGIN
    SELECT * INTO f FROM towline.floors AS s WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1;
    IF NOT FOUND THEN
        f.queue := queue_id;
        f.effective := 0;
        f.ceiling := -9223372036854775808;
        f.ready := -9223372036854775808;
        f.delayed := -9223372036854775808;
        f.leased := -9223372036854775808;
        f.epoch := 0;
    ELSIF EXISTS (
        SELECT FROM towline.lowered_floors AS l WHERE l.queue = queue_id AND l.generation >= f.effective
    ) THEN
        f.ready := towline.lowest(queue_id, f.effective, 0::int2, 0::int2, '', f.ready);
        f.delayed := towline.lowest(queue_id, f.effective, 1::int2, 0::int2, '', f.delayed);
        f.leased := towline.lowest(queue_id, f.effective, 2::int2, 0::int2, '', f.leased);
    END IF;
    RETURN f;
END $$;

-- Return the floor of the ready tasks of a tag (NULL: of the untagged), given the queue's own.
CREATE FUNCTION tag_floor(queue_id int4, effective int8, ready int8, of_tag text) RETURNS int8
LANGUAGE plpgsql STABLE AS $$
DECLARE
    of_kind CONSTANT int2 := CASE WHEN of_tag IS NULL THEN 1 ELSE 2 END;
BEGIN
    IF ready = -9223372036854775808 THEN
        RETURN ready;
    END IF;
    RETURN greatest(
        ready,
        towline.lowest(
            queue_id, effective, 0::int2, of_kind, coalesce(of_tag, ''),
            (
                SELECT t.eta FROM towline.tag_floors AS t
                WHERE t.queue = queue_id AND t.generation = effective AND t.kind = of_kind
                    AND t.tag = coalesce(of_tag, '')
            )
        )
    );
END $$;

-- Write down the tasks that this transaction puts below the ceiling: states, tags and etas of them. The queue is held.
CREATE FUNCTION lower_floors(queue_id int4, states int2[], tags text[], etas int8[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    f towline.floors;
BEGIN
    SELECT * INTO f FROM towline.floors AS s WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO towline.lowered_floors (queue, generation, state, kind, tag, eta)
    SELECT queue_id, f.newest, low.state, low.kind, low.tag, low.eta
    FROM (
        SELECT n.state, k.kind, CASE k.kind WHEN 2 THEN n.tag ELSE '' END AS tag, min(n.eta) AS eta
        FROM unnest(states, tags, etas) AS n (state, tag, eta)
        CROSS JOIN unnest(
            CASE WHEN n.state > 0 THEN '{0}'::int2[] WHEN n.tag IS NULL THEN '{0, 1}' ELSE '{0, 2}' END
        ) AS k (kind)
        WHERE n.eta < f.ceiling AND n.state < 3 GROUP BY 1, 2, 3
    ) AS low
    WHERE NOT EXISTS (
        SELECT FROM towline.lowered_floors AS l
        WHERE l.queue = queue_id AND l.generation = f.newest AND l.state = low.state AND l.kind = low.kind
            AND l.tag = low.tag AND l.eta <= low.eta
    );
END $$;

-- The first step: propose a generation with this ceiling, unless one is proposed. A new epoch of the counters begins
-- once this many transactions have come since the last one. Return the generation; NULL: another process was faster.
CREATE FUNCTION propose_floors(queue_id int4, wanted_ceiling int8, epoch_transactions int8) RETURNS int8
LANGUAGE plpgsql AS $$
DECLARE
    f towline.floors;
    next_xid CONSTANT int8 := pg_snapshot_xmax(pg_current_snapshot())::text::int8;
    begins bool;
BEGIN
    SELECT * INTO f FROM towline.floors AS s WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1;
    IF f.newest > f.effective THEN
        RETURN f.newest;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    -- Numbers are lower than they were on a server to which a backup was restored.
    begins := coalesce(next_xid NOT BETWEEN f.epoch_xid AND f.epoch_xid + epoch_transactions - 1, true);
    INSERT INTO towline.floors (
        queue, step, effective, newest, ceiling, ready, delayed, leased, names_until, epoch_xid, epoch, searched_at
    )
    VALUES (
        queue_id, coalesce(f.step, 0) + 1, coalesce(f.effective, 0), coalesce(f.newest, 0) + 1,
        greatest(f.ceiling, wanted_ceiling), coalesce(f.ready, -9223372036854775808),
        coalesce(f.delayed, -9223372036854775808), coalesce(f.leased, -9223372036854775808),
        coalesce(f.names_until, -9223372036854775808), CASE WHEN begins THEN next_xid ELSE f.epoch_xid END,
        coalesce(f.epoch, 0) + begins::int4, coalesce(f.searched_at, '-infinity')
    )
    ON CONFLICT DO NOTHING;
    RETURN CASE WHEN FOUND THEN coalesce(f.newest, 0) + 1 END;
END $$;

-- Return those who hold a queue's lock: their virtual transactions; '' stands for a prepared transaction, whose own
-- changes when it is prepared.
CREATE FUNCTION queue_holders(queue_name text) RETURNS text[] LANGUAGE sql AS $$
    SELECT coalesce(array_agg(CASE WHEN l.pid IS NULL THEN '' ELSE l.virtualtransaction END), '{}')
    FROM pg_locks AS l
    WHERE l.locktype = 'advisory' AND l.classid = 'towline.queues'::regclass AND l.objid = hashtext(queue_name)::oid
        AND l.objsubid = 2 AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
        AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
$$;

-- The second step: make a proposed generation effective, and fold counters. Only when all have ended that held the
-- queue's lock at a look after the proposal was committed. hot: tags (NULL: the untagged) that get a floor of their own.
-- full_after: seconds after which the look begins at no floor. Return whether such a look found a task below a floor.
CREATE FUNCTION raise_floors(queue_id int4, proposed int8, hot text[], now int8, full_after float8) RETURNS bool
LANGUAGE plpgsql AS $$
DECLARE
    f towline.floors;
    old towline.floors := towline.floors_of(queue_id);
    is_full CONSTANT bool := old.searched_at < clock_timestamp() - full_after * interval '1 second';
    bottom CONSTANT int8 := -9223372036854775808;
BEGIN
    SELECT * INTO f FROM towline.floors AS s WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1;
    IF f.newest = f.effective OR f.newest IS DISTINCT FROM proposed THEN
        RETURN false;  -- another process made it effective
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    f.ready := least(f.ceiling, (
        SELECT t.eta FROM towline.tasks AS t
        WHERE t.queue = queue_id AND t.state = 0 AND t.eta >= CASE WHEN is_full THEN bottom ELSE old.ready END
            AND t.eta < f.ceiling
        ORDER BY t.eta, t.id LIMIT 1
    ));
    f.delayed := least(f.ceiling, (
        SELECT t.eta FROM towline.tasks AS t
        WHERE t.queue = queue_id AND t.state = 1 AND t.eta >= CASE WHEN is_full THEN bottom ELSE old.delayed END
            AND t.eta < f.ceiling
        ORDER BY t.eta, t.id LIMIT 1
    ));
    f.leased := least(f.ceiling, (
        SELECT t.eta FROM towline.tasks AS t
        WHERE t.queue = queue_id AND t.state = 2 AND t.eta >= CASE WHEN is_full THEN bottom ELSE old.leased END
            AND t.eta < f.ceiling
        ORDER BY t.eta, t.id LIMIT 1
    ));
    f.names_until := least(now - 60000000, (
        SELECT n.until FROM towline.names AS n WHERE n.until >= CASE WHEN is_full THEN bottom ELSE f.names_until END
            AND n.until < now - 60000000
        ORDER BY n.until LIMIT 1
    ));
    INSERT INTO towline.floors (
        queue, step, effective, newest, ceiling, ready, delayed, leased, names_until, epoch_xid, epoch, searched_at
    )
    VALUES (
        queue_id, f.step + 1, f.newest, f.newest, f.ceiling, f.ready, f.delayed, f.leased, f.names_until, f.epoch_xid,
        f.epoch, CASE WHEN is_full THEN clock_timestamp() ELSE f.searched_at END
    )
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO towline.tag_floors (queue, generation, kind, tag, eta)
    SELECT queue_id, f.newest, 1, '', least(f.ceiling, (
        SELECT t.eta FROM towline.tasks AS t
        WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0
            AND t.eta >= CASE WHEN is_full THEN bottom
                ELSE towline.tag_floor(queue_id, old.effective, old.ready, NULL) END
            AND t.eta < f.ceiling
        ORDER BY t.tag, t.eta, t.id LIMIT 1
    ))
    WHERE array_position(hot, NULL) IS NOT NULL
    UNION ALL
    SELECT queue_id, f.newest, 2, h.tag, least(f.ceiling, (
        SELECT t.eta FROM towline.tasks AS t
        WHERE t.queue = queue_id AND t.tag = h.tag AND t.state + 0 = 0
            AND t.eta >= CASE WHEN is_full THEN bottom
                ELSE towline.tag_floor(queue_id, old.effective, old.ready, h.tag) END
            AND t.eta < f.ceiling
        ORDER BY t.eta, t.id LIMIT 1
    ))
    FROM (SELECT DISTINCT u.tag COLLATE "C" FROM unnest(hot) AS u (tag) WHERE u.tag IS NOT NULL) AS h (tag);
    PERFORM towline.fold_counts(queue_id, f.epoch, hot);
    PERFORM towline.fold_stored(queue_id, f.epoch);
    -- Exact keys, or this would walk over all that was deleted before.
    DELETE FROM towline.floors AS s WHERE s.queue = queue_id AND s.step BETWEEN f.step - 6 AND f.step - 3;
    DELETE FROM towline.tag_floors AS t
    WHERE t.queue = queue_id AND t.generation BETWEEN f.newest - 4 AND f.newest - 2;
    DELETE FROM towline.lowered_floors AS l
    WHERE l.queue = queue_id AND l.generation BETWEEN f.newest - 4 AND f.newest - 2;
    RETURN is_full AND (f.ready < old.ready OR f.delayed < old.delayed OR f.leased < old.leased);
END $$;

-- Let every search begin at the bottom again, as when dead rows can be removed.
CREATE FUNCTION end_floors(queue_id int4) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    f towline.floors;
BEGIN
    SELECT * INTO f FROM towline.floors AS s WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1;
    IF NOT FOUND OR (f.newest = f.effective AND f.ceiling = -9223372036854775808) THEN
        RETURN;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO towline.floors (
        queue, step, effective, newest, ceiling, ready, delayed, leased, names_until, epoch_xid, epoch, searched_at
    )
    VALUES (
        queue_id, f.step + 1, f.newest + 1, f.newest + 1, -9223372036854775808, -9223372036854775808,
        -9223372036854775808, -9223372036854775808, -9223372036854775808, f.epoch_xid, f.epoch, '-infinity'
    )
    ON CONFLICT DO NOTHING;
    DELETE FROM towline.floors AS s WHERE s.queue = queue_id AND s.step < f.step - 2;
    DELETE FROM towline.tag_floors AS t WHERE t.queue = queue_id AND t.generation < f.newest - 2;
    DELETE FROM towline.lowered_floors AS l WHERE l.queue = queue_id AND l.generation < f.newest - 2;
END $$;

-- Return the lowest of some instants; NULL: none.
CREATE FUNCTION lowest_of(instants int8[]) RETURNS int8 LANGUAGE sql IMMUTABLE AS $$
    SELECT min(each.instant) FROM unnest(instants) AS each (instant)
$$;
