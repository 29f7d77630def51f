-- The two functions under the verbs that change tasks without their leases' tokens: see ADR 124 and 103 and
-- `queue_core/verbs/change_verbs.py`, which says what becomes of a task.

-- Lock up to `most` tasks of a state and, unless NULL, of these tags (empty: the untagged).
CREATE FUNCTION some_tasks(queue_id int4, of_state int2, tags text[], most int8) RETURNS SETOF towline.tasks
LANGUAGE plpgsql AS $$
DECLARE
    task towline.tasks;
    f CONSTANT towline.floors := towline.floors_of(queue_id);
    floor int8;
BEGIN
    floor := CASE of_state WHEN 0 THEN f.ready WHEN 1 THEN f.delayed WHEN 2 THEN f.leased ELSE -9223372036854775808 END;
    IF of_state = 0 AND (SELECT q.is_limited FROM towline.queues AS q WHERE q.id = queue_id) THEN
        -- What waits for a lane, and what does not.
        RETURN QUERY SELECT * FROM towline.tasks AS t
            WHERE t.id IN (
                SELECT a.id FROM towline.tasks AS a
                WHERE a.queue = queue_id AND (a.state + 0 < 0 OR a.state + 0 > 3)
                    AND (tags IS NULL OR a.tag = ANY (tags) OR (tags = '{}' AND a.tag IS NULL))
                UNION ALL SELECT b.id FROM unnest(tags) AS w (tag) JOIN towline.tasks AS b
                    ON b.queue = queue_id AND b.tag = w.tag AND b.state + 0 = 0
                UNION ALL SELECT n.id FROM towline.tasks AS n
                WHERE tags = '{}' AND n.queue = queue_id AND n.tag IS NULL AND n.state + 0 = 0
                UNION ALL SELECT o.id FROM towline.tasks AS o
                WHERE tags IS NULL AND o.queue = queue_id AND o.state = 0
                LIMIT most
            ) FOR UPDATE;
    ELSIF tags IS NULL THEN
        RETURN QUERY SELECT * FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = of_state AND t.eta >= floor ORDER BY t.eta, t.id LIMIT most FOR UPDATE;
    ELSIF towline.gauge(queue_id, of_state, tags) = 0 THEN
        RETURN;
    ELSIF tags = '{}' THEN
        IF of_state = 0 THEN
            RETURN QUERY SELECT * FROM towline.tasks AS t
                WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0 AND t.eta >= floor
                ORDER BY t.tag, t.eta, t.id LIMIT most FOR UPDATE;
        ELSE
            RETURN QUERY SELECT * FROM towline.tasks AS t
                WHERE t.queue = queue_id AND t.state = of_state AND t.eta >= floor AND t.tag IS NULL
                ORDER BY t.eta, t.id LIMIT most FOR UPDATE;
        END IF;
    ELSIF of_state = 0 THEN
        RETURN QUERY SELECT l.* FROM unnest(tags) AS w (tag) CROSS JOIN LATERAL (
                SELECT * FROM towline.tasks AS t
                WHERE t.queue = queue_id AND t.tag = w.tag AND t.state + 0 = 0 AND t.eta >= floor
                ORDER BY t.eta, t.id LIMIT most FOR UPDATE
            ) AS l LIMIT most;
    ELSE
        RETURN QUERY SELECT * FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = of_state AND t.eta >= floor AND t.tag = ANY (tags)
            ORDER BY t.eta, t.id LIMIT most FOR UPDATE;
    END IF;
END $$;

