-- The other verbs with floors: see `0002_floors.sql`.

-- Renew leases, in order; the longest allowed is checked for all of them before anything is written. NULL, or NULL in the
-- arrays: no news of a task's progress or checkpoint.
CREATE OR REPLACE FUNCTION renew(
    queue_name text, now int8, ids int8[], grants int8[], seconds float8[],
    progresses text[] DEFAULT NULL, checkpoints bytea[] DEFAULT NULL
) RETURNS SETOF towline.result_row LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    task towline.tasks;
    end_at int8;
    cut_short int8[];
    held bool[];
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
    FOR place IN 1..cardinality(ids) LOOP
        PERFORM FROM towline.tasks AS t
        WHERE t.id = ids[place] AND t.queue = q.id AND t.state = 2 AND t.leased_at = grants[place] AND t.eta > now
        FOR UPDATE;
        held[place] := FOUND;
        IF FOUND THEN
            end_at := now + round(coalesce(seconds[place], q.lease_seconds) * 1000000)::int8;
            -- Seven days bound each renewal alone, never the sum.
            IF q.max_lease_seconds < 604800 AND (end_at - grants[place]) / 1000000::float8 > q.max_lease_seconds THEN
                RETURN NEXT towline.outcome_row(
                    4, concat_ws(' ', queue_name, (end_at - grants[place]) / 1000000::float8, q.max_lease_seconds), 0
                );
                RETURN;
            END IF;
        END IF;
    END LOOP;
    FOR place IN 1..cardinality(ids) LOOP
        CONTINUE WHEN NOT held[place];
        SELECT * INTO task FROM towline.tasks AS t WHERE t.id = ids[place];
        cut_short := towline.ahead_of(task.spent || task.eta, now);
        end_at := towline.unspent_end(
            now + round(coalesce(seconds[place], q.lease_seconds) * 1000000)::int8, cut_short
        );
        PERFORM towline.lower_floors(q.id, '{2}', '{NULL}', ARRAY[end_at]);
        UPDATE towline.tasks AS t SET
            eta = end_at, spent = cut_short, progress = coalesce(progresses[place], t.progress),
            checkpoint = coalesce(checkpoints[place], t.checkpoint)
        WHERE t.id = task.id;
        RETURN NEXT ROW(
            5, place, end_at, NULL, NULL, NULL, task.leases, task.worker, coalesce(task.name, '_' || task.id), task.tag,
            NULL, NULL
        )::towline.result_row;
    END LOOP;
    RETURN NEXT towline.outcome_row(0, NULL, 0);
END $$;

