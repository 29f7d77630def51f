"""Floors: a search finds whatever was put below one, and costs the same while dead rows stay."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from structlog.testing import capture_logs

from queue_core.clock import Instant
from queue_core.store import Store
from queue_core.stores.postgres import floors
from queue_core.stores.postgres.floors import FLOOR_MISSED
from queue_core.stores.postgres.store import PostgresStore
from queue_core.task import ANY, UNTAGGED, Lease, NewTask, StoredTask, TagFilter
from queue_core.verbs import Deletion, LeaseRequest, Release, Renewal
from tests.support.eventually import eventually
from tests.support.stores import changes
from tests.support.stores.engines import EngineUnavailableError, postgresql
from tests.support.stores.floored_store import FAR, raised, unattended
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, names, stats

BOTTOM = -(1 << 63)
WAITER = '[{"number": 1, "active_at": 5, "queue": "thumbs", "tags": ["a", "\\u00e4"]}]'
MANY_BLOCKS = 300  # a call of some tasks reads half of that of any index, and thousands of what died
FILTERS = {
    "any": ANY,
    "the tag": TagFilter.of("a"),
    "two tags": TagFilter.of("b", "a"),
    "the oldest": TagFilter.oldest(),
    "the oldest of two": TagFilter.oldest("b", "a"),
}


@pytest.fixture
def url() -> str:
    return new_store_url("postgresql")


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    with closing(unattended(url)) as opened:
        a_queue(opened, max_leases=2, retry_min_seconds=0.0)
        yield opened
        assert opened.check().problems == ()


def row(url: str, query: str) -> tuple[object, ...]:
    with psycopg.connect(url) as connection:
        found = connection.execute(query.encode()).fetchone()
    assert found is not None
    return found


def floors_of(url: str) -> tuple[object, ...]:
    """The floors of ready, delayed and leased tasks."""
    return row(url, "SELECT f.ready, f.delayed, f.leased FROM towline.queues AS q, towline.floors_of(q.id) AS f")


def test_a_floor_is_at_the_first_task_or_at_the_ceiling(store: PostgresStore, url: str) -> None:
    assert floors_of(url) == (BOTTOM, BOTTOM, BOTTOM)
    add(store, NewTask(delay_seconds=50), now=at(1))
    add(store, NewTask(), NewTask(), now=at(3))
    lease(store, seconds=20, now=at(4))
    assert raised(store)
    assert floors_of(url) == (at(3), at(51), at(24))
    assert raised(store, ceiling=at(5))  # never lower than one that was proposed
    lease(store, seconds=20, now=at(5))
    assert raised(store)
    assert floors_of(url) == (FAR, at(51), at(24))


def test_floors_end_and_begin_again(store: PostgresStore, url: str) -> None:
    add(store, NewTask(), now=at(1))
    for _ in range(3):
        assert raised(store)
        assert floors_of(url)[0] == at(1)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT towline.end_floors(id) FROM towline.queues")
        assert floors_of(url) == (BOTTOM, BOTTOM, BOTTOM)
    assert len(lease(store, now=at(2))) == 1


# -- what goes below a floor ---------------------------------------------------------------------------------------

Way = Callable[[PostgresStore, Lease], object]


def _release(store: Store, held: Lease, **settings: object) -> None:
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(held.token, **settings)], now=at(6))  # type: ignore[arg-type]


def _die(store: PostgresStore, held: Lease) -> None:
    _release(store, held, dead_reason="bad")
    assert raised(store)
    with store.begin() as transaction:
        changes.redrive(transaction, QUEUE, None, ANY, limit=5, now=at(7))


def _renew(store: PostgresStore, held: Lease) -> None:
    with store.begin() as transaction:
        transaction.renew(QUEUE, [Renewal(held.token, 1)], now=at(6))


def _postpone(store: PostgresStore, held: Lease) -> None:
    delete(store, held, now=at(6))
    add(store, NewTask(tag="a", name="late", delay_seconds=5000), now=at(6))
    assert raised(store)
    with store.begin() as transaction:
        assert transaction.postpone(QUEUE, "late", expected=at(5006), eta=at(9), now=at(6))


def _retag(store: PostgresStore, held: Lease, *, delay_seconds: float | None = None) -> None:
    delete(store, held, now=at(6))
    add(store, NewTask(tag="b", name="other", delay_seconds=delay_seconds), now=at(6))
    assert raised(store, ceiling=at(15))
    with store.begin() as transaction:
        assert changes.retag(transaction, QUEUE, ["other"], "a", now=at(16))


def _restore(store: PostgresStore, held: Lease) -> None:
    delete(store, held, now=at(6))
    with store.begin() as transaction:
        transaction.restore(QUEUE, [StoredTask(1, QUEUE, b"", at(2), at(2), tag="a")], now=at(6))


def _add(store: PostgresStore, held: Lease, *, now: Instant, **settings: object) -> None:
    delete(store, held, now=at(6))
    add(store, NewTask(tag="a", **settings), now=now)  # type: ignore[arg-type]


def _add_many(store: PostgresStore, held: Lease) -> None:
    delete(store, held, now=at(6))
    add(store, *[NewTask(tag="a")] * 3, now=at(1))


def _hand_over(store: PostgresStore, held: Lease) -> None:
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(held.token, (NewTask(tag="a"),))], now=at(6))


def _worker_dies(store: PostgresStore, _held: Lease) -> None:
    with store.begin() as transaction:
        assert transaction.release_worker("worker-1", now=at(6))


WAYS: dict[str, Way] = {
    "a release": _release,
    "a release that is not counted": lambda store, held: _release(store, held, charge="uncounted"),
    "a release with a delay": lambda store, held: _release(store, held, delay_seconds=3),
    "an expiry": lambda _store, _held: None,
    "a shorter renewal": _renew,
    "a redrive": _die,
    "an earlier eta": _postpone,
    "another tag": _retag,
    "another tag of a delayed task": lambda store, held: _retag(store, held, delay_seconds=13),
    "a restored task": _restore,
    "an add": lambda store, held: _add(store, held, now=at(1)),
    "an add with a name": lambda store, held: _add(store, held, now=at(1), name="named"),
    "an add with a delay": lambda store, held: _add(store, held, now=at(1), delay_seconds=2),
    "adds": _add_many,
    "a task handed over": _hand_over,
    "the death of its worker": _worker_dies,
}


@pytest.mark.parametrize("tags", FILTERS)
@pytest.mark.parametrize("way", WAYS)
def test_a_task_below_a_floor_is_leased(store: PostgresStore, way: str, tags: str) -> None:
    add(store, NewTask(tag="a"), now=at(1))
    (held,) = lease(store, seconds=9, now=at(2))
    assert raised(store)
    WAYS[way](store, held)
    assert stats(store, now=at(20)).ready == stats(store, TagFilter.of("a"), now=at(20)).ready > 0
    with store.read() as transaction:
        assert transaction.waiting(QUEUE, TagFilter.of("a"), now=at(20))
    assert len(lease(store, tags=FILTERS[tags], worker="other", now=at(20))) == 1


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("is_only_kind", [True, False])
def test_an_untagged_task_below_a_floor_is_leased(store: PostgresStore, is_only_kind: bool, count: int) -> None:
    add(store, NewTask(), *([] if is_only_kind else [NewTask(tag="a")]), now=at(1))
    (held,) = lease(store, seconds=9, tags=UNTAGGED, now=at(2))
    assert raised(store)
    _release(store, held)
    assert raised(store)
    assert names(lease(store, count, tags=UNTAGGED, now=at(7))) == [held.name]


def test_a_tag_has_a_floor_of_its_own_above_an_old_task_of_another(store: PostgresStore, url: str) -> None:
    add(store, NewTask(tag="old"), now=at(1))
    add(store, NewTask(tag="a"), now=at(5))
    assert raised(store)
    assert floors_of(url)[0] == at(1)
    query = (
        "SELECT towline.tag_floor(q.id, f.effective, f.ready, 'a')"
        " FROM towline.queues AS q, towline.floors_of(q.id) AS f"
    )
    assert row(url, query) == (at(5),)
    add(store, NewTask(tag="a"), now=at(4))
    assert row(url, query) == (at(4),)
    assert names(lease(store, 2, tags=TagFilter.of("a"), now=at(6))) == ["_3", "_2"]


# -- several servers -----------------------------------------------------------------------------------------------


def test_a_raise_waits_for_a_transaction_that_may_add_below(store: PostgresStore, url: str) -> None:
    add(store, NewTask(b"first"), now=at(1))
    lease(store, now=at(1))
    with psycopg.connect(url) as connection:
        with store.within(connection) as transaction:
            transaction.add(QUEUE, [NewTask(b"late")], now=at(2))
        for _ in range(3):
            assert not raised(store)
        assert floors_of(url)[0] == BOTTOM
        connection.commit()
    assert raised(store)
    assert floors_of(url)[0] == at(2)
    assert [held.payload for held in lease(store, now=at(3))] == [b"late"]


def test_an_add_that_commits_after_the_raise_is_found(store: PostgresStore, url: str) -> None:
    """Its transaction began after the proposal, so nobody waits for it: it writes down what it puts below."""
    add(store, NewTask(b"first"), now=at(1))
    lease(store, now=at(1))
    with psycopg.connect(url, autocommit=True) as raising, psycopg.connect(url) as adding:
        (found,) = raising.execute(
            "SELECT towline.propose_floors(id, %s, 300), id FROM towline.queues", (FAR,)
        ).fetchall()
        with store.within(adding) as transaction:
            transaction.add(QUEUE, [NewTask(b"late")], now=at(2))
        raising.execute("SELECT towline.raise_floors(%s, %s, '{}', 0, 1e9)", (found[1], found[0]))
        assert floors_of(url)[0] == FAR
        adding.commit()
    assert floors_of(url)[0] == at(2)
    assert [held.payload for held in lease(store, now=at(3))] == [b"late"]
    add(store, NewTask(b"later"), now=at(3))
    assert raised(store)
    assert [held.payload for held in lease(store, now=at(4))] == [b"later"]


def test_a_generation_is_made_effective_by_its_own_proposer_only(store: PostgresStore, url: str) -> None:
    """Another server may have raised it and proposed the next one, which nobody has waited for."""
    with psycopg.connect(url, autocommit=True) as raising:
        ((queue_id, first),) = raising.execute(
            "SELECT id, towline.propose_floors(id, %s, 300) FROM towline.queues", (FAR,)
        ).fetchall()
        assert raised(store)
        raising.execute("SELECT towline.propose_floors(%s, %s, 300)", (queue_id, FAR))
        raising.execute("SELECT towline.raise_floors(%s, %s, '{}', 0, 1e9)", (queue_id, first))
    query = "SELECT newest - effective FROM towline.floors ORDER BY step DESC LIMIT 1"
    assert row(url, query) == (1,)


def test_two_servers_use_one_floor(store: PostgresStore, url: str) -> None:
    with closing(unattended(url)) as other:
        add(other, NewTask(b"1", tag="a"), now=at(1))
        held = lease(store, now=at(2))
        assert raised(other)
        add(other, NewTask(b"2", tag="a"), now=at(1))
        _release(other, held[0], charge="uncounted")
        assert [one.payload for one in lease(store, 2, now=at(7))] == [b"1", b"2"]


def test_a_transaction_that_is_undone_leaves_floors_as_they_were(store: PostgresStore, url: str) -> None:
    add(store, NewTask(), now=at(1))
    (held,) = lease(store, now=at(2))
    assert raised(store)
    with (
        psycopg.connect(url) as connection,
        connection.transaction(force_rollback=True),
        store.within(connection) as transaction,
    ):
        transaction.release(QUEUE, [Release(held.token)], now=at(6))
    assert floors_of(url)[0] == FAR
    assert lease(store, now=at(7)) == []
    assert raised(store)
    _release(store, held)
    assert names(lease(store, now=at(7))) == [held.name]


def test_a_raise_waits_for_a_prepared_transaction(tmp_path: Path) -> None:
    try:
        with (
            postgresql(tmp_path, settings={"max_prepared_transactions": "2"}) as engine,
            closing(unattended(engine.url)) as store,
            psycopg.connect(engine.url) as connection,
        ):
            a_queue(store)
            with store.within(connection) as transaction:
                transaction.add(QUEUE, [NewTask()], now=at(2))
            connection.execute("PREPARE TRANSACTION 'kept'")
            connection.rollback()
            assert not raised(store)
            connection.autocommit = True
            connection.execute("COMMIT PREPARED 'kept'")
            assert raised(store)
            assert len(lease(store, now=at(3))) == 1
    except EngineUnavailableError as error:
        pytest.skip(str(error))


# -- wrong floors --------------------------------------------------------------------------------------------------


def test_a_task_below_a_wrong_floor_is_found_by_the_next_full_look(store: PostgresStore, url: str) -> None:
    add(store, NewTask(), now=at(5))
    assert raised(store, search_seconds=0)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE towline.tasks SET eta = %s WHERE queue > 0", (at(1),))
    assert raised(store)
    assert lease(store, now=at(6)) == []
    with capture_logs() as logs:
        assert raised(store, search_seconds=0)
    assert [entry["event"] for entry in logs] == [FLOOR_MISSED]
    assert len(lease(store, now=at(6))) == 1


def test_a_task_below_a_wrong_floor_is_found_within_a_minute(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "DEAD_ROWS", 0)
    monkeypatch.setattr(floors, "FEW_DEAD_ROWS", 0)
    # A raise that a transaction held back, the next one, and the call that finds the task.
    slack = floors.GRACE_SECONDS + 2 * floors.LOOK_SECONDS
    assert floors.SEARCH_SECONDS + slack < 60

    def found_after(seconds: float) -> int:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "UPDATE towline.floors SET searched_at = clock_timestamp() - %s * interval '1 second'", (seconds,)
            )
        store._floors.note({QUEUE: set()}, 1)
        assert store._floors.raise_if_due()
        return len(lease(store, now=at(6)))

    add(store, NewTask(), now=at(5))
    assert raised(store)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE towline.tasks SET eta = %s WHERE queue > 0", (at(1),))
    assert found_after(40) == 0
    with capture_logs() as logs:
        assert found_after(60 - slack) == 1
    assert [entry["event"] for entry in logs] == [FLOOR_MISSED]


# -- dead rows -----------------------------------------------------------------------------------------------------

_BLOCKS = """
    SELECT c.relname, pg_stat_get_xact_blocks_fetched(c.oid) FROM pg_class AS c
    WHERE c.relnamespace = 'towline'::regnamespace AND c.relkind IN ('i', 'r')
