-- The verbs that make tasks ready, with lanes: see `0007_lanes.sql`.

DROP FUNCTION add_run(
    int4, bool, int8, int8, bytea[], text[], int8[], text[], int4[], text[], int8, int8
);
DROP FUNCTION add;
DROP FUNCTION hand_over;

-- Update the lanes of tags of which tasks were added. The client must know that they may wait for their lanes.
CREATE FUNCTION update_added(q towline.queues, now int8, of_tags text[], total int4) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF q.has_lanes THEN
        PERFORM towline.tell(json_build_array('lanes', q.name));
    END IF;
    IF total > 0 THEN
        PERFORM towline.update_lanes(
            q, towline.count_slot(q.id), now, CASE WHEN of_tags <> '{}' THEN of_tags ELSE ARRAY[NULL]::text[] END, 0
        );
    END IF;
END $$;

-- Add tasks to one queue, in order. An empty array means: no tag, at once, no name, for all of them; so do NULL bounds
-- of leases and NULL headers. low_ceiling, names_until: of the queue's floors.
CREATE FUNCTION add_run(
    queue_id int4, has_tags bool, slot int8, now int8, payloads bytea[], tags text[], etas int8[], names text[],
    bounds int4[], headers text[], priorities int2[], low_ceiling int8, names_until int8, OUT ids int8[], OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    one text := tags[1];
    total int4 := cardinality(payloads);
    is_named bool := names <> '{}' AND (total > 1 OR names[1] IS NOT NULL);
    is_plain bool := etas = '{}' AND (tags = '{}' OR total = 1 OR tags = array_fill(tags[1], ARRAY[cardinality(tags)]));
BEGIN
    IF NOT has_tags AND tags <> '{}' AND tags <> array_fill(NULL::text, ARRAY[total]) THEN
        UPDATE towline.queues AS e SET has_tags = true WHERE e.id = queue_id;
    END IF;
    IF array_remove(priorities, NULL) <> '{}' THEN
        UPDATE towline.queues AS e SET has_priorities = true, is_limited = true
        WHERE e.id = queue_id AND NOT e.has_priorities;
    END IF;
    IF is_named THEN
        IF total = 1 THEN
            SELECT ARRAY[t.id], ARRAY[t.outcome] INTO ids, outcomes
            FROM towline.take_name(queue_id, now, names[1]) AS t;
        ELSE
            SELECT t.ids, t.outcomes INTO ids, outcomes FROM towline.take_names(queue_id, now, names) AS t;
        END IF;
        PERFORM towline.forget_names(now, total, names_until);
        is_plain := false;
        WITH new AS (
            INSERT INTO towline.tasks AS t (
                id, eta, ready_at, added_at, queue, state, max_leases, tag, name, headers, payload, priority
            )
            SELECT n.id, coalesce(n.eta, now), coalesce(n.eta, now), now, queue_id,
                CASE WHEN n.eta > now THEN 1 ELSE -coalesce(n.priority, 0) END, n.bound, n.tag, n.name, n.headers, n.payload,
                n.priority
            FROM unnest(ids, payloads, tags, etas, names, bounds, headers, priorities)
                AS n (id, payload, tag, eta, name, bound, headers, priority)
            WHERE n.id IS NOT NULL
            RETURNING t.tag, t.eta
        )
        SELECT coalesce(array_agg(new.tag), '{}'), coalesce(array_agg(new.eta), '{}') INTO tags, etas FROM new;
    ELSIF total = 1 THEN
        INSERT INTO towline.tasks AS t (
            id, eta, ready_at, added_at, queue, state, max_leases, tag, headers, payload, priority
        )
        VALUES (
            nextval('towline.task_ids'), coalesce(etas[1], now), coalesce(etas[1], now), now, queue_id,
            CASE WHEN etas[1] > now THEN 1 ELSE -coalesce(priorities[1], 0) END, bounds[1], one, headers[1], payloads[1],
            priorities[1]
        )
        RETURNING ARRAY[t.id] INTO ids;
    ELSE
        WITH new AS (
            INSERT INTO towline.tasks AS t (
            id, eta, ready_at, added_at, queue, state, max_leases, tag, headers, payload, priority
        )
            SELECT nextval('towline.task_ids'), coalesce(n.eta, now), coalesce(n.eta, now), now, queue_id,
                CASE WHEN n.eta > now THEN 1 ELSE -coalesce(n.priority, 0) END, n.bound, n.tag, n.headers, n.payload, n.priority
            FROM unnest(payloads, tags, etas, bounds, headers, priorities)
                AS n (payload, tag, eta, bound, headers, priority)
            RETURNING t.id
        )
        SELECT array_agg(new.id) INTO ids FROM new;
    END IF;
    IF total = 1 AND NOT is_named AND coalesce(etas[1], now) < low_ceiling
        OR (total > 1 OR is_named) AND (now < low_ceiling OR etas <> '{}' AND towline.lowest_of(etas) < low_ceiling)
    THEN
        PERFORM towline.lower_floors(
            queue_id, array_agg(CASE WHEN n.eta > now THEN 1 ELSE 0 END)::int2[], array_agg(n.tag),
            array_agg(coalesce(n.eta, now))
        )
        FROM (
            SELECT r.tag, r.eta FROM unnest(tags, etas, CASE WHEN is_named THEN NULL ELSE payloads END) AS r (tag, eta, payload)
        ) AS n;
    END IF;
    -- The tag comes first: if its row is missing, the row of all tagged tasks is counted with it.
    IF is_plain THEN
        UPDATE towline.counts AS c SET ready = c.ready + total, added = c.added + total, changed_at = now
        WHERE c.queue = queue_id AND c.kind = CASE WHEN one IS NULL THEN 1 ELSE 2 END AND c.tag = coalesce(one, '')
            AND c.slot = add_run.slot;
    END IF;
    IF is_plain AND FOUND THEN
        IF one IS NOT NULL THEN
            UPDATE towline.counts AS c SET ready = c.ready + total, added = c.added + total, changed_at = now
            WHERE c.queue = queue_id AND c.kind = 0 AND c.tag = '' AND c.slot = add_run.slot;
        END IF;
    ELSE
        PERFORM towline.count_added(
            queue_id, slot, now,
            CASE WHEN tags = '{}' AND NOT is_named THEN array_fill(NULL::text, ARRAY[total]) ELSE tags END, etas
        );
    END IF;
END $$;

-- Add tasks. `queues` has one name for all of them, or one for each. NULL `bounds`, `headers`: none has its own.
CREATE FUNCTION add(
    queues text[], now int8, payloads bytea[], tags text[], etas int8[], names text[],
    connection int8 DEFAULT NULL, call int8 DEFAULT NULL, bounds int4[] DEFAULT NULL, headers text[] DEFAULT NULL,
    priorities int2[] DEFAULT NULL,
    OUT refusal int8, OUT note text, OUT xid int8, OUT ids int8[], OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    lane int2;
    f towline.floors;
    queue_id int4;
    is_limited bool;
    q towline.queues;
    moved text;
    has_tags bool;
    queue_name text;
    total CONSTANT int4 := cardinality(payloads);
    first int4 := 1;
    last int4;
    run record;
    is_marked bool;
BEGIN
    lane := CASE
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 0) THEN 0
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 1) THEN 1
        ELSE towline.take_slot()
    END;
    FOREACH queue_name IN ARRAY CASE
        WHEN cardinality(queues) = 1 THEN queues ELSE towline.distinct_names(queues)
    END LOOP
        IF pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name)) IS NULL THEN
            RETURN;  -- never: in a condition a function is called without a query around it
        END IF;
        SELECT e.id, e.moved_to, e.has_tags, e.is_limited INTO queue_id, moved, has_tags, is_limited
        FROM towline.queues AS e WHERE e.name = queue_name;
        IF queue_id IS NULL THEN
            refusal := 1;
            note := queue_name || ' ' || coalesce(towline.some_queues(), '');
            RETURN;
        ELSIF moved <> '' THEN
            refusal := 2;
            note := queue_name || ' ' || moved;
            RETURN;
        END IF;
    END LOOP;
    IF cardinality(queues) = 1 THEN
        IF total > 0 THEN
            SELECT * INTO f FROM towline.floors AS s WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1;
            run := towline.add_run(
                queue_id, has_tags, coalesce(f.epoch, 0) * 32 + 1 + lane, now, payloads, tags, etas, names, bounds, headers,
                priorities, f.ceiling, coalesce(f.names_until, 0)
            );
            ids := run.ids;
            outcomes := run.outcomes;
            IF is_limited THEN
                SELECT * INTO q FROM towline.queues AS e WHERE e.id = queue_id;
                PERFORM towline.update_added(q, now, tags, total);
            END IF;
        END IF;
    ELSE
        WHILE first <= total LOOP
            last := first;
            WHILE last < total AND queues[last + 1] = queues[first] LOOP
                last := last + 1;
            END LOOP;
            SELECT e.id, e.has_tags INTO queue_id, has_tags FROM towline.queues AS e WHERE e.name = queues[first];
            SELECT * INTO f FROM towline.floors AS s WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1;
            run := towline.add_run(
                queue_id, has_tags, coalesce(f.epoch, 0) * 32 + 1 + lane, now, payloads[first:last], tags[first:last],
                etas[first:last], names[first:last], bounds[first:last], headers[first:last],
                priorities[first:last], f.ceiling,
                coalesce(f.names_until, 0)
            );
            ids := ids || run.ids;
            outcomes := outcomes || coalesce(run.outcomes, array_fill(0::int2, ARRAY[last - first + 1]));
            first := last + 1;
        END LOOP;
        FOR q IN SELECT * FROM towline.queues AS e WHERE e.name = ANY (queues) AND e.is_limited ORDER BY e.name LOOP
            PERFORM towline.update_added(q, now, of.tags, cardinality(of.tags)) FROM (
                SELECT array_agg(u.tag ORDER BY u.place) AS tags
                FROM unnest(queues, tags) WITH ORDINALITY AS u (queue, tag, place) WHERE u.queue = q.name
            ) AS of;
        END LOOP;
    END IF;
    xid := txid_current_if_assigned();
    IF call IS NOT NULL AND xid IS NOT NULL THEN
        is_marked := towline.set_commit_marker(
            connection, call, CASE WHEN outcomes IS NULL THEN ids ELSE towline.added_ids(ids, outcomes) END
        );
    END IF;
