-- The other verbs, counters and reads with lanes: see `0007_lanes.sql`.

DROP FUNCTION restore;

-- End the live lease of a task that is released; return whether the task died.
-- is_dead: at once, for the reason that else holds if its leases are used up. told: of a task that lives on, if not NULL.
-- fields: see `with_attempt`.
CREATE OR REPLACE FUNCTION give_back(
    q towline.queues, slot int8, now int8, task towline.tasks, delay_seconds float8, is_uncounted bool, is_dead bool,
    reason text, told text, fields text
) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
    cut_short int8[] := towline.ahead_of(task.spent || task.eta, now);
    died CONSTANT bool := is_dead
        OR coalesce(NOT is_uncounted AND task.leases >= coalesce(task.max_leases, q.max_leases), false);
    tried CONSTANT text := towline.with_attempt(
        task.attempts, task.leases, task.worker, task.leased_at, now, fields
    );
    next_eta int8;
BEGIN
    PERFORM towline.note_finished(
        task, 'released', now, CASE WHEN died THEN give_back.reason ELSE told END, CASE WHEN NOT died THEN true END
    );
    IF died THEN
        IF q.deletes_exhausted THEN
            DELETE FROM towline.tasks AS t WHERE t.id = task.id;
            PERFORM towline.part_name(q, task.name, now);
        ELSE
            UPDATE towline.tasks AS t SET
                state = 3, eta = now, ready_at = now, reason = give_back.reason, spent = cut_short, attempts = tried
            WHERE t.id = task.id;
        END IF;
        PERFORM towline.count_tasks(
            q.id, slot, task.tag, now, leased => -1, released => 1, died => 1,
            dead => CASE WHEN q.deletes_exhausted THEN 0 ELSE 1 END
        );
        RETURN true;
    END IF;
    next_eta := CASE WHEN delay_seconds IS NULL THEN least(task.ready_at, now)
        ELSE now + round(delay_seconds * 1000000)::int8 END;
    PERFORM towline.lower_floors(
        q.id, ARRAY[CASE WHEN next_eta <= now THEN 0 ELSE 1 END]::int2[], ARRAY[task.tag], ARRAY[next_eta]
    );
    UPDATE towline.tasks AS t SET
        state = CASE WHEN next_eta <= now THEN -coalesce(t.priority, 0) ELSE 1 END, eta = next_eta, ready_at = next_eta,
        leases = t.leases - CASE WHEN is_uncounted THEN 1 ELSE 0 END, spent = cut_short, attempts = tried
    WHERE t.id = task.id;
    PERFORM towline.count_tasks(
        q.id, slot, task.tag, now, leased => -1, released => 1, ready => CASE WHEN next_eta <= now THEN 1 ELSE 0 END,
        delayed => CASE WHEN next_eta <= now THEN 0 ELSE 1 END
    );
    RETURN false;
END $$;

-- Release leases, in order. A delay of NULL: the queue's back-off, or at once for a lease that is not counted. The last
-- arrays: see `give_back`.
CREATE OR REPLACE FUNCTION release(
    queue_name text, now int8, ids int8[], grants int8[], delays float8[], uncounted bool[], jitters float8[],
    dead bool[], reasons text[], told text[], fields text[]
) RETURNS SETOF towline.result_row LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    task towline.tasks;
    delay_seconds float8;
    died bool;
    changed_tags text[] := '{}';
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND THEN
        RETURN NEXT towline.outcome_row(1, queue_name || ' ' || coalesce(towline.some_queues(), ''), 0);
        RETURN;
    ELSIF q.moved_to <> '' THEN
        RETURN NEXT towline.outcome_row(2, queue_name || ' ' || q.moved_to, 0);
        RETURN;
    END IF;
    slot := towline.count_slot(q.id);
    FOR place IN 1..cardinality(ids) LOOP
        SELECT * INTO task FROM towline.tasks AS t
        WHERE t.id = ids[place] AND t.queue = q.id AND t.state = 2 AND t.leased_at = grants[place] AND t.eta > now
        FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        delay_seconds := delays[place];
        IF delay_seconds IS NULL AND NOT uncounted[place] THEN
            delay_seconds := least(
                q.retry_max_seconds, q.retry_min_seconds * power(2::float8, least(greatest(task.leases - 1, 0), 60))
            ) * (1.0::float8 - 0.1::float8 * jitters[place]);
        END IF;
        died := towline.give_back(
            q, slot, now, task, delay_seconds, uncounted[place], dead[place], reasons[place], told[place], fields[place]
        );
        changed_tags := changed_tags || task.tag;
        RETURN NEXT ROW(
            6 + died::int4, place, now, task.ready_at, task.added_at, task.leased_at, task.leases, task.worker,
            coalesce(task.name, '_' || task.id), task.tag, CASE WHEN died THEN reasons[place] ELSE told[place] END, NULL
        )::towline.result_row;
    END LOOP;
    IF q.is_limited THEN
        PERFORM towline.update_lanes(q, slot, now, changed_tags, cardinality(changed_tags));
    END IF;
    RETURN NEXT towline.outcome_row(0, NULL, 0);
