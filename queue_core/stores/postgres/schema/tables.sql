-- The tables of queues, tasks and the records about them. Instants are microseconds since the epoch, UTC. States: 0
-- ready, 1 delayed, 2 leased, 3 dead.
--
-- All files of this folder run with the store's schema as search_path. Function bodies write `towline.`, which stands
-- for that schema, before every name: a search_path of their own would cost each call 3 us.

-- The queues and their settings; `kept` holds, as a JSON object, the settings that no function here reads.
-- is_limited: whether it has limits, a rotation or priorities (`lanes.sql`); token_us, tag_token_us: the microseconds in
-- which a token of the queue's, or each tag's, bucket comes; leases_alone: whether a lease must hold the lanes.
CREATE TABLE queues (
    id int4 PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    name text COLLATE "C" NOT NULL UNIQUE,
    lease_seconds float8 NOT NULL,
    max_lease_seconds float8 NOT NULL,
    max_leases int4,
    retry_min_seconds float8 NOT NULL,
    retry_max_seconds float8 NOT NULL,
    deletes_exhausted boolean NOT NULL,
    name_retention_seconds float8 NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    moved_to text NOT NULL DEFAULT '',
    has_tags boolean NOT NULL DEFAULT false,
    kept text NOT NULL DEFAULT '{}',
    is_limited boolean NOT NULL DEFAULT false,
    has_priorities boolean NOT NULL DEFAULT false,
    max_in_flight int4,
    token_us int8,
    burst int4,
    tag_max int4,
    tag_token_us int8,
    tag_burst int4,
    is_fair boolean NOT NULL DEFAULT false,
    has_lanes boolean NOT NULL GENERATED ALWAYS AS (tag_max IS NOT NULL OR tag_token_us IS NOT NULL) STORED,
    leases_alone boolean NOT NULL GENERATED ALWAYS AS (
        is_fair OR tag_token_us IS NOT NULL OR max_in_flight IS NOT NULL OR token_us IS NOT NULL
    ) STORED
);

-- The ids of tasks. Not cached: ties in eta are leased in the order of insertion, whichever connection inserted.
CREATE SEQUENCE task_ids CACHE 1;

-- The tasks. `max_leases` overrides the queue's (NULL: the queue's holds); `spent` has the ends of earlier leases that
-- are still in the future; `progress` is a JSON array, `attempts` one a line, `headers` a JSON object. A task without
-- them pays nothing: they are NULL. A `priority` of 0 is NULL too; it comes last, so that nothing of a plain task moves.
-- Every row is inserted, updated by its lease and deleted. Room is left on a page for the updated version, so that the
-- server's log need not repeat what stays, which comes last: headers and payload. A long payload is stored out of line and uncompressed: a
-- lease does not touch it, and a part of it can be read alone. The index by id is half filled for the same reason: a
-- lease writes its entry anew beside the old one, and would split each page.
CREATE TABLE tasks (
    id int8 PRIMARY KEY WITH (fillfactor = 50),
    eta int8 NOT NULL,
    ready_at int8 NOT NULL,
    added_at int8 NOT NULL,
    leased_at int8 NOT NULL DEFAULT 0,
    queue int4 NOT NULL,
    leases int4 NOT NULL DEFAULT 0,
    state int2 NOT NULL,
    max_leases int4,
    tag text COLLATE "C",
    name text COLLATE "C",
    worker text,
    reason text,
    spent int8[],
    progress text,
    checkpoint bytea,
    attempts text,
    headers text,
    payload bytea NOT NULL,
    priority int2
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_vacuum_cost_delay = 0
);

ALTER TABLE tasks ALTER COLUMN payload SET STORAGE EXTERNAL;

-- Find the tasks of a queue in one state, in the order in which they are leased.
CREATE INDEX tasks_in_order ON tasks (queue, state, eta, id);

-- Find the ready tasks of a tag, urgent, admitted or neither (`lanes.sql`), in the order in which they are leased.
-- Statements that go by tag, and no others, say `state + 0` too, and order by the tag where they want the untagged, so that this index is the only one in their
-- order, whatever the planner's statistics say. It has none of a table that was filled a moment ago, and would sort the
-- whole queue. There is one such index for all priorities: a second one would cost each plain task 5 us.
CREATE INDEX tasks_by_tag ON tasks (queue, tag, (state + 0), eta, id) WHERE state + 0 < 1 OR state + 0 > 3;

