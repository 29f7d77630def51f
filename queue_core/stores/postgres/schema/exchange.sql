-- The verbs of a worker's steady state: delete finished tasks, expire due leases, lease the next tasks.
-- connection, call, meaning: see commit_markers.sql; NULL: the call leaves no marker.

-- Delete finished tasks, then settle and lease up to `wanted` tasks (0: lease nothing).
-- ids, grants: the finished tasks (`ids` NULL: none); a single one of `grants` holds for all, if the ids rise.
-- filter: 0 any, 1 these tags, 2 untagged, 3 the tag of the oldest.
-- room_bytes: for the leased tasks together, with each_bytes for each; `fewest` are leased whatever their size. NULL:
-- no bound.
CREATE FUNCTION exchange(
    queue_name text, now int8, ids int8[], grants int8[], wanted int4, asked_seconds float8, filter int2, tags text[],
    worker_name text, connection int8 DEFAULT NULL, call int8 DEFAULT NULL, meaning int8 DEFAULT NULL,
    room_bytes int8 DEFAULT NULL, each_bytes int4 DEFAULT 0, fewest int4 DEFAULT 1
) RETURNS SETOF towline.lease_row LANGUAGE plpgsql AS $$
DECLARE
    queue_id int4;
    moved text;
    is_paused bool;
    is_limited bool;
    got record;
    has_tags bool;
    seconds float8;
    max_seconds float8;
    retention_seconds float8;
    retired int8;
    is_known bool;
    is_due bool;
    q towline.queues;
    lane int2 := 0;
    free_slot int8;
    effective int8;  -- this and the next: see `floors`
    low_ceiling int8;
    floor int8;
    flags int4 := 0;
    end_at int8;
    end_eta int8 := 9223372036854775807;
    end_id int8 := 0;
    numbers int8[];
    texts text[];
    settled text;
    picked tid[];  -- where they are: locked, they stay there
    last_picked tid[];
    are_in_place bool;
    gone_tags text[];
    picked_tags text[];
    picked_bytes int8;  -- of their payloads; NULL: not measured
    left_over text;  -- how many tasks of each tag were picked, and are not leased for want of room
    one text;  -- the tag of all that is counted, if `is_plain`
    is_plain bool := true;
    gone int4 := 0;
    taken int4 := 0;
    is_marked bool;
