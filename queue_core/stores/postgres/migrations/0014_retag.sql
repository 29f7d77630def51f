-- Tags of tasks that nobody has leased can be changed: counters, floors, lanes and the rotation follow. See ADR 37.

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
