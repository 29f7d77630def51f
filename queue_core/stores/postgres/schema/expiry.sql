-- Expiry: delayed tasks become ready, expired leases end.

-- Return the first end from `wanted` on that is not among the ends of earlier leases.
CREATE FUNCTION unspent_end(wanted int8, ahead int8[]) RETURNS int8 LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    WHILE wanted = ANY (ahead) LOOP
        wanted := wanted + 1;
    END LOOP;
    RETURN wanted;
END $$;

-- Return those of some instants that are still to come; NULL: none.
CREATE FUNCTION ahead_of(instants int8[], now int8) RETURNS int8[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(each.instant) FROM unnest(instants) AS each (instant) WHERE each.instant > now
$$;

-- Separate a name from its deleted task; it stays taken for the queue's retention.
CREATE FUNCTION part_name(q towline.queues, given text, ended_at int8) RETURNS void LANGUAGE sql AS $$
    UPDATE towline.names SET task = NULL, until = ended_at + round(q.name_retention_seconds * 1000000)::int8
    WHERE names.queue = q.id AND names.name = given
$$;

-- Return the reason of a task that dies of an expired lease: `WORDS` of `attempts/attempt.py`.
CREATE FUNCTION expired_reason() RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'its lease expired: nobody renewed it'
$$;

-- Return the fields of an attempt that say that its lease expired: `EXPIRED_TEXT` of `attempts/attempt.py`.
CREATE FUNCTION expired_fields() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT '"expired","","","",""' $$;

-- Return the attempts of a task with one more, a line of JSON each; the last 10 are kept. A traceback, behind a tab, is
-- of the last one only. fields: those that say how it ended, as JSON.
CREATE FUNCTION with_attempt(
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

-- Return the place in eta order before which at most `most` tasks are due; an id of 0: behind all due tasks.
CREATE FUNCTION horizon(queue_id int4, now int8, most int4, OUT end_eta int8, OUT end_id int8) LANGUAGE plpgsql AS $$
DECLARE
    f towline.floors := towline.floors_of(queue_id);
BEGIN
    SELECT due.eta, due.id INTO end_eta, end_id
    FROM (
        (
            SELECT t.eta, t.id FROM towline.tasks AS t WHERE t.queue = queue_id AND t.state = 1 AND t.eta >= f.delayed
                AND t.eta <= now
            ORDER BY t.eta, t.id LIMIT most + 1
        ) UNION ALL (
            SELECT t.eta, t.id FROM towline.tasks AS t WHERE t.queue = queue_id AND t.state = 2 AND t.eta >= f.leased
                AND t.eta <= now
            ORDER BY t.eta, t.id LIMIT most + 1
        )
    ) AS due
    ORDER BY due.eta, due.id OFFSET most LIMIT 1;
    IF NOT FOUND THEN
        end_eta := 9223372036854775807;
        end_id := 0;
    END IF;
END $$;

-- Settle the tasks that are due before (end_eta, end_id): tasks become ready or dead, and tasks that another
-- transaction has locked are skipped. Return `lease_row.settled`.
CREATE FUNCTION settle_before(q towline.queues, slot int8, now int8, end_eta int8, end_id int8) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    ripe_tags json;
    expired json;
    low_tags text[];
    low_etas int8[];
    changed_tags text[] := '{}';
    f towline.floors := towline.floors_of(q.id);
BEGIN
    WITH due AS MATERIALIZED (
        SELECT t.id FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.state = 1 AND t.eta >= f.delayed AND t.eta <= now
            AND (t.eta, t.id) < (end_eta, end_id)
        ORDER BY t.eta, t.id FOR UPDATE SKIP LOCKED
    ), ripe AS (
        UPDATE towline.tasks AS t SET state = -coalesce(t.priority, 0) FROM due WHERE t.id = due.id
        RETURNING t.tag, t.eta
    ), counted AS (
        INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, delayed, changed_at)
        SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN ripe.tag ELSE '' END, count(*), -count(*), now
        FROM ripe CROSS JOIN unnest(towline.kinds_of(ripe.tag)) AS k (kind) GROUP BY 2, 4
        ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
            ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed, changed_at = excluded.changed_at
    )
    SELECT json_agg(json_build_array(r.tag, r.total)) FILTER (WHERE r.tag IS NULL OR NOT q.has_lanes),
        array_agg(r.tag), array_agg(r.eta)
    INTO ripe_tags, low_tags, low_etas
    FROM (SELECT ripe.tag, count(*) AS total, min(ripe.eta) AS eta FROM ripe GROUP BY ripe.tag) AS r;
    IF towline.lowest_of(low_etas) < f.ceiling THEN
        PERFORM towline.lower_floors(q.id, array_fill(0::int2, ARRAY[cardinality(low_etas)]), low_tags, low_etas);
    END IF;

    changed_tags := low_tags;
    WITH due AS MATERIALIZED (
        SELECT t.id, t.eta, t.ready_at, t.leased_at, t.leases, t.tag, t.name, t.worker,
            towline.celery_id(t.headers) AS celery_id, greatest(0, t.leased_at - t.ready_at) AS waited, t.added_at,
            CASE WHEN t.leases >= coalesce(t.max_leases, q.max_leases) THEN towline.expired_reason() END AS reason
        FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.state = 2 AND t.eta >= f.leased AND t.eta <= now
            AND (t.eta, t.id) < (end_eta, end_id)
        ORDER BY t.eta, t.id FOR UPDATE SKIP LOCKED
    ), again AS (
        UPDATE towline.tasks AS t SET state = -coalesce(t.priority, 0), ready_at = t.eta, attempts = towline.with_attempt(
            t.attempts, t.leases, t.worker, t.leased_at, t.eta, towline.expired_fields()
        )
        FROM due WHERE t.id = due.id AND due.reason IS NULL
    ), dead AS (
        UPDATE towline.tasks AS t SET state = 3, ready_at = t.eta, reason = due.reason,
            attempts = towline.with_attempt(
                t.attempts, t.leases, t.worker, t.leased_at, t.eta, towline.expired_fields()
            )
        FROM due WHERE t.id = due.id AND due.reason IS NOT NULL AND NOT q.deletes_exhausted
    ), gone AS (
        DELETE FROM towline.tasks AS t USING due
        WHERE t.id = due.id AND due.reason IS NOT NULL AND q.deletes_exhausted
    ), held AS (
        UPDATE towline.names AS n SET task = NULL, until = due.eta + round(q.name_retention_seconds * 1000000)::int8
        FROM due WHERE due.reason IS NOT NULL AND q.deletes_exhausted AND n.queue = q.id AND n.name = due.name
    ), noted AS (
        INSERT INTO towline.samples (queue, size, outcome, numbers, texts, ended_at, reasons)
        SELECT q.id, count(*), 'expired', array_agg(ARRAY[due.id, due.leases, due.waited, due.leased_at, due.added_at]),
            array_agg(ARRAY[due.name, due.tag, due.worker, due.celery_id]), array_agg(due.eta), array_agg(due.reason)
        FROM due HAVING count(*) > 0
    ), counted AS (
        INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, leased, dead, expired, died, changed_at)
        SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN due.tag ELSE '' END,
            count(*) FILTER (WHERE due.reason IS NULL), -count(*),
            count(*) FILTER (WHERE due.reason IS NOT NULL AND NOT q.deletes_exhausted), count(*),
            count(*) FILTER (WHERE due.reason IS NOT NULL), now
        FROM due CROSS JOIN unnest(towline.kinds_of(due.tag)) AS k (kind) GROUP BY 2, 4
        ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
            ready = c.ready + excluded.ready, leased = c.leased + excluded.leased, dead = c.dead + excluded.dead,
            expired = c.expired + excluded.expired, died = c.died + excluded.died, changed_at = excluded.changed_at
    )
    SELECT json_agg(json_build_array(
        due.id, due.leases, due.waited, due.leased_at, due.added_at, due.name, due.tag, due.worker, due.eta, due.reason,
        due.celery_id
    )), array_agg(due.tag), array_agg(due.eta) INTO expired, low_tags, low_etas FROM due;
    IF towline.lowest_of(low_etas) < f.ceiling THEN
        PERFORM towline.lower_floors(q.id, array_fill(0::int2, ARRAY[cardinality(low_etas)]), low_tags, low_etas);
    END IF;
    IF q.is_limited THEN
        PERFORM towline.update_due_lanes(
            q, slot, now, coalesce(changed_tags || low_tags, '{}'), coalesce(cardinality(low_tags), 0)
        );
    END IF;
    RETURN json_build_array(coalesce(expired, '[]'), coalesce(ripe_tags, '[]'));