END $$;

-- Add one task without a name or a bound of its own, on the fast path of `add` (ADR 11): no arrays, nothing that only
-- other cases need. Return its id; NULL: nothing was done, so `add` must be called. eta NULL: at once.
CREATE OR REPLACE FUNCTION add_one(
    queue_name text, now int8, payload bytea, tag text, eta int8, headers text, connection int8, call int8,
    OUT xid int8, OUT id int8
) LANGUAGE plpgsql AS $$
DECLARE
    queue_id int4;
    has_tags bool;
    free_slot int8;
    epoch int8;
    low_ceiling int8;
    is_delayed CONSTANT int4 := CASE WHEN eta > now THEN 1 ELSE 0 END;
    is_marked bool;
BEGIN
    IF pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name)) IS NULL THEN
        RETURN;  -- never: in a condition a function is called without a query around it
    END IF;
    SELECT e.id, e.has_tags, f.epoch, f.ceiling INTO queue_id, has_tags, epoch, low_ceiling
    FROM towline.queues AS e LEFT JOIN LATERAL (
        SELECT s.epoch, s.ceiling FROM towline.floors AS s WHERE s.queue = e.id ORDER BY s.step DESC LIMIT 1
    ) AS f ON true
    WHERE e.name = queue_name AND e.moved_to = '' AND NOT e.is_limited;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    free_slot := CASE
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 0) THEN 0
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 1) THEN 1
        ELSE towline.take_slot()
    END + 1 + coalesce(epoch, 0) * 32;
    IF coalesce(eta, now) < low_ceiling THEN
        PERFORM towline.lower_floors(queue_id, ARRAY[is_delayed]::int2[], ARRAY[tag], ARRAY[coalesce(eta, now)]);
    END IF;
    IF tag IS NOT NULL AND NOT has_tags THEN
        UPDATE towline.queues AS e SET has_tags = true WHERE e.id = queue_id;
    END IF;

    id := nextval('towline.task_ids');
    INSERT INTO towline.tasks (id, eta, ready_at, added_at, queue, state, tag, headers, payload)
    VALUES (add_one.id, coalesce(eta, now), coalesce(eta, now), now, queue_id, is_delayed, tag, headers, payload);

    -- The tag comes first: if its row is missing, the row of all tagged tasks is counted with it.
    UPDATE towline.counts AS c SET
        ready = c.ready + 1 - is_delayed, delayed = c.delayed + is_delayed, added = c.added + 1, changed_at = now
    WHERE c.queue = queue_id AND c.kind = CASE WHEN add_one.tag IS NULL THEN 1 ELSE 2 END
        AND c.tag = coalesce(add_one.tag, '') AND c.slot = free_slot;
    IF NOT FOUND THEN
        PERFORM towline.count_added(queue_id, free_slot, now, ARRAY[tag], ARRAY[eta]);
    ELSIF tag IS NOT NULL THEN
        UPDATE towline.counts AS c SET
            ready = c.ready + 1 - is_delayed, delayed = c.delayed + is_delayed, added = c.added + 1, changed_at = now
        WHERE c.queue = queue_id AND c.kind = 0 AND c.tag = '' AND c.slot = free_slot;
    END IF;
    xid := txid_current();
    IF call IS NOT NULL THEN
        is_marked := towline.set_commit_marker(connection, call, ARRAY[id]);
    END IF;
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

-- Settle the tasks that are due before (end_eta, end_id): tasks become ready or dead, and tasks that another
-- transaction has locked are skipped. Return `lease_row.settled`.
CREATE OR REPLACE FUNCTION settle_before(q towline.queues, slot int8, now int8, end_eta int8, end_id int8) RETURNS text
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
            greatest(0, t.leased_at - t.ready_at) AS waited, t.added_at,
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
            array_agg(ARRAY[due.name, due.tag, due.worker]), array_agg(due.eta), array_agg(due.reason)
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
        due.id, due.leases, due.waited, due.leased_at, due.added_at, due.name, due.tag, due.worker, due.eta, due.reason
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
CREATE OR REPLACE FUNCTION settle(queue_name text, now int8, most int4) RETURNS towline.lease_row LANGUAGE plpgsql AS $$
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

-- Settle the expired lease of one task, which is locked.
CREATE OR REPLACE FUNCTION settle_one(q towline.queues, slot int8, now int8, task_id int8) RETURNS void LANGUAGE plpgsql AS $$
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
