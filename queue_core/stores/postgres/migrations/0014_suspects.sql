-- A delayed task that is leased before its eta, by whoever held it back: a suspect that is to run alone.

-- The lease_delayed verb: lease one delayed task, from exactly the eta that is expected. Tells what `exchange` does.
CREATE FUNCTION lease_delayed(
    queue_name text, now int8, task_id int8, expected int8, worker_name text, asked_seconds float8
) RETURNS SETOF towline.worked LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    task towline.tasks;
    known towline.workers;
    seconds float8;
    end_at int8;
    ahead int8[];
    slot int2;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    -- Whoever retires the worker waits until this lease is told, or is seen here.
    IF worker_name <> '' THEN
        PERFORM pg_advisory_xact_lock_shared('towline.workers'::regclass::oid::int4, hashtext(worker_name));
    END IF;
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND THEN
        RETURN NEXT towline.work_answer(1, queue_name || ' ' || coalesce(towline.some_queues(), ''), 0);
        RETURN;
    ELSIF q.moved_to <> '' THEN
        RETURN NEXT towline.work_answer(2, queue_name || ' ' || q.moved_to, 0);
        RETURN;
    END IF;
    SELECT * INTO known FROM towline.workers AS w WHERE w.worker = worker_name;
    seconds := coalesce(asked_seconds, q.lease_seconds);
    IF known.retired_at IS NOT NULL THEN
        RETURN NEXT towline.work_answer(3, worker_name, 0);
        RETURN;
    ELSIF seconds > q.max_lease_seconds THEN
        RETURN NEXT towline.work_answer(4, queue_name || ' ' || seconds || ' ' || q.max_lease_seconds, 0);
        RETURN;
    END IF;
    IF worker_name <> '' AND known.worker IS NULL THEN
        PERFORM towline.remember_worker(worker_name, now);
    END IF;
    SELECT * INTO task FROM towline.tasks AS t WHERE t.id = task_id AND t.queue + 0 = q.id FOR UPDATE;
    IF task.state = 1 AND task.eta = expected AND task.eta > now THEN
        slot := towline.take_slot();
        end_at := now + round(seconds * 1000000)::int8;
        ahead := towline.ahead_of(task.spent || task.eta, now);
        RETURN QUERY UPDATE towline.tasks AS t SET
                state = 2, ready_at = now, leases = t.leases + 1, leased_at = greatest(now, t.leased_at + 1),
                worker = nullif(worker_name, ''), eta = towline.unspent_end(end_at, ahead), spent = ahead
            WHERE t.id = task_id
            RETURNING t.id, t.eta, t.ready_at, t.added_at, t.leased_at, t.leases, t.name, t.tag, t.payload,
                NULL::int8, NULL::text, NULL::int4, NULL::int8, NULL::int8[], NULL::text[], NULL::text;
        PERFORM towline.count_tasks(q.id, slot, task.tag, now, ready => 1, delayed => -1);
        PERFORM towline.count_worked(q.id, slot, now, NULL, ARRAY[task.tag]);
    END IF;
    RETURN NEXT towline.work_answer(0, NULL, 0);
END $$;

-- Planned as the others are: see 0012.
ALTER FUNCTION lease_delayed(text, int8, int8, int8, text, float8)
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
    SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off;
