"""How the verbs reach their rows: by index, whatever the planner knows of the tables and however full they are."""

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from queue_core.clock import START
from queue_core.store import Store, Transaction
from queue_core.stores import open_store
from queue_core.stores.postgres.store import PostgresStore
from queue_core.task import ANY, UNTAGGED, NewTask, StoredTask, TagFilter, TaskState
from queue_core.verbs import Deletion, LeaseRequest, Release, Renewal
from tests.support.stores import changes
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import QUEUE, a_queue, at

FEW_ROWS = 260  # what a verb over ten tasks may read of a table, at any size
FEW_BLOCKS = 400  # and of an index, which has more than that
IDLE_TAGS = 100_000
TEN = [NewTask(tag="tag-3") for _ in range(10)]

_FILL = """
    INSERT INTO towline.tasks (id, eta, ready_at, added_at, leased_at, leases, queue, state, tag, payload)
    SELECT nextval('towline.task_ids'), CASE WHEN n %% 10 < 2 THEN {late} ELSE {start} END + n, {start}, {start},
        CASE n %% 10 WHEN 1 THEN {start} ELSE 0 END, 1, q.id,
        CASE n %% 10 WHEN 0 THEN 1 WHEN 1 THEN 2 WHEN 2 THEN 3 ELSE 0 END,
        CASE WHEN n %% 7 > 0 THEN 'tag-' || n %% 1000 END, 'payload'
    FROM generate_series(1, %s) AS n, towline.queues AS q
"""
_COUNT = """
    INSERT INTO towline.counts (queue, kind, slot, tag, ready, delayed, leased, dead)
    SELECT queue, k.kind, 9, CASE k.kind WHEN 2 THEN tag ELSE '' END,
        count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2),
        count(*) FILTER (WHERE state = 3)
    FROM towline.tasks CROSS JOIN unnest(towline.kinds_of(tag)) AS k (kind) GROUP BY 1, 2, 4;
    UPDATE towline.queues SET has_tags = true
"""
_COUNT_IDLE_TAGS = """
    INSERT INTO towline.counts (queue, kind, slot, tag)
    SELECT q.id, 2, 9, 'tags-' || n FROM generate_series(1, %s) AS n, towline.queues AS q
"""
_FINISH = """
    INSERT INTO towline.samples (queue, size, xid, outcome, numbers, texts, ended_at)
    SELECT q.id, 2, n::text::xid8, 'deleted', ARRAY[[n, 1, 0, 0, 0], [n + 9000, 1, 0, 0, 0]],
        array_fill(NULL::text, '{2, 4}'), ARRAY[%s]
    FROM generate_series(1, %s) AS n, towline.queues AS q
"""
_READ = """
    SELECT relname, seq_scan, coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables
    WHERE schemaname = 'towline' AND relname IN ('tasks', 'counts', 'names', 'samples', 'workers', 'sessions')
"""

_LOOKED_AT = """
    SELECT relname, pg_stat_get_xact_blocks_fetched(oid) FROM pg_class
    WHERE relnamespace = 'towline'::regnamespace AND relkind = 'i'
"""

Connection = psycopg.Connection[tuple[object, ...]]


_TAGS = {"40,000 of one tag": "tag-3", "40,000 untagged": None}
FILLS = [
    "empty",
    "30,000 tasks",
    "30,000 tasks, analyzed",
    "30,000 tasks, analyzed when few had a tag",
    "40,000 of one tag",
    "40,000 untagged",
    "40,000 untagged, analyzed when few had a tag",
    "40,000 of one tag, analyzed when few were untagged",
]


