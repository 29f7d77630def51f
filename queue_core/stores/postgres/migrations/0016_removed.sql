-- A task that somebody deletes while it is leased ends its lease as removed, which is no deletion by its holder. The last
-- attempt of a task may have its traceback behind it. See ADR 103 and 104.

-- Delete tasks by name, leased or not. why: the reason of a lease that ends by it; holder: the worker whose own leases
-- end as done, or NULL. Outcomes: 0 deleted, 1 unknown, 2 deleted before and still remembered.
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
                array_agg(ARRAY[gone.name, gone.tag, gone.worker] ORDER BY gone.eta, gone.id),
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

-- Return the attempts of a task with one more, a line of JSON each; the last 10 are kept. A traceback, behind a tab, is
-- of the last one only. fields: those that say how it ended, as JSON.
CREATE OR REPLACE FUNCTION with_attempt(
    attempts text, leases int4, worker text, leased_at int8, ended_at int8, fields text
) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT array_to_string(
        coalesce(
            (string_to_array(split_part(attempts, E'\t', 1), E'\n'))[greatest(1, cardinality(string_to_array(split_part(attempts, E'\t', 1), E'\n')) - 8):], '{}'
        ) || (
            '[' || leases || ',' || to_json(coalesce(worker, '')) || ',' || leased_at || ',' || ended_at || ','
            || fields || ']'
        ),
        E'\n'
    )
$$;

-- As all functions: planned once, along the indexes that they were written for (schema/plans.sql).
DO $$
DECLARE
    one record;
    setting text;
BEGIN
    FOR one IN
        SELECT p.oid::regprocedure AS function FROM pg_proc AS p
        WHERE p.pronamespace = current_schema()::regnamespace AND p.proname IN ('remove_named', 'purge')
    LOOP
        FOREACH setting IN ARRAY '{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off,
            enable_hashjoin = off, enable_mergejoin = off, jit = off}'::text[]
        LOOP
            EXECUTE format('ALTER FUNCTION %s SET %s', one.function, setting);
        END LOOP;
    END LOOP;
END $$;
