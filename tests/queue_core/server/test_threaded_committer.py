"""Turns beside the loop: the store may take its time, stall or be away, and the server goes on."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from queue_core.errors import OutcomeUnknownError, StoreUnavailableError, UnknownQueueError
from queue_core.server.commit import threaded
from queue_core.server.commit.threaded import MAX_COMMITS_AT_ONCE, ThreadedCommitter
from queue_core.task import ANY, NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from tests.support.eventually import eventually_async
from tests.support.stores.remote_memory import RemoteMemory

QUEUE = "q"


@pytest.fixture(params=["transaction", "verb"])
def store(request: pytest.FixtureRequest) -> Iterator[RemoteMemory]:
    store = RemoteMemory(unit=request.param)
    yield store
    store.close()


def _run(store: RemoteMemory, story: Callable[[ThreadedCommitter], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        committer = ThreadedCommitter(QueueService(store, sleep=lambda _seconds: None))
        await committer.run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
        store.threads.clear()
        store.transactions = 0
        try:
            await story(committer)
        finally:
            store.flow()
            committer.close()

    asyncio.run(main())


def _add(turn: UnitOfWork) -> str:
    return turn.add(QUEUE, [NewTask(b"x")])[0].name


def _added(store: RemoteMemory) -> int:
    return QueueService(store.memory).read(lambda turn: turn.stats(QUEUE, ANY)).added_total


def test_the_loop_never_calls_the_store(store: RemoteMemory) -> None:
    async def story(committer: ThreadedCommitter) -> None:
        await asyncio.gather(*(committer.run(_add) for _ in range(20)))
        seen: list[object] = []
        committer.read(lambda turn: turn.stats(QUEUE, ANY).ready, seen.append)
        await eventually_async(lambda: seen == [20])
        assert threading.get_ident() not in store.threads

    _run(store, story)


def test_callers_that_come_while_turns_are_under_way_share_the_next() -> None:
    store = RemoteMemory()

    async def story(committer: ThreadedCommitter) -> None:
        store.stall()
        calls = []
        for _ in range(MAX_COMMITS_AT_ONCE):
            calls.append(asyncio.ensure_future(committer.run(_add)))
            await eventually_async(lambda: committer._threads.under_way == len(calls))
        calls += [asyncio.ensure_future(committer.run(_add)) for _ in range(50)]
        store.flow()
        assert len(set(await asyncio.gather(*calls))) == 50 + MAX_COMMITS_AT_ONCE
        assert store.transactions == MAX_COMMITS_AT_ONCE + 1

    _run(store, story)


def test_verbs_that_are_committed_one_by_one_are_spread_over_the_threads() -> None:
    store = RemoteMemory(unit="verb")

    async def story(committer: ThreadedCommitter) -> None:
        await asyncio.gather(*(committer.run(_add) for _ in range(MAX_COMMITS_AT_ONCE)))
        assert store.transactions == MAX_COMMITS_AT_ONCE

    _run(store, story)


def test_an_error_is_one_callers_alone(store: RemoteMemory) -> None:
    def broken(turn: UnitOfWork) -> str:
        raise ZeroDivisionError

    async def story(committer: ThreadedCommitter) -> None:
        outcomes = await asyncio.gather(
            committer.run(_add),
            committer.run(broken),
            committer.run(lambda turn: turn.add("nowhere", [NewTask()])),
            committer.run(_add),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [str, ZeroDivisionError, UnknownQueueError, str]

    _run(store, story)


def test_a_store_that_is_away_is_tried_again_then_told_and_recovers(store: RemoteMemory) -> None:
    async def story(committer: ThreadedCommitter) -> None:
        store.is_down = True
        with pytest.raises(StoreUnavailableError) as raised:
            await committer.run(_add)
        assert not isinstance(raised.value, OutcomeUnknownError)
        assert committer.failure is not None
        store.is_down = False
        await committer.run(_add)
        assert committer.failure is None
        assert _added(store) == 1

    _run(store, story)


def test_a_lost_answer_is_told_as_unknown(store: RemoteMemory) -> None:
    async def story(committer: ThreadedCommitter) -> None:
        store.answers_to_lose = 1
        with pytest.raises(OutcomeUnknownError):
            await committer.run(_add)
        assert _added(store) == 1

    _run(store, story)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds on waiting that a test can sit out."""
    monkeypatch.setattr(threaded, "MAX_QUEUED_SECONDS", 0.1)
    monkeypatch.setattr(threaded, "MAX_COMMIT_SECONDS", 0.2)
    monkeypatch.setattr(threaded, "CHECK_SECONDS", 0.01)