END $$;

-- Release all leases of a dead worker, each task to its old place, and retire the worker. In the result `payload` names
-- the queue. The last arguments: see `give_back`.
CREATE OR REPLACE FUNCTION release_worker(worker_name text, now int8, reason text, told text, fields text)
RETURNS SETOF towline.result_row LANGUAGE plpgsql AS $$
DECLARE
    slot int8;
    q towline.queues;
    task towline.tasks;
    died bool;
    changed_tags text[];
BEGIN
    PERFORM pg_advisory_xact_lock('towline.workers'::regclass::oid::int4, hashtext(worker_name));
    PERFORM towline.fence_worker(worker_name, now);
    FOR q IN SELECT * FROM towline.queues AS each ORDER BY each.id LOOP
        PERFORM towline.hold_queue(q.name);
        SELECT * INTO q FROM towline.queues AS each WHERE each.id = q.id;
        CONTINUE WHEN NOT FOUND OR q.moved_to <> '';
        slot := towline.count_slot(q.id);
        PERFORM towline.settle_some(q, slot, now);
        changed_tags := '{}';
        FOR task IN
            SELECT * FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.state = 2 AND t.eta > now AND t.worker = worker_name ORDER BY t.id FOR UPDATE
        LOOP
            died := towline.give_back(
                q, slot, now, task, NULL, false, false, release_worker.reason, told, fields
            );
            changed_tags := changed_tags || task.tag;
            RETURN NEXT ROW(
                6 + died::int4, 0, now, task.ready_at, task.added_at, task.leased_at, task.leases, task.worker,
                coalesce(task.name, '_' || task.id), task.tag,
                CASE WHEN died THEN release_worker.reason ELSE told END, convert_to(q.name, 'UTF8')
            )::towline.result_row;
        END LOOP;
        IF q.is_limited THEN
            PERFORM towline.update_lanes(q, slot, now, changed_tags, cardinality(changed_tags));
        END IF;
    END LOOP;
    RETURN NEXT towline.outcome_row(0, NULL, 0);
END $$;

