-- Etas, in order, of delayed tasks that become leasable after `now` and until then and were never leased, among the first
-- `most` delayed tasks of the queue; NULL: there is no such queue. tags NULL: any; none: the untagged.
CREATE FUNCTION upcoming(queue_name text, tags text[], now int8, until int8, most int4) RETURNS int8[]
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off AS $$
DECLARE
    queue_id int4 := (SELECT q.id FROM towline.queues AS q WHERE q.name = queue_name);
BEGIN
    IF queue_id IS NULL THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(
        SELECT d.eta FROM (
            SELECT t.eta, t.id, t.tag, t.leases FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = 1 AND t.eta > now AND t.eta <= until
            ORDER BY t.eta, t.id LIMIT most
        ) AS d
        WHERE d.leases = 0 AND (tags IS NULL OR d.tag = ANY (tags) OR (tags = '{}' AND d.tag IS NULL))
        ORDER BY d.eta, d.id
    );
END $$;
