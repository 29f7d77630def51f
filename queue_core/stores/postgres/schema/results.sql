-- The result rows of the functions of several verbs.

-- The rows of a verb's answer. kind 0: the outcome (`id` a refusal or 0, `eta` the transaction's number,
-- `leases` flags, `name` what the refusal's message needs); 5: a renewal, 6: a release, 7: one by which its task died,
-- `id` its place in the call.
CREATE TYPE result_row AS (
    kind int2,
    id int8,
    eta int8,
    ready_at int8,
    added_at int8,
    leased_at int8,
    leases int4,
    worker text,
    name text,
    tag text,
    reason text,
    payload bytea,
    celery_id text
);

-- Return the outcome row of a call. Refusals: 1 no such queue, 2 moved, 3 the worker was retired, 4 the lease would be
-- too long.
CREATE FUNCTION outcome_row(refusal int8, note text, flags int4) RETURNS towline.result_row LANGUAGE sql AS $$
    SELECT 0::int2, refusal, txid_current_if_assigned(), NULL::int8, NULL::int8, NULL::int8, flags, NULL::text, note,
        NULL::text, NULL::text, NULL::bytea, NULL::text
$$;

-- The rows of a lease verb's answer: one for each lease, and a last one with the outcome: a refusal (see
-- `outcome_row`), its note (0: the tasks left over, see `fitting`), flags (1: more is due than was settled, 2: the
-- worker was retired and got nothing), the transaction's number, samples of what was deleted, and `settled`, a JSON
-- list: the expired leases, and [tag, tasks] of those that became ready by time.
CREATE TYPE lease_row AS (
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
    refusal int8,
    note text,
    flags int4,
    xid int8,
    numbers int8[],
    texts text[],
    settled text
);

-- Return the last row of a lease verb.
CREATE FUNCTION lease_outcome_row(
    refusal int8, note text, flags int4, numbers int8[] DEFAULT NULL, texts text[] DEFAULT NULL,
    settled text DEFAULT NULL
) RETURNS towline.lease_row LANGUAGE sql AS $$
    SELECT NULL::int8, NULL::int8, NULL::int8, NULL::int8, NULL::int8, NULL::int4, NULL::text, NULL::text, NULL::bytea,
        NULL::text, NULL::bytea, refusal, note, flags, txid_current_if_assigned(), numbers, texts, settled
$$;
