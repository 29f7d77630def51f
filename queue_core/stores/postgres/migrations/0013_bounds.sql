-- A task's own bound of leases, and settings of a queue that are only kept.

-- Settings that no function reads, as a JSON object.
ALTER TABLE queues ADD COLUMN kept text NOT NULL DEFAULT '{}';

-- Instead of the queue's; NULL is the rule.
ALTER TABLE tasks ADD COLUMN max_leases int4;

-- What follows is as it was, but for the bound: a task's own goes before its queue's.

CREATE OR REPLACE FUNCTION settle_before(q towline.queues, slot int2, now int8, end_eta int8, end_id int8) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    ripe_tags json;
    expired json;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT t.id FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.state = 1 AND t.eta <= now AND (t.eta, t.id) < (end_eta, end_id)
        ORDER BY t.eta, t.id FOR UPDATE SKIP LOCKED
    ), ripe AS (
        UPDATE towline.tasks AS t SET state = 0 FROM due WHERE t.id = due.id RETURNING t.tag
    ), counted AS (
        INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, delayed, changed_at)
        SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN ripe.tag ELSE '' END, count(*), -count(*), now
        FROM ripe CROSS JOIN unnest(towline.kinds_of(ripe.tag)) AS k (kind) GROUP BY 2, 4
        ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
            ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed, changed_at = excluded.changed_at
    )
    SELECT json_agg(json_build_array(r.tag, r.total)) INTO ripe_tags
    FROM (SELECT ripe.tag, count(*) AS total FROM ripe GROUP BY ripe.tag) AS r;

    WITH due AS MATERIALIZED (
        SELECT t.id, t.eta, t.ready_at, t.leased_at, t.leases, t.tag, t.name, t.worker,
            greatest(0, t.leased_at - t.ready_at) AS waited,
            CASE WHEN t.leases >= coalesce(t.max_leases, q.max_leases) THEN 'max_leases' END AS reason
        FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.state = 2 AND t.eta <= now AND (t.eta, t.id) < (end_eta, end_id)
        ORDER BY t.eta, t.id FOR UPDATE SKIP LOCKED
    ), again AS (
        UPDATE towline.tasks AS t SET state = 0, ready_at = t.eta FROM due WHERE t.id = due.id AND due.reason IS NULL
    ), dead AS (
        UPDATE towline.tasks AS t SET state = 3, ready_at = t.eta, reason = due.reason
        FROM due WHERE t.id = due.id AND due.reason IS NOT NULL AND NOT q.deletes_exhausted
    ), gone AS (
        DELETE FROM towline.tasks AS t USING due
        WHERE t.id = due.id AND due.reason IS NOT NULL AND q.deletes_exhausted
    ), held AS (
        UPDATE towline.names AS n SET task = NULL, until = due.eta + round(q.name_retention_seconds * 1000000)::int8
        FROM due WHERE due.reason IS NOT NULL AND q.deletes_exhausted AND n.queue = q.id AND n.name = due.name
    ), noted AS (
        INSERT INTO towline.samples (queue, size, outcome, numbers, texts, ended_at, reasons)
        SELECT q.id, count(*), 'expired', array_agg(ARRAY[due.id, due.leases, due.waited, due.leased_at]),
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
        due.id, due.leases, due.waited, due.leased_at, due.name, due.tag, due.worker, due.eta, due.reason
    )) INTO expired FROM due;
    RETURN json_build_array(coalesce(expired, '[]'), coalesce(ripe_tags, '[]'));
END $$;

CREATE OR REPLACE FUNCTION give_back(
    q towline.queues, slot int2, now int8, task towline.tasks, delay_seconds float8, is_uncounted bool, dead_reason text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    cut_short int8[] := towline.ahead_of(task.spent || task.eta, now);
    why text := nullif(dead_reason, '');
    next_eta int8;
BEGIN
    IF why IS NULL AND NOT is_uncounted AND task.leases >= coalesce(task.max_leases, q.max_leases) THEN
        why := 'max_leases';
    END IF;
    PERFORM towline.note_finished(task, 'released', now, why);
    IF why IS NOT NULL THEN
        IF q.deletes_exhausted THEN
            DELETE FROM towline.tasks AS t WHERE t.id = task.id;
            PERFORM towline.part_name(q, task.name, now);
        ELSE
            UPDATE towline.tasks AS t SET state = 3, eta = now, ready_at = now, reason = why, spent = cut_short
            WHERE t.id = task.id;
        END IF;
        PERFORM towline.count_tasks(
            q.id, slot, task.tag, now, leased => -1, released => 1, died => 1,
            dead => CASE WHEN q.deletes_exhausted THEN 0 ELSE 1 END
        );
        RETURN why;
    END IF;
    next_eta := CASE WHEN delay_seconds IS NULL THEN least(task.ready_at, now)
        ELSE now + round(delay_seconds * 1000000)::int8 END;
    UPDATE towline.tasks AS t SET
        state = CASE WHEN next_eta <= now THEN 0 ELSE 1 END, eta = next_eta, ready_at = next_eta,
        leases = t.leases - CASE WHEN is_uncounted THEN 1 ELSE 0 END, spent = cut_short
    WHERE t.id = task.id;
    PERFORM towline.count_tasks(
        q.id, slot, task.tag, now, leased => -1, released => 1, ready => CASE WHEN next_eta <= now THEN 1 ELSE 0 END,
        delayed => CASE WHEN next_eta <= now THEN 0 ELSE 1 END
    );
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION settle_one(q towline.queues, slot int2, now int8, task_id int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    task towline.tasks;
    why text;
BEGIN
    SELECT * INTO task FROM towline.tasks AS t WHERE t.id = task_id;
    why := CASE WHEN task.leases >= coalesce(task.max_leases, q.max_leases) THEN 'max_leases' END;
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

CREATE OR REPLACE FUNCTION look_stats(
    q towline.queues, tags text[], now int8, OUT ready int8, OUT delayed int8, OUT leased int8, OUT dead int8,
    OUT oldest int8, OUT added int8, OUT leases int8, OUT deleted int8, OUT released int8, OUT expired int8, OUT died int8
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    sums towline.counts;
    ripe int8;
    first int8;
    due record;
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
        WHERE t.queue = q.id AND t.state = 1 AND t.eta <= now
            AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL));
        ready := ready + ripe;
        delayed := delayed - ripe;
        oldest := least(oldest, first);
    END IF;
    IF leased > 0 THEN
        SELECT count(*) AS total, count(*) FILTER (WHERE t.leases >= coalesce(t.max_leases, q.max_leases)) AS died,
            min(t.eta) FILTER (WHERE (t.leases >= coalesce(t.max_leases, q.max_leases)) IS NOT TRUE) AS first INTO due
        FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.state = 2 AND t.eta <= now
            AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL));
        ready := ready + due.total - due.died;
        leased := leased - due.total;
        expired := expired + due.total;
        died := died + due.died;
        dead := dead + CASE WHEN q.deletes_exhausted THEN 0 ELSE due.died END;
        oldest := least(oldest, due.first);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION due_heads(q towline.queues, tags text[], most int4, now int8)
