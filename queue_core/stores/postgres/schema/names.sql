-- Names of tasks. The name of a task that the end of its last lease deletes counts as a deleted task's, even before the
-- task is settled. Outcomes: 0 taken for the new task, 1 the name exists, 2 it is still taken by a deleted task.

-- Return the task of a given or chosen name, locked; NULL when there is none.
CREATE FUNCTION named_task(queue_id int4, given text) RETURNS towline.tasks LANGUAGE plpgsql AS $$
DECLARE
    found_name towline.names;
    task towline.tasks;
BEGIN
    SELECT * INTO found_name FROM towline.names AS n WHERE n.queue = queue_id AND n.name = given;
    IF FOUND THEN
        SELECT * INTO task FROM towline.tasks AS t
        WHERE t.id = found_name.task AND t.queue = queue_id AND t.name = given FOR UPDATE;
    ELSIF given ~ '^_[0-9]{1,18}$' THEN
        SELECT * INTO task FROM towline.tasks AS t
        WHERE t.id = substr(given, 2)::int8 AND t.queue = queue_id AND t.name IS NULL AND given = '_' || t.id
        FOR UPDATE;
    END IF;
    RETURN task;
END $$;

-- Give one name to a new task, or return its refusal. Waits for a transaction that gives the same name, and then finds
-- its task.
CREATE FUNCTION take_name(queue_id int4, now int8, given text, OUT id int8, OUT outcome int2)
LANGUAGE plpgsql AS $$
DECLARE
    known towline.names;
BEGIN
    LOOP
        SELECT * INTO known FROM towline.names AS n WHERE n.queue = queue_id AND n.name = given FOR UPDATE;
        IF known.task IS NOT NULL AND towline.settle_used_up(queue_id, now, known.task) THEN
            CONTINUE;
        END IF;
        EXIT WHEN known.queue IS NOT NULL;
        INSERT INTO towline.names (queue, name, until) VALUES (queue_id, given, 0) ON CONFLICT DO NOTHING;
    END LOOP;
    outcome := CASE WHEN known.task IS NOT NULL THEN 1 WHEN known.until > now THEN 2 ELSE 0 END;
    IF outcome = 0 THEN
        id := nextval('towline.task_ids');
        UPDATE towline.names AS n SET task = take_name.id, until = NULL WHERE n.queue = queue_id AND n.name = given;
    END IF;
END $$;

-- Take those names of a batch once more that used-up tasks have.
CREATE FUNCTION take_used_up_names(
    queue_id int4, now int8, given text[], INOUT ids int8[], INOUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    place int4;
    late record;
BEGIN
    FOR place IN
        SELECT f.place FROM unnest(given, outcomes) WITH ORDINALITY AS f (name, outcome, place)
        JOIN towline.names AS n ON n.queue = queue_id AND n.name = f.name
        JOIN towline.tasks AS t ON t.id = n.task
        JOIN towline.queues AS q ON q.id = queue_id
        WHERE f.outcome = 1 AND q.deletes_exhausted AND t.state = 2 AND t.eta <= now
            AND t.leases >= coalesce(t.max_leases, q.max_leases)
        ORDER BY f.name, f.place
    LOOP
        late := towline.take_name(queue_id, now, given[place]);
        ids[place] := late.id;
        outcomes[place] := late.outcome;
    END LOOP;
END $$;

-- Return an id for each new task, in order; NULL where its name is taken. Names are locked in their order, known ones
-- first. If others gave some of them meanwhile, all locks are released and it starts again, so that two transactions
-- which give the same names never deadlock.
CREATE FUNCTION take_names(queue_id int4, now int8, given text[], OUT ids int8[], OUT outcomes int2[])
LANGUAGE plpgsql AS $$
DECLARE
    is_known bool[];
    missing int8;
BEGIN
    LOOP
        BEGIN
            SELECT array_agg(CASE j.outcome WHEN 0 THEN nextval('towline.task_ids') END), array_agg(j.outcome),
                array_agg(j.is_known), count(*) FILTER (WHERE j.outcome = 0 AND NOT j.is_known AND j.name IS NOT NULL)
            INTO ids, outcomes, is_known, missing
            FROM (
                SELECT g.name, k.name IS NOT NULL AS is_known, CASE
                        WHEN k.task IS NOT NULL THEN 1 WHEN k.until > now THEN 2
                        WHEN g.name IS NOT NULL AND row_number() OVER (PARTITION BY g.name ORDER BY g.place) > 1 THEN 1
                        ELSE 0
                    END AS outcome
                FROM (
                    SELECT * FROM unnest(given) WITH ORDINALITY AS o (name, place) ORDER BY o.name
                ) AS g LEFT JOIN LATERAL (
                    SELECT * FROM towline.names AS n WHERE n.queue = queue_id AND n.name = g.name FOR UPDATE
                ) AS k ON true
                ORDER BY g.place
            ) AS j;
            UPDATE towline.names AS n SET task = f.id, until = NULL
            FROM unnest(given, ids, is_known) AS f (name, id, is_known)
            WHERE f.is_known AND f.id IS NOT NULL AND n.queue = queue_id AND n.name = f.name;
            IF missing > 0 THEN
                WITH new AS (
                    INSERT INTO towline.names AS n (queue, name, task)
                    SELECT queue_id, f.name, f.id FROM unnest(given, ids, is_known) AS f (name, id, is_known)
                    WHERE NOT f.is_known AND f.id IS NOT NULL AND f.name IS NOT NULL ORDER BY f.name
                    ON CONFLICT DO NOTHING RETURNING n.task
                )
                SELECT missing - count(*) INTO missing FROM new;
            END IF;
            EXIT WHEN missing = 0;
            RAISE 'given meanwhile' USING ERRCODE = 'TL001';
        EXCEPTION WHEN SQLSTATE 'TL001' THEN
            NULL;
        END;
    END LOOP;
    IF 1 = ANY (outcomes) THEN
        SELECT t.ids, t.outcomes INTO ids, outcomes
        FROM towline.take_used_up_names(queue_id, now, given, ids, outcomes) AS t;
    END IF;
END $$;

-- Forget some names, twice as many as were given, whose retention ended at least a minute ago, as a clock may be set
-- back a little. since: where the first of them is.
CREATE FUNCTION forget_names(now int8, given int4, since int8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM towline.names AS n USING (
        SELECT f.queue, f.name FROM towline.names AS f WHERE f.until >= since AND f.until <= now - 60000000
        ORDER BY f.until LIMIT 2 * given FOR UPDATE SKIP LOCKED
    ) AS free
    WHERE n.queue = free.queue AND n.name = free.name;
END $$;