BEGIN
    IF pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name)) IS NULL THEN
        RETURN;  -- never: in a condition a function is called without a query around it
    END IF;
    -- A transaction that retires the worker waits for the end of this one, or is seen here.
    IF worker_name <> ''
        AND pg_advisory_xact_lock_shared('towline.workers'::regclass::oid::int4, hashtext(worker_name)) IS NULL
    THEN
        RETURN;
    END IF;
    IF NOT pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 0) THEN
        lane := towline.take_slot();
    END IF;
    SELECT e.id, e.moved_to, e.paused, e.has_tags, coalesce(asked_seconds, e.lease_seconds), e.max_lease_seconds,
        e.name_retention_seconds, w.retired_at, w.worker IS NOT NULL OR worker_name = '',
        wanted > 0 AND (
            EXISTS (
                SELECT FROM towline.tasks AS t WHERE t.queue = e.id AND t.state = 1 AND t.eta <= now
                    AND t.eta >= coalesce(f.delayed, -9223372036854775808)
            )
            OR EXISTS (
                SELECT FROM towline.tasks AS t WHERE t.queue = e.id AND t.state = 2 AND t.eta <= now
                    AND t.eta >= coalesce(f.leased, -9223372036854775808)
            )
        ),
        e.is_limited, 1 + lane + coalesce(f.epoch, 0) * 32, f.effective, f.ceiling, coalesce(f.ready, -9223372036854775808)
    INTO queue_id, moved, is_paused, has_tags, seconds, max_seconds, retention_seconds, retired, is_known, is_due,
        is_limited, free_slot, effective, low_ceiling, floor
    FROM towline.queues AS e LEFT JOIN towline.workers AS w ON w.worker = worker_name
    LEFT JOIN LATERAL (
        SELECT s.effective, s.ceiling, s.epoch,
            CASE WHEN l.is_lowered THEN towline.lowest(e.id, s.effective, 0::int2, 0::int2, '', s.ready) ELSE s.ready END AS ready,
            CASE WHEN l.is_lowered THEN towline.lowest(e.id, s.effective, 1::int2, 0::int2, '', s.delayed) ELSE s.delayed END
                AS delayed,
            CASE WHEN l.is_lowered THEN towline.lowest(e.id, s.effective, 2::int2, 0::int2, '', s.leased) ELSE s.leased END
                AS leased
        FROM (SELECT * FROM towline.floors AS each WHERE each.queue = e.id ORDER BY each.step DESC LIMIT 1) AS s
        CROSS JOIN LATERAL (
            SELECT EXISTS (
                SELECT FROM towline.lowered_floors AS each WHERE each.queue = e.id AND each.generation >= s.effective
            ) AS is_lowered OFFSET 0
        ) AS l
        OFFSET 0
    ) AS f ON true
    WHERE e.name = queue_name;
    IF NOT FOUND THEN
        RETURN NEXT towline.lease_outcome_row(1, queue_name || ' ' || coalesce(towline.some_queues(), ''), 0);
        RETURN;
    ELSIF moved <> '' THEN
        RETURN NEXT towline.lease_outcome_row(2, queue_name || ' ' || moved, 0);
        RETURN;
    ELSIF retired IS NOT NULL AND wanted > 0 THEN
        IF ids IS NULL THEN
            RETURN NEXT towline.lease_outcome_row(3, worker_name, 0);
            RETURN;
        END IF;
        flags := 2;
    END IF;
    IF wanted > 0 AND seconds > max_seconds THEN
        RETURN NEXT towline.lease_outcome_row(4, queue_name || ' ' || seconds || ' ' || max_seconds, 0);
        RETURN;
    END IF;

    IF is_limited THEN
        SELECT * INTO q FROM towline.queues AS e WHERE e.id = queue_id;
        IF wanted > 0 AND flags = 0 AND q.leases_alone THEN
            PERFORM towline.hold_lanes(queue_id);  -- before anything is written, or it would not wait
        END IF;
    END IF;
    IF ids IS NOT NULL THEN
        -- The conditions beside the id are written so that no index serves them, as without statistics the planner
        -- takes the wrong one. Tasks that were added together are leased together: their ids are adjacent, and one
        -- descent of the index finds them all.
        IF cardinality(grants) = 1 AND ids[cardinality(ids)] - ids[1] < 4 * cardinality(ids) THEN
            WITH gone AS (
                DELETE FROM towline.tasks AS t
                WHERE t.id BETWEEN ids[1] AND ids[cardinality(ids)] AND t.leased_at = grants[1]
                    AND t.queue + 0 = queue_id AND t.state - 0 = 2 AND t.eta + 0 > now
                    AND (ids[cardinality(ids)] - ids[1] = cardinality(ids) - 1 OR t.id = ANY (ids))
                RETURNING t.id, t.leases, greatest(0, t.leased_at - t.ready_at) AS waited, t.leased_at,
                    t.added_at, t.name, t.tag, t.worker, towline.celery_id(t.headers) AS celery_id
            )
            INSERT INTO towline.samples AS s (queue, size, outcome, numbers, texts, ended_at)
            SELECT queue_id, count(*), 'deleted',
                array_agg(ARRAY[g.id, g.leases, g.waited, g.leased_at, g.added_at] ORDER BY g.id),
                array_agg(ARRAY[g.name, g.tag, g.worker, g.celery_id] ORDER BY g.id), ARRAY[now]
            FROM gone AS g HAVING count(*) > 0
            RETURNING s.size, s.numbers, s.texts INTO gone, numbers, texts;
        ELSE
            WITH gone AS (
                DELETE FROM towline.tasks AS t USING unnest(ids, grants) WITH ORDINALITY AS f (id, leased_at, place)
                WHERE t.id = f.id AND t.leased_at = coalesce(f.leased_at, grants[1]) AND t.queue + 0 = queue_id
                    AND t.state - 0 = 2 AND t.eta + 0 > now
                RETURNING t.id, t.leases, greatest(0, t.leased_at - t.ready_at) AS waited, t.leased_at,
                    t.added_at, t.name, t.tag, t.worker, towline.celery_id(t.headers) AS celery_id, f.place
            )
            INSERT INTO towline.samples AS s (queue, size, outcome, numbers, texts, ended_at)
            SELECT queue_id, count(*), 'deleted',
                array_agg(ARRAY[g.id, g.leases, g.waited, g.leased_at, g.added_at] ORDER BY g.place),
                array_agg(ARRAY[g.name, g.tag, g.worker, g.celery_id] ORDER BY g.place), ARRAY[now]
            FROM gone AS g HAVING count(*) > 0
            RETURNING s.size, s.numbers, s.texts INTO gone, numbers, texts;
        END IF;
        gone := coalesce(gone, 0);
        IF gone > 0 THEN
            IF texts[:][1:1] <> array_fill(NULL::text, ARRAY[gone, 1]) THEN
                UPDATE towline.names AS n SET task = NULL, until = now + round(retention_seconds * 1000000)::int8
                -- Not joined, or the planner may read all names of the queue.
                WHERE n.queue = queue_id AND n.name = ANY (texts[:][1:1]);
            END IF;
            gone_tags := texts[:][2:2];
            one := gone_tags[1][1];
            is_plain := gone = 1 OR gone_tags = array_fill(one, ARRAY[gone, 1]);
        END IF;
        IF is_limited AND gone > 0 THEN
            PERFORM towline.count_worked(queue_id, free_slot, now, gone_tags, NULL);
            PERFORM towline.update_lanes(
                q, free_slot, now, CASE gone WHEN 1 THEN ARRAY[one] ELSE gone_tags END, gone
            );
            gone := 0;
        END IF;
    END IF;

    IF wanted > 0 AND flags = 0 THEN
        IF NOT is_known THEN
            PERFORM towline.remember_worker(worker_name, now);
        END IF;
        IF is_due THEN
            SELECT h.end_eta, h.end_id INTO end_eta, end_id FROM towline.horizon(queue_id, now, 500) AS h;
            flags := CASE WHEN end_id = 0 THEN 0 ELSE 1 END;
            SELECT * INTO q FROM towline.queues AS e WHERE e.id = queue_id;
            settled := towline.settle_before(q, free_slot, now, end_eta, end_id);
            SELECT r.ready INTO floor FROM towline.floors_of(queue_id) AS r;  -- they may be below
        END IF;
        -- Skip tasks with a later eta: such a row was leased and came back in a later place since this call began.
        -- This server's clock decides, as `now` may have been set back, and tasks ready before are still ready.
        end_eta := least(
            end_eta, greatest(now, (extract(epoch FROM statement_timestamp()) * 1000000)::int8) + 1
        );
        IF is_limited THEN
            IF NOT is_due THEN
                IF q.has_lanes OR q.is_fair THEN
                    PERFORM towline.update_due_lanes(q, free_slot, now, '{}', 0);
                END IF;
            END IF;
            IF NOT is_paused THEN
                SELECT * INTO got FROM towline.pick_limited(
                    q, now, filter, tags, wanted, end_eta, end_id, room_bytes, each_bytes, fewest
                );
                picked := got.places;
                picked_tags := got.picked_tags;
                left_over := got.left_over;
                flags := CASE WHEN got.is_busy THEN 1 ELSE flags END;
            END IF;
            filter := -1;
        ELSIF is_paused THEN
            filter := -1;
        ELSIF filter = 3 THEN
            SELECT CASE WHEN NOT o.is_found THEN -1 WHEN o.tag IS NULL THEN 2 ELSE 1 END, ARRAY[o.tag] INTO filter, tags
            FROM towline.oldest_tag(queue_id, tags, end_eta, end_id) AS o;
        ELSIF filter = 1 AND cardinality(tags) > 1 THEN
            filter := 4;
        ELSIF filter = 0 AND has_tags THEN
            filter := 5;
        END IF;
        IF has_tags AND filter IN (1, 2) AND floor > -9223372036854775808 THEN
            floor := towline.tag_floor(queue_id, effective, floor, CASE filter WHEN 1 THEN tags[1] END);
        END IF;
        -- A row that is changed between its read and its lock is locked in its new state: leased, expired and ready
        -- again, it is in a later place. So tasks that were ever leased are read again, until all of them were
        -- locked before the read.
        LOOP
            CASE filter
            WHEN 0, 2 THEN
                -- 0: no task had a tag yet; a tagged task added a moment ago would be miscounted, so the next call
                -- takes it.
                SELECT array_agg(p.ctid), bool_and(p.leased_at = 0), sum(p.bytes)
                INTO picked, are_in_place, picked_bytes FROM (
                    SELECT t.ctid, t.leased_at, octet_length(t.payload) AS bytes FROM towline.tasks AS t
                    WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0 AND t.eta >= floor
                        AND (t.eta, t.id) < (end_eta, end_id)
                    ORDER BY t.tag, t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
                ) AS p;
            WHEN 1 THEN
                SELECT array_agg(p.ctid), bool_and(p.leased_at = 0), sum(p.bytes)
                INTO picked, are_in_place, picked_bytes FROM (
                    SELECT t.ctid, t.leased_at, octet_length(t.payload) AS bytes FROM towline.tasks AS t
                    WHERE t.queue = queue_id AND t.tag = tags[1] AND t.state + 0 = 0 AND t.eta >= floor
                        AND (t.eta, t.id) < (end_eta, end_id)
                    ORDER BY t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
                ) AS p;
            WHEN 4 THEN
                SELECT p.places, p.tags, true INTO picked, picked_tags, are_in_place
                FROM towline.pick_of_tags(queue_id, tags, wanted, end_eta, end_id) AS p;
            WHEN 5 THEN
                SELECT array_agg(p.ctid), array_agg(p.tag), bool_and(p.leased_at = 0), sum(p.bytes)
                INTO picked, picked_tags, are_in_place, picked_bytes FROM (
                    SELECT t.ctid, t.tag, t.leased_at, octet_length(t.payload) AS bytes FROM towline.tasks AS t
                    WHERE t.queue = queue_id AND t.state = 0 AND t.eta >= floor
                        AND (t.eta, t.id) < (end_eta, end_id)
                    ORDER BY t.eta, t.id LIMIT wanted FOR UPDATE SKIP LOCKED
                ) AS p;
            ELSE
                are_in_place := true;
            END CASE;
            EXIT WHEN are_in_place OR picked IS NULL OR picked = last_picked;
            last_picked := picked;
        END LOOP;
        -- Tags and names have 500 bytes at most: they are counted one by one only if all may not fit.
        IF NOT is_limited AND cardinality(picked) > fewest
            AND coalesce(picked_bytes + cardinality(picked) * (1000 + each_bytes) > room_bytes, room_bytes IS NOT NULL)
        THEN
            SELECT * INTO picked, picked_tags, left_over
            FROM towline.fitting(picked, room_bytes, each_bytes, fewest);
        END IF;
        IF picked <> '{}' THEN
            end_at := now + round(seconds * 1000000)::int8;
            IF end_at < low_ceiling THEN
                PERFORM towline.lower_floors(queue_id, '{2}', '{NULL}', ARRAY[end_at]);
            END IF;
            IF is_limited AND cardinality(picked) > 1 THEN
                ids := ARRAY(  -- those of the deletions are done with
                    SELECT t.id FROM unnest(picked) WITH ORDINALITY AS p (place, number)
                    JOIN towline.tasks AS t ON t.ctid = p.place ORDER BY p.number
                );
                RETURN QUERY SELECT * FROM towline.lease_in_order(picked, now, end_at, worker_name);
                flags := flags | 4;
            ELSE
                RETURN QUERY UPDATE towline.tasks AS t SET
                        state = 2, ready_at = t.eta, leases = t.leases + 1, leased_at = greatest(now, t.leased_at + 1),
                        worker = nullif(worker_name, ''),
                        eta = CASE WHEN t.spent IS NULL THEN end_at
                            ELSE towline.unspent_end(end_at, towline.ahead_of(t.spent, now)) END,
                        spent = CASE WHEN t.spent IS NULL THEN NULL ELSE towline.ahead_of(t.spent, now) END
                    WHERE t.ctid = ANY (picked)
                    RETURNING t.id, t.eta, t.ready_at, t.added_at, t.leased_at, t.leases, t.name, t.tag, t.payload,
                        t.headers, t.checkpoint, NULL::int8, NULL::text, NULL::int4, NULL::int8, NULL::int8[],
                        NULL::text[], NULL::text;
            END IF;
            taken := cardinality(picked);
            picked_tags := coalesce(picked_tags, array_fill(CASE filter WHEN 1 THEN tags[1] END, ARRAY[taken]));
            is_plain := is_plain AND (gone = 0 OR one IS NOT DISTINCT FROM picked_tags[1])
                AND (taken = 1 OR picked_tags = array_fill(picked_tags[1], ARRAY[taken]));
            one := picked_tags[1];
        END IF;
    END IF;

    IF is_limited THEN
        flags := flags | 8;
        IF taken > 0 THEN
            PERFORM towline.take_tokens(q, free_slot, now, picked_tags);
        END IF;
    ELSIF gone > 0 OR taken > 0 THEN
        IF is_plain THEN
            UPDATE towline.counts AS c SET
                ready = c.ready - taken, leased = c.leased + taken - gone, leases = c.leases + taken,
                deleted = c.deleted + gone, changed_at = now
            WHERE c.queue = queue_id AND c.kind = CASE WHEN one IS NULL THEN 1 ELSE 2 END AND c.tag = coalesce(one, '')
                AND c.slot = free_slot;
        END IF;
        IF is_plain AND FOUND THEN
            IF one IS NOT NULL THEN
                UPDATE towline.counts AS c SET
                    ready = c.ready - taken, leased = c.leased + taken - gone, leases = c.leases + taken,
                    deleted = c.deleted + gone, changed_at = now
                WHERE c.queue = queue_id AND c.kind = 0 AND c.tag = '' AND c.slot = free_slot;
            END IF;
        ELSE
            PERFORM towline.count_worked(queue_id, free_slot, now, gone_tags, picked_tags);
        END IF;
    END IF;
    IF call IS NOT NULL AND txid_current_if_assigned() IS NOT NULL THEN
        -- Tasks that are not leased by eta and id, in their order: a lost answer is read again in it.
        is_marked := towline.set_commit_marker(connection, call, CASE WHEN flags & 4 <> 0 THEN ids END, meaning);
    END IF;
    RETURN NEXT ROW(
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, left_over, flags, txid_current_if_assigned(), numbers,
        texts, settled
    )::towline.lease_row;
