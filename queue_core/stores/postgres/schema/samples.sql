-- Samples: the finished leases that are kept.

-- Return the id that Celery gave a task, from its headers; NULL for none.
CREATE FUNCTION celery_id(headers text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT substring(headers::json ->> 'celery-id' FROM '^[0-9A-Za-z_.:@-]{8,200}$')
$$;

-- Keep one finished lease of a task, given as it was before the end. lived: whether the reason is none of a death.
CREATE FUNCTION note_finished(
    task towline.tasks, outcome text, ended_at int8, reason text, lived bool DEFAULT NULL
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO towline.samples (queue, size, outcome, numbers, texts, ended_at, reasons, lived)
    VALUES (
        task.queue, 1, outcome,
        ARRAY[[task.id, task.leases, greatest(0, task.leased_at - task.ready_at), task.leased_at, task.added_at]],
        ARRAY[[task.name, task.tag, task.worker, towline.celery_id(task.headers)]], ARRAY[ended_at],
        CASE WHEN reason IS NOT NULL THEN ARRAY[reason] END, lived
    )
$$;

-- Forget the oldest finished leases of a queue beyond the number kept; whole transactions only.
CREATE FUNCTION trim_samples(queue_id int4, kept int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    newest xid8;
    surplus int8;
    gone xid8 := '0';
BEGIN
    IF NOT pg_try_advisory_xact_lock('towline.samples'::regclass::oid::int4, queue_id) THEN
        RETURN;
    END IF;
    IF towline.is_floored(queue_id) THEN  -- up to the newest that was forgotten there are dead rows
        gone := coalesce((SELECT t.xid FROM towline.trimmed AS t WHERE t.queue = queue_id), '0');
    END IF;
    SELECT sum(s.size) - kept INTO surplus FROM towline.samples AS s WHERE s.queue = queue_id AND s.xid > gone;
    -- Summed up from the oldest on, as a window over all of them would cost five times as much.
    SELECT counted.xid INTO newest
    FROM (
        SELECT s.xid, sum(s.size) OVER (ORDER BY s.xid, s.id ROWS UNBOUNDED PRECEDING) - s.size AS older
        FROM towline.samples AS s WHERE s.queue = queue_id AND s.xid > gone ORDER BY s.xid, s.id LIMIT greatest(0, surplus + 1)
    ) AS counted
    WHERE counted.older <= surplus AND counted.xid < pg_current_xact_id() ORDER BY counted.xid DESC LIMIT 1;
    -- The transaction that makes the number full is kept whole.
    SELECT max(s.xid) INTO newest FROM towline.samples AS s
    WHERE s.queue = queue_id AND s.xid > gone AND s.xid < newest;
    IF newest IS NOT NULL THEN
        DELETE FROM towline.samples AS s WHERE s.queue = queue_id AND s.xid > gone AND s.xid <= newest;
        INSERT INTO towline.trimmed AS t VALUES (queue_id, newest)
        ON CONFLICT (queue) DO UPDATE SET xid = greatest(t.xid, excluded.xid);
    END IF;
END $$;

-- Return finished leases of a queue from a transaction's number on, in the order of those numbers, until there are
-- enough. A number that no transaction has had yet is of another server: the queue's come from the start.
CREATE FUNCTION read_samples(queue_name text, first_number int8, most int4) RETURNS TABLE (
    forgotten int8, number int8, size int4, outcome text, numbers int8[], texts text[], ended_at int8[], reasons text[],
    lived bool
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
    own CONSTANT xid8 := pg_current_xact_id_if_assigned();
    settled CONSTANT xid8 := pg_snapshot_xmin(pg_current_snapshot());
    first_xid CONSTANT xid8 := CASE WHEN first_number < pg_snapshot_xmax(pg_current_snapshot())::text::int8
        OR first_number = own::text::int8 THEN first_number ELSE 0 END::text::xid8;
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
        WHERE each.queue = q.id AND each.xid >= first_xid
            AND (each.xid < settled OR each.xid = own OR each.noted_at < clock_timestamp() - interval '10 seconds')
        ORDER BY each.xid, each.id
    LOOP
        RETURN QUERY SELECT newest_forgotten, s.xid::text::int8, s.size, s.outcome, s.numbers, s.texts,
            s.ended_at, s.reasons, s.lived;
        IF s.xid > first_xid THEN
            total := total + s.size;
        END IF;
        EXIT WHEN total >= most;
    END LOOP;
    IF total = 0 THEN
        RETURN QUERY SELECT newest_forgotten, NULL::int8, NULL::int4, NULL::text, NULL::int8[], NULL::text[],
            NULL::int8[], NULL::text[], NULL::bool;
    END IF;
END $$;

-- Return ended leases of a queue, newest first, one a row: of the last `kept` those that ended at `since` or later, of
-- these names, or ids of Celery's, unless they are NULL, and recorded before the place (`before_xid`, `before_place`). The place of each is
-- that of `read_samples`: its transaction's number, and the samples of that before it.
CREATE FUNCTION history(
    queue_name text, given text[], given_ids int8[], before_xid int8, before_place int8, kept int8, since int8,
    most int4
) RETURNS TABLE (
    xid int8, place int8, outcome text, numbers int8[], texts text[], ended_at int8, reason text, lived bool
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    queue_id int4 := (SELECT q.id FROM towline.queues AS q WHERE q.name = queue_name);
    last_xid CONSTANT xid8 := before_xid::text::xid8;
BEGIN
    RETURN QUERY
    SELECT s.xid::text::int8, o.place, s.outcome, s.numbers[i.place:i.place], s.texts[i.place:i.place],
        coalesce(s.ended_at[i.place], s.ended_at[1]), s.reasons[i.place], s.lived
    FROM (
        -- Those that are newer than the place count too.
        SELECT e.*, sum(e.size) OVER (ORDER BY e.xid DESC, e.id DESC ROWS UNBOUNDED PRECEDING) AS through
        FROM towline.samples AS e WHERE e.queue = queue_id ORDER BY e.xid DESC, e.id DESC LIMIT kept
    ) AS s
    CROSS JOIN LATERAL generate_series(s.size, 1, -1) AS i (place)
    CROSS JOIN LATERAL (
        SELECT i.place - 1 + coalesce(sum(b.size), 0)::int8 AS place FROM towline.samples AS b
        WHERE b.queue = queue_id AND b.xid = s.xid AND b.id < s.id
    ) AS o
    WHERE s.through - i.place < kept AND s.xid <= last_xid AND (s.xid < last_xid OR o.place < before_place)
        AND (given IS NULL OR s.texts[:][1:1] && given OR s.texts[:][4:4] && given OR s.numbers[:][1:1] && given_ids)
        AND (
            given IS NULL OR coalesce(s.texts[i.place][1], '_' || s.numbers[i.place][1]) = ANY (given)
            OR s.texts[i.place][4] = ANY (given)
        )
        AND coalesce(s.ended_at[i.place], s.ended_at[1]) >= since
    ORDER BY s.xid DESC, s.id DESC, i.place DESC LIMIT most;
END $$;
