-- A waiter whose row is locked, as its process readies it again at that moment, is woken too.

-- Wake as many fitting waiters as there are tasks; return how many were. Never waits for a lock. Waiters that were woken
-- and are not back yet, and those whose rows others hold, come last: their owners may have searched already.
CREATE OR REPLACE FUNCTION wake(queue_name text, task_tag text, tasks int4) RETURNS int4 LANGUAGE plpgsql AS $$
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