@pytest.fixture(scope="module", params=FILLS)
def filled(request: pytest.FixtureRequest) -> Iterator[tuple[Store, str]]:
    """A store whose tables the planner has never looked at, or at another time, but in one case."""
    url = new_store_url("postgresql")
    fill, _, analyzed = request.param.partition(", analyzed")
    with closing(open_store(url)) as store, psycopg.connect(url, autocommit=True) as connection:
        a_queue(store)
        for table in ("tasks", "counts"):
            connection.execute(f"ALTER TABLE towline.{table} SET (autovacuum_enabled = off)".encode())
        if " when few " in analyzed:
            with store.begin() as transaction:
                tag = "tag-3" if "tag" in analyzed else None
                transaction.add(QUEUE, [NewTask(tag=tag)] * 20, now=START)
            connection.execute("ANALYZE")
        if fill in _TAGS:
            for number in range(80):
                with store.begin() as transaction:
                    transaction.add(QUEUE, [NewTask(tag=_TAGS[fill])] * 500, now=at(number / 100))
        elif fill != "empty":
            connection.execute(_FILL.format(start=START, late=at(86_400)).encode(), (30_000,))
            connection.execute(_COUNT.encode())
            connection.execute(_COUNT_IDLE_TAGS.encode(), (IDLE_TAGS,))
        if analyzed and "when" not in analyzed:
            connection.execute("ANALYZE")
        yield store, url


Verb = Callable[[Transaction], object]


def _leased(transaction: Transaction, tags: TagFilter = ANY) -> list[str]:
    transaction.add(QUEUE, TEN, now=START)
    return [held.token for held in transaction.lease(QUEUE, LeaseRequest(10, 9.0, tags, "w"), now=at(9)).leases]