@pytest.mark.usefixtures("impatient")
def test_who_waits_too_long_for_a_stalled_store_is_told_and_what_was_under_way_is_in_doubt(
    store: RemoteMemory,
) -> None:
    async def story(committer: ThreadedCommitter) -> None:
        store.stall()
        under_way = []
        for _ in range(MAX_COMMITS_AT_ONCE):
            under_way.append(asyncio.ensure_future(committer.run(_add)))
            await eventually_async(lambda: committer._threads.under_way == len(under_way))
        queued = asyncio.ensure_future(committer.run(_add))
        with pytest.raises(StoreUnavailableError) as raised:
            await queued
        assert not isinstance(raised.value, OutcomeUnknownError)
        outcomes = await asyncio.gather(*under_way, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError] * MAX_COMMITS_AT_ONCE
        store.flow()
        await eventually_async(lambda: _added(store) == MAX_COMMITS_AT_ONCE)

    _run(store, story)


@pytest.mark.usefixtures("impatient")
def test_what_comes_late_is_told_to_whoever_asked_for_that(store: RemoteMemory) -> None:
    told: list[object] = []
    late: list[object] = []

    async def story(committer: ThreadedCommitter) -> None:
        store.stall()
        committer.submit(_add, told.append, late=late.append)
        await eventually_async(lambda: told)
        store.flow()
        await eventually_async(lambda: late)

    _run(store, story)
    assert [type(one) for one in told] == [OutcomeUnknownError]
    assert late == ["_1"]


def test_who_comes_when_the_store_has_stalled_is_told_at_once(
    store: RemoteMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threaded, "STALLED_SECONDS", 0.0)

    async def story(committer: ThreadedCommitter) -> None:
        store.stall()
        calls = []
        for _ in range(MAX_COMMITS_AT_ONCE):
            calls.append(asyncio.ensure_future(committer.run(_add)))
            await eventually_async(lambda: committer._threads.under_way == len(calls))
        with pytest.raises(StoreUnavailableError):
            await committer.run(_add)
        store.flow()
        await asyncio.gather(*calls)
        await committer.run(_add)

    _run(store, story)


@pytest.mark.parametrize(
    ("bound", "value", "size_bytes"),
    [("MAX_QUEUED_OPERATIONS", 3, 0), ("MAX_PENDING_BYTES", 3000, 1000)],
    ids=["steps", "bytes"],
)
def test_what_waits_for_the_store_is_bounded(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int, size_bytes: int
) -> None:
    monkeypatch.setattr(threaded, bound, value)
    monkeypatch.setattr(threaded, "MAX_COMMITS_AT_ONCE", 1)
    store = RemoteMemory()
    told: list[object] = []

    async def story(committer: ThreadedCommitter) -> None:
        store.stall()
        for _ in range(5):
            committer.submit(_add, told.append, size_bytes=size_bytes)
        await eventually_async(lambda: [type(one) for one in told] == [StoreUnavailableError] * 2)
        store.flow()
        await eventually_async(lambda: len(told) == 5)
        committer.submit(_add, told.append, size_bytes=size_bytes)
        await eventually_async(lambda: len(told) == 6)

    _run(store, story)
    assert [one for one in told if isinstance(one, str)] == ["_1", "_2", "_3", "_4"]


def test_a_stop_does_not_wait_for_a_store_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_core.server.commit.thread_pool.CLOSE_SECONDS", 0.05)
    store = RemoteMemory()

    async def main() -> None:
        committer = ThreadedCommitter(QueueService(store))
        store.stall()
        committer.submit(_add, lambda _outcome: None)
        await eventually_async(lambda: committer._threads.under_way == 1)
        await asyncio.to_thread(committer.close)

    asyncio.run(main())
    store.close()
