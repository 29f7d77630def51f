-- The verbs of administrators: delete by name, purge, redrive, postpone.

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

-- Delete up to `most` tasks in these states. why: the reason of leases that end by it.
CREATE FUNCTION purge(
    queue_name text, now int8, states int2[], tags text[], most int8, why text,
    OUT refusal int8, OUT note text, OUT xid int8, OUT total int8
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    of_state int2;
    found_here int8;
    found_tags text[];
    changed_tags text[] := '{}';
    admitted_tags text[];
BEGIN
    total := 0;
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND OR q.moved_to <> '' THEN
        refusal := CASE WHEN q.id IS NULL THEN 1 ELSE 2 END;
        note := queue_name || ' ' || coalesce(CASE refusal WHEN 1 THEN towline.some_queues() ELSE q.moved_to END, '');
        RETURN;
    END IF;
    slot := towline.count_slot(q.id);
    PERFORM towline.settle_some(q, slot, now);
    FOREACH of_state IN ARRAY states LOOP
        WITH doomed AS MATERIALIZED (
            SELECT s.id FROM towline.some_tasks(q.id, of_state, tags, most - total) AS s
        ), gone AS (
            DELETE FROM towline.tasks AS t USING doomed WHERE t.id = doomed.id RETURNING t.*
        ), noted AS (
            INSERT INTO towline.samples (queue, size, outcome, numbers, texts, ended_at, reasons, lived)
            SELECT q.id, count(*), 'removed',
                array_agg(ARRAY[
                    gone.id, gone.leases, greatest(0, gone.leased_at - gone.ready_at), gone.leased_at, gone.added_at
                ] ORDER BY gone.eta, gone.id),
                array_agg(ARRAY[gone.name, gone.tag, gone.worker, towline.celery_id(gone.headers)] ORDER BY gone.eta, gone.id),
                ARRAY[now], array_agg(why), true
            FROM gone WHERE gone.state = 2 HAVING count(*) > 0
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
        SELECT count(*), array_agg(DISTINCT gone.tag), array_agg(gone.tag) FILTER (WHERE gone.state > 3)
        INTO found_here, found_tags, admitted_tags FROM gone;
        total := total + found_here;
        changed_tags := changed_tags || found_tags;
        IF admitted_tags <> '{}' THEN
            PERFORM towline.count_admitted(q.id, slot, now, admitted_tags, '{-1}');
        END IF;
        EXIT WHEN total >= most;
    END LOOP;
    IF q.is_limited THEN
        PERFORM towline.update_lanes(q, slot, now, changed_tags, 0);
    END IF;
    xid := txid_current_if_assigned();
END $$;

-- Make dead tasks ready again: those named, or (NULL) up to `most` of these tags.
CREATE FUNCTION redrive(queue_name text, now int8, given text[], tags text[], most int8) RETURNS SETOF towline.tasks
LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    chosen int8[] := '{}';
    task towline.tasks;
    changed_tags text[] := '{}';
BEGIN
    SELECT * INTO STRICT q FROM towline.queues AS each WHERE each.name = queue_name;
    slot := towline.count_slot(q.id);
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
        UPDATE towline.tasks AS t SET state = -coalesce(t.priority, 0), eta = now, ready_at = now, leases = 0, reason = NULL
        WHERE t.id = chosen[place] RETURNING * INTO task;
        PERFORM towline.lower_floors(q.id, '{0}', ARRAY[task.tag], ARRAY[now]);
        PERFORM towline.count_tasks(q.id, slot, task.tag, now, dead => -1, ready => 1);
        changed_tags := changed_tags || task.tag;
        RETURN NEXT task;
    END LOOP;
    IF q.is_limited THEN
        PERFORM towline.update_lanes(q, slot, now, changed_tags, 0);
    END IF;
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
        PERFORM towline.lower_floors(
            q.id, ARRAY[CASE WHEN new_eta > now THEN 1 ELSE 0 END]::int2[], ARRAY[task.tag], ARRAY[new_eta]
        );
        UPDATE towline.tasks AS t SET
            state = CASE WHEN new_eta > now THEN 1 ELSE -coalesce(t.priority, 0) END, eta = new_eta, ready_at = new_eta,
            spent = towline.ahead_of(t.spent || t.eta, now)
        WHERE t.id = task.id;
        IF new_eta <= now THEN
            PERFORM towline.count_tasks(q.id, towline.count_slot(q.id), task.tag, now, ready => 1, delayed => -1);
            IF q.is_limited THEN
                PERFORM towline.update_lanes(q, towline.count_slot(q.id), now, ARRAY[task.tag], 0);
            END IF;
        END IF;
    END IF;
    xid := txid_current_if_assigned();
END $$;

-- Change the tags of tasks by name; NULL: they have none then. Outcomes: 0 not changed, as it is unknown, leased, or has
-- the tag; 1 changed; 2 changed, and its eta has come.
CREATE FUNCTION retag(
    queue_name text, now int8, given text[], wanted text,
    OUT refusal int8, OUT note text, OUT xid int8, OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    task towline.tasks;
    is_ready bool;
    new_eta int8;
    changed_tags text[] := '{}';
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND OR q.moved_to <> '' THEN
        refusal := CASE WHEN q.id IS NULL THEN 1 ELSE 2 END;
        note := queue_name || ' ' || coalesce(CASE refusal WHEN 1 THEN towline.some_queues() ELSE q.moved_to END, '');
        RETURN;
    END IF;
    IF wanted IS NOT NULL AND NOT q.has_tags THEN
        UPDATE towline.queues AS e SET has_tags = true WHERE e.id = q.id;
    END IF;
    slot := towline.count_slot(q.id);
    PERFORM towline.settle_some(q, slot, now);
    FOR place IN 1..cardinality(given) LOOP
        outcomes[place] := 0;
        task := towline.named_task(q.id, given[place]);
        IF task.state = 2 AND task.eta <= now THEN
            PERFORM FROM towline.settle_one(q, slot, now, task.id);
            task := towline.named_task(q.id, given[place]);
        END IF;
        CONTINUE WHEN task.id IS NULL OR task.state = 2 OR task.tag IS NOT DISTINCT FROM wanted;
        is_ready := task.state NOT BETWEEN 1 AND 3;
        -- The untagged have no lane: what one held is admitted.
        new_eta := CASE WHEN wanted IS NULL AND q.has_lanes AND task.state < 1 THEN now ELSE task.eta END;
        IF task.state <> 3 THEN
            PERFORM towline.lower_floors(
                q.id, ARRAY[CASE WHEN is_ready THEN 0 ELSE 1 END]::int2[], ARRAY[wanted], ARRAY[new_eta]
            );
        END IF;
        UPDATE towline.tasks AS t SET
            tag = wanted, state = CASE WHEN is_ready THEN -coalesce(t.priority, 0) ELSE t.state END, eta = new_eta,
            ready_at = CASE WHEN new_eta <> t.eta THEN now ELSE t.ready_at END
        WHERE t.id = task.id;
        PERFORM towline.count_tasks(
            q.id, slot, task.tag, now, ready => -is_ready::int4, delayed => -(task.state = 1)::int4,
            dead => -(task.state = 3)::int4
        );
        PERFORM towline.count_tasks(
            q.id, slot, wanted, now, ready => is_ready::int4, delayed => (task.state = 1)::int4,
            dead => (task.state = 3)::int4
        );
        IF task.state > 3 THEN
            PERFORM towline.count_admitted(q.id, slot, now, ARRAY[task.tag], '{-1}');
        END IF;
        changed_tags := array_append(array_append(changed_tags, task.tag), wanted);
        outcomes[place] := CASE WHEN is_ready THEN 2 ELSE 1 END;
    END LOOP;
    IF q.is_limited AND changed_tags <> '{}' THEN
        PERFORM towline.update_lanes(q, slot, now, changed_tags, 0);
    END IF;
    xid := txid_current_if_assigned();
END $$;

-- Delete tasks by name, leased or not. why: the reason of a lease that ends by it; holder: the worker whose own leases
-- end as done, or NULL (ADR 103). Outcomes: 0 deleted, 1 unknown, 2 deleted before and still remembered.
CREATE FUNCTION remove_named(
    queue_name text, now int8, given text[], why text, holder text,
    OUT refusal int8, OUT note text, OUT xid int8, OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    task towline.tasks;
    until int8;
    changed_tags text[] := '{}';
    ended int8 := 0;
    is_done bool;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND OR q.moved_to <> '' THEN
        refusal := CASE WHEN q.id IS NULL THEN 1 ELSE 2 END;
        note := queue_name || ' ' || coalesce(CASE refusal WHEN 1 THEN towline.some_queues() ELSE q.moved_to END, '');
        RETURN;
    END IF;
    slot := towline.count_slot(q.id);
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
        is_done := holder IS NOT NULL AND (task.state <> 2 OR coalesce(task.worker, '') = holder);
        PERFORM towline.count_tasks(
            q.id, slot, task.tag, now, deleted => is_done::int4, ready => -(task.state NOT BETWEEN 1 AND 3)::int4,
            delayed => -(task.state = 1)::int4, leased => -(task.state = 2)::int4, dead => -(task.state = 3)::int4
        );
        changed_tags := changed_tags || task.tag;
        IF task.state > 3 THEN
            PERFORM towline.count_admitted(q.id, slot, now, ARRAY[task.tag], '{-1}');
        END IF;
        IF task.state = 2 THEN
            ended := ended + 1;
            PERFORM towline.note_finished(
                task, CASE WHEN is_done THEN 'deleted' ELSE 'removed' END, now, CASE WHEN NOT is_done THEN why END, true
            );
        END IF;
        outcomes[place] := 0;
    END LOOP;
    IF q.is_limited THEN
        PERFORM towline.update_lanes(q, slot, now, changed_tags, ended);
    END IF;
    xid := txid_current_if_assigned();
END $$;
