-- The store's own upkeep, where a vacuum can't do it, and after a backup was restored.

-- Write those of the small tables anew in which so many rows are dead and at most so many live: that needs no vacuum,
-- so it removes what a held snapshot keeps. A table that somebody else has locked, as a dump does, is left as it is.
-- Return how many were.
CREATE FUNCTION rewrite_small_tables(dead int8, live int8) RETURNS int4 LANGUAGE plpgsql AS $$
DECLARE
    small regclass;
    kept jsonb;
    rewritten int4 := 0;
BEGIN
    PERFORM set_config('lock_timeout', '20ms', true);
    FOREACH small IN ARRAY '{towline.waiters, towline.leads, towline.unsent_notifications}'::regclass[] LOOP
        CONTINUE WHEN pg_stat_get_dead_tuples(small) < dead OR pg_stat_get_live_tuples(small) > live;
        BEGIN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', small);
            EXECUTE format('SELECT jsonb_agg(to_jsonb(t)) FROM %s AS t', small) INTO kept;
            EXECUTE format('TRUNCATE %s', small);
            EXECUTE format('INSERT INTO %s SELECT * FROM jsonb_populate_recordset(NULL::%s, $1)', small, small)
            USING coalesce(kept, '[]');
            rewritten := rewritten + 1;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END LOOP;
    RETURN rewritten;
END $$;

-- Fit what a backup brought to this server, whose transactions may have lower numbers than those that are kept: else
-- samples would be neither read nor forgotten until it comes that far. Without a backup this changes nothing.
-- Each statement compares with its own snapshot: of a later one this server may have had more transactions.
CREATE FUNCTION adopt_backup() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM towline.life AS l
    WHERE split_part(l.name, '.', 1) <> (SELECT c.system_identifier::text FROM pg_control_system() AS c);
    UPDATE towline.trimmed AS t SET xid = '2' WHERE t.xid >= pg_snapshot_xmax(pg_current_snapshot());
    IF EXISTS (
        SELECT FROM towline.queues AS q
        WHERE (SELECT s.xid FROM towline.samples AS s WHERE s.queue = q.id ORDER BY s.xid DESC LIMIT 1)
            >= pg_snapshot_xmax(pg_current_snapshot())
    ) THEN
        -- In their order, right before what comes next; those for which there is no room share a number.
        UPDATE towline.samples AS s SET xid = greatest(3, n.next - n.back)::text::xid8
        FROM (
            SELECT e.queue, e.xid, e.id, dense_rank() OVER (ORDER BY e.xid DESC) AS back, x.next::text::int8 AS next
            FROM (SELECT pg_snapshot_xmax(pg_current_snapshot()) AS next) AS x
            JOIN towline.samples AS e ON e.xid >= x.next
        ) AS n
        WHERE s.queue = n.queue AND s.xid = n.xid AND s.id = n.id;
    END IF;
END $$;
