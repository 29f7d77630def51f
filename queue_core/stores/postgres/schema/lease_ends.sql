-- The verbs of a lease's holder that handle one task after the other: renew, release, and delete with added tasks.

-- Renew leases, in order; the longest allowed is checked for all of them before anything is written. NULL, or NULL in the
-- arrays: no news of a task's progress or checkpoint.
CREATE FUNCTION renew(
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
            NULL, NULL, NULL
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
CREATE FUNCTION release(
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
            coalesce(task.name, '_' || task.id), task.tag, CASE WHEN died THEN reasons[place] ELSE told[place] END, NULL,
            towline.celery_id(task.headers)
        )::towline.result_row;
    END LOOP;
    IF q.is_limited THEN
        PERFORM towline.update_lanes(q, slot, now, changed_tags, cardinality(changed_tags));
    END IF;
    RETURN NEXT towline.outcome_row(0, NULL, 0);
END $$;

-- Delete tasks, in order, and with each add the tasks that follow it: `sizes` of them, from the other arrays. One row
-- for each deletion that took effect, with its place and its sample, and an id and an outcome for each of its tasks.
CREATE FUNCTION hand_over(
    queue_name text, now int8, given_ids int8[], grants int8[], sizes int4[], queues text[], payloads bytea[],
    tags text[], etas int8[], names text[], bounds int4[] DEFAULT NULL, headers text[] DEFAULT NULL, priorities int2[] DEFAULT NULL
) RETURNS TABLE (
    refusal int8, note text, xid int8, place int4, numbers int8[], texts text[], ids int8[], outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    f towline.floors;
    each_name text;
    next_place int4 := 1;
    is_limited bool := false;
    done_tags text[] := '{}';
    added_tags text[];
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
        is_limited := is_limited OR q.is_limited;
    END LOOP;
    IF is_limited THEN
        PERFORM set_config('towline_lanes.defers', 'on', true);  -- lanes are updated at the end, for all
    END IF;
    FOR at IN 1..cardinality(given_ids) LOOP
        SELECT e.numbers, e.texts INTO numbers, texts
        FROM towline.exchange(
            queue_name, now, given_ids[at:at], grants[at:at], 0, NULL, 0::int2, '{}', ''
        ) AS e;
        IF numbers IS NOT NULL THEN
            done_tags := done_tags || texts[1][2];
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
                    bounds[then_at:then_at], headers[then_at:then_at],
                    priorities[then_at:then_at], f.ceiling, coalesce(f.names_until, 0)
                ) AS r;
                ids := ids || new_id[1];
                outcomes := outcomes || coalesce(new_outcome[1], 0::int2);
            END LOOP;
            RETURN NEXT;
        END IF;
        next_place := next_place + sizes[at];
    END LOOP;
    IF is_limited THEN
        PERFORM set_config('towline_lanes.defers', 'off', true);
        FOR q IN
            SELECT * FROM towline.queues AS e WHERE e.name = ANY (queues || queue_name) AND e.is_limited ORDER BY e.name
        LOOP
            added_tags := ARRAY(
                SELECT u.tag FROM unnest(queues, tags) AS u (queue, tag) WHERE u.queue = q.name
            );
            PERFORM towline.update_added(q, now, added_tags, cardinality(added_tags));
            IF q.name = queue_name THEN
                PERFORM towline.update_lanes(
                    q, towline.count_slot(q.id), now, done_tags, cardinality(done_tags)
                );
            END IF;
        END LOOP;
    END IF;
    place := NULL;
    xid := txid_current_if_assigned();
    RETURN NEXT;
END $$;