-- End the live lease of a task that is released; return whether the task died.
-- is_dead: at once, for the reason that else holds if its leases are used up. told: of a task that lives on, if not NULL.
-- fields: see `with_attempt`.
CREATE FUNCTION give_back(
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
        state = CASE WHEN next_eta <= now THEN 0 ELSE 1 END, eta = next_eta, ready_at = next_eta,
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
        RETURN NEXT ROW(
            6 + died::int4, place, now, task.ready_at, task.added_at, task.leased_at, task.leases, task.worker,
            coalesce(task.name, '_' || task.id), task.tag, CASE WHEN died THEN reasons[place] ELSE told[place] END, NULL
        )::towline.result_row;
    END LOOP;
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
BEGIN
    PERFORM pg_advisory_xact_lock('towline.workers'::regclass::oid::int4, hashtext(worker_name));
    PERFORM towline.fence_worker(worker_name, now);
    FOR q IN SELECT * FROM towline.queues AS each ORDER BY each.id LOOP
        PERFORM towline.hold_queue(q.name);
        SELECT * INTO q FROM towline.queues AS each WHERE each.id = q.id;
        CONTINUE WHEN NOT FOUND OR q.moved_to <> '';
        slot := towline.count_slot(q.id);
        PERFORM towline.settle_some(q, slot, now);
        FOR task IN
            SELECT * FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.state = 2 AND t.eta > now AND t.worker = worker_name ORDER BY t.id FOR UPDATE
        LOOP
            died := towline.give_back(
                q, slot, now, task, NULL, false, false, release_worker.reason, told, fields
            );
            RETURN NEXT ROW(
                6 + died::int4, 0, now, task.ready_at, task.added_at, task.leased_at, task.leases, task.worker,
                coalesce(task.name, '_' || task.id), task.tag,
                CASE WHEN died THEN release_worker.reason ELSE told END, convert_to(q.name, 'UTF8')
            )::towline.result_row;
        END LOOP;
    END LOOP;
    RETURN NEXT towline.outcome_row(0, NULL, 0);
END $$;

-- Delete tasks, in order, and with each add the tasks that follow it: `sizes` of them, from the other arrays. One row
-- for each deletion that took effect, with its place and its sample, and an id and an outcome for each of its tasks.
CREATE OR REPLACE FUNCTION hand_over(
    queue_name text, now int8, given_ids int8[], grants int8[], sizes int4[], queues text[], payloads bytea[],
    tags text[], etas int8[], names text[], bounds int4[] DEFAULT NULL, headers text[] DEFAULT NULL
) RETURNS TABLE (
    refusal int8, note text, xid int8, place int4, numbers int8[], texts text[], ids int8[], outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    f towline.floors;
    each_name text;
    next_place int4 := 1;
    new_id int8[];
    new_outcome int2[];
BEGIN
    refusal := 0;
    FOR each_name IN SELECT DISTINCT n.name FROM unnest(queues || queue_name) AS n (name) ORDER BY 1 LOOP
        PERFORM towline.hold_queue(each_name);
        SELECT * INTO q FROM towline.queues AS each WHERE each.name = each_name;
        IF NOT FOUND OR q.moved_to <> '' THEN
            refusal := CASE WHEN q.id IS NULL THEN 1 ELSE 2 END;
            note := each_name || ' '
                || coalesce(CASE refusal WHEN 1 THEN towline.some_queues() ELSE q.moved_to END, '');
            RETURN NEXT;
            RETURN;
        END IF;
    END LOOP;
    FOR at IN 1..cardinality(given_ids) LOOP
        SELECT e.numbers, e.texts INTO numbers, texts
        FROM towline.exchange(
            queue_name, now, given_ids[at:at], grants[at:at], 0, NULL, 0::int2, '{}', ''
        ) AS e;
        IF numbers IS NOT NULL THEN
            place := at;
            ids := '{}';
            outcomes := '{}';
            FOR then_at IN next_place..next_place + sizes[at] - 1 LOOP
                SELECT * INTO q FROM towline.queues AS each WHERE each.name = queues[then_at];
                SELECT * INTO f FROM towline.floors AS s WHERE s.queue = q.id ORDER BY s.step DESC LIMIT 1;
                SELECT r.ids, r.outcomes INTO new_id, new_outcome
                FROM towline.add_run(
                    q.id, q.has_tags, towline.count_slot(q.id), now, payloads[then_at:then_at], ARRAY[tags[then_at]], ARRAY[etas[then_at]],
                    CASE WHEN names[then_at] IS NULL THEN '{}' ELSE names[then_at:then_at] END,
                    bounds[then_at:then_at], headers[then_at:then_at], f.ceiling, coalesce(f.names_until, 0)
                ) AS r;
                ids := ids || new_id[1];
                outcomes := outcomes || coalesce(new_outcome[1], 0::int2);
            END LOOP;
            RETURN NEXT;
        END IF;
        next_place := next_place + sizes[at];
    END LOOP;
    place := NULL;
    xid := txid_current_if_assigned();
    RETURN NEXT;
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
CREATE OR REPLACE FUNCTION some_tasks(queue_id int4, of_state int2, tags text[], most int8) RETURNS SETOF towline.tasks
LANGUAGE plpgsql AS $$
DECLARE
    task towline.tasks;
    f CONSTANT towline.floors := towline.floors_of(queue_id);
    floor int8;
BEGIN
    floor := CASE of_state WHEN 0 THEN f.ready WHEN 1 THEN f.delayed WHEN 2 THEN f.leased ELSE -9223372036854775808 END;
    IF tags IS NULL THEN
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
CREATE OR REPLACE FUNCTION redrive(queue_name text, now int8, given text[], tags text[], most int8) RETURNS SETOF towline.tasks
LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    chosen int8[] := '{}';
    task towline.tasks;
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
        UPDATE towline.tasks AS t SET state = 0, eta = now, ready_at = now, leases = 0, reason = NULL
        WHERE t.id = chosen[place] RETURNING * INTO task;
        PERFORM towline.lower_floors(q.id, '{0}', ARRAY[task.tag], ARRAY[now]);
        PERFORM towline.count_tasks(q.id, slot, task.tag, now, dead => -1, ready => 1);
        RETURN NEXT task;
    END LOOP;
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
            state = CASE WHEN new_eta > now THEN 1 ELSE 0 END, eta = new_eta, ready_at = new_eta,
            spent = towline.ahead_of(t.spent || t.eta, now)
        WHERE t.id = task.id;
        IF new_eta <= now THEN
            PERFORM towline.count_tasks(q.id, towline.count_slot(q.id), task.tag, now, ready => 1, delayed => -1);
        END IF;
    END IF;
    xid := txid_current_if_assigned();
END $$;

-- Return the etas of the first ready tasks of a queue, or of these tags.
CREATE OR REPLACE FUNCTION ready_heads(queue_id int4, tags text[], most int4) RETURNS TABLE (eta int8, id int8, tag text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    f CONSTANT towline.floors := towline.floors_of(queue_id);
    floor int8;
BEGIN
    IF tags IS NULL THEN
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

-- Return the first tasks that are stored as delayed or leased but are ready by now.
CREATE OR REPLACE FUNCTION due_heads(q towline.queues, tags text[], most int4, now int8)
RETURNS TABLE (eta int8, id int8, tag text) LANGUAGE plpgsql STABLE AS $$
DECLARE
    f CONSTANT towline.floors := towline.floors_of(q.id);
BEGIN
    RETURN QUERY SELECT d.eta, d.id, d.tag FROM (
        (
            SELECT t.eta, t.id, t.tag FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.state = 1 AND t.eta >= f.delayed AND t.eta <= now
                AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL))
            ORDER BY t.eta, t.id LIMIT most
        ) UNION ALL (
            SELECT t.eta, t.id, t.tag FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.state = 2 AND t.eta >= f.leased AND t.eta <= now
                AND (t.leases >= coalesce(t.max_leases, q.max_leases)) IS NOT TRUE
                AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL))
            ORDER BY t.eta, t.id LIMIT most
        )
    ) AS d ORDER BY d.eta, d.id LIMIT most;