VERBS: dict[str, Verb] = {
    # First these two: what the rest leaves behind hides that they read all tasks.
    "lease one": lambda to: to.lease(QUEUE, LeaseRequest(1, 9.0, ANY, ""), now=at(9)),
    "exchange one": lambda to: to.exchange(
        QUEUE, [Deletion(_leased(to)[0])], LeaseRequest(1, 9.0, ANY, "w"), now=at(9)
    ),
    "add": lambda to: to.add(QUEUE, TEN, now=at(9)),
    "add one": lambda to: to.add(QUEUE, [NewTask()], now=at(9)),
    "add one of a tag": lambda to: to.add(QUEUE, [NewTask(tag="tag-3")], now=at(9)),
    "add with headers": lambda to: to.add(QUEUE, [NewTask(tag="tag-3", headers={"n": "1"})] * 10, now=at(9)),
    "add named": lambda to: to.add(QUEUE, [NewTask(name=f"name-{number}") for number in range(10)], now=at(9)),
    "lease any": lambda to: to.lease(QUEUE, LeaseRequest(10, 9.0, ANY, "w"), now=at(9)),
    "lease untagged": lambda to: to.lease(QUEUE, LeaseRequest(10, 9.0, UNTAGGED, "w"), now=at(9)),
    "lease one tag": lambda to: to.lease(QUEUE, LeaseRequest(10, 9.0, TagFilter.of("tag-3"), "w"), now=at(9)),
    "lease two tags": lambda to: to.lease(QUEUE, LeaseRequest(10, 9.0, TagFilter.of("tag-3", "tag-4"), "w"), now=at(9)),
    "lease the oldest": lambda to: to.lease(QUEUE, LeaseRequest(10, 9.0, TagFilter.oldest(), "w"), now=at(9)),
    "delete": lambda to: to.delete(QUEUE, [Deletion(token) for token in _leased(to)], now=at(9)),
    "hand over": lambda to: to.delete(QUEUE, [Deletion(token, (NewTask(),)) for token in _leased(to)], now=at(9)),
    "exchange": lambda to: to.exchange(
        QUEUE, [Deletion(token) for token in _leased(to)], LeaseRequest(10, 9.0, ANY, "w"), now=at(9)
    ),
    "lease one untagged": lambda to: to.lease(QUEUE, LeaseRequest(1, 9.0, UNTAGGED, ""), now=at(9)),
    "lease one of a tag": lambda to: to.lease(QUEUE, LeaseRequest(1, 9.0, TagFilter.of("tag-3"), ""), now=at(9)),
    "renew": lambda to: to.renew(QUEUE, [Renewal(token, 20) for token in _leased(to)], now=at(9)),
    "renew with a checkpoint": lambda to: to.renew(
        QUEUE, [Renewal(token, 20, checkpoint=b"x") for token in _leased(to)], now=at(9)
    ),
    "release": lambda to: to.release(QUEUE, [Release(token) for token in _leased(to)], now=at(9)),
    "settle": lambda to: to.expire(QUEUE, limit=10, now=at(86_400)),
    "delete by name": lambda to: to.delete_by_name(QUEUE, ["_3", "_4", "name"], now=at(9)),
    "purge": lambda to: to.purge(QUEUE, TagFilter.of("tag-3"), limit=10, now=at(9)),
    "purge untagged": lambda to: to.purge(QUEUE, UNTAGGED, limit=10, now=at(9)),
    "redrive": lambda to: changes.redrive(to, QUEUE, None, ANY, limit=10, now=at(9)),
    "stats": lambda to: to.stats(QUEUE, ANY, now=at(9)),
    "stats of a tag": lambda to: to.stats(QUEUE, TagFilter.of("tag-3"), now=at(9)),
    "tag stats": lambda to: to.tag_stats(QUEUE, after="tag-3", limit=5, now=at(9)),
    "stats of the untagged": lambda to: to.stats(QUEUE, UNTAGGED, now=at(9)),
    "postpone": lambda to: to.postpone(QUEUE, "_10", expected=at(86_400), eta=at(86_401), now=at(9)),
    "lease delayed": lambda to: to.lease_delayed(QUEUE, 10, expected=at(86_400), worker="w", seconds=9.0, now=at(9)),
    "lead": lambda to: to.lead("fleet", "host", seconds=9.0, now=at(9)),
    "live leases": lambda to: to.live_leases(QUEUE, limit=10, now=at(9)),
    "upcoming": lambda to: to.upcoming(QUEUE, TagFilter.of("tag-3"), until=at(99_999), limit=10, now=at(9)),
    "next eta": lambda to: to.next_eta(QUEUE, now=at(9)),
    "peek": lambda to: to.peek(QUEUE, ANY, frozenset({TaskState.READY}), limit=10, payload_bytes=1, now=at(9)),
    "peek by name": lambda to: to.peek(
        QUEUE, ANY, frozenset(TaskState), names=["_3", "name"], limit=10, payload_bytes=1, now=at(9)
    ),
    "samples": lambda to: to.samples(QUEUE, after=0, limit=10),
    "history": lambda to: to.history(QUEUE, limit=10, now=at(9)),
    "history of a task": lambda to: to.history(QUEUE, names=["_3", "name"], limit=10, now=at(9)),
    "keep an answer": lambda to: to.keep_answer("session", 1, b"answer", now=at(9)),
    "restore": lambda to: to.restore(QUEUE, [StoredTask(1, QUEUE, b"x", at(1), at(1), tag="tag-3")] * 10, now=at(9)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_few_rows_and_scans_no_table_and_no_index(filled: tuple[PostgresStore, str], verb: str) -> None:
    store, url = filled
    with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
        with store.within(connection) as transaction:
            VERBS[verb](transaction)
        for table, scans, rows in connection.execute(_READ).fetchall():
            assert scans == 0, table
            assert rows <= FEW_ROWS, table
        for index, blocks in connection.execute(_LOOKED_AT).fetchall():
            assert blocks <= FEW_BLOCKS, index


def test_waiting_times_cost_the_head_of_the_queue(filled: tuple[PostgresStore, str]) -> None:
    store, url = filled
    with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
        with store.within(connection) as transaction:
            transaction.waiting(QUEUE, TagFilter.of("tag-3", "tag-4"), now=at(9))
            transaction.waiting(QUEUE, ANY, now=at(9))
            transaction.waiting(QUEUE, UNTAGGED, now=at(9))
        for table, scans, rows in connection.execute(_READ).fetchall():
            assert scans == 0, table
            assert rows <= 5000, table


def test_a_page_of_history_costs_what_it_shows(filled: tuple[PostgresStore, str]) -> None:
    store, url = filled
    with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
        connection.execute(_FINISH.encode(), (START, 5000))
        with store.within(connection) as transaction:
            page = transaction.history(QUEUE, limit=10, now=START)
            rest = transaction.history(QUEUE, limit=10, before=page.next_before, now=START)
        assert (len(page.leases), len(rest.leases)) == (10, 10)
        for table, scans, rows in connection.execute(_READ).fetchall():
            assert scans == 0, table
            assert rows <= FEW_ROWS, table
