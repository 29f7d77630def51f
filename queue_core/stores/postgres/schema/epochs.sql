-- Epochs: counters that are not read through their own dead versions while a snapshot is held (ADR 35). An epoch begins
-- with a step of the queue's floors, and counts in slots of its own.

-- Return whether the queue's searches begin at floors, as dead rows can't be removed.
CREATE FUNCTION is_floored(queue_id int4) RETURNS bool LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((
        SELECT s.ceiling > -9223372036854775808 FROM towline.floors AS s
        WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1
    ), false);
END $$;

-- Return the slot of a queue's counters that this transaction has to itself. The queue is held.
CREATE FUNCTION count_slot(queue_id int4) RETURNS int8 LANGUAGE plpgsql AS $$
BEGIN
    RETURN 1 + towline.take_slot() + coalesce(
        (SELECT s.epoch FROM towline.floors AS s WHERE s.queue = queue_id ORDER BY s.step DESC LIMIT 1), 0
    ) * 32;
END $$;

-- Fold the slots before an epoch into the first of it, for the queue's own counters and these tags. Only when nobody
-- counts in earlier ones any more. What was folded before is not read again.
CREATE FUNCTION fold_counts(queue_id int4, epoch int8, tags text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH wanted AS MATERIALIZED (
        SELECT k.kind, k.tag, coalesce((
            SELECT b.slot FROM towline.counts AS b
            WHERE b.queue = queue_id AND b.kind = k.kind AND b.tag = k.tag AND b.slot < epoch * 32 AND b.slot % 32 = 0
            ORDER BY b.slot DESC LIMIT 1
        ), 0) AS first
        FROM (
            SELECT 0::int2, '' COLLATE "C" UNION ALL SELECT 1, ''
            UNION ALL SELECT DISTINCT 2, u.tag COLLATE "C" FROM unnest(tags) AS u (tag) WHERE u.tag IS NOT NULL
        ) AS k (kind, tag)
        -- Not if it is done, or nothing came after the last sum. In this order: below a sum there are dead rows only.
        WHERE CASE
            WHEN EXISTS (
                SELECT FROM towline.counts AS b
                WHERE b.queue = queue_id AND b.kind = k.kind AND b.tag = k.tag AND b.slot = epoch * 32
            ) THEN false
            ELSE (
                SELECT b.slot % 32 > 0 FROM towline.counts AS b
                WHERE b.queue = queue_id AND b.kind = k.kind AND b.tag = k.tag AND b.slot < epoch * 32
                ORDER BY b.slot DESC LIMIT 1
            )
        END
    ), gone AS (
        DELETE FROM towline.counts AS c USING wanted AS w
        WHERE c.queue = queue_id AND c.kind = w.kind AND c.tag = w.tag AND c.slot >= w.first AND c.slot < epoch * 32
        RETURNING c.*
    )
    INSERT INTO towline.counts AS c (
        queue, kind, slot, tag, ready, delayed, leased, dead, added, leases, deleted, released, expired, died,
        changed_at, admitted
    )
    SELECT queue_id, g.kind, epoch * 32, g.tag, sum(g.ready), sum(g.delayed), sum(g.leased), sum(g.dead), sum(g.added),
        sum(g.leases), sum(g.deleted), sum(g.released), sum(g.expired), sum(g.died), max(g.changed_at), sum(g.admitted)
    FROM gone AS g GROUP BY g.kind, g.tag
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed,
        leased = c.leased + excluded.leased, dead = c.dead + excluded.dead, added = c.added + excluded.added,
        leases = c.leases + excluded.leases, deleted = c.deleted + excluded.deleted,
        released = c.released + excluded.released, expired = c.expired + excluded.expired,
        died = c.died + excluded.died, changed_at = greatest(c.changed_at, excluded.changed_at),
        admitted = c.admitted + excluded.admitted;
END $$;
