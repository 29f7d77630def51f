"""Find the snapshot that keeps dead rows from being removed: whose it is, and what ends it."""

from psycopg import sql

from queue_core.stores.postgres.client.connection import Connection
from queue_core.stores.postgres.client.statements import qualified
from queue_core.verbs import HeldSnapshot

MANY_DEAD_ROWS = 1_000
"""A snapshot that keeps fewer is nobody's concern."""
UNSEEN_DEAD_ROWS = 20_000
"""So many stay after a vacuum of the last minutes only if somebody holds a snapshot, even if nobody can be seen."""

_DEAD = """
    SELECT coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)::int8,
        coalesce(max(greatest(pg_stat_get_last_vacuum_time(c.oid), pg_stat_get_last_autovacuum_time(c.oid)))
            > clock_timestamp() - interval '5 min', false)
    FROM pg_class AS c WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r'
"""
# Only sessions in this database, standbys and their slots keep rows of its tables. A vacuum keeps none, and a logical
# slot only those of the catalog. A slot that a standby uses holds what the standby's feedback asks for.
_HOLDERS = """
    SELECT kind, name, pid, application, role, host, seconds, transactions FROM (
        SELECT CASE
                WHEN a.backend_type = 'walsender' THEN 'standby feedback'
                WHEN a.state LIKE 'idle in transaction%%' THEN 'idle in transaction' ELSE 'active statement'
            END AS kind,
            'pid ' || a.pid AS name, a.pid, coalesce(a.application_name, '') AS application,
            coalesce(a.usename::text, '') AS role,
            coalesce(a.client_hostname, host(a.client_addr), 'this machine') AS host,
            extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
            greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions
        FROM pg_stat_activity AS a
        WHERE (a.datname = current_database() OR a.backend_type = 'walsender') AND a.pid <> pg_backend_pid()
            AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.query NOT ILIKE 'vacuum%%'
            AND a.backend_type <> 'autovacuum worker'
        UNION ALL
        SELECT 'prepared transaction', p.gid, NULL, '', p.owner::text, '',
            extract(epoch FROM clock_timestamp() - p.prepared)::float8, age(p.transaction)
        FROM pg_prepared_xacts AS p WHERE p.database = current_database()
        UNION ALL
        SELECT
            CASE WHEN s.active_pid IS NULL THEN 'replication slot' ELSE 'standby feedback' END,
            s.slot_name::text, s.active_pid, coalesce(a.application_name, ''), coalesce(a.usename::text, ''),
            CASE WHEN a.pid IS NULL THEN '' ELSE coalesce(a.client_hostname, host(a.client_addr), 'this machine') END,
            -- PostgreSQL 17 knows it.
            extract(epoch FROM clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8,
            age(s.xmin)
        FROM pg_replication_slots AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid
        WHERE s.xmin IS NOT NULL
    ) AS h
    ORDER BY h.transactions DESC, h.seconds DESC NULLS LAST LIMIT 1
"""
# The first lease that finished after so many transactions ago.
_SINCE = """
    SELECT max(extract(epoch FROM clock_timestamp() - f.noted_at))::float8
    FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS next) AS x CROSS JOIN towline.queues AS q
    CROSS JOIN LATERAL (
        SELECT s.noted_at FROM towline.samples AS s
        WHERE s.queue = q.id AND s.xid >= (x.next - %s)::text::xid8 AND s.xid < x.next::text::xid8
        ORDER BY s.xid, s.id LIMIT 1
    ) AS f
"""
_UNSEEN = """
    SELECT count(*) > 0, current_user::text FROM pg_stat_activity AS a
    WHERE a.datname = current_database() AND a.query = '<insufficient privilege>'
"""


def held_snapshot(connection: Connection, schema: str, *, min_seconds: float) -> HeldSnapshot | None:
    """Return the oldest snapshot, if it keeps many dead rows and is held for so long; see `Store.held_snapshot`."""
    row = connection.execute(qualified(_DEAD, schema).encode(), (schema,)).fetchone()
    assert row is not None, "one row"
    dead, is_vacuumed = int(str(row[0])), bool(row[1])
    if dead < MANY_DEAD_ROWS:
        return None
    is_in_vain = dead >= UNSEEN_DEAD_ROWS and is_vacuumed
    found = connection.execute(_HOLDERS.encode()).fetchone()
    if found is not None:
        kind, name, pid, application, role, host, known, transactions = found
        if known is None:
            known = _seconds_since(connection, schema, transactions)
        seconds = None if known is None else float(str(known))
        if is_in_vain if seconds is None else seconds >= min_seconds:
            return HeldSnapshot(
                kind,  # type: ignore[arg-type]  # one of them, as the query says
                str(name),
                pid,  # type: ignore[arg-type]
                str(application),
                str(role),
                str(host),
                seconds,
                dead_rows=dead,
                remedy=_remedy(connection, str(kind), str(name), pid),
            )
    unseen = connection.execute(_UNSEEN.encode()).fetchone()
    if is_in_vain and unseen is not None and unseen[0]:
        grant = sql.SQL("GRANT pg_read_all_stats TO {}").format(sql.Identifier(str(unseen[1]))).as_string(connection)
        return HeldSnapshot("not to be seen", "", dead_rows=dead, remedy=grant)
    return None


def _seconds_since(connection: Connection, schema: str, transactions: object) -> object:
    """Return how long ago the transaction was that so many followed, at least; None: no lease has finished since."""
    row = connection.execute(qualified(_SINCE, schema).encode(), (transactions,)).fetchone()
    return None if row is None else row[0]


def _remedy(connection: Connection, kind: str, name: str, pid: object) -> str:
    if kind == "prepared transaction":
        return sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)).as_string(connection)
    if kind == "replication slot":
        return sql.SQL("SELECT pg_drop_replication_slot({})").format(sql.Literal(name)).as_string(connection)
    if kind == "standby feedback":
        return "on the standby: end its query, or ALTER SYSTEM SET hot_standby_feedback = off; SELECT pg_reload_conf()"
    return f"SELECT pg_terminate_backend({pid})"
