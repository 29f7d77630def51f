-- Lives of the server, from one crash to the next: a crash empties unlogged tables, and nothing else does.

-- The name of the life of the server since its last crash.
CREATE UNLOGGED TABLE life (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    name text NOT NULL
);

-- All lives, kept for ever: after several crashes the first of them decides which transaction had a number. `first` is
-- the first transaction number that may have been reused in the life. The checkpoint that ends a recovery knows it, and
-- differs from later ones by its redo point, as others log before they end.
CREATE TABLE lives (
    number int8 PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL UNIQUE,
    first int8
);

-- Return the name of this life, system.timeline.first.random, and make it if this is the first call in it; that call
-- returns when the name is on the disk.
CREATE FUNCTION life() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    found_name text;
BEGIN
    SELECT l.name INTO found_name FROM towline.life AS l;
    IF NOT FOUND THEN
        PERFORM set_config('synchronous_commit', 'on', true);
        WITH new AS (
            INSERT INTO towline.life (name)
            SELECT format('%s.%s.%s.%s', control.system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8),
                CASE WHEN point.redo_lsn = point.checkpoint_lsn AND current_setting('wal_level') <> 'minimal'
                    THEN split_part(point.next_xid, ':', 1)::int8 * 4294967296
                        + split_part(point.next_xid, ':', 2)::int8
                END, gen_random_uuid())
            FROM pg_control_system() AS control, pg_control_checkpoint() AS point
            ON CONFLICT DO NOTHING RETURNING name
        )
        INSERT INTO towline.lives (name, first)
        SELECT new.name, nullif(split_part(new.name, '.', 3), '')::int8 FROM new;
        SELECT l.name INTO STRICT found_name FROM towline.life AS l;
    END IF;
    RETURN found_name;
END $$;

-- Return the first number that may have been reused since a life ended; NULL: not known.
CREATE FUNCTION first_since(life_name text) RETURNS int8 LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN count(*) = count(later.first) THEN min(later.first) END
    FROM towline.lives AS ended JOIN towline.lives AS later ON later.number > ended.number
    WHERE ended.name = life_name
$$;