END $$;

-- The answer of `exchange_one`: the lease, if there is one, and the sample of the deleted task (`done_leases` NULL:
-- nothing was deleted). A row of NULLs: the fast path does not apply, nothing was done, and `exchange` must be called.
CREATE TYPE exchange_one_row AS (
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
    headers text,
    checkpoint bytea,
    done_leases int4,
    done_ready_at int8,
    done_added_at int8,
    done_name text,
    done_tag text,
    done_worker text,
    done_celery_id text
);

-- Delete one finished task (`done_id` NULL: none) and lease one, on the fast path of `exchange` (ADR 11): without
-- arrays, sets of rows, or anything that only other cases need, for two thirds of its cost. filter: 0 any, 1 this tag,
-- 2 untagged.
CREATE FUNCTION exchange_one(
    queue_name text, now int8, done_id int8, done_grant int8, asked_seconds float8, filter int2, wanted_tag text,
    worker_name text, connection int8, call int8, meaning int8
) RETURNS exchange_one_row LANGUAGE plpgsql AS $$
DECLARE
    queue_id int4;
    retention_seconds float8;
    end_at int8;
    is_due bool;
    done_leases int4;
    done_ready_at int8;
    done_added_at int8;
    done_name text;
    done_tag text;
    done_worker text;
    done_celery_id text;
    got towline.exchange_one_row;
    place tid;  -- where it is: locked, it stays there
    last_place tid;
    is_in_place bool;
    last_eta int8;
    free_slot int8;
    epoch int8;
    has_tags bool;
    effective int8;  -- this and the next: see `floors`
    low_ceiling int8;
    floor int8;
    gone int4 := 0;
    taken int4 := 0;
    is_counted bool := false;
    is_marked bool;
