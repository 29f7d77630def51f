"""Floors after the engine was killed, and after a backup was restored: nothing is lost below one, nothing is twice."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from queue_core.errors import StoreUnavailableError
from queue_core.store import Store
from queue_core.stores.postgres.store import PostgresStore
from queue_core.task import ANY, NewTask
from queue_core.verbs import Deletion, LeaseRequest, Release
from tests.support.eventually import eventually
from tests.support.stores.engines import Engine, EngineUnavailableError, copy_database, postgresql
from tests.support.stores.floored_store import FAR, raised
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, stats

_FLOORS = "SELECT f.ready, f.newest - f.effective FROM towline.queues AS q, towline.floors_of(q.id) AS f"
BOTTOM = -(1 << 63)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    try:
        with postgresql(tmp_path) as started:
            yield started
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Engine]:
    """Another server, whose transactions have lower numbers."""
    home = tmp_path / "other"
    home.mkdir()
    with postgresql(home) as started:
        yield started


def durable(url: str) -> PostgresStore:
    """Open a store that leaves its floors as they are."""
    store = PostgresStore(url)
    store._floors.close()
    return store


def ask(url: str, query: str) -> tuple[object, ...]:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(query.encode()).fetchone()
    assert found is not None
    return found


def payloads(store: Store, second: float, count: int = 100) -> list[bytes]:
    return [held.payload for held in lease(store, count, now=at(second))]


def answering(call: Callable[[], object]) -> object:
    """Repeat a call until the engine is back."""

    def tried() -> tuple[object] | None:
        try:
            return (call(),)
        except StoreUnavailableError:
            return None

    return eventually(tried)[0]  # type: ignore[index]


def test_an_engine_killed_while_a_snapshot_is_held_loses_no_floor_and_no_task(engine: Engine) -> None:
    with closing(durable(engine.url)) as store:
        a_queue(store, max_leases=None)
        holder = psycopg.connect(engine.url)
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT pg_current_xact_id()")
        add(store, *[NewTask(b"%d" % number) for number in range(10)], now=at(1))
        held = lease(store, 5, now=at(2))
        assert raised(store)
        assert ask(engine.url, _FLOORS)[0] == at(1)
        delete(store, *lease(store, 5, now=at(3)), now=at(3))
        assert raised(store)  # nothing is ready: at the ceiling
        with store.begin() as transaction:
            transaction.release(QUEUE, [Release(one.token, charge="uncounted") for one in held[:3]], now=at(4))
        engine.restart()
        holder.close()
        assert answering(lambda: stats(store, now=at(5)).ready) == 3
        (floor, _) = ask(engine.url, _FLOORS)
        assert isinstance(floor, int)
        assert floor <= at(1)
        assert sorted(payloads(store, 5)) == sorted(one.payload for one in held[:3])
        assert None not in delete(store, *held[3:], now=at(5))
        assert stats(store, now=at(5)).in_flight == 3
        assert raised(store)
        assert store.check().problems == ()


def test_a_raise_that_the_engines_death_cut_off_took_no_effect_and_is_made_again(engine: Engine) -> None:
    with closing(durable(engine.url)) as store:
        a_queue(store)
        add(store, NewTask(b"kept"), now=at(5))
        with psycopg.connect(engine.url, autocommit=True) as raising:
            ((queue_id, generation),) = raising.execute(
                "SELECT id, towline.propose_floors(id, %s, 300) FROM towline.queues", (FAR,)
            ).fetchall()
            raising.execute("CHECKPOINT")  # what was committed before is on the disk
        raising = psycopg.connect(engine.url)
        raising.execute("SELECT towline.raise_floors(%s, %s, '{}', 0, 1e9)", (queue_id, generation))
        adding = psycopg.connect(engine.url)
        with store.within(adding) as transaction:
            transaction.add(QUEUE, [NewTask(b"undone")], now=at(1))
        engine.restart()
        raising.close()
        adding.close()
        assert answering(lambda: stats(store, now=at(6)).ready) == 1
        assert ask(engine.url, _FLOORS) == (BOTTOM, 1)  # proposed, and not in force
        add(store, NewTask(b"early"), now=at(2))  # knows of the ceiling
        assert raised(store)
        assert ask(engine.url, _FLOORS) == (at(2), 0)
        assert payloads(store, 6) == [b"early", b"kept"]
        assert store.check().problems == ()


def test_nothing_is_lost_or_twice_when_an_engine_is_killed_among_raises(engine: Engine) -> None:
    """Floors are raised without a sync, so a raise may be undone; then its proposal or an earlier floor holds."""
    done: list[bytes] = []
    added: list[bytes] = []

    def churn(store: PostgresStore, first: int) -> None:
        for number in range(first, first + 40):
            name = b"%d" % number
            add(store, NewTask(name), now=at(number))
            added.append(name)
            if number % 3:
                held = lease(store, now=at(number))
                with store.begin("verb") as transaction:
                    gone = transaction.delete(QUEUE, [Deletion(one.token) for one in held], now=at(number))
                done.extend(one.payload for one, outcome in zip(held, gone, strict=True) if outcome is not None)
            raised(store, ceiling=at(number))

    with closing(durable(engine.url)) as store:
        a_queue(store, max_leases=None)
        for turn in range(4):
            with psycopg.connect(engine.url) as holder:
                holder.execute("SELECT pg_current_xact_id()")
                churn(store, 100 * turn)
                holder.rollback()
            engine.restart()
            answering(lambda: stats(store, now=at(0)))
        rest: list[bytes] = []
        while taken := lease(store, 10, now=at(1000)):
            rest += [one.payload for one in taken]
            delete(store, *taken, now=at(1000))
        assert sorted(done + rest) == sorted(added)
        assert store.check().problems == ()


def test_a_restored_backup_is_whole_and_its_floors_epochs_and_history_go_on(engine: Engine, other: Engine) -> None:
    with closing(durable(engine.url)) as store:
        a_queue(store, max_leases=None)
        with store.begin() as transaction:
            transaction.set_storage_limit(1 << 20)
        with psycopg.connect(engine.url, autocommit=True) as connection:
            for _ in range(3_000):  # numbers that the other server has not come to
                connection.execute("SELECT pg_current_xact_id()")
            connection.execute("COMMENT ON TABLE towline.migrations IS 'clock: 0 0 2 5000000'")
        for number in range(30):
            add(store, NewTask(b"%d" % number, tag="a"), now=at(number))
            delete(store, *lease(store, now=at(number)), now=at(number))
            with psycopg.connect(engine.url, autocommit=True) as connection:
                connection.execute("SELECT towline.propose_floors(id, 0, 0) FROM towline.queues")
            assert raised(store, ceiling=at(number))
        add(store, *[NewTask(b"kept %d" % number, tag="a") for number in range(3)], now=at(40))
        (held,) = lease(store, now=at(41))
        assert raised(store)
        with store.begin() as transaction:
            transaction.release(QUEUE, [Release(held.token, charge="uncounted")], now=at(42))
        with psycopg.connect(engine.url, autocommit=True) as connection:  # a proposal that is not in force
            connection.execute("SELECT towline.propose_floors(id, %s, 0) FROM towline.queues", (FAR,))
        copy_database(engine, other)
        before = stats(store, now=at(43))
        with store.read() as transaction:
            samples = transaction.samples(QUEUE, after=0, limit=1000)
    with closing(durable(other.url)) as restored:
        assert restored.check().problems == ()
        assert stats(restored, now=at(43)) == before
        assert restored.clock.steps().steps == 2  # type: ignore[attr-defined]
        with restored.read() as transaction:
            again = transaction.samples(QUEUE, after=0, limit=1000)
            assert transaction.storage().used_bytes == 18
            assert again.finished == samples.finished
            cursor = again.cursor
        assert raised(restored)
        add(restored, NewTask(b"late", tag="a"), now=at(39))
        assert payloads(restored, 43) == [b"late", b"kept 0", b"kept 1", b"kept 2"]
        before_epoch = ask(other.url, "SELECT max(epoch) FROM towline.floors")[0]
        with psycopg.connect(other.url, autocommit=True) as connection:
            connection.execute("SELECT towline.propose_floors(id, 0, 300) FROM towline.queues")
        assert raised(restored)
        assert ask(other.url, "SELECT max(epoch) - 1 FROM towline.floors")[0] == before_epoch
        add(restored, NewTask(b"new"), now=at(50))
        with restored.begin("verb") as transaction:
            (one,) = transaction.lease(QUEUE, LeaseRequest(1, 9.0, ANY, "w"), now=at(51)).leases
        delete(restored, one, now=at(52))
        for old in (cursor, samples.cursor):  # that of a supervisor since before, too
            with restored.read() as transaction:
                assert transaction.samples(QUEUE, after=old, limit=1000).finished[-1].name == one.name
        assert restored.check().problems == ()
    numbers = "SELECT array_agg((xid, id) ORDER BY id) FROM towline.samples"
    kept = ask(other.url, numbers)
    with closing(PostgresStore(other.url)) as reopened:
        assert reopened.check().problems == ()
    assert ask(other.url, numbers) == kept