-- The counters: one row for each queue's tagged tasks (kind 0), its untagged tasks (kind 1), and each tag (kind 2), in
-- as many slots as transactions were under way at a time. Each transaction has a slot to itself until it ends. A slot is
-- an epoch's, so that no row is updated for ever: 32 numbers for each epoch, of which the first is the sum of all earlier
-- ones (`epochs.sql`). `ready` counts the HELD and the READY tasks, `admitted` the READY ones of lanes. Sums over the slots are the truth; a queue's are those of its tagged and its untagged tasks, so that an untagged task is
-- counted in one row only.
CREATE TABLE counts (
    queue int4 NOT NULL,
    kind int2 NOT NULL,
    slot int8 NOT NULL,
    tag text COLLATE "C" NOT NULL DEFAULT '',
    ready int8 NOT NULL DEFAULT 0,
    delayed int8 NOT NULL DEFAULT 0,
    leased int8 NOT NULL DEFAULT 0,
    dead int8 NOT NULL DEFAULT 0,
    added int8 NOT NULL DEFAULT 0,
    leases int8 NOT NULL DEFAULT 0,
    deleted int8 NOT NULL DEFAULT 0,
    released int8 NOT NULL DEFAULT 0,
    expired int8 NOT NULL DEFAULT 0,
    died int8 NOT NULL DEFAULT 0,
    changed_at int8 NOT NULL DEFAULT 0,
    admitted int8 NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, kind, tag, slot)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- The names that were given to tasks; `task` is NULL once the task is deleted, and the name is then taken until
-- `until`.
CREATE TABLE names (
    queue int4 NOT NULL,
    name text COLLATE "C" NOT NULL,
    task int8,
    until int8,
    PRIMARY KEY (queue, name)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- Find the names whose retention is over.
CREATE INDEX names_until ON names (until) WHERE until IS NOT NULL;

-- The order of samples within a transaction.
CREATE SEQUENCE sample_ids CACHE 1;

-- Finished leases, those of one verb in one row. For each, `numbers` has the task's id, the lease's number,
-- microseconds waited, the instant of the grant and that of the add, and `texts` the given name, the tag, the worker and Celery's id.
-- A single `ended_at` is that of all. `reasons` say why those died that did, or, where `lived` is true, why the leases
-- were given back; none: nothing to say. They are read in the order of their transactions' numbers, so that a late
-- commit is not missed.
CREATE TABLE samples (
    queue int4 NOT NULL,
    size int4 NOT NULL,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    id int8 NOT NULL DEFAULT nextval('sample_ids'),
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    outcome text NOT NULL,
    numbers int8[] NOT NULL,
    texts text[] NOT NULL,
    ended_at int8[] NOT NULL,
    reasons text[],
    lived boolean,
    PRIMARY KEY (queue, xid, id)
) WITH (
    toast_tuple_target = 8160,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- The transaction of the newest finished lease that was forgotten, for each queue.
CREATE TABLE trimmed (
    queue int4 PRIMARY KEY,
    xid xid8 NOT NULL
);

-- The places of workers, in the order in which they were first known.
CREATE SEQUENCE worker_places;

-- The workers: when each was first seen, and when it was retired.
CREATE TABLE workers (
    worker text COLLATE "C" PRIMARY KEY,
    seen_at int8,
    retired_at int8,
    place int8 NOT NULL DEFAULT nextval('worker_places')
);

-- Find the workers that were retired long ago.
CREATE INDEX workers_retired ON workers (retired_at) WHERE retired_at IS NOT NULL;

-- Find those that were first known longest ago and are not retired, when there are too many.
CREATE INDEX workers_place ON workers (place) WHERE retired_at IS NULL;

-- The leads: the holder of each, and its end.
CREATE TABLE leads (
    name text COLLATE "C" PRIMARY KEY,
    holder text NOT NULL,
    until int8 NOT NULL
) WITH (fillfactor = 50);

-- The places of kept answers and markers, in the order in which they were kept: one for each KiB. Those that are too far
-- behind the last are forgotten. A sequence, as no transaction waits for another one's.
CREATE SEQUENCE answer_places;

-- Until when those that are forgotten were in use, in microseconds. A sequence for the same reason.
CREATE SEQUENCE forgotten_at MINVALUE 0 START 0;

-- Take the place of an answer of so many KiB.
CREATE FUNCTION take_place(kibibytes int4) RETURNS int8 LANGUAGE sql AS $$
    SELECT max(nextval('towline.answer_places')) FROM generate_series(0, least(kibibytes, 1024))
$$;

-- The last call of each client's session, and its answer. Answers lie in parts of 256 calls, so that no row is updated
-- for ever; there is one row of each session: the call that begins a part deletes the last one.
CREATE TABLE sessions (
    session text COLLATE "C" NOT NULL,
    number int8 NOT NULL,
    answer bytea NOT NULL,
    kept_at int8 NOT NULL,
    part int8 NOT NULL DEFAULT 0,
    place int8 NOT NULL,
    PRIMARY KEY (session, part)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0
);

-- Find the answers that were kept longest ago.
CREATE INDEX sessions_place ON sessions (place);
