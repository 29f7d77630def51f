-- The wake-up of callers that wait; none of it must survive a crash of the server, as no caller waits through one.
--
-- A waiting process has a connection that listens (a listener) and a row here for each caller that waits (a waiter). A
-- change that made tasks leasable is committed first; then its process calls `signal`, which picks as many fitting
-- waiters as there are tasks, the most recently active first, and notifies their processes. So commits that add never
-- wait for the lock under which NOTIFY commits, and nothing is notified where no caller waits.
--
-- No wake-up is missed, without any lock: a waiter is committed before its owner looks for tasks. If the owner does not
-- find a task, that task was committed after the search began, so after the waiter; and a `signal` that begins after
-- that commit sees the waiter. A waiter that was woken and is not back yet comes last, but is notified too when no
-- other is left, as its owner may have searched already.
--
-- None of these tables is logged, so these transactions never wait for a disk.

-- Processes that listen. Each holds a lock of its number in the session that listens, so that its end can be seen.
CREATE UNLOGGED TABLE listeners (
    id int8 PRIMARY KEY
);

-- Callers that wait. tags: NULL is any task, empty is untagged ones. active_at orders them. woken_at: when it was
-- notified; NULL: it is back.
CREATE UNLOGGED TABLE waiters (
    listener int8 NOT NULL,
    number int8 NOT NULL,
    active_at int8 NOT NULL,
    woken_at timestamptz,
    queue text COLLATE "C" NOT NULL,
    woken_tag text COLLATE "C",
    tags text[] COLLATE "C",
    PRIMARY KEY (listener, number)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Find the waiters of a queue, the most recently active last.
CREATE INDEX waiters_in_order ON waiters (queue, active_at);

-- Tasks that became leasable in a caller's own transaction; a listener passes them on after its commit.
CREATE UNLOGGED TABLE unsent_notifications (
    queue text COLLATE "C" NOT NULL,
    tag text COLLATE "C",
    tasks int4 NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Return whether the session that listens lives; must not be called in that session itself.
CREATE FUNCTION is_listening(listener int8) RETURNS boolean LANGUAGE sql AS $$
    SELECT NOT pg_try_advisory_xact_lock_shared(listener)
$$;

-- Return whether a waiter of these tags is woken for a task of this one.
CREATE FUNCTION is_fitting(waiter_tags text[], task_tag text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT waiter_tags IS NULL
        OR CASE WHEN task_tag IS NULL THEN waiter_tags = '{}' ELSE task_tag = ANY (waiter_tags) END
$$;

-- Forget a listener that is dead. Rows that another transaction holds are left to it.
CREATE FUNCTION forget_listener(dead int8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM towline.waiters AS e USING (
        SELECT f.listener, f.number FROM towline.waiters AS f WHERE f.listener = dead FOR UPDATE SKIP LOCKED
    ) AS free
    WHERE e.listener = free.listener AND e.number = free.number;
    DELETE FROM towline.listeners AS l USING (
        SELECT f.id FROM towline.listeners AS f WHERE f.id = dead FOR UPDATE SKIP LOCKED
    ) AS free
    WHERE l.id = free.id;
END $$;

-- Become a listener, in the session that listens. Return true when there was no other: then see
-- `notify_on_commit`.
CREATE FUNCTION open_listener(listener int8) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    other int8;
BEGIN
    PERFORM pg_advisory_lock(listener);
    FOR other IN SELECT l.id FROM towline.listeners AS l LOOP
        IF NOT towline.is_listening(other) THEN
            PERFORM towline.forget_listener(other);
        END IF;
    END LOOP;
    INSERT INTO towline.listeners VALUES (listener);
    RETURN count(*) = 1 FROM towline.listeners;
END $$;

-- Register waiters, or ready them again: [{number, active_at, queue, tags}]. Return false when the listener is not
-- known.
CREATE FUNCTION register_waiters(listening int8, waiters json) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO towline.waiters AS e (listener, number, active_at, queue, tags)
    SELECT listening, new.number, new.active_at, new.queue, new.tags
    FROM json_to_recordset(waiters) AS new (number int8, active_at int8, queue text, tags text[])
    ON CONFLICT ON CONSTRAINT waiters_pkey DO UPDATE SET woken_at = NULL;
    RETURN EXISTS (SELECT FROM towline.listeners AS l WHERE l.id = listening);
END $$;

-- Notify a process that these waiters of its are woken. A payload must stay below 8000 bytes.
CREATE FUNCTION notify_waiters(listener int8, waiters int8[], queue_name text, task_tag text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    FOR place IN 1..cardinality(waiters) BY 200 LOOP
        PERFORM pg_notify(
            'towline_' || to_hex(listener),
            json_build_object('queue', queue_name, 'tag', task_tag, 'waiters', waiters[place:place + 199])::text
        );
    END LOOP;
END $$;

-- Wake as many fitting waiters as there are tasks; return how many were. Never waits for a lock. Waiters that were woken
-- and are not back yet, and those whose rows others hold, come last: their owners may have searched already.
CREATE FUNCTION wake(queue_name text, task_tag text, tasks int4) RETURNS int4 LANGUAGE plpgsql AS $$
DECLARE
    woken int4 := 0;
    picked int4 := 1;
    one record;
BEGIN
    IF NOT EXISTS (SELECT FROM towline.waiters AS e WHERE e.queue = queue_name) THEN
        RETURN 0;
    END IF;
    WHILE woken < tasks AND picked > 0 LOOP
        picked := 0;
        FOR one IN
            WITH fitting AS MATERIALIZED (
                SELECT e.listener, e.number FROM towline.waiters AS e
                WHERE e.queue = queue_name AND e.woken_at IS NULL AND towline.is_fitting(e.tags, task_tag)
                ORDER BY e.active_at DESC LIMIT tasks - woken FOR UPDATE SKIP LOCKED
            ), now_woken AS (
                UPDATE towline.waiters AS e SET woken_at = now(), woken_tag = task_tag FROM fitting AS f
                WHERE e.listener = f.listener AND e.number = f.number
                RETURNING e.listener, e.number
            )
            SELECT n.listener, array_agg(n.number) AS numbers FROM now_woken AS n GROUP BY n.listener
        LOOP
            picked := picked + cardinality(one.numbers);
            IF towline.is_listening(one.listener) THEN
                woken := woken + cardinality(one.numbers);
                PERFORM towline.notify_waiters(one.listener, one.numbers, queue_name, task_tag);
            ELSE
                PERFORM towline.forget_listener(one.listener);
            END IF;
        END LOOP;
    END LOOP;
    IF woken < tasks THEN
        FOR one IN
            SELECT awake.listener, array_agg(awake.number) AS numbers FROM (
                SELECT e.listener, e.number FROM towline.waiters AS e
                WHERE e.queue = queue_name AND (e.woken_at IS NULL OR e.woken_at < now())
                    AND towline.is_fitting(e.tags, task_tag)
                ORDER BY e.active_at DESC LIMIT tasks - woken
            ) AS awake GROUP BY awake.listener
        LOOP
            woken := woken + cardinality(one.numbers);
            PERFORM towline.notify_waiters(one.listener, one.numbers, queue_name, task_tag);
        END LOOP;
    END IF;
    RETURN woken;
END $$;

-- Pass on the tasks that `notify_on_commit` kept, and the wake-ups whose waiter did not come back, as its process is
-- stopped or disconnected.
CREATE FUNCTION pass_on() RETURNS int4 LANGUAGE plpgsql AS $$
DECLARE
    woken int4 := 0;
    one record;
BEGIN
    FOR one IN
        WITH pending AS (
            DELETE FROM towline.unsent_notifications AS u USING (
                SELECT f.ctid FROM towline.unsent_notifications AS f LIMIT 10000 FOR UPDATE SKIP LOCKED
            ) AS free
            WHERE u.ctid = free.ctid RETURNING u.queue, u.tag, u.tasks
        ), lost AS (
            DELETE FROM towline.waiters AS e USING (
                SELECT f.listener, f.number FROM towline.waiters AS f
                WHERE f.woken_at < clock_timestamp() - interval '1 s' FOR UPDATE SKIP LOCKED
            ) AS free
            WHERE e.listener = free.listener AND e.number = free.number RETURNING e.queue, e.woken_tag, 1
        )
        SELECT t.queue, t.tag, sum(t.tasks)::int4 AS tasks
        FROM (SELECT * FROM pending UNION ALL SELECT * FROM lost) AS t (queue, tag, tasks) GROUP BY t.queue, t.tag
    LOOP
        woken := woken + towline.wake(one.queue, one.tag, one.tasks);
    END LOOP;
    RETURN woken;
END $$;

-- Take the changes of a process in one call: closed waiters, waiters that wait again, tasks that became leasable.
-- Return how many waiters were woken.
CREATE FUNCTION signal(
    listening int8, closed int8[], ready json, queues text[], tags text[], tasks int4[], passing boolean
) RETURNS int4 LANGUAGE plpgsql AS $$
DECLARE
    woken int4 := 0;
BEGIN
    IF closed <> '{}' THEN
        DELETE FROM towline.waiters AS e WHERE e.listener = listening AND e.number = ANY (closed);
    END IF;
    IF ready IS NOT NULL THEN
        PERFORM towline.register_waiters(listening, ready);
    END IF;
    FOR place IN 1..cardinality(queues) LOOP
        woken := woken + towline.wake(queues[place], tags[place], tasks[place]);
    END LOOP;
    IF passing THEN
        woken := woken + towline.pass_on();
    END IF;
    RETURN woken;
END $$;

-- Record, in the caller's own transaction, that tasks become leasable when it commits. That commit notifies a process
-- that listens, which passes it on: waiters picked now would stay locked until then, or be gone. Without a fitting
-- waiter the commit is spared the lock of NOTIFY; the next `pass_on` finds a waiter that comes meanwhile, in seconds. A
-- first listener that starts meanwhile wakes all waiters by itself.
CREATE FUNCTION notify_on_commit(queue_name text, task_tag text, tasks int4) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    listening int8;
BEGIN
    INSERT INTO towline.unsent_notifications SELECT queue_name, task_tag, tasks
    WHERE EXISTS (SELECT FROM towline.listeners);
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR listening IN
        SELECT e.listener FROM towline.waiters AS e
        WHERE e.queue = queue_name AND towline.is_fitting(e.tags, task_tag)
        ORDER BY e.woken_at IS NOT NULL, e.active_at DESC
    LOOP
        IF towline.is_listening(listening) THEN
            PERFORM pg_notify('towline_' || to_hex(listening), '');
            RETURN;
        END IF;
    END LOOP;
END $$;
