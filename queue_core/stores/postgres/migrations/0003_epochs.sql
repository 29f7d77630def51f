-- Counters, samples, markers and answers that are not read through their own dead versions while a snapshot is held.

-- A slot is an epoch's, so that no row of counters is updated for ever: 32 numbers for each epoch, of which the first
-- is the sum of all earlier ones. An epoch begins with a step of the queue's floors.
ALTER TABLE counts ALTER COLUMN slot TYPE int8;

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
        changed_at
    )
    SELECT queue_id, g.kind, epoch * 32, g.tag, sum(g.ready), sum(g.delayed), sum(g.leased), sum(g.dead), sum(g.added),
        sum(g.leases), sum(g.deleted), sum(g.released), sum(g.expired), sum(g.died), max(g.changed_at)
    FROM gone AS g GROUP BY g.kind, g.tag
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        ready = c.ready + excluded.ready, delayed = c.delayed + excluded.delayed,
        leased = c.leased + excluded.leased, dead = c.dead + excluded.dead, added = c.added + excluded.added,
        leases = c.leases + excluded.leases, deleted = c.deleted + excluded.deleted,
        released = c.released + excluded.released, expired = c.expired + excluded.expired,
        died = c.died + excluded.died, changed_at = greatest(c.changed_at, excluded.changed_at);
END $$;

-- The bytes of all payloads, by queue, in slots as the counters are; their sum is the truth.
DELETE FROM stored;
ALTER TABLE stored DROP CONSTRAINT stored_pkey;
ALTER TABLE stored ALTER COLUMN slot TYPE int8;
ALTER TABLE stored ADD COLUMN queue int4 NOT NULL;
ALTER TABLE stored ADD CONSTRAINT stored_pkey PRIMARY KEY (queue, slot);
INSERT INTO stored (queue, slot, bytes)
SELECT t.queue, 0, sum(octet_length(t.payload)) FROM tasks AS t
WHERE EXISTS (SELECT FROM storage_limit) AND t.queue > 0 GROUP BY t.queue;

-- Count the payloads of rows that were inserted or deleted. Their queues are held.
CREATE OR REPLACE FUNCTION count_stored() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO towline.stored AS s (queue, slot, bytes)
    SELECT r.queue, towline.count_slot(r.queue), CASE TG_OP WHEN 'DELETE' THEN -r.bytes ELSE r.bytes END
    FROM (SELECT c.queue, sum(octet_length(c.payload)) AS bytes FROM changed AS c GROUP BY c.queue) AS r
    WHERE r.bytes > 0
    ON CONFLICT ON CONSTRAINT stored_pkey DO UPDATE SET bytes = s.bytes + excluded.bytes;
    RETURN NULL;
END $$;

-- Return the newest sum of a queue's stored bytes at or before a slot: they are read from there on.
CREATE FUNCTION stored_from(queue_id int4, slot int8) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((
        SELECT s.slot FROM towline.stored AS s
        WHERE s.queue = queue_id AND s.slot <= stored_from.slot AND s.slot % 32 = 0 ORDER BY s.slot DESC LIMIT 1
    ), 0);
END $$;

-- Return the bytes of all payloads.
CREATE FUNCTION stored_bytes() RETURNS int8 LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT coalesce(sum(e.bytes), 0) FROM towline.queues AS q CROSS JOIN LATERAL (
            SELECT s.bytes FROM towline.stored AS s
            WHERE s.queue = q.id AND s.slot >= towline.stored_from(q.id, 9223372036854775807) OFFSET 0
        ) AS e
    );
END $$;

