-- The verbs of people and supervisors.

-- The task of a given or chosen name, locked; NULL when there is none.
CREATE FUNCTION named_task(queue_id int4, given text) RETURNS towline.tasks LANGUAGE plpgsql AS $$
DECLARE
    found_name towline.names;
    task towline.tasks;
BEGIN
    SELECT * INTO found_name FROM towline.names AS n WHERE n.queue = queue_id AND n.name = given;
    IF FOUND THEN
        SELECT * INTO task FROM towline.tasks AS t
        WHERE t.id = found_name.task AND t.queue = queue_id AND t.name = given FOR UPDATE;
    ELSIF given ~ '^_[0-9]{1,18}$' THEN
        SELECT * INTO task FROM towline.tasks AS t
        WHERE t.id = substr(given, 2)::int8 AND t.queue = queue_id AND t.name IS NULL AND given = '_' || t.id FOR UPDATE;
    END IF;
    RETURN task;
END $$;

-- Delete tasks by name, whoever holds them. Outcomes: 0 deleted, 1 unknown, 2 deleted before and still remembered.
CREATE FUNCTION delete_named(
    queue_name text, now int8, given text[], OUT refusal int8, OUT note text, OUT xid int8, OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int2 := towline.take_slot();
    task towline.tasks;
    until int8;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND OR q.moved_to <> '' THEN
        refusal := CASE WHEN q.id IS NULL THEN 1 ELSE 2 END;
        note := queue_name || ' ' || coalesce(CASE refusal WHEN 1 THEN towline.some_queues() ELSE q.moved_to END, '');
        RETURN;
    END IF;
    PERFORM towline.settle_some(q, slot, now);
    FOR place IN 1..cardinality(given) LOOP
        task := towline.named_task(q.id, given[place]);
        IF task.state = 2 AND task.eta <= now THEN
            PERFORM FROM towline.settle_one(q, slot, now, task.id);
            task := towline.named_task(q.id, given[place]);
        END IF;
        IF task.id IS NULL THEN
            SELECT n.until INTO until FROM towline.names AS n WHERE n.queue = q.id AND n.name = given[place];
            outcomes[place] := CASE WHEN until > now THEN 2 ELSE 1 END;
            CONTINUE;
        END IF;
        DELETE FROM towline.tasks AS t WHERE t.id = task.id;
        PERFORM towline.part_name(q, task.name, now);
        PERFORM towline.count_tasks(
            q.id, slot, task.tag, now, deleted => 1, ready => -(task.state = 0)::int4, delayed => -(task.state = 1)::int4,
            leased => -(task.state = 2)::int4, dead => -(task.state = 3)::int4
        );
        IF task.state = 2 THEN
            PERFORM towline.note_finished(task, 'deleted', now, NULL);
        END IF;
        outcomes[place] := 0;
    END LOOP;
    xid := txid_current_if_assigned();
END $$;

-- Settle as much as one verb does.
CREATE FUNCTION settle_some(q towline.queues, slot int2, now int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    edge record;
BEGIN
    SELECT * INTO edge FROM towline.horizon(q.id, now, 500);
    PERFORM FROM towline.settle_before(q, slot, now, edge.end_eta, edge.end_id);
END $$;

-- Settle the expired lease of one task, which is locked.
CREATE FUNCTION settle_one(q towline.queues, slot int2, now int8, task_id int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    task towline.tasks;
    why text;
BEGIN
    SELECT * INTO task FROM towline.tasks AS t WHERE t.id = task_id;
    why := CASE WHEN task.leases >= q.max_leases THEN 'max_leases' END;
    PERFORM towline.note_finished(task, 'expired', task.eta, why);
    IF why IS NULL THEN
        UPDATE towline.tasks AS t SET state = 0, ready_at = t.eta WHERE t.id = task_id;
    ELSIF q.deletes_exhausted THEN
        DELETE FROM towline.tasks AS t WHERE t.id = task_id;
        PERFORM towline.part_name(q, task.name, task.eta);
    ELSE
        UPDATE towline.tasks AS t SET state = 3, ready_at = t.eta, reason = why WHERE t.id = task_id;
    END IF;
    PERFORM towline.count_tasks(
        q.id, slot, task.tag, now, leased => -1, expired => 1, ready => (why IS NULL)::int4,
        died => (why IS NOT NULL)::int4, dead => (why IS NOT NULL AND NOT q.deletes_exhausted)::int4
    );
END $$;

-- Lock up to `most` tasks of a state and, unless NULL, of these tags; the untagged when they are none.
CREATE FUNCTION some_tasks(queue_id int4, of_state int2, tags text[], most int8) RETURNS SETOF towline.tasks
LANGUAGE plpgsql AS $$
DECLARE
    task towline.tasks;
BEGIN
    IF tags IS NULL THEN
        RETURN QUERY SELECT * FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = of_state ORDER BY t.eta, t.id LIMIT most FOR UPDATE;
    ELSIF towline.gauge(queue_id, of_state, tags) = 0 THEN
        RETURN;
    ELSIF tags = '{}' THEN
        IF of_state = 0 THEN
            RETURN QUERY SELECT * FROM towline.tasks AS t
                WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0
                ORDER BY t.tag, t.eta, t.id LIMIT most FOR UPDATE;
        ELSE
            RETURN QUERY SELECT * FROM towline.tasks AS t
                WHERE t.queue = queue_id AND t.state = of_state AND t.tag IS NULL
                ORDER BY t.eta, t.id LIMIT most FOR UPDATE;
        END IF;
    ELSIF of_state = 0 THEN
        RETURN QUERY SELECT l.* FROM unnest(tags) AS w (tag) CROSS JOIN LATERAL (
                SELECT * FROM towline.tasks AS t
                WHERE t.queue = queue_id AND t.tag = w.tag AND t.state + 0 = 0
                ORDER BY t.eta, t.id LIMIT most FOR UPDATE
            ) AS l LIMIT most;
    ELSE
        RETURN QUERY SELECT * FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = of_state AND t.tag = ANY (tags)
            ORDER BY t.eta, t.id LIMIT most FOR UPDATE;
    END IF;
END $$;

-- How many tasks of a queue, or of these tags (none: the untagged), are stored in a state.
CREATE FUNCTION gauge(queue_id int4, of_state int2, tags text[]) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
DECLARE
    sums towline.counts := towline.sum_counts(queue_id, tags);
BEGIN
    RETURN CASE of_state WHEN 0 THEN sums.ready WHEN 1 THEN sums.delayed WHEN 2 THEN sums.leased ELSE sums.dead END;
END $$;

-- Delete up to `most` tasks in these states.
CREATE FUNCTION purge(
    queue_name text, now int8, states int2[], tags text[], most int8,
    OUT refusal int8, OUT note text, OUT xid int8, OUT total int8
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int2 := towline.take_slot();
    of_state int2;
    found_here int8;
BEGIN
    total := 0;
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND OR q.moved_to <> '' THEN
        refusal := CASE WHEN q.id IS NULL THEN 1 ELSE 2 END;
        note := queue_name || ' ' || coalesce(CASE refusal WHEN 1 THEN towline.some_queues() ELSE q.moved_to END, '');
        RETURN;
    END IF;
    PERFORM towline.settle_some(q, slot, now);
    FOREACH of_state IN ARRAY states LOOP
        WITH doomed AS MATERIALIZED (
            SELECT s.id FROM towline.some_tasks(q.id, of_state, tags, most - total) AS s
        ), gone AS (
            DELETE FROM towline.tasks AS t USING doomed WHERE t.id = doomed.id RETURNING t.tag, t.name
        ), held AS (
            UPDATE towline.names AS n SET task = NULL, until = now + round(q.name_retention_seconds * 1000000)::int8
            FROM gone WHERE n.queue = q.id AND n.name = gone.name
        ), counted AS (
            INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, delayed, leased, dead, changed_at)
            SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN gone.tag ELSE '' END, -count(*) FILTER (WHERE of_state = 0), -count(*) FILTER (WHERE of_state = 1),
                -count(*) FILTER (WHERE of_state = 2), -count(*) FILTER (WHERE of_state = 3), now
            FROM gone CROSS JOIN unnest(towline.kinds_of(gone.tag)) AS k (kind) GROUP BY 2, 4
            ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
                ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed,
                leased = c.leased + excluded.leased, dead = c.dead + excluded.dead, changed_at = excluded.changed_at
        )
        SELECT count(*) INTO found_here FROM gone;
        total := total + found_here;
        EXIT WHEN total >= most;
    END LOOP;
    xid := txid_current_if_assigned();
END $$;

-- Make dead tasks ready again: those named, or (NULL) up to `most` of these tags.
CREATE FUNCTION redrive(queue_name text, now int8, given text[], tags text[], most int8) RETURNS SETOF towline.tasks
LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int2 := towline.take_slot();
    chosen int8[] := '{}';
    task towline.tasks;
BEGIN
    SELECT * INTO STRICT q FROM towline.queues AS each WHERE each.name = queue_name;
    PERFORM towline.settle_some(q, slot, now);
    IF given IS NULL THEN
        chosen := ARRAY(SELECT s.id FROM towline.some_tasks(q.id, 3::int2, tags, most) AS s ORDER BY s.id);
    ELSE
        FOR place IN 1..cardinality(given) LOOP
            task := towline.named_task(q.id, given[place]);
            IF task.state = 3 AND NOT task.id = ANY (chosen) THEN
                chosen := chosen || task.id;
            END IF;
        END LOOP;
    END IF;
    FOR place IN 1..least(cardinality(chosen), most) LOOP
        UPDATE towline.tasks AS t SET state = 0, eta = now, ready_at = now, leases = 0, reason = NULL
        WHERE t.id = chosen[place] RETURNING * INTO task;
        PERFORM towline.count_tasks(q.id, slot, task.tag, now, dead => -1, ready => 1);
        RETURN NEXT task;
    END LOOP;
END $$;

-- Drop a queue with all that is in it; how many tasks went. The queue is seized.
CREATE FUNCTION drop_queue(queue_id int4) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    gone int8;
BEGIN
    DELETE FROM towline.tasks AS t WHERE t.queue = queue_id;
    GET DIAGNOSTICS gone = ROW_COUNT;
    DELETE FROM towline.names AS n WHERE n.queue = queue_id;
    DELETE FROM towline.counts AS c WHERE c.queue = queue_id;
    DELETE FROM towline.samples AS s WHERE s.queue = queue_id;
    DELETE FROM towline.trimmed AS t WHERE t.queue = queue_id;
    DELETE FROM towline.queues AS q WHERE q.id = queue_id;
    RETURN gone;
END $$;

-- Hold a queue, to change what is in it; how that went.
CREATE FUNCTION open_queue(queue_name text) RETURNS SETOF towline.told LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND THEN
        RETURN NEXT towline.answer(1, queue_name || ' ' || coalesce(towline.some_queues(), ''), 0);
    ELSIF q.moved_to <> '' THEN
        RETURN NEXT towline.answer(2, queue_name || ' ' || q.moved_to, 0);
    ELSE
        RETURN NEXT towline.answer(0, NULL, 0);
    END IF;
END $$;

-- Fence a worker; waits for leases that are being granted to it.
CREATE FUNCTION fence_worker(worker_name text, now int8) RETURNS void LANGUAGE sql AS $$
    INSERT INTO towline.workers AS w (worker, retired_at) VALUES (worker_name, now)
    ON CONFLICT (worker) DO UPDATE SET retired_at = coalesce(w.retired_at, excluded.retired_at)
$$;

-- Retire a worker unless it holds a lease.
CREATE FUNCTION retire_worker(worker_name text, now int8) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock('towline.workers'::regclass::oid::int4, hashtext(worker_name));
    PERFORM FROM towline.queues AS q, towline.tasks AS t
    WHERE t.queue = q.id AND t.state = 2 AND t.eta > now AND t.worker = worker_name LIMIT 1;
    IF FOUND THEN
        RETURN false;
    END IF;
    PERFORM towline.fence_worker(worker_name, now);
    RETURN true;
END $$;

-- Give back all that a dead worker holds, in each task's old place, and retire it. `reason` says why a task died, and
-- `payload` names the queue.
CREATE FUNCTION release_worker(worker_name text, now int8) RETURNS SETOF towline.told LANGUAGE plpgsql AS $$
DECLARE
    slot int2 := towline.take_slot();
    q towline.queues;
    task towline.tasks;
    why text;
BEGIN
    PERFORM pg_advisory_xact_lock('towline.workers'::regclass::oid::int4, hashtext(worker_name));
    PERFORM towline.fence_worker(worker_name, now);
    FOR q IN SELECT * FROM towline.queues AS each ORDER BY each.id LOOP
        PERFORM towline.hold_queue(q.name);
        SELECT * INTO q FROM towline.queues AS each WHERE each.id = q.id;
        CONTINUE WHEN NOT FOUND OR q.moved_to <> '';
        PERFORM towline.settle_some(q, slot, now);
        FOR task IN
            SELECT * FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.state = 2 AND t.eta > now AND t.worker = worker_name ORDER BY t.id FOR UPDATE
        LOOP
            why := towline.give_back(q, slot, now, task, NULL, false, '');
            RETURN NEXT ROW(
                6, 0, now, task.ready_at, NULL, task.leased_at, task.leases, task.worker,
                coalesce(task.name, '_' || task.id), task.tag, why, convert_to(q.name, 'UTF8')
            )::towline.told;
        END LOOP;
    END LOOP;
    RETURN NEXT towline.answer(0, NULL, 0);
END $$;

-- Take or keep a lead.
CREATE FUNCTION take_lead(lead_name text, new_holder text, new_until int8, now int8) RETURNS bool LANGUAGE sql AS $$
    WITH taken AS (
        INSERT INTO towline.leads AS l VALUES (lead_name, new_holder, new_until)
        ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
        WHERE l.holder = excluded.holder OR l.until <= now
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM taken)
$$;

-- Keep a session's answer; false when a later call was answered already. Now and then a few idle sessions are forgotten.
CREATE FUNCTION keep_answer(session_name text, new_number int8, new_answer bytea, now int8) RETURNS bool
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE towline.sessions AS s SET number = new_number, answer = new_answer, kept_at = now
    WHERE s.session = session_name AND s.number < new_number;
    IF FOUND THEN
        RETURN true;
    END IF;
    INSERT INTO towline.sessions VALUES (session_name, new_number, new_answer, now) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- Names are random, so these are any four.
    DELETE FROM towline.sessions AS s USING (
        SELECT f.session FROM towline.sessions AS f WHERE f.session > session_name ORDER BY f.session LIMIT 4
        FOR UPDATE SKIP LOCKED
    ) AS few
    WHERE s.session = few.session AND s.kept_at < now - 172800000000;
    RETURN true;
END $$;
