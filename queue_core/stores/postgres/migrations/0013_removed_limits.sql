-- Tasks that a lane held are admitted by the change that takes its limits away, as by any other admission: their waits
-- count from then, and the client is told of them, so that waiting calls are woken. See `0007_lanes.sql` and ADR 37.

-- Set what the functions here read of a queue's limits, apply it to its tasks, and return whether the queue was there.
-- Its lock is held alone.
CREATE OR REPLACE FUNCTION set_limits(
    queue_name text, now int8, new_max int4, new_token_us int8, new_burst int4, new_tag_max int4,
    new_tag_token_us int8, new_tag_burst int4, new_is_fair bool
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    q towline.queues;
    slot int8;
    old towline.queues;
    low_tags text[];
    low_etas int8[];
    numbers int8[];
    told json;
BEGIN
    SELECT * INTO STRICT old FROM towline.queues AS each WHERE each.name = queue_name;
    q := old;
    UPDATE towline.queues AS e SET
        max_in_flight = new_max, token_us = new_token_us, burst = new_burst, tag_max = new_tag_max,
        tag_token_us = new_tag_token_us, tag_burst = new_tag_burst, is_fair = new_is_fair,
        is_limited = e.has_priorities OR new_is_fair
            OR num_nonnulls(new_max, new_token_us, new_tag_max, new_tag_token_us) > 0
    WHERE e.id = q.id RETURNING * INTO q;
    slot := towline.count_slot(q.id);
    IF q.has_lanes AND NOT old.has_lanes THEN
        -- What is ready stays so, in its place, as far as the limits let it.
        WITH ready AS (
            UPDATE towline.tasks AS t SET state = t.state + 13
            WHERE t.queue = q.id AND t.state < 1 AND t.tag IS NOT NULL RETURNING t.tag
        )
        SELECT array_agg(r.tag), array_agg(r.number) INTO low_tags, numbers
        FROM (SELECT ready.tag, count(*) AS number FROM ready GROUP BY ready.tag) AS r;
        IF low_tags <> '{}' THEN
            PERFORM towline.count_admitted(q.id, slot, now, low_tags, numbers);
        END IF;
    END IF;
    IF q.has_lanes AND (q.tag_max, q.tag_token_us, q.tag_burst)
        IS DISTINCT FROM (old.tag_max, old.tag_token_us, old.tag_burst) THEN
        SELECT array_agg(h.tag), array_agg(-h.number) INTO low_tags, numbers
        FROM (
            SELECT s.tag, towline.hold_again(q.id, s.tag, s.surplus) AS number
            FROM (
                SELECT c.tag, (c.admitted - greatest(0, least(
                    coalesce(q.tag_max - c.leased, 1000000),
                    CASE WHEN q.tag_token_us IS NULL THEN 1000000 ELSE towline.tokens(
                        q.tag_token_us, q.tag_burst,
                        (SELECT l.full_at FROM towline.lanes AS l WHERE l.queue = q.id AND l.kind = 2 AND l.tag = c.tag),
                        now
                    ) END
                )))::int8 AS surplus
                FROM (
                    SELECT e.tag, sum(e.admitted) AS admitted, sum(e.leased) AS leased
                    FROM towline.counts AS e WHERE e.queue = q.id AND e.kind = 2 GROUP BY e.tag
                ) AS c WHERE c.admitted > 0
            ) AS s WHERE s.surplus > 0
        ) AS h;
        IF low_tags <> '{}' THEN
            PERFORM towline.count_admitted(q.id, slot, now, low_tags, numbers);
        END IF;
        low_tags := NULL;
    END IF;
    IF old.has_lanes AND NOT q.has_lanes THEN
        WITH free AS (
            UPDATE towline.tasks AS t SET eta = now, ready_at = now
            WHERE t.queue = q.id AND t.state < 1 AND t.tag IS NOT NULL RETURNING t.tag
        )
        SELECT array_agg(f.tag), array_agg(now), json_agg(json_build_array(q.name, f.tag, f.number))
        INTO low_tags, low_etas, told
        FROM (SELECT free.tag, count(*) AS number FROM free GROUP BY free.tag) AS f;
        IF low_tags <> '{}' THEN
            PERFORM towline.tell(json_build_array('admitted', told));
        END IF;
        WITH free AS (
            UPDATE towline.tasks AS t SET state = t.state - 13 WHERE t.queue = q.id AND t.state > 3
            RETURNING t.tag, t.eta
        )
        SELECT low_tags || array_agg(f.tag), low_etas || array_agg(f.eta) INTO low_tags, low_etas
        FROM (SELECT free.tag, min(free.eta) AS eta FROM free GROUP BY free.tag) AS f;
        UPDATE towline.counts AS c SET admitted = 0 WHERE c.queue = q.id AND c.admitted <> 0;
        IF low_tags <> '{}' THEN
            PERFORM towline.lower_floors(
                q.id, array_fill(0::int2, ARRAY[cardinality(low_tags)]), low_tags, low_etas
            );
        END IF;
    END IF;
    UPDATE towline.lanes AS l SET
        opens_at = NULL, place = CASE WHEN q.is_fair THEN l.place END, head = CASE WHEN q.is_fair THEN l.head END
    WHERE l.queue = q.id AND (l.opens_at IS NOT NULL OR l.head IS NOT NULL AND NOT q.is_fair);
    PERFORM towline.update_lanes(q, slot, now, ARRAY(
        SELECT c.tag FROM towline.counts AS c WHERE c.queue = q.id AND c.kind = 2
        GROUP BY c.tag HAVING sum(c.ready) > 0 ORDER BY c.tag
    ) || NULL::text, 0);
END $$;
