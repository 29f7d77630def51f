-- How the statements inside the functions are planned: once, along the indexes they were written for. Left to itself the
-- planner goes by what it last knew of tables that are empty at one time and full at another.
DO $$
DECLARE
    one regprocedure;
BEGIN
    FOR one IN
        SELECT p.oid FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
        WHERE p.pronamespace = current_schema()::regnamespace AND l.lanname = 'plpgsql' AND p.proname IN (
            'add', 'exchange', 'settle', 'renew', 'release', 'hand_over', 'delete_named', 'purge', 'redrive',
            'drop_queue', 'retire_worker', 'release_worker', 'keep_answer', 'trim_samples', 'forget_tags', 'restore', 'hold_names',
            'stats', 'tag_stats', 'waiting', 'peek', 'live_leases', 'next_eta', 'read_samples', 'held_names'
        )
    LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SET plan_cache_mode = force_generic_plan SET enable_seqscan = off'
            ' SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off', one
        );
    END LOOP;
END $$;
