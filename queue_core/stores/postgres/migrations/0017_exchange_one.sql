-- What a worker that takes one task at a time does again and again: delete the one it has done, lease the next. The same
-- as `exchange` for one, without arrays, sets of rows, or anything that only other cases need: two thirds of its cost.

-- The lease, if there is one, and of the deleted task what its sample is made of: `done_leases` NULL, nothing was deleted.
-- A row of NULLs: this is not the plain case, nothing was done, ask `exchange`.
CREATE TYPE exchanged AS (
    xid int8,
    id int8,
    eta int8,
    ready_at int8,
    added_at int8,
    leased_at int8,
    leases int4,
    name text,
    tag text,
    payload bytea,
    done_leases int4,
    done_ready_at int8,
    done_name text,
    done_tag text,
    done_worker text
);

-- done_id NULL: nothing is done. filter: 0 any, 1 this tag, 2 untagged. wire, call: see 0018; NULL, it is not marked.
CREATE FUNCTION exchange_one(
    queue_name text, now int8, done_id int8, done_grant int8, asked_seconds float8, filter int2, wanted_tag text,
    worker_name text, wire int8, call int8
) RETURNS exchanged LANGUAGE plpgsql AS $$
DECLARE
    queue_id int4;
    retention_seconds float8;
    end_at int8;
    is_due bool;
    done_leases int4;
    done_ready_at int8;
    done_name text;
    done_tag text;
    done_worker text;
    got towline.exchanged;
    place tid;  -- where it is: locked, it stays there
    last_place tid;
    is_in_place bool;
    last_eta int8;
    free_slot int2;
    gone int4 := 0;
    taken int4 := 0;
    is_counted bool := false;
    is_marked bool;