-- Lock the tasks that are meant: those named, those that a worker holds, or up to `most` in these states and of these
-- tags. Of a queue that is unknown or was moved away there are none.
CREATE FUNCTION hold_tasks(
    queue_name text, now int8, given text[], states int2[], tags text[], holder text, most int8, settles bool
) RETURNS SETOF towline.tasks LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    task towline.tasks;
    of_state int2;
    found_here int8;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND OR q.moved_to <> '' THEN
        RETURN;
    END IF;
    slot := towline.count_slot(q.id);
    IF settles THEN
        PERFORM towline.settle_some(q, slot, now);
    END IF;
    IF given IS NOT NULL THEN
        FOR place IN 1..cardinality(given) LOOP
            task := towline.named_task(q.id, given[place]);
            IF settles AND task.state = 2 AND task.eta <= now THEN  -- more tasks were due than one call settles
                PERFORM FROM towline.settle_one(q, slot, now, task.id);
                task := towline.named_task(q.id, given[place]);
            END IF;
            IF task.id IS NOT NULL THEN
                RETURN NEXT task;
            END IF;
        END LOOP;
    ELSIF holder IS NOT NULL THEN
        RETURN QUERY SELECT * FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.state = 2 AND t.eta > now AND t.worker = holder ORDER BY t.id LIMIT most
            FOR UPDATE;
    ELSE
        FOREACH of_state IN ARRAY states LOOP
            RETURN QUERY SELECT * FROM towline.some_tasks(q.id, of_state, tags, most);
            GET DIAGNOSTICS found_here = ROW_COUNT;
            most := most - found_here;
            EXIT WHEN most <= 0;
        END LOOP;
    END IF;
END $$;

-- Write what became of tasks that this transaction holds; return its number. gone: tasks without a lease that are
-- removed; counts_deleted: as deletions. The arrays have an element for each other task. A state of NULL: it is removed
-- with its lease. outcomes: of a lease that ends, or NULL; said: its reason; tried: the attempts, where a lease ended.
CREATE FUNCTION change_tasks(
    queue_name text, now int8, gone int8[], counts_deleted bool, ids int8[], states int2[], etas int8[],
    ready_ats int8[], new_tags text[], new_leases int4[], reasons text[], spents text[], tried text[], outcomes text[],
    said text[], died bool[]
) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    before towline.tasks;
    -- Of all tasks, those of `gone` first: how each was, and what is counted of it.
    was_states int2[] := '{}';
    was_tags text[] := '{}';
    unheld CONSTANT int4[] := ARRAY[cardinality(gone)];
    ends CONSTANT text[] := array_fill(CASE WHEN counts_deleted THEN 'deleted' END, unheld) || outcomes;
    after_states CONSTANT int2[] := array_fill(NULL::int2, unheld) || states;
    after_tags CONSTANT text[] := array_fill(NULL::text, unheld) || new_tags;
    deaths CONSTANT bool[] := array_fill(NULL::bool, unheld) || died;
    parted text[];
    admitted_tags text[];
