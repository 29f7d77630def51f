-- The verbs that move a queue to or from another store.

-- Add tasks as another store had them. Outcomes as of `add`. An empty array from `bounds` on: none has one.
CREATE FUNCTION restore(
    queue_name text, now int8, states int2[], etas int8[], ready_ats int8[], added_ats int8[], leased_ats int8[],
    leases int4[], tags text[], names text[], workers text[], reasons text[], spents text[], payloads bytea[],
    bounds int4[], headers text[], attempts text[], progresses text[], checkpoints bytea[],
    priorities int2[] DEFAULT NULL,
    OUT xid int8, OUT ids int8[], OUT outcomes int2[]
) LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO STRICT q FROM towline.queues AS each WHERE each.name = queue_name;
    slot := towline.count_slot(q.id);
    IF NOT q.has_tags AND array_remove(tags, NULL) <> '{}' THEN
        UPDATE towline.queues AS e SET has_tags = true WHERE e.id = q.id;
    END IF;
    IF array_remove(priorities, NULL) <> '{}' THEN
        UPDATE towline.queues AS e SET has_priorities = true, is_limited = true
        WHERE e.id = q.id RETURNING * INTO q;
    END IF;
    SELECT t.ids, t.outcomes INTO ids, outcomes FROM towline.take_names(q.id, now, names) AS t;
    PERFORM towline.forget_names(now, cardinality(names), 0);
    PERFORM towline.lower_floors(q.id, states, tags, etas);
    WITH new AS (
        INSERT INTO towline.tasks AS t (
            id, eta, ready_at, added_at, leased_at, queue, leases, state, max_leases, tag, name, worker, reason,
            spent, progress, checkpoint, attempts, headers, payload, priority
        )
        SELECT n.id, n.eta, n.ready_at, n.added_at, n.leased_at, q.id, n.leases,
            CASE n.state WHEN 0 THEN -coalesce(n.priority, 0) ELSE n.state END, n.bound, n.tag, n.name,
            nullif(n.worker, ''), nullif(n.reason, ''), n.spent::int8[], n.progress, n.checkpoint, n.attempts,
            n.headers, n.payload, n.priority
        FROM unnest(
            ids, states, etas, ready_ats, added_ats, leased_ats, leases, tags, names, workers, reasons, spents,
            payloads, bounds, headers, attempts, progresses, checkpoints, priorities
        ) AS n (
            id, state, eta, ready_at, added_at, leased_at, leases, tag, name, worker, reason, spent, payload,
            bound, headers, attempts, progress, checkpoint, priority
        )
        WHERE n.id IS NOT NULL
        RETURNING t.tag, t.state
    )
    INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, delayed, leased, dead, added, changed_at)
    SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN new.tag ELSE '' END,
        count(*) FILTER (WHERE new.state <= 0), count(*) FILTER (WHERE new.state = 1),
        count(*) FILTER (WHERE new.state = 2), count(*) FILTER (WHERE new.state = 3), count(*), now
    FROM new CROSS JOIN unnest(towline.kinds_of(new.tag)) AS k (kind) GROUP BY 2, 4
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed, leased = c.leased + excluded.leased,
        dead = c.dead + excluded.dead, added = c.added + excluded.added, changed_at = excluded.changed_at;
    IF q.is_limited THEN
        PERFORM towline.update_lanes(q, slot, now, tags, 0);
    END IF;
    xid := txid_current_if_assigned();
END $$;

-- Refuse adds under names until their ends; names of tasks in this store are skipped.
CREATE FUNCTION hold_names(queue_name text, now int8, given text[], untils int8[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM towline.hold_queue(queue_name);
    INSERT INTO towline.names AS n (queue, name, until)
    SELECT q.id, h.name, max(h.until) FROM unnest(given, untils) AS h (name, until), towline.queues AS q
    WHERE q.name = queue_name AND h.until > now GROUP BY q.id, h.name ORDER BY h.name
    ON CONFLICT (queue, name) DO UPDATE SET until = greatest(n.until, excluded.until) WHERE n.task IS NULL;
END $$;

-- Return the names of deleted tasks that are still taken.
CREATE FUNCTION held_names(queue_name text, after text, most int4, now int8) RETURNS TABLE (name text, until int8)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT n.name, n.until FROM towline.names AS n
        WHERE n.queue = (SELECT q.id FROM towline.queues AS q WHERE q.name = queue_name) AND n.name > after
            AND n.task IS NULL AND n.until > now ORDER BY n.name LIMIT most;
END $$;
