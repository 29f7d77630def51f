-- The verbs of administrators: delete by name, purge, redrive, postpone.

-- Delete tasks by name, leased or not. Outcomes: 0 deleted, 1 unknown, 2 deleted before and still remembered.
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
            q.id, slot, task.tag, now, deleted => 1, ready => -(task.state = 0)::int4,
            delayed => -(task.state = 1)::int4, leased => -(task.state = 2)::int4, dead => -(task.state = 3)::int4
        );
        IF task.state = 2 THEN
            PERFORM towline.note_finished(task, 'deleted', now, NULL);
        END IF;
        outcomes[place] := 0;
    END LOOP;
    xid := txid_current_if_assigned();
END $$;

-- Lock up to `most` tasks of a state and, unless NULL, of these tags (empty: the untagged).
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
            SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN gone.tag ELSE '' END,
                -count(*) FILTER (WHERE of_state = 0), -count(*) FILTER (WHERE of_state = 1),
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

-- Move the eta of a delayed task from exactly the one that is expected.
CREATE FUNCTION postpone(
    queue_name text, now int8, given text, expected int8, wanted int8,
    OUT refusal int8, OUT note text, OUT xid int8, OUT moved bool
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    task towline.tasks;
    new_eta CONSTANT int8 := greatest(wanted, now);
BEGIN
    moved := false;
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND OR q.moved_to <> '' THEN
        refusal := CASE WHEN q.id IS NULL THEN 1 ELSE 2 END;
        note := queue_name || ' ' || coalesce(CASE refusal WHEN 1 THEN towline.some_queues() ELSE q.moved_to END, '');
        RETURN;
    END IF;
    task := towline.named_task(q.id, given);
    IF task.state = 1 AND task.eta = expected AND task.eta > now THEN
        moved := true;
        UPDATE towline.tasks AS t SET
            state = CASE WHEN new_eta > now THEN 1 ELSE 0 END, eta = new_eta, ready_at = new_eta,
            spent = towline.ahead_of(t.spent || t.eta, now)
        WHERE t.id = task.id;
        IF new_eta <= now THEN
            PERFORM towline.count_tasks(q.id, towline.take_slot(), task.tag, now, ready => 1, delayed => -1);
        END IF;
    END IF;
    xid := txid_current_if_assigned();
END $$;
