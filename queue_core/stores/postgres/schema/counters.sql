-- The counters of queues and tags.

-- Return the lowest slot of the counters that no other transaction holds, and hold it until this one ends.
CREATE FUNCTION take_slot() RETURNS int2 LANGUAGE plpgsql AS $$
DECLARE
    class CONSTANT int4 := 'towline.counts'::regclass::oid::int4;
BEGIN
    FOR slot IN 0..15 LOOP
        IF pg_try_advisory_xact_lock(class, slot) THEN
            RETURN slot;
        END IF;
    END LOOP;
    PERFORM pg_advisory_xact_lock(class, pg_backend_pid() % 16);
    RETURN pg_backend_pid() % 16;
END $$;

-- Return in which kinds of counters a task of this tag is counted.
CREATE FUNCTION kinds_of(tag text) RETURNS int2[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN tag IS NULL THEN '{1}'::int2[] ELSE '{0,2}'::int2[] END
$$;

-- Add to the counters of a tag.
CREATE FUNCTION count_tasks(
    queue int4, slot int8, tag text, now int8, ready int8 DEFAULT 0, delayed int8 DEFAULT 0, leased int8 DEFAULT 0,
    dead int8 DEFAULT 0, added int8 DEFAULT 0, deleted int8 DEFAULT 0, released int8 DEFAULT 0, expired int8 DEFAULT 0,
    died int8 DEFAULT 0
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO towline.counts AS c (
        queue, kind, slot, tag, ready, delayed, leased, dead, added, deleted, released, expired, died, changed_at
    )
    SELECT queue, k.kind, slot, CASE k.kind WHEN 2 THEN tag ELSE '' END, ready, delayed, leased, dead, added, deleted,
        released, expired, died, now
    FROM unnest(towline.kinds_of(tag)) AS k (kind)
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed,
        leased = c.leased + excluded.leased, dead = c.dead + excluded.dead, added = c.added + excluded.added,
        deleted = c.deleted + excluded.deleted, released = c.released + excluded.released,
        expired = c.expired + excluded.expired, died = c.died + excluded.died, changed_at = excluded.changed_at
$$;

-- Count tasks that were added, by their tags and etas.
CREATE FUNCTION count_added(queue_id int4, slot int8, now int8, tags text[], etas int8[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, delayed, added, changed_at)
    SELECT queue_id, k.kind, slot, CASE k.kind WHEN 2 THEN n.tag ELSE '' END,
        count(*) - count(*) FILTER (WHERE n.eta > now), count(*) FILTER (WHERE n.eta > now), count(*), now
    FROM unnest(tags, etas) AS n (tag, eta) CROSS JOIN unnest(towline.kinds_of(n.tag)) AS k (kind) GROUP BY 2, 4
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed, added = c.added + excluded.added,
        changed_at = excluded.changed_at;
END $$;

-- Count deletions and leases; each array has the tag of every one.
CREATE FUNCTION count_worked(queue_id int4, slot int8, now int8, deleted text[], leased text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, leased, leases, deleted, changed_at)
    SELECT queue_id, k.kind, slot, CASE k.kind WHEN 2 THEN w.tag ELSE '' END, -sum(w.leased),
        sum(w.leased) - sum(w.deleted), sum(w.leased), sum(w.deleted), now
    FROM (
        SELECT d.tag, 1 AS deleted, 0 AS leased FROM unnest(deleted) AS d (tag)
        UNION ALL SELECT l.tag, 0, 1 FROM unnest(leased) AS l (tag)
    ) AS w CROSS JOIN unnest(towline.kinds_of(w.tag)) AS k (kind)
    GROUP BY 2, 4
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, leased = c.leased + excluded.leased, leases = c.leases + excluded.leases,
        deleted = c.deleted + excluded.deleted, changed_at = excluded.changed_at;
END $$;

-- Return the counters of a queue, or of some of its tags (empty: of the untagged), summed over the slots from the
-- newest sum on.
CREATE FUNCTION sum_counts(queue_id int4, tags text[]) RETURNS towline.counts LANGUAGE plpgsql STABLE AS $$
DECLARE
    sums towline.counts;
    kinds CONSTANT int2[] := CASE WHEN tags IS NULL THEN '{0,1}' WHEN tags = '{}' THEN '{1}' ELSE '{2}' END;
BEGIN
    SELECT queue_id, kinds[1], 0, '', coalesce(sum(c.ready), 0), coalesce(sum(c.delayed), 0),
        coalesce(sum(c.leased), 0), coalesce(sum(c.dead), 0), coalesce(sum(c.added), 0), coalesce(sum(c.leases), 0),
        coalesce(sum(c.deleted), 0), coalesce(sum(c.released), 0), coalesce(sum(c.expired), 0),
        coalesce(sum(c.died), 0), max(c.changed_at), coalesce(sum(c.admitted), 0)
    INTO sums
    -- One index scan for each kind and tag. Of a range or a list of kinds every tag may be read.
    FROM unnest(kinds) AS k (kind) CROSS JOIN unnest(CASE kinds[1] WHEN 2 THEN tags ELSE ARRAY[''] END) AS w (tag)
    CROSS JOIN LATERAL (
        SELECT * FROM towline.counts AS each
        WHERE each.queue = queue_id AND each.kind = k.kind AND each.tag = w.tag AND each.slot >= coalesce((
            SELECT b.slot FROM towline.counts AS b
            WHERE b.queue = queue_id AND b.kind = k.kind AND b.tag = w.tag AND b.slot % 32 = 0
            ORDER BY b.slot DESC LIMIT 1
        ), 0)
        OFFSET 0  -- joined, the planner may read all of them
    ) AS c;
    RETURN sums;
END $$;

-- Return how many tasks of a queue, or of these tags (empty: the untagged), are stored in a state.
CREATE FUNCTION gauge(queue_id int4, of_state int2, tags text[]) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
DECLARE
    sums towline.counts := towline.sum_counts(queue_id, tags);
BEGIN
    RETURN CASE of_state WHEN 0 THEN sums.ready WHEN 1 THEN sums.delayed WHEN 2 THEN sums.leased WHEN 3 THEN sums.dead ELSE 0 END;
END $$;

-- Forget those tags among the next `most` after `examined` that had no task for a day; return where to go on, '' for
-- the start. They are read without a lock first, as nearly all are in use and a lock writes to its row. Then either all
-- counters of a tag are locked and deleted, or none; another transaction counts in a row of its own meanwhile.
CREATE FUNCTION forget_tags(queue_id int4, now int8, examined text, most int4) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    a_day_ago CONSTANT int8 := now - 86400000000;
    number int4;
    last_one text;
    idle text[];
BEGIN
    IF towline.is_floored(queue_id) THEN
        RETURN examined;  -- while dead rows stay, it would read them all
    END IF;
    SELECT count(*), max(few.tag), array_agg(few.tag) FILTER (WHERE few.idle) INTO number, last_one, idle
    FROM (
        SELECT
            c.tag,
            (sum(c.ready), sum(c.delayed), sum(c.leased), sum(c.dead)) = (0, 0, 0, 0)
            AND max(c.changed_at) < a_day_ago AS idle
        FROM towline.counts AS c WHERE c.queue = queue_id AND c.kind = 2 AND c.tag > examined
        GROUP BY c.tag ORDER BY c.tag LIMIT most
    ) AS few;
    IF idle IS NOT NULL THEN
        idle := ARRAY(
            WITH locked AS MATERIALIZED (
                SELECT c.tag, c.ready, c.delayed, c.leased, c.dead, c.changed_at
                FROM unnest(idle) AS i (tag) CROSS JOIN LATERAL (
                    SELECT * FROM towline.counts AS each
                    WHERE each.queue = queue_id AND each.kind = 2 AND each.tag = i.tag FOR UPDATE SKIP LOCKED
                ) AS c
            )
            SELECT l.tag FROM locked AS l GROUP BY l.tag
            HAVING (sum(l.ready), sum(l.delayed), sum(l.leased), sum(l.dead)) = (0, 0, 0, 0)
                AND max(l.changed_at) < a_day_ago
                AND count(*) = (
                    SELECT count(*) FROM towline.counts AS a WHERE a.queue = queue_id AND a.kind = 2 AND a.tag = l.tag
                )
        );
        -- Not while it owes tokens. A tag without tasks has no other use of its lane.
        idle := ARRAY(
            SELECT i.tag FROM unnest(idle) AS i (tag) WHERE NOT EXISTS (
                SELECT FROM towline.lanes AS l
                WHERE l.queue = queue_id AND l.kind = 2 AND l.tag = i.tag AND l.full_at > now
            )
        );
        DELETE FROM towline.lanes AS l WHERE l.queue = queue_id AND l.kind = 2 AND l.tag = ANY (idle);
        DELETE FROM towline.counts AS c WHERE c.queue = queue_id AND c.kind = 2 AND c.tag = ANY (idle);
    END IF;
    RETURN CASE WHEN number < most THEN '' ELSE last_one END;
END $$;
