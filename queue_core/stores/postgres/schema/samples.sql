-- Samples: the finished leases that are kept.

-- Keep one finished lease of a task, given as it was before the end.
CREATE FUNCTION note_finished(task towline.tasks, outcome text, ended_at int8, reason text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO towline.samples (queue, size, outcome, numbers, texts, ended_at, reasons)
    VALUES (
        task.queue, 1, outcome,
        ARRAY[[task.id, task.leases, greatest(0, task.leased_at - task.ready_at), task.leased_at]],
        ARRAY[[task.name, task.tag, task.worker]], ARRAY[ended_at], CASE WHEN reason IS NOT NULL THEN ARRAY[reason] END
    )
$$;

-- Forget the oldest finished leases of a queue beyond the number kept; whole transactions only.
CREATE FUNCTION trim_samples(queue_id int4, kept int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    newest xid8;
    surplus int8;
BEGIN
    IF NOT pg_try_advisory_xact_lock('towline.samples'::regclass::oid::int4, queue_id) THEN
        RETURN;
    END IF;
    SELECT sum(s.size) - kept INTO surplus FROM towline.samples AS s WHERE s.queue = queue_id;
    -- Summed up from the oldest on, as a window over all of them would cost five times as much.
    SELECT counted.xid INTO newest
    FROM (
        SELECT s.xid, sum(s.size) OVER (ORDER BY s.xid, s.id ROWS UNBOUNDED PRECEDING) - s.size AS older
        FROM towline.samples AS s WHERE s.queue = queue_id ORDER BY s.xid, s.id LIMIT greatest(0, surplus + 1)
    ) AS counted
    WHERE counted.older <= surplus AND counted.xid < pg_current_xact_id() ORDER BY counted.xid DESC LIMIT 1;
    -- The transaction that makes the number full is kept whole.
    SELECT max(s.xid) INTO newest FROM towline.samples AS s WHERE s.queue = queue_id AND s.xid < newest;
    IF newest IS NOT NULL THEN
        DELETE FROM towline.samples AS s WHERE s.queue = queue_id AND s.xid <= newest;
        INSERT INTO towline.trimmed AS t VALUES (queue_id, newest)
        ON CONFLICT (queue) DO UPDATE SET xid = greatest(t.xid, excluded.xid);
    END IF;
END $$;

-- Return samples from a transaction's number on, each row with the newest number that was forgotten, or one row without
-- a sample where there is none. Samples of transactions that an older one still under way may come before are left for
-- later, for at most 10 seconds: a foreign transaction may go on for hours.
CREATE FUNCTION read_samples(queue_name text, first_number int8, most int4) RETURNS TABLE (
    forgotten int8, number int8, size int4, outcome text, numbers int8[], texts text[], ended_at int8[], reasons text[]
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
    own CONSTANT xid8 := pg_current_xact_id_if_assigned();
    settled CONSTANT xid8 := pg_snapshot_xmin(pg_current_snapshot());
    newest_forgotten int8;
    total int4 := 0;
    s towline.samples;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    newest_forgotten := coalesce((SELECT t.xid::text::int8 FROM towline.trimmed AS t WHERE t.queue = q.id), 0);
    FOR s IN
        SELECT * FROM towline.samples AS each
        WHERE each.queue = q.id AND each.xid >= first_number::text::xid8
            AND (each.xid < settled OR each.xid = own OR each.noted_at < clock_timestamp() - interval '10 seconds')
        ORDER BY each.xid, each.id
    LOOP
        RETURN QUERY SELECT newest_forgotten, s.xid::text::int8, s.size, s.outcome, s.numbers, s.texts,
            s.ended_at, s.reasons;
        IF s.xid::text::int8 > first_number THEN
            total := total + s.size;
        END IF;
        EXIT WHEN total >= most;
    END LOOP;
    IF total = 0 THEN
        RETURN QUERY SELECT newest_forgotten, NULL::int8, NULL::int4, NULL::text, NULL::int8[], NULL::text[],
            NULL::int8[], NULL::text[];
    END IF;
END $$;
