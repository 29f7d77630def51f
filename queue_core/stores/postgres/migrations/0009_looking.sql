-- The verbs that only look; exact as of `now`, though nothing is settled. tags NULL: any; none: the untagged.

-- Counters and what has come due since, of a queue or of some tags.
CREATE FUNCTION look_stats(
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
        SELECT count(*) AS total, count(*) FILTER (WHERE t.leases >= q.max_leases) AS died,
            min(t.eta) FILTER (WHERE (t.leases >= q.max_leases) IS NOT TRUE) AS first INTO due
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

-- Etas of the first ready tasks: of a queue, or of each of these tags.
CREATE FUNCTION ready_heads(queue_id int4, tags text[], most int4) RETURNS TABLE (eta int8, id int8, tag text)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF tags IS NULL THEN
        RETURN QUERY SELECT t.eta, t.id, t.tag FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = 0 ORDER BY t.eta, t.id LIMIT most;
    ELSIF tags = '{}' THEN
        RETURN QUERY SELECT t.eta, t.id, t.tag FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0
            ORDER BY t.tag, t.eta, t.id LIMIT most;
    ELSE
        RETURN QUERY SELECT h.eta, h.id, w.tag FROM unnest(tags) AS w (tag) CROSS JOIN LATERAL (
                SELECT t.eta, t.id FROM towline.tasks AS t
                WHERE t.queue = queue_id AND t.tag = w.tag AND t.state + 0 = 0
                ORDER BY t.eta, t.id LIMIT most
            ) AS h
            ORDER BY h.eta, h.id LIMIT most;
    END IF;
END $$;

-- The statistics of a queue; no row: there is none.
CREATE FUNCTION stats(queue_name text, tags text[], now int8) RETURNS TABLE (
    paused bool, ready int8, delayed int8, leased int8, dead int8, oldest int8, added int8, leases int8, deleted int8,
    released int8, expired int8, died int8
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF FOUND THEN
        RETURN QUERY SELECT q.paused OR q.moved_to <> '', s.* FROM towline.look_stats(q, tags, now) AS s;
    END IF;
END $$;

-- The statistics of tags, a page of them; the untagged come first when `after` is NULL.
CREATE FUNCTION tag_stats(queue_name text, after text, most int4, now int8) RETURNS TABLE (
    tag text, paused bool, ready int8, delayed int8, leased int8, dead int8, oldest int8, added int8, leases int8,
    deleted int8, released int8, expired int8, died int8
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    RETURN QUERY
    SELECT listed.tag, q.paused OR q.moved_to <> '', s.*
    FROM (
        (
            SELECT NULL::text AS tag FROM towline.counts AS c
            WHERE c.queue = q.id AND c.kind = 1 AND after IS NULL LIMIT 1
        ) UNION ALL (
            SELECT DISTINCT c.tag FROM towline.counts AS c
            WHERE c.queue = q.id AND c.kind = 2 AND c.tag > coalesce(after, '') ORDER BY c.tag LIMIT most
        ) LIMIT most
    ) AS listed
    CROSS JOIN LATERAL towline.look_stats(
        q, CASE WHEN listed.tag IS NULL THEN '{}'::text[] ELSE ARRAY[listed.tag] END, now
    ) AS s;
END $$;

-- What `waiting` is made of: how many are ready, the first etas stored as ready, those of tasks come due since, and the
-- last of all. `oldest`: only the tag of the first leasable task counts.
CREATE FUNCTION waiting(
    queue_name text, tags text[], oldest bool, head int4, now int8,
    OUT ready int8, OUT stored int8[], OUT due int8[], OUT newest int8
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
    one record;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF oldest THEN
        SELECT f.tag INTO one FROM (
            (SELECT h.eta, h.id, h.tag FROM towline.ready_heads(q.id, tags, 1) AS h)
            UNION ALL
            (SELECT d.eta, d.id, d.tag FROM towline.due_heads(q, tags, 1, now) AS d)
        ) AS f ORDER BY f.eta, f.id LIMIT 1;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        tags := CASE WHEN one.tag IS NULL THEN '{}'::text[] ELSE ARRAY[one.tag] END;
    END IF;
    ready := (SELECT s.ready FROM towline.look_stats(q, tags, now) AS s);
    IF ready > 0 THEN
        stored := ARRAY(SELECT h.eta FROM towline.ready_heads(q.id, tags, head) AS h ORDER BY h.eta);
        due := ARRAY(SELECT d.eta FROM towline.due_heads(q, tags, head, now) AS d ORDER BY d.eta);
        newest := towline.last_ready(q.id, tags);
    END IF;
END $$;

-- The first tasks that are stored as delayed or leased but are ready by now.
CREATE FUNCTION due_heads(q towline.queues, tags text[], most int4, now int8)
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
            WHERE t.queue = q.id AND t.state = 2 AND t.eta <= now AND (t.leases >= q.max_leases) IS NOT TRUE
                AND (tags IS NULL OR t.tag = ANY (tags) OR (tags = '{}' AND t.tag IS NULL))
            ORDER BY t.eta, t.id LIMIT most
        )
    ) AS d ORDER BY d.eta, d.id LIMIT most;
END $$;

-- The eta at the very end of the ready queue.
CREATE FUNCTION last_ready(queue_id int4, tags text[]) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF tags IS NULL THEN
        RETURN (
            SELECT t.eta FROM towline.tasks AS t WHERE t.queue = queue_id AND t.state = 0
            ORDER BY t.eta DESC, t.id DESC LIMIT 1
        );
    ELSIF tags = '{}' THEN
        RETURN (
            SELECT t.eta FROM towline.tasks AS t WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0
            ORDER BY t.tag DESC, t.eta DESC, t.id DESC LIMIT 1
        );
    END IF;
    RETURN (
        SELECT max(l.eta) FROM unnest(tags) AS w (tag) CROSS JOIN LATERAL (
            SELECT t.eta FROM towline.tasks AS t WHERE t.queue = queue_id AND t.tag = w.tag AND t.state + 0 = 0
            ORDER BY t.eta DESC, t.id DESC LIMIT 1
        ) AS l
    );
END $$;

-- Leases that are held now, soonest to end first.
CREATE FUNCTION live_leases(queue_name text, now int8, most int4) RETURNS TABLE (
    name text, tag text, worker text, leases int4, leased_at int8, eta int8, ready_at int8
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    queue_id int4 := (SELECT q.id FROM towline.queues AS q WHERE q.name = queue_name);
BEGIN
    RETURN QUERY
    SELECT coalesce(t.name, '_' || t.id), t.tag, coalesce(t.worker, ''), t.leases, t.leased_at, t.eta, t.ready_at
    FROM towline.tasks AS t WHERE t.queue = queue_id AND t.state = 2 AND t.eta > now ORDER BY t.eta, t.id LIMIT most;
END $$;

-- When time alone next makes a task leasable.
CREATE FUNCTION next_eta(queue_name text) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
DECLARE
    q towline.queues;
BEGIN
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF q.moved_to <> '' THEN
        RETURN NULL;
    END IF;
    RETURN least(
        (SELECT t.eta FROM towline.tasks AS t WHERE t.queue = q.id AND t.state = 1 ORDER BY t.eta, t.id LIMIT 1),
        (SELECT t.eta FROM towline.tasks AS t WHERE t.queue = q.id AND t.state = 2 ORDER BY t.eta, t.id LIMIT 1)
    );
END $$;

-- Samples from a transaction's number on, each row with the newest number that was forgotten; one row without a sample
-- where there is none. Those of transactions that an older one still under way may come before are left for later, for
-- at most 10 seconds: a foreign transaction may go on for hours.
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
