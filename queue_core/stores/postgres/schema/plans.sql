-- The planning of the statements inside the functions: once, along the indexes they were written for. By default the
-- planner uses its last statistics, of tables that are now empty and now full (ADR 11).

DO $$
DECLARE
    one record;
    setting text;
BEGIN
    FOR one IN
        SELECT p.oid::regprocedure AS function, g.settings
        FROM (
            VALUES (
                '{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off,
                enable_hashjoin = off, enable_mergejoin = off, jit = off}'::text[],
                '{add, exchange, fitting, settle, renew, release, lease_delayed, hand_over, hold_tasks,
                change_tasks, taken_names, drop_queue, retire_worker, fence_holder,
                keep_answer, trim_samples, forget_tags, restore, hold_names, held_names, waiting,
                peek, live_leases, next_eta, read_samples}'::text[]
            ),
            ('{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off, jit = off}',
                '{upcoming}'),
            -- A page is read from the index, its order kept, and not all that is kept is sorted first.
            ('{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off,
                enable_hashjoin = off, enable_mergejoin = off, enable_sort = off, jit = off}', '{history}'),
            -- Only where there is a choice, as each setting costs every call 3 us.
            ('{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off}',
                '{exchange_one, exchange_result}'),
            ('{plan_cache_mode = force_generic_plan, enable_seqscan = off}', '{add_one}'),
            -- What the floors need; those that are called by others have the settings of these.
            ('{plan_cache_mode = force_generic_plan, enable_seqscan = off, enable_bitmapscan = off,
                enable_hashjoin = off, enable_mergejoin = off, jit = off}',
                '{propose_floors, raise_floors, end_floors, stored_bytes, open_lanes, queue_stats, stats_of_tags}')
        ) AS g (settings, names)
        JOIN pg_proc AS p ON p.proname = ANY (g.names)
        WHERE p.pronamespace = current_schema()::regnamespace
    LOOP
        FOREACH setting IN ARRAY one.settings LOOP
            EXECUTE format('ALTER FUNCTION %s SET %s', one.function, setting);
        END LOOP;
    END LOOP;
END $$;