END $$;

-- Return the counters of a queue or of some tags, and the tasks that came due since.
CREATE OR REPLACE FUNCTION current_stats(
    q towline.queues, tags text[], now int8, OUT ready int8, OUT delayed int8, OUT leased int8, OUT dead int8,
    OUT oldest int8, OUT added int8, OUT leases int8, OUT deleted int8, OUT released int8, OUT expired int8,
    OUT died int8
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

-- Return when time alone next makes a task leasable.
CREATE OR REPLACE FUNCTION next_eta(queue_name text) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
    f towline.floors;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF q.moved_to <> '' THEN
        RETURN NULL;
    END IF;
    f := towline.floors_of(q.id);
    RETURN least(
        (SELECT t.eta FROM towline.tasks AS t WHERE t.queue = q.id AND t.state = 1 AND t.eta >= f.delayed
            ORDER BY t.eta, t.id LIMIT 1),
        (SELECT t.eta FROM towline.tasks AS t WHERE t.queue = q.id AND t.state = 2 AND t.eta >= f.leased
            ORDER BY t.eta, t.id LIMIT 1)
    );
END $$;

-- Add tasks as another store had them. Outcomes as of `add`. An empty array from `bounds` on: none has one.
CREATE OR REPLACE FUNCTION restore(
    queue_name text, now int8, states int2[], etas int8[], ready_ats int8[], added_ats int8[], leased_ats int8[],
    leases int4[], tags text[], names text[], workers text[], reasons text[], spents text[], payloads bytea[],
    bounds int4[], headers text[], attempts text[], progresses text[], checkpoints bytea[],
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
    SELECT t.ids, t.outcomes INTO ids, outcomes FROM towline.take_names(q.id, now, names) AS t;
    PERFORM towline.forget_names(now, cardinality(names));
    PERFORM towline.lower_floors(q.id, states, tags, etas);
    WITH new AS (
        INSERT INTO towline.tasks AS t (
            id, eta, ready_at, added_at, leased_at, queue, leases, state, max_leases, tag, name, worker, reason,
            spent, progress, checkpoint, attempts, headers, payload
        )
        SELECT n.id, n.eta, n.ready_at, n.added_at, n.leased_at, q.id, n.leases, n.state, n.bound, n.tag, n.name,
            nullif(n.worker, ''), nullif(n.reason, ''), n.spent::int8[], n.progress, n.checkpoint, n.attempts,
            n.headers, n.payload
        FROM unnest(
            ids, states, etas, ready_ats, added_ats, leased_ats, leases, tags, names, workers, reasons, spents,
            payloads, bounds, headers, attempts, progresses, checkpoints
        ) AS n (
            id, state, eta, ready_at, added_at, leased_at, leases, tag, name, worker, reason, spent, payload,
            bound, headers, attempts, progress, checkpoint
        )
        WHERE n.id IS NOT NULL
        RETURNING t.tag, t.state
    )
    INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, delayed, leased, dead, added, changed_at)
    SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN new.tag ELSE '' END,
        count(*) FILTER (WHERE new.state = 0), count(*) FILTER (WHERE new.state = 1),
        count(*) FILTER (WHERE new.state = 2), count(*) FILTER (WHERE new.state = 3), count(*), now
    FROM new CROSS JOIN unnest(towline.kinds_of(new.tag)) AS k (kind) GROUP BY 2, 4
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed, leased = c.leased + excluded.leased,
        dead = c.dead + excluded.dead, added = c.added + excluded.added, changed_at = excluded.changed_at;
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
    DELETE FROM towline.queues AS q WHERE q.id = queue_id;
    RETURN gone;
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
                '{propose_floors, raise_floors, end_floors, stored_bytes}')
        ) AS g (settings, names)
        JOIN pg_proc AS p ON p.proname = ANY (g.names)
        WHERE p.pronamespace = current_schema()::regnamespace
    LOOP
        FOREACH setting IN ARRAY one.settings LOOP
            EXECUTE format('ALTER FUNCTION %s SET %s', one.function, setting);
        END LOOP;
    END LOOP;
END $$;
