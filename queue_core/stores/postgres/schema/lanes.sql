-- Limits of queues and tags, rotations and priorities: see ADR 37.
--
-- A READY task of priority p has the state -p, so that the index `tasks_in_order` is in lease order. In a queue whose
-- tags have lanes this is the state of the untagged, and of HELD tasks: what verbs make ready there waits for its lane.
-- A lane admits a task by giving it the state 13 - p. So verbs that know nothing of lanes write what is right for them.
--
-- One transaction at a time holds the lanes of a queue, by an advisory lock: it alone admits tasks, takes tokens and
-- moves the rotation. A verb that can't have them at once does not wait, as it may hold what the other waits for: it
-- leaves a note of the tags that it changed, which the next holder takes up. READY and LEASED tasks of a lane together
-- become more in the hands of the holder only, so a count that others lower meanwhile is on the safe side.

-- What is known of a queue's bucket (kind 0), and of the lanes and the places in the rotation of its untagged tasks
-- (kind 1) and each tag (kind 2). Without a rate and a rotation there are none. `head` is the state -p of its first
-- READY task, while it has one.
CREATE TABLE lanes (
    queue int4 NOT NULL,
    kind int2 NOT NULL,
    tag text COLLATE "C" NOT NULL DEFAULT '',
    full_at int8 NOT NULL DEFAULT 0,
    opens_at int8,
    place int8,
    head int2,
    PRIMARY KEY (queue, kind, tag)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- Find the lanes that open next.
CREATE INDEX lanes_to_open ON lanes (queue, opens_at) WHERE opens_at IS NOT NULL;

-- Find the next lane of the rotation.
CREATE INDEX lanes_in_rotation ON lanes (queue, head, place) WHERE head IS NOT NULL;

-- The places in rotations.
CREATE SEQUENCE places CACHE 1;

-- Tags whose lanes were changed while another transaction held the queue's; NULL: the untagged.
CREATE TABLE lane_notes (
    queue int4 NOT NULL,
    tag text COLLATE "C"
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Find the notes of a queue.
CREATE INDEX lane_notes_of_queue ON lane_notes (queue);

-- Hold a queue's lanes until this transaction ends, and return true; false if another one holds them and this one has
-- written anything, and so may hold what that one waits for.
CREATE FUNCTION hold_lanes(queue_id int4) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE
    class CONSTANT int4 := 'towline.lanes'::regclass::oid::int4;
BEGIN
    IF pg_try_advisory_xact_lock(class, queue_id) THEN
        RETURN true;
    ELSIF txid_current_if_assigned() IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(class, queue_id);
    RETURN true;
END $$;

-- Return how many tokens a bucket has.
CREATE FUNCTION tokens(token_us int8, burst int4, full_at int8, now int8) RETURNS int8 LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN greatest(0, burst * token_us - greatest(0, coalesce(full_at, 0) - now)) / token_us;
END $$;

-- Count tasks that lanes admitted, or that are no longer admitted (less than 0). A single number holds for all tags.
CREATE FUNCTION count_admitted(queue_id int4, slot int8, now int8, of_tags text[], numbers int8[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO towline.counts AS c (queue, kind, slot, tag, admitted, changed_at)
    SELECT queue_id, k.kind, slot, CASE k.kind WHEN 2 THEN t.tag ELSE '' END, sum(coalesce(t.number, numbers[1])), now
    FROM unnest(of_tags, numbers) AS t (tag, number) CROSS JOIN unnest('{0,2}'::int2[]) AS k (kind)
    WHERE t.tag IS NOT NULL GROUP BY 2, 4
    ON CONFLICT ON CONSTRAINT counts_pkey DO UPDATE SET
        admitted = c.admitted + excluded.admitted, changed_at = excluded.changed_at;
END $$;

-- Tell the client, in the answer to its call, of something that few queues have. Its level is sent whatever the
-- client's settings, and not logged.
CREATE FUNCTION tell(what json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE INFO USING MESSAGE = what, ERRCODE = 'TLTLD';
END $$;

-- Hold READY tasks of a lane again, the last ones; return how many. One that is being leased is passed over.
CREATE FUNCTION hold_again(queue_id int4, of_tag text, number int8) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    chosen tid[];
    etas int8[];
BEGIN
    SELECT array_agg(l.ctid) INTO chosen FROM (
        SELECT t.ctid FROM towline.tasks AS t
        WHERE t.queue = queue_id AND t.tag = of_tag AND t.state + 0 > 3
        ORDER BY t.state + 0 DESC, t.eta DESC, t.id DESC LIMIT number FOR UPDATE SKIP LOCKED
    ) AS l;
    IF chosen IS NULL THEN
        RETURN 0;
    END IF;
    WITH held AS (
        UPDATE towline.tasks AS t SET state = t.state - 13 WHERE t.ctid = ANY (chosen) RETURNING t.eta
    )
    SELECT array_agg(held.eta) INTO etas FROM held;
    PERFORM towline.lower_floors(
        queue_id, array_fill(0::int2, ARRAY[cardinality(etas)]), array_fill(of_tag, ARRAY[cardinality(etas)]), etas
    );
    RETURN cardinality(etas);
END $$;

-- Admit HELD tasks of a lane, the first ones; return how many. One that another transaction deletes is passed over.
CREATE FUNCTION admit(q towline.queues, now int8, of_tag text, number int8) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    urgent tid[];
    chosen tid[];
    total int8;
BEGIN
    IF q.has_priorities THEN
        SELECT array_agg(l.ctid) INTO urgent FROM (
            SELECT t.ctid FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.tag = of_tag AND t.state + 0 < 0
            ORDER BY t.state + 0, t.eta, t.id LIMIT number FOR UPDATE SKIP LOCKED
        ) AS l;
    END IF;
    IF cardinality(urgent) = number THEN
        chosen := urgent;
    ELSE
        SELECT urgent || array_agg(l.ctid) INTO chosen FROM (
            SELECT t.ctid FROM towline.tasks AS t WHERE t.queue = q.id AND t.tag = of_tag AND t.state + 0 = 0
            ORDER BY t.eta, t.id LIMIT number - coalesce(cardinality(urgent), 0) FOR UPDATE SKIP LOCKED
        ) AS l;
    END IF;
    IF chosen IS NULL THEN
        RETURN 0;
    END IF;
    UPDATE towline.tasks AS t SET state = t.state + 13, eta = now, ready_at = now WHERE t.ctid = ANY (chosen);
    GET DIAGNOSTICS total = ROW_COUNT;
    RETURN total;
END $$;

-- While a HELD task has a higher priority than some READY one, let the two change places; return how many did.
CREATE FUNCTION swap_urgent(q towline.queues, now int8, of_tag text) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    first int2;
    last int2;
    is_locked bool := false;
    total int8 := 0;
BEGIN
    LOOP
        SELECT t.state INTO first FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.tag = of_tag AND t.state + 0 < 0
        ORDER BY t.state + 0, t.eta, t.id LIMIT 1 FOR UPDATE SKIP LOCKED;
        is_locked := NOT FOUND;
        last := (
            SELECT t.state FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.tag = of_tag AND t.state + 0 > 3
            ORDER BY t.state + 0 DESC LIMIT 1
        ) - 13;
        EXIT WHEN last IS NULL OR last <= first;
        is_locked := is_locked OR towline.hold_again(q.id, of_tag, 1) = 0;
        EXIT WHEN is_locked;
        PERFORM towline.admit(q, now, of_tag, 1);
        total := total + 1;
    END LOOP;
    IF is_locked AND EXISTS (
        SELECT FROM towline.tasks AS t WHERE t.queue = q.id AND t.tag = of_tag AND t.state + 0 < 0
    ) THEN
        INSERT INTO towline.lane_notes (queue, tag) VALUES (q.id, of_tag);  -- the next holder tries again
    END IF;
    RETURN total;
END $$;

-- Return the counters of a lane, summed over the slots: see `sum_counts`.
CREATE FUNCTION lane_counts(queue_id int4, of_tag text, OUT ready int8, OUT leased int8, OUT admitted int8)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT coalesce(sum(c.ready), 0), coalesce(sum(c.leased), 0), coalesce(sum(c.admitted), 0)
    INTO ready, leased, admitted
    FROM towline.counts AS c
    WHERE c.queue = queue_id AND c.kind = 2 AND c.tag = of_tag AND c.slot >= coalesce((
        SELECT b.slot FROM towline.counts AS b
        WHERE b.queue = queue_id AND b.kind = 2 AND b.tag = of_tag AND b.slot % 32 = 0 ORDER BY b.slot DESC LIMIT 1
    ), 0);
END $$;

-- Let the lane of a tag admit what it has room for (`admission.lane_change`), and find when time next opens it.
-- Return how many it admitted, less those that it holds again, which the caller counts. The lanes are held.
CREATE FUNCTION update_lane(q towline.queues, now int8, of_tag text, OUT change int8, OUT came int8)
LANGUAGE plpgsql AS $$
DECLARE
    sums record := towline.lane_counts(q.id, of_tag);
    held int8 := sums.ready - sums.admitted;
    ready int8 := sums.admitted;
    places CONSTANT int8 := greatest(0, coalesce(q.tag_max - sums.leased, 1000000));
    room int8 := places;
    full_again_at int8;
    old_opens_at int8;
    opens int8;
    wanted int8;
    surplus CONSTANT int8 := greatest(0, sums.admitted - places);
    back int8 := 0;
BEGIN
    came := 0;
    IF q.tag_token_us IS NOT NULL THEN
        SELECT l.full_at, l.opens_at INTO full_again_at, old_opens_at
        FROM towline.lanes AS l WHERE l.queue = q.id AND l.kind = 2 AND l.tag = of_tag;
        full_again_at := coalesce(full_again_at, 0);
        room := least(room, towline.tokens(q.tag_token_us, q.tag_burst, full_again_at, now));
    END IF;
    IF surplus > 0 THEN
        back := towline.hold_again(q.id, of_tag, surplus);
        held := held + back;
        ready := ready - back;
    END IF;
    IF held > 0 AND room > ready THEN
        wanted := least(held, room - ready);
        came := towline.admit(q, now, of_tag, wanted);
        IF came < wanted THEN
            -- Others have locked some, and may let them go without a change of their own: the next holder tries again.
            INSERT INTO towline.lane_notes (queue, tag) VALUES (q.id, of_tag);
        END IF;
        held := held - came;
        ready := ready + came;
    END IF;
    change := came - back;
    IF held > 0 AND ready > 0 AND q.has_priorities THEN
        came := came + towline.swap_urgent(q, now, of_tag);
    END IF;
    IF q.tag_token_us IS NOT NULL THEN
        IF held > 0 AND ready < q.tag_burst AND (ready < places) THEN
            opens := full_again_at - (q.tag_burst - ready - 1) * q.tag_token_us;
        END IF;
        IF opens IS DISTINCT FROM old_opens_at THEN
            INSERT INTO towline.lanes AS l (queue, kind, tag, opens_at) VALUES (q.id, 2, of_tag, opens)
            ON CONFLICT ON CONSTRAINT lanes_pkey DO UPDATE SET opens_at = excluded.opens_at;
        END IF;
    END IF;
END $$;

-- Return the state -p, the eta and the id of the first READY task of a tag, but for some.
CREATE FUNCTION first_ready(
    q towline.queues, of_tag text, but tid[], OUT head int2, OUT eta int8, OUT id int8, OUT place tid
)
LANGUAGE plpgsql AS $$
BEGIN
    IF of_tag IS NOT NULL AND q.has_lanes THEN
        SELECT t.state - 13, t.eta, t.id, t.ctid INTO head, eta, id, place FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.tag = of_tag AND t.state + 0 > 3 AND t.ctid <> ALL (but)
        ORDER BY t.state + 0, t.eta, t.id LIMIT 1;
        RETURN;
    END IF;
    IF q.has_priorities THEN
        IF of_tag IS NULL THEN
            SELECT t.state, t.eta, t.id, t.ctid INTO head, eta, id, place FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.tag IS NULL AND t.state + 0 < 0 AND t.ctid <> ALL (but)
            ORDER BY t.tag, t.state + 0, t.eta, t.id LIMIT 1;
        ELSE
            SELECT t.state, t.eta, t.id, t.ctid INTO head, eta, id, place FROM towline.tasks AS t
            WHERE t.queue = q.id AND t.tag = of_tag AND t.state + 0 < 0 AND t.ctid <> ALL (but)
            ORDER BY t.state + 0, t.eta, t.id LIMIT 1;
        END IF;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF of_tag IS NULL THEN
        SELECT 0, t.eta, t.id, t.ctid INTO head, eta, id, place FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.tag IS NULL AND t.state + 0 = 0 AND t.ctid <> ALL (but)
        ORDER BY t.tag, t.eta, t.id LIMIT 1;
    ELSE
        SELECT 0, t.eta, t.id, t.ctid INTO head, eta, id, place FROM towline.tasks AS t
        WHERE t.queue = q.id AND t.tag = of_tag AND t.state + 0 = 0 AND t.ctid <> ALL (but)
        ORDER BY t.eta, t.id LIMIT 1;
    END IF;
END $$;

-- Put tags that have READY tasks into the rotation, at its end, and take those out that have none. The lanes are held.
CREATE FUNCTION update_rotation(q towline.queues, of_tags text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH seen AS MATERIALIZED (
        SELECT o.tag, CASE WHEN o.tag IS NULL THEN 1 ELSE 2 END::int2 AS kind, f.head, f.eta, f.id
        FROM (SELECT DISTINCT u.tag COLLATE "C" FROM unnest(of_tags) AS u (tag)) AS o (tag)
        CROSS JOIN LATERAL towline.first_ready(q, o.tag, '{}') AS f
    ), known AS MATERIALIZED (
        SELECT s.*, l.place, l.head AS old_head, l.queue IS NOT NULL AS is_there FROM seen AS s
        LEFT JOIN LATERAL (
            SELECT * FROM towline.lanes AS each
            WHERE each.queue = q.id AND each.kind = s.kind AND each.tag = coalesce(s.tag, '')
        ) AS l ON true
        ORDER BY s.head, s.eta, s.id
    )
    INSERT INTO towline.lanes AS l (queue, kind, tag, place, head)
    SELECT q.id, k.kind, coalesce(k.tag, ''),
        CASE WHEN k.head IS NULL THEN NULL WHEN k.place IS NULL THEN nextval('towline.places') ELSE k.place END, k.head
    FROM known AS k
    WHERE k.head IS DISTINCT FROM k.old_head OR (k.place IS NULL) <> (k.head IS NULL)
    ON CONFLICT ON CONSTRAINT lanes_pkey DO UPDATE SET place = excluded.place, head = excluded.head;
END $$;

-- Update what limits and rotation say of these tags, as the end of a verb that changed their tasks and ended so many
-- leases of the queue.
CREATE FUNCTION update_lanes(q towline.queues, slot int8, now int8, of_tags text[], ended int8) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    changed_tags text[];
    changes int8[];
    admitted json;
    one record;
BEGIN
    IF current_setting('towline_lanes.defers', true) = 'on' THEN
        RETURN;  -- the verb does it at its end
    END IF;
    IF of_tags <> '{}' AND (q.is_fair OR q.has_lanes) THEN
        -- A caller's own transaction may last.
        IF coalesce(current_setting('towline_lanes.is_callers', true), '') <> 'on' AND towline.hold_lanes(q.id) THEN
            IF q.has_lanes AND cardinality(of_tags) = 1 THEN
                IF of_tags[1] IS NOT NULL THEN
                    one := towline.update_lane(q, now, of_tags[1]);
                    IF one.change <> 0 THEN
                        PERFORM towline.count_admitted(q.id, slot, now, of_tags, ARRAY[one.change]);
                    END IF;
                    IF one.came > 0 THEN
                        PERFORM towline.tell(
                            json_build_array('admitted', json_build_array(json_build_array(q.name, of_tags[1], one.came)))
                        );
                    END IF;
                END IF;
            ELSIF q.has_lanes THEN
                SELECT array_agg(o.tag) FILTER (WHERE l.change <> 0), array_agg(l.change) FILTER (WHERE l.change <> 0),
                    json_agg(json_build_array(q.name, o.tag, l.came)) FILTER (WHERE l.came > 0)
                INTO changed_tags, changes, admitted
                FROM (SELECT DISTINCT u.tag FROM unnest(of_tags) AS u (tag) WHERE u.tag IS NOT NULL) AS o
                CROSS JOIN LATERAL towline.update_lane(q, now, o.tag) AS l;
                IF changes <> '{}' THEN
                    PERFORM towline.count_admitted(q.id, slot, now, changed_tags, changes);
                END IF;
                IF admitted IS NOT NULL THEN
                    PERFORM towline.tell(json_build_array('admitted', admitted));
                END IF;
            END IF;
            IF q.is_fair THEN
                PERFORM towline.update_rotation(q, of_tags);
            END IF;
        ELSE
            INSERT INTO towline.lane_notes (queue, tag) SELECT DISTINCT q.id, u.tag FROM unnest(of_tags) AS u (tag);
        END IF;
    END IF;
    IF ended > 0 AND (q.max_in_flight IS NOT NULL OR q.token_us IS NOT NULL) THEN
        PERFORM towline.tell(json_build_array('admitted', json_agg(json_build_array(q.name, o.tag, o.number))))
        FROM (
            SELECT l.tag, count(*) AS number FROM towline.leasable(
                q, 0::int2, '{}', least(ended, towline.room_of(q, now), 1000)::int4, 9223372036854775807, 0
            ) AS l
            GROUP BY l.tag
        ) AS o HAVING count(*) > 0;
    END IF;
END $$;

-- Update the lanes of these tags, those that time opens, and those of which there are notes.
CREATE FUNCTION update_due_lanes(q towline.queues, slot int8, now int8, of_tags text[], ended int8) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    due text[] := of_tags;
BEGIN
    IF q.is_fair OR q.has_lanes THEN
        IF coalesce(current_setting('towline_lanes.is_callers', true), '') <> 'on' AND (
                EXISTS (SELECT FROM towline.lane_notes AS n WHERE n.queue = q.id)
                OR EXISTS (SELECT FROM towline.lanes AS l WHERE l.queue = q.id AND l.opens_at <= now)
            ) AND towline.hold_lanes(q.id)
        THEN
            due := due || ARRAY(
                SELECT l.tag FROM towline.lanes AS l WHERE l.queue = q.id AND l.opens_at <= now
                ORDER BY l.opens_at LIMIT 500
            );
            WITH gone AS (
                DELETE FROM towline.lane_notes AS n WHERE n.ctid = ANY (ARRAY(
                    SELECT few.ctid FROM towline.lane_notes AS few WHERE few.queue = q.id LIMIT 500
                    FOR UPDATE SKIP LOCKED
                ))
                RETURNING n.tag
            )
            SELECT due || array_agg(gone.tag) INTO due FROM gone;
        END IF;
    END IF;
    PERFORM towline.update_lanes(q, slot, now, coalesce(due, '{}'), ended);
END $$;

-- Return how many leases the limits of the whole queue let it grant; 1,000,000: any number.
CREATE FUNCTION room_of(q towline.queues, now int8) RETURNS int8 LANGUAGE plpgsql STABLE AS $$
DECLARE
    room int8 := 1000000;
BEGIN
    IF q.max_in_flight IS NOT NULL THEN
        room := greatest(0, q.max_in_flight - (towline.sum_counts(q.id, NULL)).leased);
    END IF;
    IF q.token_us IS NOT NULL THEN
        room := least(room, towline.tokens(q.token_us, q.burst, (
            SELECT l.full_at FROM towline.lanes AS l WHERE l.queue = q.id AND l.kind = 0 AND l.tag = ''
        ), now));
    END IF;
    RETURN room;
END $$;