-- Fold a queue's stored bytes of the epochs before this one; see `fold_counts`.
CREATE FUNCTION fold_stored(queue_id int4, epoch int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first CONSTANT int8 := towline.stored_from(queue_id, epoch * 32);
BEGIN
    IF first < epoch * 32 THEN
        WITH gone AS (
            DELETE FROM towline.stored AS s
            WHERE s.queue = queue_id AND s.slot >= first AND s.slot < epoch * 32 RETURNING s.bytes
        )
        INSERT INTO towline.stored (queue, slot, bytes)
        SELECT queue_id, epoch * 32, sum(g.bytes) FROM gone AS g HAVING count(*) > 0;
    END IF;
END $$;

-- Set the limit, or lift it (NULL). The first one locks out transactions that change tasks until it commits.
CREATE OR REPLACE FUNCTION set_storage_limit(limit_bytes int8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    is_counted bool;
BEGIN
    LOCK TABLE towline.storage_limit IN EXCLUSIVE MODE;
    is_counted := EXISTS (SELECT FROM towline.storage_limit);
    IF is_counted AND limit_bytes IS NOT NULL THEN
        UPDATE towline.storage_limit SET bytes = limit_bytes;
        RETURN;
    ELSIF is_counted = (limit_bytes IS NOT NULL) THEN
        RETURN;
    END IF;
    LOCK TABLE towline.tasks IN ACCESS EXCLUSIVE MODE;
    DELETE FROM towline.stored;
    DELETE FROM towline.storage_limit;
    IF limit_bytes IS NULL THEN
        DROP TRIGGER tasks_stored ON towline.tasks;
        DROP TRIGGER tasks_freed ON towline.tasks;
    ELSE
        INSERT INTO towline.storage_limit VALUES (limit_bytes);
        INSERT INTO towline.stored (queue, slot, bytes)
        SELECT t.queue, 0, sum(octet_length(t.payload)) FROM towline.tasks AS t WHERE t.queue > 0 GROUP BY t.queue;
        CREATE TRIGGER tasks_stored AFTER INSERT ON towline.tasks REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION towline.count_stored();
        CREATE TRIGGER tasks_freed AFTER DELETE ON towline.tasks REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION towline.count_stored();
    END IF;
END $$;

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
CREATE OR REPLACE FUNCTION sum_counts(queue_id int4, tags text[]) RETURNS towline.counts LANGUAGE plpgsql STABLE AS $$
DECLARE
    sums towline.counts;
    kinds CONSTANT int2[] := CASE WHEN tags IS NULL THEN '{0,1}' WHEN tags = '{}' THEN '{1}' ELSE '{2}' END;
BEGIN
    SELECT queue_id, kinds[1], 0, '', coalesce(sum(c.ready), 0), coalesce(sum(c.delayed), 0),
        coalesce(sum(c.leased), 0), coalesce(sum(c.dead), 0), coalesce(sum(c.added), 0), coalesce(sum(c.leases), 0),
        coalesce(sum(c.deleted), 0), coalesce(sum(c.released), 0), coalesce(sum(c.expired), 0),
        coalesce(sum(c.died), 0), max(c.changed_at)
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

-- Forget those tags among the next `most` after `examined` that had no task for a day; return where to go on, '' for
-- the start. They are read without a lock first, as nearly all are in use and a lock writes to its row. Then either all
-- counters of a tag are locked and deleted, or none; another transaction counts in a row of its own meanwhile.
CREATE OR REPLACE FUNCTION forget_tags(queue_id int4, now int8, examined text, most int4) RETURNS text LANGUAGE plpgsql AS $$
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
        DELETE FROM towline.counts AS c WHERE c.queue = queue_id AND c.kind = 2 AND c.tag = ANY (idle);
    END IF;
    RETURN CASE WHEN number < most THEN '' ELSE last_one END;
END $$;

-- Forget the oldest finished leases of a queue beyond the number kept; whole transactions only.
CREATE OR REPLACE FUNCTION trim_samples(queue_id int4, kept int8) RETURNS void LANGUAGE plpgsql AS $$
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

-- Return finished leases of a queue from a transaction's number on, in the order of those numbers, until there are
-- enough. A number that no transaction has had yet is of another server: the queue's come from the start.
CREATE OR REPLACE FUNCTION read_samples(queue_name text, first_number int8, most int4) RETURNS TABLE (
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

-- Markers of a connection (or client) lie in parts of 256 calls, so that no row is updated for ever. There is one row of
-- each: the call that begins a part deletes the last one.
ALTER TABLE commit_markers ADD COLUMN part int8 NOT NULL DEFAULT 0;
ALTER TABLE commit_markers DROP CONSTRAINT commit_markers_pkey;
ALTER TABLE commit_markers ADD PRIMARY KEY (connection, part);

-- Leave the marker of a call, in the call's own transaction. ids: see `added_ids`; NULL: the call was no `add`. Always
-- returns true, as assigning a result calls a function without a query around it.
CREATE OR REPLACE FUNCTION set_commit_marker(connection int8, call int8, ids int8[] DEFAULT NULL) RETURNS bool
LANGUAGE plpgsql AS $$
DECLARE
    last record;
BEGIN
    UPDATE towline.commit_markers AS m
    SET call = set_commit_marker.call, xid = pg_current_xact_id(), marked_at = now(), ids = set_commit_marker.ids
    WHERE m.connection = set_commit_marker.connection AND m.part = set_commit_marker.call >> 8
        AND m.call < set_commit_marker.call AND NOT m.is_closed;
    IF NOT FOUND THEN
        -- The first call of the connection or of a part.
        DELETE FROM towline.commit_markers AS m
        WHERE m.connection = set_commit_marker.connection AND NOT m.is_closed AND m.part = (
            SELECT o.part FROM towline.commit_markers AS o
            WHERE o.connection = set_commit_marker.connection AND o.part < set_commit_marker.call >> 8
            ORDER BY o.part DESC LIMIT 1
        )
        RETURNING m.call INTO last;
        IF last.call >= set_commit_marker.call OR EXISTS (
            SELECT FROM towline.commit_markers AS m
            WHERE m.connection = set_commit_marker.connection AND m.part > set_commit_marker.call >> 8
        ) THEN
            RAISE 'a later call was made' USING ERRCODE = 'unique_violation';
        END IF;
        -- If the marker was closed, or a later call left it, this fails, and the call with it.
        INSERT INTO towline.commit_markers (connection, part, call, xid, marked_at, ids) VALUES (
            set_commit_marker.connection, set_commit_marker.call >> 8, set_commit_marker.call, pg_current_xact_id(),
            now(), set_commit_marker.ids
        );
    END IF;
    RETURN true;
END $$;

-- Forget connections that have made no call for a day; not while floors rise, as it would read all dead rows.
CREATE OR REPLACE FUNCTION forget_commit_markers() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (
        SELECT FROM towline.queues AS q CROSS JOIN LATERAL (
            SELECT s.ceiling, s.made_at FROM towline.floors AS s WHERE s.queue = q.id ORDER BY s.step DESC LIMIT 1
        ) AS f
        WHERE f.ceiling > -9223372036854775808 AND f.made_at > clock_timestamp() - interval '1 minute'
    ) THEN
        RETURN;
    END IF;
    DELETE FROM towline.commit_markers AS m WHERE m.marked_at < now() - interval '1 day';
END $$;

-- Close a connection's marker and return the outcome of its last call; `xid` NULL: it took no effect, and no longer
-- can. Waits for a call in progress.
CREATE OR REPLACE FUNCTION close_commit_marker(connection int8, call int8, OUT xid xid8, OUT ids int8[])
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO towline.commit_markers (connection, part, call, xid, marked_at, is_closed)
    VALUES (close_commit_marker.connection, close_commit_marker.call >> 8, 0, pg_current_xact_id(), now(), true)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        UPDATE towline.commit_markers AS m SET is_closed = true
        WHERE m.connection = close_commit_marker.connection AND m.part = close_commit_marker.call >> 8
        RETURNING CASE WHEN m.call = close_commit_marker.call THEN m.xid END, m.ids INTO xid, ids;
    END IF;
END $$;

-- The answer of a session's last call lies in parts of 256 calls, as the markers do.
ALTER TABLE sessions ADD COLUMN part int8 NOT NULL DEFAULT 0;
ALTER TABLE sessions DROP CONSTRAINT sessions_pkey;
ALTER TABLE sessions ADD PRIMARY KEY (session, part);

-- Keep a session's answer, and forget a few idle sessions when a new one comes; return false when a later call was
-- answered already.
CREATE OR REPLACE FUNCTION keep_answer(session_name text, new_number int8, new_answer bytea, now int8) RETURNS bool
LANGUAGE plpgsql AS $$
DECLARE
    last record;
BEGIN
    UPDATE towline.sessions AS s SET number = new_number, answer = new_answer, kept_at = now
    WHERE s.session = session_name AND s.part = new_number >> 8 AND s.number < new_number;
    IF FOUND THEN
        RETURN true;
    END IF;
    SELECT s.part, s.number INTO last FROM towline.sessions AS s
    WHERE s.session = session_name ORDER BY s.part DESC LIMIT 1 FOR UPDATE;
    IF last.number >= new_number THEN
        RETURN false;
    END IF;
    INSERT INTO towline.sessions (session, part, number, answer, kept_at)
    VALUES (session_name, new_number >> 8, new_number, new_answer, now) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF last.part IS NOT NULL THEN
        DELETE FROM towline.sessions AS s WHERE s.session = session_name AND s.part = last.part;
        RETURN true;
    END IF;
    -- Names are random, so these are any four.
    DELETE FROM towline.sessions AS s USING (
        SELECT f.session, f.part FROM towline.sessions AS f WHERE f.session > session_name ORDER BY f.session, f.part
        LIMIT 4 FOR UPDATE SKIP LOCKED
    ) AS few
    WHERE s.session = few.session AND s.part = few.part AND s.kept_at < now - 172800000000;
    RETURN true;
END $$;