END $$;

-- Settle up to `most` due tasks of a queue: the settle verb.
CREATE FUNCTION settle(queue_name text, now int8, most int4) RETURNS towline.lease_row LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    edge record;
    settled text;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND THEN
        RETURN towline.lease_outcome_row(1, queue_name || ' ' || coalesce(towline.some_queues(), ''), 0);
    ELSIF q.moved_to <> '' THEN
        RETURN towline.lease_outcome_row(2, queue_name || ' ' || q.moved_to, 0);
    END IF;
    slot := towline.count_slot(q.id);
    SELECT * INTO edge FROM towline.horizon(q.id, now, most);
    settled := towline.settle_before(q, slot, now, edge.end_eta, edge.end_id);
    IF q.is_limited THEN
        PERFORM towline.update_lanes(q, slot, now, '{}', 1000000);  -- time alone may have made room in the queue
    END IF;
    RETURN towline.lease_outcome_row(0, NULL, CASE WHEN edge.end_id = 0 THEN 0 ELSE 1 END, settled => settled);
END $$;

-- Settle as much as one verb does.
CREATE FUNCTION settle_some(q towline.queues, slot int8, now int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    edge record;
BEGIN
    SELECT * INTO edge FROM towline.horizon(q.id, now, 500);
    PERFORM FROM towline.settle_before(q, slot, now, edge.end_eta, edge.end_id);
END $$;

-- Settle the expired lease of one task, which is locked.
CREATE FUNCTION settle_one(q towline.queues, slot int8, now int8, task_id int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    task towline.tasks;
    why text;
    tried text;
BEGIN
    SELECT * INTO task FROM towline.tasks AS t WHERE t.id = task_id;
    why := CASE WHEN task.leases >= coalesce(task.max_leases, q.max_leases) THEN towline.expired_reason() END;
    tried := towline.with_attempt(
        task.attempts, task.leases, task.worker, task.leased_at, task.eta, towline.expired_fields()
    );
    PERFORM towline.note_finished(task, 'expired', task.eta, why);
    IF why IS NULL THEN
        UPDATE towline.tasks AS t SET state = -coalesce(task.priority, 0), ready_at = t.eta, attempts = tried WHERE t.id = task_id;
        PERFORM towline.lower_floors(q.id, '{0}', ARRAY[task.tag], ARRAY[task.eta]);
    ELSIF q.deletes_exhausted THEN
        DELETE FROM towline.tasks AS t WHERE t.id = task_id;
        PERFORM towline.part_name(q, task.name, task.eta);
    ELSE
        UPDATE towline.tasks AS t SET state = 3, ready_at = t.eta, reason = why, attempts = tried
        WHERE t.id = task_id;
    END IF;
    PERFORM towline.count_tasks(
        q.id, slot, task.tag, now, leased => -1, expired => 1, ready => (why IS NULL)::int4,
        died => (why IS NOT NULL)::int4, dead => (why IS NOT NULL AND NOT q.deletes_exhausted)::int4
    );
    IF q.is_limited THEN
        PERFORM towline.update_lanes(q, slot, now, ARRAY[task.tag], 1);
    END IF;
END $$;

-- Settle a task that the end of its last lease deletes; return whether it was one. A task that another transaction has
-- locked is skipped, as that one may be settling it.
CREATE FUNCTION settle_used_up(queue_id int4, now int8, task_id int8) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
BEGIN
    SELECT * INTO q FROM towline.queues AS e WHERE e.id = queue_id;
    IF NOT q.deletes_exhausted THEN
        RETURN false;
    END IF;
    PERFORM FROM towline.tasks AS t
    WHERE t.id = task_id AND t.state = 2 AND t.eta <= now AND t.leases >= coalesce(t.max_leases, q.max_leases)
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM towline.settle_one(q, towline.count_slot(queue_id), now, task_id);
    RETURN true;
END $$;
