-- What the functions of several verbs share: the rows they answer, the counters, the ends of leases.

-- What a verb tells, row by row. kind 0: how the call went (`id` a refusal or 0, `eta` the transaction's number, `leases`
-- flags, `name` what the refusal needs to be told); 1: a task that was deleted; 2: a lease that expired; 3: a lease;
-- 4: `leases` tasks of a tag became ready; 5: a renewal, 6: a release, 7: a handed-over task, `id` its place in the call.
CREATE TYPE told AS (
    kind int2,
    id int8,
    eta int8,
    ready_at int8,
    added_at int8,
    leased_at int8,
    leases int4,
    worker text,
    name text,
    tag text,
    reason text,
    payload bytea
);

-- How the call went. Refusals: 1 no such queue, 2 moved, 3 the worker was retired, 4 the lease would be too long.
CREATE FUNCTION answer(refusal int8, note text, flags int4) RETURNS towline.told LANGUAGE sql AS $$
    SELECT 0::int2, refusal, txid_current_if_assigned(), NULL::int8, NULL::int8, NULL::int8, flags, NULL::text, note,
        NULL::text, NULL::text, NULL::bytea
$$;

-- Some queues' names, for whoever asked for one that is not there.
CREATE FUNCTION some_queues() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT string_agg(few.name, ', ')
    FROM (SELECT queues.name FROM towline.queues ORDER BY queues.name LIMIT 5) AS few
$$;

-- The lowest slot of the counters that no other transaction under way has, for as long as this one lasts.
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

-- Each name once, in the order in which queues are locked.
CREATE FUNCTION distinct_names(names text[]) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(DISTINCT n.name ORDER BY n.name) FROM unnest(names) AS n (name)
$$;

-- Nobody fences or drops the queue while this transaction lasts.
CREATE FUNCTION hold_queue(queue_name text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name))
$$;

-- Wait until nobody holds the queue, and keep it.
CREATE FUNCTION seize_queue(queue_name text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock('towline.queues'::regclass::oid::int4, hashtext(queue_name))
$$;

-- In which kinds of counters a task of this tag is counted.
CREATE FUNCTION kinds_of(tag text) RETURNS int2[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN tag IS NULL THEN '{1}'::int2[] ELSE '{0,2}'::int2[] END
$$;

-- Add to the counters of a tag.
CREATE FUNCTION count_tasks(
    queue int4, slot int2, tag text, now int8, ready int8 DEFAULT 0, delayed int8 DEFAULT 0, leased int8 DEFAULT 0,
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

-- The counters of a queue, or of some of its tags (none: of the untagged), summed over the slots.
CREATE FUNCTION sum_counts(queue_id int4, tags text[]) RETURNS towline.counts LANGUAGE plpgsql STABLE AS $$
DECLARE
    sums towline.counts;
    kinds CONSTANT int2[] := CASE WHEN tags IS NULL THEN '{0,1}' WHEN tags = '{}' THEN '{1}' ELSE '{2}' END;
BEGIN
    SELECT queue_id, kinds[1], 0, '', coalesce(sum(c.ready), 0), coalesce(sum(c.delayed), 0), coalesce(sum(c.leased), 0),
        coalesce(sum(c.dead), 0), coalesce(sum(c.added), 0), coalesce(sum(c.leases), 0), coalesce(sum(c.deleted), 0),
        coalesce(sum(c.released), 0), coalesce(sum(c.expired), 0), coalesce(sum(c.died), 0), max(c.changed_at)
    INTO sums
    -- One look for each kind and tag. Of a range or a list of kinds every tag may be read.
    FROM unnest(kinds) AS k (kind) CROSS JOIN unnest(CASE kinds[1] WHEN 2 THEN tags ELSE ARRAY[''] END) AS w (tag)
    CROSS JOIN LATERAL (
        SELECT * FROM towline.counts AS each
        WHERE each.queue = queue_id AND each.kind = k.kind AND each.tag = w.tag
        OFFSET 0  -- joined, the planner may read all of them
    ) AS c;
    RETURN sums;
END $$;

-- Note one finished lease of a task as it was before its end.
CREATE FUNCTION note_finished(task towline.tasks, outcome text, ended_at int8, reason text) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO towline.samples (queue, size, outcome, numbers, texts, ended_at, reasons)
    VALUES (
        task.queue, 1, outcome,
        ARRAY[[task.id, task.leases, greatest(0, task.leased_at - task.ready_at), task.leased_at]],
        ARRAY[[task.name, task.tag, task.worker]], ARRAY[ended_at], CASE WHEN reason IS NOT NULL THEN ARRAY[reason] END
    )
$$;

-- Part a name from its deleted task; it stays taken for the queue's retention.
CREATE FUNCTION part_name(q towline.queues, given text, ended_at int8) RETURNS void LANGUAGE sql AS $$
    UPDATE towline.names SET task = NULL, until = ended_at + round(q.name_retention_seconds * 1000000)::int8
    WHERE names.queue = q.id AND names.name = given
$$;

-- The first end from `wanted` on that is not among the ends of earlier leases.
CREATE FUNCTION unspent_end(wanted int8, ahead int8[]) RETURNS int8 LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    WHILE wanted = ANY (ahead) LOOP
        wanted := wanted + 1;
    END LOOP;
    RETURN wanted;
END $$;

-- Those of some instants that are still to come; NULL: none.
CREATE FUNCTION ahead_of(instants int8[], now int8) RETURNS int8[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(each.instant) FROM unnest(instants) AS each (instant) WHERE each.instant > now
$$;

-- Forget those tags among the next `most` after `examined` that had no task for a day; where to go on, '' from the start.
-- They are looked at without a lock first, as nearly all are in use and a lock is written to its row. Then either all
-- counters of a tag are locked and go, or none: what another transaction counts meanwhile is a row of its own.
CREATE FUNCTION forget_tags(queue_id int4, now int8, examined text, most int4) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    a_day_ago CONSTANT int8 := now - 86400000000;
    number int4;
    last_one text;
    idle text[];
BEGIN
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
        DELETE FROM towline.counts AS c WHERE c.queue = queue_id AND c.kind = 2 AND c.tag = ANY (idle);
    END IF;
    RETURN CASE WHEN number < most THEN '' ELSE last_one END;
END $$;

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
    -- Added up from the oldest on: a window over all of them would cost five times as much.
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