BEGIN
    IF pg_advisory_xact_lock_shared('towline.queues'::regclass::oid::int4, hashtext(queue_name)) IS NULL THEN
        RETURN NULL;  -- never: in a condition a function is called without a query around it
    END IF;
    IF worker_name <> '' THEN
        -- A transaction that retires the worker waits for the end of this one, or is seen here.
        IF pg_advisory_xact_lock_shared('towline.workers'::regclass::oid::int4, hashtext(worker_name)) IS NULL THEN
            RETURN NULL;  -- never, as above
        END IF;
        PERFORM FROM towline.workers AS w WHERE w.worker = worker_name AND w.retired_at IS NULL;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    SELECT e.id, e.name_retention_seconds, now + round(coalesce(asked_seconds, e.lease_seconds) * 1000000)::int8,
        -- Each state by itself: of two in one condition an index that was never analyzed is read whole.
        EXISTS (
            SELECT FROM towline.tasks AS t WHERE t.queue = e.id AND t.state = 1 AND t.eta <= now
                AND t.eta >= coalesce(f.delayed, -9223372036854775808)
        ) OR EXISTS (
            SELECT FROM towline.tasks AS t WHERE t.queue = e.id AND t.state = 2 AND t.eta <= now
                AND t.eta >= coalesce(f.leased, -9223372036854775808)
        ),
        e.has_tags, coalesce(f.epoch, 0), f.effective, f.ceiling, coalesce(f.ready, -9223372036854775808)
    INTO queue_id, retention_seconds, end_at, is_due, has_tags, epoch, effective, low_ceiling, floor
    FROM towline.queues AS e
    LEFT JOIN LATERAL (
        SELECT s.effective, s.ceiling, s.epoch,
            CASE WHEN l.is_lowered THEN towline.lowest(e.id, s.effective, 0::int2, 0::int2, '', s.ready) ELSE s.ready END AS ready,
            CASE WHEN l.is_lowered THEN towline.lowest(e.id, s.effective, 1::int2, 0::int2, '', s.delayed) ELSE s.delayed END
                AS delayed,
            CASE WHEN l.is_lowered THEN towline.lowest(e.id, s.effective, 2::int2, 0::int2, '', s.leased) ELSE s.leased END
                AS leased
        FROM (SELECT * FROM towline.floors AS each WHERE each.queue = e.id ORDER BY each.step DESC LIMIT 1) AS s
        CROSS JOIN LATERAL (
            SELECT EXISTS (
                SELECT FROM towline.lowered_floors AS each WHERE each.queue = e.id AND each.generation >= s.effective
            ) AS is_lowered OFFSET 0
        ) AS l
        OFFSET 0
    ) AS f ON true
    WHERE e.name = queue_name AND e.moved_to = '' AND NOT e.paused AND NOT e.is_limited
        AND coalesce(asked_seconds, e.lease_seconds) <= e.max_lease_seconds;
    IF NOT FOUND OR is_due THEN
        RETURN NULL;
    END IF;
    free_slot := CASE
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 0) THEN 0
        WHEN pg_try_advisory_xact_lock('towline.counts'::regclass::oid::int4, 1) THEN 1
        ELSE towline.take_slot()
    END + 1 + epoch * 32;

    IF done_id IS NOT NULL THEN
        DELETE FROM towline.tasks AS t
        WHERE t.id = done_id AND t.leased_at = done_grant AND t.queue + 0 = queue_id AND t.state - 0 = 2
            AND t.eta + 0 > now
        RETURNING t.leases, t.ready_at, t.added_at, t.name, t.tag, t.worker, towline.celery_id(t.headers)
        INTO done_leases, done_ready_at, done_added_at, done_name, done_tag, done_worker, done_celery_id;
        IF FOUND THEN
            gone := 1;
            INSERT INTO towline.samples (queue, size, outcome, numbers, texts, ended_at)
            VALUES (
                queue_id, 1, 'deleted',
                ARRAY[[done_id, done_leases, greatest(0, done_grant - done_ready_at), done_grant, done_added_at]],
                ARRAY[[done_name, done_tag, done_worker, done_celery_id]], ARRAY[now]
            );
            IF done_name IS NOT NULL THEN
                UPDATE towline.names AS n SET task = NULL, until = now + round(retention_seconds * 1000000)::int8
                WHERE n.queue = queue_id AND n.name = done_name;
            END IF;
        END IF;
    END IF;

    -- See `exchange` for this bound.
    last_eta := greatest(now, (date_part('epoch', statement_timestamp()) * 1000000)::int8);
    IF has_tags AND filter > 0 AND floor > -9223372036854775808 THEN
        floor := towline.tag_floor(queue_id, effective, floor, CASE filter WHEN 1 THEN wanted_tag END);
    END IF;
    LOOP
        IF filter = 0 THEN
            SELECT t.ctid, t.leased_at = 0 INTO place, is_in_place FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.state = 0 AND t.eta >= floor AND t.eta <= last_eta
            ORDER BY t.eta, t.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        ELSIF filter = 1 THEN
            SELECT t.ctid, t.leased_at = 0 INTO place, is_in_place FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.tag = wanted_tag AND t.state + 0 = 0 AND t.eta >= floor
                AND t.eta <= last_eta
            ORDER BY t.eta, t.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        ELSE
            SELECT t.ctid, t.leased_at = 0 INTO place, is_in_place FROM towline.tasks AS t
            WHERE t.queue = queue_id AND t.tag IS NULL AND t.state + 0 = 0 AND t.eta >= floor
                AND t.eta <= last_eta
            ORDER BY t.tag, t.eta, t.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        END IF;
        EXIT WHEN is_in_place OR place IS NULL OR place = last_place;  -- see `exchange` for this too
        last_place := place;
    END LOOP;
    IF place IS NOT NULL THEN
        taken := 1;
        IF end_at < low_ceiling THEN
            PERFORM towline.lower_floors(queue_id, '{2}', '{NULL}', ARRAY[end_at]);
        END IF;
        UPDATE towline.tasks AS t SET
            state = 2, ready_at = t.eta, leases = t.leases + 1, leased_at = greatest(now, t.leased_at + 1),
            worker = nullif(worker_name, ''),
            eta = CASE WHEN t.spent IS NULL THEN end_at
                ELSE towline.unspent_end(end_at, towline.ahead_of(t.spent, now)) END,
            spent = CASE WHEN t.spent IS NULL THEN NULL ELSE towline.ahead_of(t.spent, now) END
        WHERE t.ctid = place
        RETURNING NULL, t.id, t.eta, t.ready_at, t.added_at, t.leased_at, t.leases, t.name, t.tag, t.payload,
            t.headers, t.checkpoint, done_leases, done_ready_at, done_added_at, done_name, done_tag, done_worker,
            done_celery_id
        INTO got;
    ELSE
        got := ROW(
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            done_leases, done_ready_at, done_added_at, done_name, done_tag, done_worker, done_celery_id
        )::towline.exchange_one_row;
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
            queue_id, free_slot, now, CASE gone WHEN 1 THEN ARRAY[done_tag] END,
            CASE taken WHEN 1 THEN ARRAY[got.tag] END
        );
    END IF;
    got.xid := coalesce(txid_current_if_assigned(), 0);
    IF call IS NOT NULL AND got.xid <> 0 THEN
        is_marked := towline.set_commit_marker(connection, call, NULL, meaning);
    END IF;
    RETURN got;
END $$;
