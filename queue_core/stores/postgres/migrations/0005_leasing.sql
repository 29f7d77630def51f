-- The verbs of a worker's steady state: delete what is done, settle what is due, lease the next.

-- What these verbs tell: one row for each lease, and last one that says how the call went: a refusal (see `answer`) and its
-- note, flags (1: more is due than was settled, 2: the worker was retired and got nothing), the transaction's number,
-- samples of what was deleted, and `settled`, what time did: [expired leases, [tag, tasks] that became ready].
CREATE TYPE worked AS (
    id int8,
    eta int8,
    ready_at int8,
    added_at int8,
    leased_at int8,
    leases int4,
    name text,
    tag text,
    payload bytea,
    refusal int8,
    note text,
    flags int4,
    xid int8,
    numbers int8[],
    texts text[],
    settled text
);

CREATE FUNCTION work_answer(
    refusal int8, note text, flags int4, numbers int8[] DEFAULT NULL, texts text[] DEFAULT NULL, settled text DEFAULT NULL
) RETURNS towline.worked LANGUAGE sql AS $$
    SELECT NULL::int8, NULL::int8, NULL::int8, NULL::int8, NULL::int8, NULL::int4, NULL::text, NULL::text, NULL::bytea,
        refusal, note, flags, txid_current_if_assigned(), numbers, texts, settled
$$;

-- Count deletions and leases, a tag of each in these arrays.
CREATE FUNCTION count_worked(queue_id int4, slot int2, now int8, deleted text[], leased text[]) RETURNS void
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

-- Settle what is due before (end_eta, end_id): tasks become ready or dead. Skips what another transaction is settling.
-- See `worked.settled`.
CREATE FUNCTION settle_before(q towline.queues, slot int2, now int8, end_eta int8, end_id int8) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    ripe_tags json;
    expired json;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT t.id FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.state = 1 AND t.eta <= now AND (t.eta, t.id) < (end_eta, end_id)
        ORDER BY t.eta, t.id FOR UPDATE SKIP LOCKED
    ), ripe AS (
        UPDATE towline.tasks AS t SET state = 0 FROM due WHERE t.id = due.id RETURNING t.tag
    ), counted AS (
        INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, delayed, changed_at)
        SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN ripe.tag ELSE '' END, count(*), -count(*), now
        FROM ripe CROSS JOIN unnest(towline.kinds_of(ripe.tag)) AS k (kind) GROUP BY 2, 4
        ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
            ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed, changed_at = excluded.changed_at
    )
    SELECT json_agg(json_build_array(r.tag, r.total)) INTO ripe_tags
    FROM (SELECT ripe.tag, count(*) AS total FROM ripe GROUP BY ripe.tag) AS r;

    WITH due AS MATERIALIZED (
        SELECT t.id, t.eta, t.ready_at, t.leased_at, t.leases, t.tag, t.name, t.worker,
            greatest(0, t.leased_at - t.ready_at) AS waited,
            CASE WHEN t.leases >= q.max_leases THEN 'max_leases' END AS reason
        FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.state = 2 AND t.eta <= now AND (t.eta, t.id) < (end_eta, end_id)
        ORDER BY t.eta, t.id FOR UPDATE SKIP LOCKED
    ), again AS (
        UPDATE towline.tasks AS t SET state = 0, ready_at = t.eta FROM due WHERE t.id = due.id AND due.reason IS NULL
    ), dead AS (
        UPDATE towline.tasks AS t SET state = 3, ready_at = t.eta, reason = due.reason
        FROM due WHERE t.id = due.id AND due.reason IS NOT NULL AND NOT q.deletes_exhausted
    ), gone AS (
        DELETE FROM towline.tasks AS t USING due
        WHERE t.id = due.id AND due.reason IS NOT NULL AND q.deletes_exhausted
    ), held AS (
        UPDATE towline.names AS n SET task = NULL, until = due.eta + round(q.name_retention_seconds * 1000000)::int8
        FROM due WHERE due.reason IS NOT NULL AND q.deletes_exhausted AND n.queue = q.id AND n.name = due.name
    ), noted AS (
        INSERT INTO towline.samples (queue, size, outcome, numbers, texts, ended_at, reasons)
        SELECT q.id, count(*), 'expired', array_agg(ARRAY[due.id, due.leases, due.waited, due.leased_at]),
            array_agg(ARRAY[due.name, due.tag, due.worker]), array_agg(due.eta), array_agg(due.reason)
        FROM due HAVING count(*) > 0
    ), counted AS (
        INSERT INTO towline.counts AS c (queue, kind, slot, tag, ready, leased, dead, expired, died, changed_at)
        SELECT q.id, k.kind, slot, CASE k.kind WHEN 2 THEN due.tag ELSE '' END,
            count(*) FILTER (WHERE due.reason IS NULL), -count(*),
            count(*) FILTER (WHERE due.reason IS NOT NULL AND NOT q.deletes_exhausted), count(*),
            count(*) FILTER (WHERE due.reason IS NOT NULL), now
        FROM due CROSS JOIN unnest(towline.kinds_of(due.tag)) AS k (kind) GROUP BY 2, 4
        ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
            ready = c.ready + excluded.ready, leased = c.leased + excluded.leased, dead = c.dead + excluded.dead,
            expired = c.expired + excluded.expired, died = c.died + excluded.died, changed_at = excluded.changed_at
    )
    SELECT json_agg(json_build_array(
        due.id, due.leases, due.waited, due.leased_at, due.name, due.tag, due.worker, due.eta, due.reason
    )) INTO expired FROM due;
    RETURN json_build_array(coalesce(expired, '[]'), coalesce(ripe_tags, '[]'));
END $$;

-- The place in eta order before which no more than `most` tasks are due; an id of 0: all that are due.
CREATE FUNCTION horizon(queue_id int4, now int8, most int4, OUT end_eta int8, OUT end_id int8) LANGUAGE plpgsql AS $$
BEGIN
    SELECT due.eta, due.id INTO end_eta, end_id
    FROM (
        (
            SELECT t.eta, t.id FROM towline.tasks AS t WHERE t.queue = queue_id AND t.state = 1 AND t.eta <= now
            ORDER BY t.eta, t.id LIMIT most + 1
        ) UNION ALL (
            SELECT t.eta, t.id FROM towline.tasks AS t WHERE t.queue = queue_id AND t.state = 2 AND t.eta <= now
            ORDER BY t.eta, t.id LIMIT most + 1
        )
    ) AS due
    ORDER BY due.eta, due.id OFFSET most LIMIT 1;
    IF NOT FOUND THEN
        end_eta := 9223372036854775807;
        end_id := 0;
    END IF;
END $$;

-- The settle verb.
CREATE FUNCTION settle(queue_name text, now int8, most int4) RETURNS towline.worked LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int2 := towline.take_slot();
    edge record;
    settled text;
BEGIN
    PERFORM towline.hold_queue(queue_name);
    SELECT * INTO q FROM towline.queues AS each WHERE each.name = queue_name;
    IF NOT FOUND THEN
        RETURN towline.work_answer(1, queue_name || ' ' || coalesce(towline.some_queues(), ''), 0);
    ELSIF q.moved_to <> '' THEN
        RETURN towline.work_answer(2, queue_name || ' ' || q.moved_to, 0);
    END IF;
    SELECT * INTO edge FROM towline.horizon(q.id, now, most);
    settled := towline.settle_before(q, slot, now, edge.end_eta, edge.end_id);
    RETURN towline.work_answer(0, NULL, CASE WHEN edge.end_id = 0 THEN 0 ELSE 1 END, settled => settled);
END $$;
