"""Recount everything that counters and names claim."""

import psycopg
from psycopg import sql

from queue_core.stores.postgres.client.connection import Connection
from queue_core.stores.postgres.client.statements import qualified
from queue_core.verbs import Check

MAX_PROBLEMS = 50

_RECOUNT = """
    SELECT format('the counters of queue %s, kind %s, tag %L differ from a recount: %s, not %s', k.queue, k.kind, k.tag,
        k.counted, t.counted)
    FROM (
        SELECT queue, kind, tag,
            (sum(ready)::int8, sum(delayed)::int8, sum(leased)::int8, sum(dead)::int8, sum(admitted)::int8)::text
                AS counted
        FROM towline.counts GROUP BY queue, kind, tag
    ) AS k
    FULL JOIN (
        SELECT queue, k.kind, CASE k.kind WHEN 2 THEN tag ELSE '' END AS tag,
            (count(*) FILTER (WHERE state NOT BETWEEN 1 AND 3), count(*) FILTER (WHERE state = 1),
                count(*) FILTER (WHERE state = 2), count(*) FILTER (WHERE state = 3),
                count(*) FILTER (WHERE state > 3))::text AS counted
        FROM towline.tasks CROSS JOIN unnest(towline.kinds_of(tag)) AS k (kind) WHERE queue <> 0 GROUP BY 1, 2, 3
    ) AS t ON t.queue = k.queue AND t.kind = k.kind AND t.tag = k.tag
    WHERE coalesce(k.counted, '(0,0,0,0,0)') <> coalesce(t.counted, '(0,0,0,0,0)')
"""
# Tasks of queue 0 are for the planner: see `schema/floors.sql`.
# Each query finds rows that violate an invariant; the first column is shown.
_INVARIANTS = (
    ("{}", _RECOUNT),
    (
        "task {} is of no queue",
        "SELECT id FROM towline.tasks WHERE queue <> 0 AND queue NOT IN (SELECT id FROM towline.queues)",
    ),
    ("task {} is in no known state", "SELECT id FROM towline.tasks WHERE state NOT BETWEEN -9 AND 13"),
    (
        "task {} has an id that was never given out",
        "SELECT id FROM towline.tasks WHERE id > (SELECT last_value FROM towline.task_ids)",
    ),
    (
        "task {} does not have its name",
        """
        SELECT t.id FROM towline.tasks AS t LEFT JOIN towline.names AS n ON n.queue = t.queue AND n.name = t.name
        WHERE t.name IS NOT NULL AND n.task IS DISTINCT FROM t.id
        """,
    ),
    (
        "name {} is that of a task that does not exist",
        """
        SELECT n.name FROM towline.names AS n LEFT JOIN towline.tasks AS t ON t.id = n.task
        WHERE n.task IS NOT NULL AND (t.queue, t.name) IS DISTINCT FROM (n.queue, n.name)
        """,
    ),
    ("name {} is taken for ever", "SELECT name FROM towline.names WHERE task IS NULL AND until IS NULL"),
    ("name {} is of no queue", "SELECT name FROM towline.names WHERE queue NOT IN (SELECT id FROM towline.queues)"),
    (
        "the bytes of all payloads differ from a recount: {}",
        """
        SELECT s.bytes FROM (SELECT coalesce(sum(bytes), 0) AS bytes FROM towline.stored) AS s
        WHERE EXISTS (SELECT FROM towline.storage_limit)
            AND s.bytes <> (SELECT coalesce(sum(octet_length(payload)), 0) FROM towline.tasks)
        """,
    ),
    (
        "task {} is leased but was never granted",
        "SELECT id FROM towline.tasks WHERE state = 2 AND (leased_at = 0 OR leases = 0)",
    ),
    (
        "task {} has another priority than its state says",
        """
        SELECT id FROM towline.tasks
        WHERE state <= 0 AND state <> -coalesce(priority, 0) OR state > 3 AND state <> 13 - coalesce(priority, 0)
        """,
    ),
    (
        "task {} was admitted by a lane that its tag has not",
        """
        SELECT t.id FROM towline.tasks AS t JOIN towline.queues AS q ON q.id = t.queue
        WHERE t.state > 3 AND (t.tag IS NULL OR NOT q.has_lanes)
        """,
    ),
    (
        "the lane of {} has admitted more than its limit",
        """
        SELECT format('queue %s, tag %L', c.queue, c.tag) FROM towline.counts AS c
        JOIN towline.queues AS q ON q.id = c.queue
        WHERE c.kind = 2 AND q.tag_max IS NOT NULL GROUP BY c.queue, c.tag, q.tag_max
        HAVING sum(c.admitted) > greatest(0, q.tag_max - sum(c.leased))
        """,
    ),
    (
        "queue {} has samples but is gone",
        "SELECT queue FROM towline.samples WHERE queue NOT IN (SELECT id FROM towline.queues)",
    ),
)
_HAS_AMCHECK = (
    "SELECT nspname FROM pg_extension JOIN pg_namespace AS n ON n.oid = extnamespace WHERE extname = 'amcheck'"
)
_INDEXES = """
    SELECT c.oid::regclass::text, c.oid FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam
    WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'i' AND a.amname = 'btree'
"""


def check(connection: Connection, schema: str) -> Check:
    """Find what is wrong with the store by reading all of it; indexes are checked where `amcheck` is installed."""
    problems: list[str] = []
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for text, query in _INVARIANTS:
            found = connection.execute(f"{qualified(query, schema)} LIMIT {MAX_PROBLEMS}".encode()).fetchall()
            problems += [text.format(row[0]) for row in found]
        row = connection.execute(
            qualified("SELECT count(*) FROM towline.tasks WHERE queue <> 0", schema).encode()
        ).fetchone()
    problems += _broken_indexes(connection, schema)
    return Check(tuple(problems), int(str(row[0])) if row else 0)


def _broken_indexes(connection: Connection, schema: str) -> list[str]:
    row = connection.execute(_HAS_AMCHECK).fetchone()
    if row is None:
        return []
    check_index = sql.SQL("SELECT {}.bt_index_check(%s::oid, true)").format(sql.Identifier(str(row[0])))
    problems = []
    for index, oid in connection.execute(_INDEXES, (schema,)).fetchall():
        try:
            connection.execute(check_index, (oid,))
        except psycopg.errors.InternalError_ as error:
            problems.append(f"index {index}: {error}")
    return problems