-- Delete tasks by name, leased or not. Outcomes: 0 deleted, 1 unknown, 2 deleted before and still remembered.
CREATE OR REPLACE FUNCTION delete_named(
    queue_name text, now int8, given text[], OUT refusal int8, OUT note text, OUT xid int8, OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    task towline.tasks;
    until int8;
    changed_tags text[] := '{}';
    ended int8 := 0;
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
        PERFORM towline.count_tasks(
            q.id, slot, task.tag, now, deleted => 1, ready => -(task.state NOT BETWEEN 1 AND 3)::int4,
            delayed => -(task.state = 1)::int4, leased => -(task.state = 2)::int4, dead => -(task.state = 3)::int4
        );
        changed_tags := changed_tags || task.tag;
        IF task.state > 3 THEN
            PERFORM towline.count_admitted(q.id, slot, now, ARRAY[task.tag], '{-1}');
        END IF;
        IF task.state = 2 THEN
            ended := ended + 1;
            PERFORM towline.note_finished(task, 'deleted', now, NULL);
        END IF;
        outcomes[place] := 0;
    END LOOP;
    IF q.is_limited THEN
        PERFORM towline.update_lanes(q, slot, now, changed_tags, ended);
    END IF;
    xid := txid_current_if_assigned();
END $$;

-- Lock up to `most` tasks of a state and, unless NULL, of these tags (empty: the untagged).
CREATE OR REPLACE FUNCTION some_tasks(queue_id int4, of_state int2, tags text[], most int8) RETURNS SETOF towline.tasks
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

-- Delete up to `most` tasks in these states.
CREATE OR REPLACE FUNCTION purge(
    queue_name text, now int8, states int2[], tags text[], most int8,
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
            DELETE FROM towline.tasks AS t USING doomed WHERE t.id = doomed.id RETURNING t.tag, t.name, t.state
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
CREATE OR REPLACE FUNCTION redrive(queue_name text, now int8, given text[], tags text[], most int8) RETURNS SETOF towline.tasks
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
CREATE OR REPLACE FUNCTION postpone(
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

-- Add tasks as another store had them. Outcomes as of `add`. An empty array from `bounds` on: none has one.
CREATE FUNCTION restore(
    queue_name text, now int8, states int2[], etas int8[], ready_ats int8[], added_ats int8[], leased_ats int8[],
    leases int4[], tags text[], names text[], workers text[], reasons text[], spents text[], payloads bytea[],
    bounds int4[], headers text[], attempts text[], progresses text[], checkpoints bytea[],
    priorities int2[] DEFAULT NULL,
    OUT xid int8, OUT ids int8[], OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO STRICT q FROM towline.queues AS each WHERE each.name = queue_name;
    slot := towline.count_slot(q.id);
    IF NOT q.has_tags AND array_remove(tags, NULL) <> '{}' THEN
        UPDATE towline.queues AS e SET has_tags = true WHERE e.id = q.id;
    END IF;
    IF array_remove(priorities, NULL) <> '{}' THEN
        UPDATE towline.queues AS e SET has_priorities = true, is_limited = true
        WHERE e.id = q.id RETURNING * INTO q;
    END IF;
    SELECT t.ids, t.outcomes INTO ids, outcomes FROM towline.take_names(q.id, now, names) AS t;
    PERFORM towline.forget_names(now, cardinality(names));
    PERFORM towline.lower_floors(q.id, states, tags, etas);
    WITH new AS (
        INSERT INTO towline.tasks AS t (
            id, eta, ready_at, added_at, leased_at, queue, leases, state, max_leases, tag, name, worker, reason,
            spent, progress, checkpoint, attempts, headers, payload, priority
        )
        SELECT n.id, n.eta, n.ready_at, n.added_at, n.leased_at, q.id, n.leases,
            CASE n.state WHEN 0 THEN -coalesce(n.priority, 0) ELSE n.state END, n.bound, n.tag, n.name,
            nullif(n.worker, ''), nullif(n.reason, ''), n.spent::int8[], n.progress, n.checkpoint, n.attempts,
            n.headers, n.payload, n.priority
        FROM unnest(
            ids, states, etas, ready_ats, added_ats, leased_ats, leases, tags, names, workers, reasons, spents,
            payloads, bounds, headers, attempts, progresses, checkpoints, priorities
        ) AS n (
            id, state, eta, ready_at, added_at, leased_at, leases, tag, name, worker, reason, spent, payload,
            bound, headers, attempts, progress, checkpoint, priority
        )
        WHERE n.id IS NOT NULL
        RETURNING t.tag, t.state
    )
    INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, delayed, leased, dead, added, changed_at)
    SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN new.tag ELSE '' END,
        count(*) FILTER (WHERE new.state <= 0), count(*) FILTER (WHERE new.state = 1),
        count(*) FILTER (WHERE new.state = 2), count(*) FILTER (WHERE new.state = 3), count(*), now
    FROM new CROSS JOIN unnest(towline.kinds_of(new.tag)) AS k (kind) GROUP BY 2, 4
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed, leased = c.leased + excluded.leased,
        dead = c.dead + excluded.dead, added = c.added + excluded.added, changed_at = excluded.changed_at;
    IF q.is_limited THEN
        PERFORM towline.update_lanes(q, slot, now, tags, 0);
    END IF;
    xid := txid_current_if_assigned();
END $$;

-- Drop a seized queue with all its tasks; return their number.
CREATE OR REPLACE FUNCTION drop_queue(queue_id int4) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    gone int8;
BEGIN
    DELETE FROM towline.tasks AS t WHERE t.queue = queue_id;
    GET DIAGNOSTICS gone = ROW_COUNT;
    DELETE FROM towline.names AS n WHERE n.queue = queue_id;
    DELETE FROM towline.counts AS c WHERE c.queue = queue_id;
    DELETE FROM towline.stored AS s WHERE s.queue = queue_id;
    DELETE FROM towline.samples AS s WHERE s.queue = queue_id;
    DELETE FROM towline.trimmed AS t WHERE t.queue = queue_id;
    DELETE FROM towline.floors AS f WHERE f.queue = queue_id;
    DELETE FROM towline.tag_floors AS f WHERE f.queue = queue_id;
    DELETE FROM towline.lowered_floors AS f WHERE f.queue = queue_id;
    DELETE FROM towline.lanes AS l WHERE l.queue = queue_id;
    DELETE FROM towline.lane_notes AS n WHERE n.queue = queue_id;
    DELETE FROM towline.queues AS q WHERE q.id = queue_id;
    RETURN gone;
END $$;