BEGIN
    IF pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name)) IS NULL THEN
        RETURN NULL;  -- never: in a condition a function is called without a query around it
    END IF;
    IF worker_name <> '' THEN
        -- Whoever retires the worker waits until this lease is told, or is seen here.
        IF pg_advisory_xact_lock_shared('towline.workers'::regclass::oid::int4, hashtext(worker_name)) IS NULL THEN
            RETURN NULL;  -- never, as above
        END IF;
        PERFORM FROM towline.workers AS w WHERE w.worker = worker_name AND w.retired_at IS NULL;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    SELECT e.id, e.name_retention_seconds, now + round(coalesce(asked_seconds, e.lease_seconds) * 1000000)::int8,
        EXISTS (SELECT FROM towline.tasks AS t WHERE t.queue = e.id AND t.state = ANY ('{1,2}') AND t.eta <= now)
    INTO queue_id, retention_seconds, end_at, is_due
    FROM towline.queues AS e
    WHERE e.name = queue_name AND e.moved_to = '' AND NOT e.paused
        AND coalesce(asked_seconds, e.lease_seconds) <= e.max_lease_seconds;
    IF NOT FOUND OR is_due THEN
        RETURN NULL;
    END IF;
    free_slot := CASE
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 0) THEN 0
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 1) THEN 1
        ELSE towline.take_slot()
    END;

    IF done_id IS NOT NULL THEN
        DELETE FROM towline.tasks AS t
        WHERE t.id = done_id AND t.leased_at = done_grant AND t.queue + 0 = queue_id AND t.state - 0 = 2 AND t.eta + 0 > now
        RETURNING t.leases, t.ready_at, t.name, t.tag, t.worker
        INTO done_leases, done_ready_at, done_name, done_tag, done_worker;
        IF FOUND THEN
            gone := 1;
            INSERT INTO towline.samples (queue, size, outcome, numbers, texts, ended_at)
            VALUES (
                queue_id, 1, 'deleted', ARRAY[[done_id, done_leases, greatest(0, done_grant - done_ready_at), done_grant]],
                ARRAY[[done_name, done_tag, done_worker]], ARRAY[now]
            );
            IF done_name IS NOT NULL THEN
                UPDATE towline.names AS n SET task = NULL, until = now + round(retention_seconds * 1000000)::int8
                WHERE n.queue = queue_id AND n.name = done_name;
            END IF;
        END IF;
    END IF;

    -- See `exchange` for this bound.
    last_eta := greatest(now, (date_part('epoch', statement_timestamp()) * 1000000)::int8);
    LOOP
        IF filter = 0 THEN
            SELECT t.ctid, t.leased_at = 0 INTO place, is_in_place FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = 0 AND t.eta <= last_eta
            ORDER BY t.eta, t.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        ELSIF filter = 1 THEN
            SELECT t.ctid, t.leased_at = 0 INTO place, is_in_place FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.tag = wanted_tag AND t.state + 0 = 0 AND t.eta <= last_eta
            ORDER BY t.eta, t.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        ELSE
            SELECT t.ctid, t.leased_at = 0 INTO place, is_in_place FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0 AND t.eta <= last_eta
            ORDER BY t.tag, t.eta, t.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        END IF;
        EXIT WHEN is_in_place OR place IS NULL OR place = last_place;  -- see `exchange` for this too
        last_place := place;
    END LOOP;
    IF place IS NOT NULL THEN
        taken := 1;
        UPDATE towline.tasks AS t SET
            state = 2, ready_at = t.eta, leases = t.leases + 1, leased_at = greatest(now, t.leased_at + 1),
            worker = nullif(worker_name, ''),
            eta = CASE WHEN t.spent IS NULL THEN end_at
                ELSE towline.unspent_end(end_at, towline.ahead_of(t.spent, now)) END,
            spent = CASE WHEN t.spent IS NULL THEN NULL ELSE towline.ahead_of(t.spent, now) END
        WHERE t.ctid = place
        RETURNING NULL, t.id, t.eta, t.ready_at, t.added_at, t.leased_at, t.leases, t.name, t.tag, t.payload,
            done_leases, done_ready_at, done_name, done_tag, done_worker
        INTO got;
    ELSE
        got := ROW(
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            done_leases, done_ready_at, done_name, done_tag, done_worker
        )::towline.exchanged;
    END IF;

    IF gone + taken = 0 THEN
        is_counted := true;
    ELSIF got.tag IS NULL AND done_tag IS NULL THEN
        UPDATE towline.counts AS c SET
            ready = c.ready - taken, leased = c.leased + taken - gone, leases = c.leases + taken,
            deleted = c.deleted + gone, changed_at = now
        WHERE c.queue = queue_id AND c.kind = 1 AND c.tag = '' AND c.slot = free_slot;
        is_counted := FOUND;
    ELSIF gone + taken = 1 OR got.tag = done_tag THEN
        UPDATE towline.counts AS c SET
            ready = c.ready - taken, leased = c.leased + taken - gone, leases = c.leases + taken,
            deleted = c.deleted + gone, changed_at = now
        WHERE c.queue = queue_id AND c.kind = 2 AND c.tag = coalesce(got.tag, done_tag) AND c.slot = free_slot;
        IF FOUND THEN
            is_counted := true;
            UPDATE towline.counts AS c SET
                ready = c.ready - taken, leased = c.leased + taken - gone, leases = c.leases + taken,
                deleted = c.deleted + gone, changed_at = now
            WHERE c.queue = queue_id AND c.kind = 0 AND c.tag = '' AND c.slot = free_slot;
        END IF;
    END IF;
    IF NOT is_counted THEN
        PERFORM towline.count_worked(
            queue_id, free_slot, now, CASE gone WHEN 1 THEN ARRAY[done_tag] END, CASE taken WHEN 1 THEN ARRAY[got.tag] END
        );
    END IF;
    got.xid := coalesce(txid_current_if_assigned(), 0);
    IF call IS NOT NULL AND got.xid <> 0 THEN
        is_marked := towline.mark(wire, call);
    END IF;
    RETURN got;
END $$;

-- Planned as the others are, as far as there is a choice: see 0012. Each setting costs every call 3 us.
ALTER FUNCTION exchange_one(text, int8, int8, int8, float8, int2, text, text, int8, int8)
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off;
