-- Workers, leads and the answers that sessions keep.

-- Record when a worker was first seen, and forget a few that were retired 30 days ago, and of more than 100,000 a few
-- that were first seen longest ago: one that goes on is seen anew.
CREATE FUNCTION remember_worker(worker_name text, now int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    newest int8;
BEGIN
    INSERT INTO towline.workers (worker, seen_at) VALUES (worker_name, now) ON CONFLICT DO NOTHING
    RETURNING place INTO newest;
    DELETE FROM towline.workers AS w USING (
        SELECT f.worker FROM towline.workers AS f WHERE f.retired_at IS NULL AND f.place <= newest - 100000
        ORDER BY f.place LIMIT 4 FOR UPDATE SKIP LOCKED
    ) AS old
    WHERE w.worker = old.worker;
    DELETE FROM towline.workers AS w USING (
        SELECT f.worker FROM towline.workers AS f WHERE f.retired_at < now - 2592000000000
        ORDER BY f.retired_at LIMIT 4 FOR UPDATE SKIP LOCKED
    ) AS gone
    WHERE w.worker = gone.worker;
END $$;

-- Retire a worker, whatever it holds.
CREATE FUNCTION fence_worker(worker_name text, now int8) RETURNS void LANGUAGE sql AS $$
    INSERT INTO towline.workers AS w (worker, retired_at) VALUES (worker_name, now)
    ON CONFLICT (worker) DO UPDATE SET retired_at = coalesce(w.retired_at, excluded.retired_at)
$$;

-- Retire a worker unless it holds a lease; waits for leases that are being granted to it.
CREATE FUNCTION retire_worker(worker_name text, now int8) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock('towline.workers'::regclass::oid::int4, hashtext(worker_name));
    PERFORM FROM towline.queues AS q, towline.tasks AS t
    WHERE t.queue = q.id AND t.state = 2 AND t.eta > now AND t.worker = worker_name LIMIT 1;
    IF FOUND THEN
        RETURN false;
    END IF;
    PERFORM towline.fence_worker(worker_name, now);
    RETURN true;
END $$;

-- Take or keep a lead; return whether the holder has it.
CREATE FUNCTION take_lead(lead_name text, new_holder text, new_until int8, now int8) RETURNS bool LANGUAGE sql AS $$
    WITH taken AS (
        INSERT INTO towline.leads AS l VALUES (lead_name, new_holder, new_until)
        ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until = excluded.until
        WHERE l.holder = excluded.holder OR l.until <= now
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM taken)
$$;

-- Forget a few answers and markers of clients' calls up to a place, and note until when they were in use. What is kept
-- without a fingerprint is no client's: schedules, moves of queues.
CREATE FUNCTION forget_answers(until_place int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    last_used int8;
BEGIN
    IF until_place <= 0 THEN
        RETURN;
    END IF;
    WITH answers AS (
        DELETE FROM towline.sessions AS s USING (
            SELECT f.session, f.part FROM towline.sessions AS f
            WHERE f.place <= until_place AND f.kept_at < 9223372036854775807 AND get_byte(f.answer, 0) = 35
            ORDER BY f.place LIMIT 4 FOR UPDATE SKIP LOCKED
        ) AS old
        WHERE s.session = old.session AND s.part = old.part RETURNING s.kept_at
    ), markers AS (
        DELETE FROM towline.commit_markers AS m USING (
            SELECT f.connection, f.part FROM towline.commit_markers AS f
            WHERE f.place <= until_place AND f.meaning IS NOT NULL AND NOT f.is_closed
            ORDER BY f.place LIMIT 4 FOR UPDATE SKIP LOCKED
        ) AS old
        WHERE m.connection = old.connection AND m.part = old.part
        RETURNING (extract(epoch FROM m.marked_at) * 1000000)::int8 AS marked_at
    )
    SELECT max(u.at) INTO last_used FROM (
        SELECT a.kept_at FROM answers AS a UNION ALL SELECT m.marked_at FROM markers AS m
    ) AS u (at);
    IF last_used > (SELECT f.last_value FROM towline.forgotten_at AS f) THEN
        PERFORM setval('towline.forgotten_at', last_used);
    END IF;
END $$;

-- Keep a session's answer, and forget a few idle sessions when a new one comes; return false when a later call was
-- answered already.
CREATE FUNCTION keep_answer(session_name text, new_number int8, new_answer bytea, now int8) RETURNS bool
LANGUAGE plpgsql AS $$
DECLARE
    last record;
    kibibytes CONSTANT int4 := length(new_answer) / 1024;
    new_place int8;
BEGIN
    UPDATE towline.sessions AS s SET number = new_number, answer = new_answer, kept_at = now,
        place = CASE WHEN kibibytes > 0 THEN towline.take_place(kibibytes) ELSE s.place END
    WHERE s.session = session_name AND s.part = new_number >> 8 AND s.number < new_number;
    IF FOUND THEN
        RETURN true;
    END IF;
    SELECT s.part, s.number INTO last FROM towline.sessions AS s
    WHERE s.session = session_name ORDER BY s.part DESC LIMIT 1 FOR UPDATE;
    IF last.number >= new_number THEN
        RETURN false;
    END IF;
    new_place := towline.take_place(kibibytes);
    INSERT INTO towline.sessions (session, part, number, answer, kept_at, place)
    VALUES (session_name, new_number >> 8, new_number, new_answer, now, new_place) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF last.part IS NOT NULL THEN
        DELETE FROM towline.sessions AS s WHERE s.session = session_name AND s.part = last.part;
        RETURN true;
    END IF;
    -- Names are random, so these are any four.
    DELETE FROM towline.sessions AS s USING (
        SELECT f.session, f.part FROM towline.sessions AS f WHERE f.session > session_name ORDER BY f.session, f.part
        LIMIT 4 FOR UPDATE SKIP LOCKED
    ) AS few
    WHERE s.session = few.session AND s.part = few.part AND s.kept_at < now - 172800000000;
    PERFORM towline.forget_answers(new_place - 100000);
    RETURN true;
END $$;