RETURNS TABLE (eta int8, id int8, tag text) LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT d.eta, d.id, d.tag FROM (
        (
            SELECT t.eta, t.id, t.tag FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.state = 1 AND t.eta <= now
                AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL))
            ORDER BY t.eta, t.id LIMIT most
        ) UNION ALL (
            SELECT t.eta, t.id, t.tag FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.state = 2 AND t.eta <= now
                AND (t.leases >= coalesce(t.max_leases, q.max_leases)) IS NOT TRUE
                AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL))
            ORDER BY t.eta, t.id LIMIT most
        )
    ) AS d ORDER BY d.eta, d.id LIMIT most;
END $$;

CREATE OR REPLACE FUNCTION settled_state(task towline.tasks, q towline.queues, now int8) RETURNS int2 LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN task.state NOT IN (1, 2) OR task.eta > now THEN task.state
        WHEN task.state = 1 OR (task.leases >= coalesce(task.max_leases, q.max_leases)) IS NOT TRUE THEN 0
        WHEN NOT q.deletes_exhausted THEN 3
    END::int2
$$;

-- Give tasks that this transaction has just added bounds of their own. Adding itself knows nothing of them, so that it
-- costs the same as ever for those without.
CREATE FUNCTION bound_tasks(ids int8[], bounds int4[]) RETURNS void LANGUAGE sql AS $$
    UPDATE towline.tasks AS t SET max_leases = b.bound FROM unnest(ids, bounds) AS b (id, bound)
    WHERE t.id = b.id AND b.bound IS NOT NULL
$$;

-- `add`, of tasks some of which have a bound of their own.
CREATE FUNCTION add_bounded(
    queues text[], now int8, payloads bytea[], tags text[], etas int8[], names text[], bounds int4[],
    wire int8 DEFAULT NULL, call int8 DEFAULT NULL,
    OUT refusal int8, OUT note text, OUT xid int8, OUT ids int8[], OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT a.* INTO refusal, note, xid, ids, outcomes
    FROM towline.add(queues, now, payloads, tags, etas, names, wire, call) AS a;
    PERFORM towline.bound_tasks(ids, bounds);
END $$;

-- `hand_over`, of tasks some of which have a bound of their own.
CREATE FUNCTION hand_over_bounded(
    queue_name text, now int8, given_ids int8[], grants int8[], sizes int4[], queues text[], payloads bytea[],
    tags text[], etas int8[], names text[], bounds int4[]
) RETURNS TABLE (
    refusal int8, note text, xid int8, place int4, numbers int8[], texts text[], ids int8[], outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    first int4;
BEGIN
    FOR refusal, note, xid, place, numbers, texts, ids, outcomes IN
        SELECT h.* FROM towline.hand_over(
            queue_name, now, given_ids, grants, sizes, queues, payloads, tags, etas, names
        ) AS h
    LOOP
        IF place IS NOT NULL THEN
            first := 1 + coalesce((SELECT sum(s.size) FROM unnest(sizes[:place - 1]) AS s (size)), 0);
            PERFORM towline.bound_tasks(ids, bounds[first:first + sizes[place] - 1]);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- `restore`, of tasks some of which have a bound of their own.
CREATE FUNCTION restore_bounded(
    queue_name text, now int8, states int2[], etas int8[], ready_ats int8[], added_ats int8[], leased_ats int8[],
    leases int4[], tags text[], names text[], workers text[], reasons text[], spents text[], payloads bytea[],
    bounds int4[], OUT xid int8, OUT ids int8[], OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT r.* INTO xid, ids, outcomes FROM towline.restore(
        queue_name, now, states, etas, ready_ats, added_ats, leased_ats, leases, tags, names, workers, reasons, spents,
        payloads
    ) AS r;
    PERFORM towline.bound_tasks(ids, bounds);
END $$;

-- The postpone verb: move the eta of a delayed task from exactly the one that is expected.
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

-- Planned as the others are: see 0012.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN
        SELECT p.oid FROM pg_proc AS p
        WHERE p.pronamespace = current_schema()::regnamespace
            AND p.proname IN ('add_bounded', 'hand_over_bounded', 'restore_bounded', 'postpone')
    LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SET plan_cache_mode = force_generic_plan SET enable_seqscan = off'
            ' SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off', one
        );
    END LOOP;
END $$;