"""


@contextmanager
def a_held_snapshot(url: str) -> Iterator[None]:
    with psycopg.connect(url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pg_class")
        yield
        holder.rollback()


def churn(store: PostgresStore, rounds: int, *, tag: str | None = None, first: int = 0) -> None:
    for number in range(first, first + rounds):
        add(store, *[NewTask(tag=tag)] * 10, now=at(number))
        delete(store, *lease(store, 10, seconds=2, now=at(number)), now=at(number))


@pytest.mark.parametrize("tag", [None, "a"])
def test_a_call_reads_as_little_as_before_while_a_snapshot_is_held(
    store: PostgresStore, url: str, tag: str | None
) -> None:
    churn(store, 2, tag=tag)
    with a_held_snapshot(url):
        for turn in range(6):
            churn(store, 60, tag=tag, first=10 + 60 * turn)
            assert raised(store, ceiling=at(10 + 60 * (turn + 1)), tags=[tag])
        now = at(500)
        with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
            with store.within(connection) as transaction:
                transaction.add(QUEUE, [NewTask(tag=tag)] * 10, now=now)
                for one in (10, 1):
                    transaction.lease(QUEUE, LeaseRequest(one, 9.0, ANY, "w"), now=now)
                    transaction.lease(
                        QUEUE, LeaseRequest(one, 9.0, UNTAGGED if tag is None else TagFilter.of(tag), "w"), now=now
                    )
                transaction.lease(QUEUE, LeaseRequest(10, 9.0, TagFilter.of("a", "b"), "w"), now=now)
                transaction.lease(QUEUE, LeaseRequest(10, 9.0, TagFilter.oldest(), "w"), now=now)
                transaction.stats(QUEUE, ANY, now=now)
                transaction.next_eta(QUEUE, now=now)
            read = {str(name): int(str(blocks)) for name, blocks in connection.execute(_BLOCKS.encode()).fetchall()}
    assert {name: blocks for name, blocks in read.items() if blocks > MANY_BLOCKS} == {}


def test_counters_are_right_whatever_is_folded(store: PostgresStore, url: str) -> None:
    for turn in range(4):
        add(store, *[NewTask(tag="a")] * 3, NewTask(), NewTask(tag="b"), now=at(turn))
        delete(store, *lease(store, 2, now=at(turn)), now=at(turn))
        with psycopg.connect(url) as connection:
            with store.within(connection) as transaction:
                transaction.add(QUEUE, [NewTask(tag="a")], now=at(turn))
            assert not raised(store)
            connection.commit()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT towline.propose_floors(id, %s, 0) FROM towline.queues", (at(turn),))
        assert raised(store, tags=["a"])
    found = stats(store, now=at(9))
    assert (found.ready, found.added_total, found.deleted_total, found.leased_total) == (16, 24, 8, 8)
    assert stats(store, TagFilter.of("a"), now=at(9)).added_total == 16
    assert store.check().problems == ()


def test_stored_bytes_are_right_whatever_is_folded(store: PostgresStore, url: str) -> None:
    def used() -> int:
        with store.read() as transaction:
            return transaction.storage().used_bytes

    a_queue(store, "other")
    add(store, NewTask(b"1234", tag="a"), now=at(1))
    with store.begin() as transaction:
        transaction.set_storage_limit(1 << 30)
    for turn in range(4):
        add(store, *[NewTask(b"x" * 10, tag="a")] * 3, NewTask(b"y" * 100), now=at(turn))
        delete(store, *lease(store, 2, now=at(turn)), now=at(turn))
        with psycopg.connect(url) as connection:
            with store.within(connection) as transaction:
                transaction.add("other", [NewTask(b"z" * 1000)], now=at(turn))
            assert not raised(store, queue="other")
            connection.commit()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT towline.propose_floors(id, %s, 0) FROM towline.queues", (at(turn),))
        assert raised(store, tags=["a"])
        assert raised(store, queue="other")
        assert store.check().problems == ()
        ((expected,),) = (row(url, "SELECT sum(octet_length(payload)) FROM towline.tasks"),)
        assert used() == expected
    with store.begin() as transaction:
        transaction.delete_queue("other")
    assert used() == row(url, "SELECT sum(octet_length(payload)) FROM towline.tasks")[0] > 0


def test_answers_and_stored_bytes_are_read_as_fast_while_a_snapshot_is_held(store: PostgresStore, url: str) -> None:
    with store.begin() as transaction:
        transaction.set_storage_limit(1 << 30)
    with a_held_snapshot(url):
        for number in range(1, 2_001):
            with store.begin() as transaction:
                transaction.keep_answer("one", number, b"answer", now=at(number))
                transaction.add(QUEUE, [NewTask(b"x")], now=at(number))
            if number % 200 == 0:
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("SELECT towline.propose_floors(id, %s, 0) FROM towline.queues", (at(1),))
                assert raised(store, ceiling=at(1), tags=[])
        with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
            with store.within(connection) as transaction:
                assert transaction.last_answer("one") == (2_000, b"answer")
                transaction.keep_answer("one", 2_001, b"answer", now=at(3_000))
                assert transaction.storage().used_bytes == 2_000
                transaction.add(QUEUE, [NewTask(b"x")], now=at(3_000))
            read = {str(name): int(str(blocks)) for name, blocks in connection.execute(_BLOCKS.encode()).fetchall()}
    assert {name: read[name] for name in ("sessions", "stored") if read[name] > 60} == {}


def test_markers_are_not_forgotten_through_their_dead_rows_while_floors_rise(store: PostgresStore, url: str) -> None:
    add(store, NewTask(), now=at(1))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO towline.commit_markers (connection, part, call, xid, marked_at)"
            " VALUES (7, 0, 1, '3', now() - interval '2 days')"
        )
        assert raised(store)
        connection.execute("SELECT towline.forget_commit_markers()")
        assert connection.execute("SELECT 1 FROM towline.commit_markers WHERE connection = 7").fetchone()
        connection.execute("UPDATE towline.floors SET made_at = clock_timestamp() - interval '61 s'")
        connection.execute("SELECT towline.forget_commit_markers()")
        assert not connection.execute("SELECT 1 FROM towline.commit_markers WHERE connection = 7").fetchone()


def test_floors_are_raised_while_there_are_dead_rows_and_end_with_them(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "DEAD_ROWS", 300)
    monkeypatch.setattr(floors, "FEW_DEAD_ROWS", 100)
    with a_held_snapshot(url):
        churn(store, 40)
        eventually(lambda: row(url, "SELECT pg_stat_get_dead_tuples('towline.tasks'::regclass)")[0] > 300)  # type: ignore[operator]

        def is_floored() -> bool:
            store._floors.note({QUEUE: set()}, 1)
            store._floors.raise_if_due()
            return floors_of(url)[0] != BOTTOM

        eventually(is_floored)
    with psycopg.connect(url, autocommit=True) as connection:
        eventually(
            lambda: (
                connection.execute("VACUUM towline.tasks"),
                row(url, "SELECT pg_stat_get_dead_tuples('towline.tasks'::regclass)")[0] == 0,
            )[1]
        )
    eventually(lambda: not is_floored())


def test_nobody_looks_for_a_queue_that_nobody_uses(store: PostgresStore) -> None:
    store._floors.raise_if_due()
    assert not store._floors.raise_if_due()


def test_small_tables_are_written_anew_with_all_that_lives_in_them(store: PostgresStore, url: str) -> None:
    def versions(table: str) -> int:
        return int(str(row(url, f"SELECT pg_relation_size('towline.{table}')")[0]))

    rewrite = "SELECT towline.rewrite_small_tables(100, 10)"
    with a_held_snapshot(url):
        for turn in range(400):
            with store.begin() as transaction:
                transaction.lead("fleet", "host", seconds=9.0, now=at(turn))
        before = versions("leads")
        with psycopg.connect(url) as dump:
            dump.execute("LOCK TABLE towline.leads IN ACCESS SHARE MODE")
            assert row(url, rewrite) == (0,)
        eventually(lambda: row(url, rewrite) == (1,))
        assert versions("leads") < before
    with store.begin() as transaction:
        assert not transaction.lead("fleet", "another", seconds=9.0, now=at(400))
    with psycopg.connect(url) as connection:
        connection.execute("SELECT towline.register_waiters(7, %s)", (WAITER,))
        before_rows = connection.execute("TABLE towline.waiters").fetchall()
        connection.execute("INSERT INTO towline.unsent_notifications VALUES ('thumbs', NULL, 3), ('thumbs', 'a', 1)")
        connection.execute("SELECT towline.rewrite_small_tables(0, 100)")
        assert connection.execute("TABLE towline.waiters").fetchall() == before_rows
        assert connection.execute("TABLE towline.unsent_notifications").fetchall() == [
            ("thumbs", None, 3),
            ("thumbs", "a", 1),
        ]
        connection.rollback()
