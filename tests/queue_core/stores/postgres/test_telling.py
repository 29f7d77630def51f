"""Verbs in a transaction of the caller's own: its commit wakes those who wait in other processes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from queue_core.store import Store, Transaction
from queue_core.stores import open_store
from queue_core.stores.postgres.notify import listener
from queue_core.task import ANY, NewTask, TagFilter
from queue_core.verbs import Deletion, LeaseRequest, PayloadAllowance, Release
from tests.support.stores import changes
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import QUEUE, a_queue, add

LONG = 20.0
NEXT = "next"

Act = Callable[[Transaction, Store], object]


@pytest.fixture(autouse=True)
def no_looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is told may wake."""
    monkeypatch.setattr(listener, "REPOLL_SECONDS", ())


@pytest.fixture
def url() -> str:
    return new_store_url("postgresql")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    a_queue(opened, max_leases=1)
    a_queue(opened, NEXT)
    yield opened
    opened.close()


@contextmanager
def own_transaction(url: str, store: Store) -> Iterator[tuple[psycopg.Connection[tuple[object, ...]], Transaction]]:
    """A caller's connection, and the verbs in the transaction that is open on it."""
    with psycopg.connect(url) as connection, store.within(connection) as transaction:
        yield connection, transaction


def leased(store: Store, worker: str = "") -> str:
    """The token of a lease on a task with the tag `a`, added and leased now."""
    now = store.clock.now()
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(tag="a")], now=now)
        return transaction.lease(QUEUE, LeaseRequest(1, 60.0, ANY, worker), now=now).leases[0].token


def dead(store: Store) -> None:
    """A dead task with the tag `a`."""
    token = leased(store)
    with store.begin() as transaction:
        transaction.release(QUEUE, [Release(token)], now=store.clock.now())


def paused(store: Store) -> None:
    """A ready task with the tag `a` in a queue that is paused."""
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(tag="a")], now=store.clock.now())
        transaction.set_paused(QUEUE, "paused")


@pytest.mark.parametrize(
    ("before", "act", "queue"),
    [
        pytest.param(
            None, lambda t, s, _: t.add(QUEUE, [NewTask(tag="a"), NewTask()], now=s.clock.now()), QUEUE, id="add"
        ),
        pytest.param(
            None,
            lambda t, s, _: t.add(QUEUE, [NewTask(tag="a", queue=NEXT)], now=s.clock.now()),
            NEXT,
            id="add to another queue",
        ),
        pytest.param(
            leased,
            lambda t, s, token: t.delete(QUEUE, [Deletion(token, (NewTask(tag="a", queue=NEXT),))], now=s.clock.now()),
            NEXT,
            id="delete, and hand over",
        ),
        pytest.param(
            leased,
            lambda t, s, token: t.exchange(
                QUEUE,
                [Deletion(token, (NewTask(tag="a", queue=NEXT),))],
                LeaseRequest(1, 60.0, ANY, ""),
                now=s.clock.now(),
            ),
            NEXT,
            id="exchange, and hand over",
        ),
        pytest.param(
            leased,
            lambda t, s, token: t.release(QUEUE, [Release(token, 0.0, "uncounted")], now=s.clock.now()),
            QUEUE,
            id="release",
        ),
        pytest.param(
            dead, lambda t, s, _: changes.redrive(t, QUEUE, None, ANY, limit=10, now=s.clock.now()), QUEUE, id="redrive"
        ),
        pytest.param(paused, lambda t, s, _: t.set_paused(QUEUE, "running"), QUEUE, id="resume"),
    ],
)
def test_the_commit_wakes_and_not_before(
    url: str,
    store: Store,
    before: Callable[[Store], str | None] | None,
    act: Callable[[Transaction, Store, str | None], object],
    queue: str,
) -> None:
    told = before(store) if before else None
    ear = store.signals.subscribe(queue, TagFilter.of("a"))
    other = store.signals.subscribe(queue, TagFilter.of("b"))
    with own_transaction(url, store) as (connection, transaction):
        act(transaction, store, told)
        assert not ear.wait(timeout_seconds=0.05)
        connection.commit()
        assert ear.wait(timeout_seconds=LONG)
        assert not other.wait(timeout_seconds=0)
    ear.close()
    other.close()


def test_what_makes_nothing_leasable_tells_nobody(url: str, store: Store) -> None:
    token = leased(store)
    ear = store.signals.subscribe(QUEUE, ANY)
    now = store.clock.now()
    with own_transaction(url, store) as (connection, transaction):
        transaction.add(QUEUE, [NewTask(delay_seconds=60.0)], now=now)
        transaction.delete(QUEUE, [Deletion(token)], now=now)
        assert connection.execute("SELECT count(*) FROM towline.unsent_notifications").fetchone() == (0,)
    ear.close()


@pytest.mark.parametrize(("room", "told"), [(PayloadAllowance(1000), 1), (PayloadAllowance(3000), 0)])
def test_whoever_waits_is_told_of_tasks_that_were_locked_and_did_not_fit_into_the_answer(
    url: str, store: Store, room: PayloadAllowance, told: int
) -> None:
    """Another lease passed them by meanwhile, and nobody else would tell of them."""
    add(store, *(NewTask(b"x" * 1000) for _ in range(3)))
    ear = store.signals.subscribe(QUEUE, ANY)
    with own_transaction(url, store) as (connection, transaction):
        transaction.lease(QUEUE, LeaseRequest(3, 60.0, ANY, "", room), now=store.clock.now())
        assert connection.execute("SELECT count(*) FROM towline.unsent_notifications").fetchone() == (told,)
    ear.close()