BEGIN
    SELECT * INTO STRICT q FROM towline.queues AS each WHERE each.name = queue_name;
    slot := towline.count_slot(q.id);
    IF gone <> '{}' THEN
        WITH removed AS (
            DELETE FROM towline.tasks AS t USING unnest(gone) AS g (id) WHERE t.id = g.id
            RETURNING t.tag, t.name, t.state
        )
        SELECT array_agg(r.state), array_agg(r.tag), array_agg(r.name) FILTER (WHERE r.name IS NOT NULL)
        INTO was_states, was_tags, parted FROM removed AS r;
        IF parted IS NOT NULL THEN
            UPDATE towline.names AS n SET task = NULL, until = now + round(q.name_retention_seconds * 1000000)::int8
            WHERE n.queue = q.id AND n.name = ANY (parted);
        END IF;
    END IF;
    IF NOT q.has_tags AND array_remove(new_tags, NULL) <> '{}' THEN
        UPDATE towline.queues AS e SET has_tags = true WHERE e.id = q.id;
    END IF;
    IF ids <> '{}' THEN
        PERFORM towline.lower_floors(q.id, states, new_tags, etas);
    END IF;
    FOR place IN 1..cardinality(ids) LOOP
        SELECT * INTO STRICT before FROM towline.tasks AS t WHERE t.id = ids[place];
        IF states[place] IS NULL THEN
            DELETE FROM towline.tasks AS t WHERE t.id = before.id;
            PERFORM towline.part_name(q, before.name, now);
        ELSE
            UPDATE towline.tasks AS t SET
                state = CASE states[place] WHEN 0 THEN -coalesce(t.priority, 0) ELSE states[place] END,
                eta = etas[place], ready_at = ready_ats[place], tag = new_tags[place], leases = new_leases[place],
                reason = reasons[place], spent = spents[place]::int8[], attempts = coalesce(tried[place], t.attempts)
            WHERE t.id = before.id;
        END IF;
        IF outcomes[place] IS NOT NULL THEN
            PERFORM towline.note_finished(
                before, outcomes[place], now, said[place], CASE WHEN NOT died[place] THEN true END
            );
        END IF;
        was_states := array_append(was_states, before.state);
        was_tags := array_append(was_tags, before.tag);
    END LOOP;
    -- Once for all: a transaction that changes a row a thousand times reads a thousand versions of it.
    INSERT INTO towline.counts AS c (
        queue, kind, slot, tag, ready, delayed, leased, dead, deleted, released, died, changed_at
    )
    SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN m.tag ELSE '' END,
        coalesce(sum(m.sign) FILTER (WHERE m.state NOT BETWEEN 1 AND 3), 0),
        coalesce(sum(m.sign) FILTER (WHERE m.state = 1), 0), coalesce(sum(m.sign) FILTER (WHERE m.state = 2), 0),
        coalesce(sum(m.sign) FILTER (WHERE m.state = 3), 0),
        count(*) FILTER (WHERE m.outcome = 'deleted'), count(*) FILTER (WHERE m.outcome = 'released'),
        count(*) FILTER (WHERE m.died), now
    FROM (
        SELECT w.state, w.tag, -1, w.outcome, w.died
        FROM unnest(was_states, was_tags, ends, deaths) AS w (state, tag, outcome, died)
        UNION ALL
        SELECT a.state, a.tag, 1, NULL, NULL FROM unnest(after_states, after_tags) AS a (state, tag)
        WHERE a.state IS NOT NULL
    ) AS m (state, tag, sign, outcome, died)
    CROSS JOIN unnest(towline.kinds_of(m.tag)) AS k (kind) GROUP BY 2, 4
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed,
        leased = c.leased + excluded.leased, dead = c.dead + excluded.dead, deleted = c.deleted + excluded.deleted,
        released = c.released + excluded.released, died = c.died + excluded.died, changed_at = excluded.changed_at;
    IF q.is_limited THEN
        SELECT array_agg(w.tag) INTO admitted_tags
        FROM unnest(was_states, was_tags) AS w (state, tag) WHERE w.state > 3;
        IF admitted_tags IS NOT NULL THEN
            PERFORM towline.count_admitted(q.id, slot, now, admitted_tags, '{-1}');
        END IF;
        PERFORM towline.update_lanes(
            q, slot, now,
            was_tags || ARRAY(SELECT a.tag FROM unnest(states, new_tags) AS a (state, tag) WHERE a.state IS NOT NULL),
            cardinality(array_remove(outcomes, NULL))
        );
    END IF;
    RETURN txid_current_if_assigned();
END $$;

-- Retire a worker, and return the queues in which it holds leases, but for those that were moved away.
CREATE FUNCTION fence_holder(worker_name text, now int8) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock('towline.workers'::regclass::oid::int4, hashtext(worker_name));
    PERFORM towline.fence_worker(worker_name, now);
    RETURN QUERY SELECT q.name FROM towline.queues AS q
        WHERE q.moved_to = '' AND EXISTS (
            SELECT FROM towline.tasks AS t WHERE t.queue = q.id AND t.state = 2 AND t.eta > now AND t.worker = worker_name
        ) ORDER BY q.id;
END $$;

-- Return those of these names that refuse an add.
CREATE FUNCTION taken_names(queue_name text, given text[], now int8) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT n.name FROM towline.queues AS q CROSS JOIN unnest(given) AS g (name)
        JOIN towline.names AS n ON n.queue = q.id AND n.name = g.name
        WHERE q.name = queue_name AND (n.task IS NOT NULL OR n.until > now);
END $$;
