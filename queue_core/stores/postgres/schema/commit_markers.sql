-- Commit markers: if the answer of a call that commits by itself is lost, its marker shows whether it took effect.

-- The last committed call of each connection: the connection's random number (or that of a client's session), and the
-- number of the call on it. The call itself writes its row, so no crash, failover or proxy can separate the two.
-- meaning: the fingerprint of a client's call; NULL: it has none.
-- Markers lie in parts of 256 calls, so that no row is updated for ever. There is one row of each connection: the call
-- that begins a part deletes the last one.
CREATE TABLE commit_markers (
    connection int8 NOT NULL,
    call int8 NOT NULL,
    xid xid8 NOT NULL,
    marked_at timestamptz NOT NULL DEFAULT now(),
    is_closed bool NOT NULL DEFAULT false,
    ids int8[],
    part int8 NOT NULL DEFAULT 0,
    meaning int8,
    place int8,
    PRIMARY KEY (connection, part)
) WITH (
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- Find the markers of clients' calls that were made longest ago.
CREATE INDEX commit_markers_place ON commit_markers (place) WHERE place IS NOT NULL;

-- Return the ids that `set_commit_marker` keeps of an `add`: for a task whose name was refused, its outcome, below 0.
CREATE FUNCTION added_ids(ids int8[], outcomes int2[]) RETURNS int8[] LANGUAGE sql AS $$
    SELECT array_agg(coalesce(o.id, -o.outcome) ORDER BY o.place)
    FROM unnest(ids, outcomes) WITH ORDINALITY AS o (id, outcome, place)
$$;

-- Leave the marker of a call, in the call's own transaction. ids: see `added_ids`; NULL: the call was no `add`. Always
-- returns true, as assigning a result calls a function without a query around it.
CREATE FUNCTION set_commit_marker(connection int8, call int8, ids int8[] DEFAULT NULL, meaning int8 DEFAULT NULL) RETURNS bool
LANGUAGE plpgsql AS $$
DECLARE
    last record;
    kibibytes CONSTANT int4 := CASE WHEN set_commit_marker.meaning IS NULL THEN 0 ELSE coalesce(cardinality(ids), 0) / 128 END;
    new_place int8;
BEGIN
    UPDATE towline.commit_markers AS m
    SET call = set_commit_marker.call, xid = pg_current_xact_id(), marked_at = now(), ids = set_commit_marker.ids,
        meaning = set_commit_marker.meaning,
        place = CASE WHEN kibibytes > 0 THEN towline.take_place(kibibytes) ELSE m.place END
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
            RAISE 'a later call was made' USING ERRCODE = 'unique_violation', CONSTRAINT = 'commit_markers_pkey';
        END IF;
        -- If the marker was closed, or a later call left it, this fails, and the call with it.
        IF set_commit_marker.meaning IS NOT NULL THEN
            new_place := towline.take_place(kibibytes);
        END IF;
        INSERT INTO towline.commit_markers (connection, part, call, xid, marked_at, ids, meaning, place) VALUES (
            set_commit_marker.connection, set_commit_marker.call >> 8, set_commit_marker.call, pg_current_xact_id(),
            now(), set_commit_marker.ids, set_commit_marker.meaning, new_place
        );
        IF new_place > 100000 THEN
            PERFORM towline.forget_answers(new_place - 100000);
        END IF;
    END IF;
    RETURN true;
END $$;

-- Close a connection's marker and return the outcome of its last call; `xid` NULL: it took no effect, and no longer
-- can. Waits for a call in progress.
CREATE FUNCTION close_commit_marker(connection int8, call int8, OUT xid xid8, OUT ids int8[])
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

-- Return the answer of `exchange` in a transaction, without the tags of tasks that became ready by time: their waiters
-- poll before long. Fails when the answer is no longer kept.
CREATE FUNCTION exchange_result(queue_name text, now int8, wanted xid8) RETURNS SETOF towline.lease_row
LANGUAGE plpgsql AS $$
DECLARE
    queue_id int4;
    numbers int8[];
    texts text[];
    settled text;
BEGIN
    SELECT e.id INTO queue_id FROM towline.queues AS e WHERE e.name = queue_name;
    IF EXISTS (SELECT FROM towline.trimmed AS t WHERE t.queue = queue_id AND t.xid >= wanted) THEN
        RAISE 'the answer was lost and is no longer kept' USING ERRCODE = '08007';
    END IF;
    -- A row that was changed since is no longer leased by this call.
    RETURN QUERY SELECT t.id, t.eta, t.ready_at, t.added_at, t.leased_at, t.leases, t.name, t.tag, t.payload,
            t.headers, t.checkpoint, NULL::int8, NULL::text, NULL::int4, NULL::int8, NULL::int8[], NULL::text[],
            NULL::text
        FROM towline.tasks AS t
        WHERE t.queue = queue_id AND t.state = 2 AND t.leased_at >= exchange_result.now AND t.xmin = wanted::xid;
    SELECT s.numbers, s.texts INTO numbers, texts FROM towline.samples AS s
    WHERE s.queue = queue_id AND s.xid = wanted AND s.outcome = 'deleted';
    SELECT json_build_array(coalesce(json_agg(json_build_array(
        s.numbers[i.place][1], s.numbers[i.place][2], s.numbers[i.place][3], s.numbers[i.place][4],
        s.numbers[i.place][5], s.texts[i.place][1], s.texts[i.place][2], s.texts[i.place][3],
        coalesce(s.ended_at[i.place], s.ended_at[1]), s.reasons[i.place], s.texts[i.place][4]
    )), '[]'), '[]'::json) INTO settled
    FROM towline.samples AS s CROSS JOIN LATERAL generate_subscripts(s.numbers, 1) AS i (place)
    WHERE s.queue = queue_id AND s.xid = wanted AND s.outcome = 'expired';
    RETURN NEXT ROW(
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, 0, NULL, numbers, texts, settled
    )::towline.lease_row;
END $$;

-- Forget connections that have made no call for a day; not while floors rise, as it would read all dead rows.
CREATE FUNCTION forget_commit_markers() RETURNS void LANGUAGE plpgsql AS $$
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
