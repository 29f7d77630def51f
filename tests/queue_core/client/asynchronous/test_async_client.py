"""The verbs as coroutines, on stores and a server: nothing is lost by cancelling; a hundred waits are no burden."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from copy import copy
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads

import pytest

from queue_core import (
    ANY,
    AsyncQueue,
    AsyncQueues,
    Deletion,
    NewTask,
    QueueSpec,
    StoreUnavailableError,
    UnknownQueueError,
    open_queue_async,
    open_queues_async,
)
from queue_core.client.asynchronous.calls import ThreadedCalls
from queue_core.clock import SystemClock
from tests.support.eventually import eventually, eventually_async
from tests.support.servers import QUEUE, a_server

PLACES = ("memory", "sqlite", "server")
TRIALS = 30
OWN_THREADS = ("towline-call", "towline-wait")

Story = Callable[[AsyncQueue], Coroutine[object, object, None]]


@asynccontextmanager
async def a_client(place: str, folder: Path) -> AsyncIterator[AsyncQueues]:
    """A client of a new store, or of a server, with one queue."""
    if place == "server":
        with a_server() as running:
            async with await open_queues_async(running.url) as queues:
                yield queues
        return
    url = "memory:" if place == "memory" else f"sqlite:///{folder / 'queue.db'}"
    async with await open_queues_async(url) as queues:
        await queues.put_queue(QueueSpec(QUEUE))
        yield queues


@pytest.fixture(params=PLACES)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Story], None]:
    """Plays a story with a queue of each place in turn."""

    def played(story: Story) -> None:
        async def whole() -> None:
            async with a_client(request.param, tmp_path) as queues:
                await story(queues.queue(QUEUE))

        asyncio.run(whole())

    return played


def test_an_exchange_is_unpacked_as_two_values_and_tells_the_outcomes_of_what_follows(
    play: Callable[[Story], None],
) -> None:
    async def story(queue: AsyncQueue) -> None:
        await queue.add([NewTask(b"1"), NewTask(b"2", name="taken"), NewTask(b"3")])
        (lease,) = await queue.lease()
        then = (NewTask(b"next", name="next"), NewTask(b"again", name="taken"))
        exchanged = await queue.exchange([Deletion(lease.token, then), Deletion("99.1", (NewTask(b"never"),))])
        (held,), lost = exchanged
        assert (held.payload, len(lost)) == (b"2", 1)
        assert [(one.name, one.status) for one in exchanged.added] == [("next", "added"), ("taken", "exists")]
        assert copy(exchanged).added == exchanged.added
        assert (await queue.exchange([Deletion(held.token)])).added == ()

    play(story)


def test_a_wait_ends_with_the_task_that_comes(play: Callable[[Story], None]) -> None:
    async def story(queue: AsyncQueue) -> None:
        waiting = asyncio.create_task(queue.lease(wait_seconds=60))
        await queue.add(b"one")
        (lease,) = await waiting
        assert lease.payload == b"one"

    play(story)


def test_a_cancelled_wait_ends_and_takes_no_task(play: Callable[[Story], None]) -> None:
    async def story(queue: AsyncQueue) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await queue.lease(wait_seconds=60)
        unfinished = queue._queues._calls._unfinished
        await eventually_async(lambda: not unfinished)
        await queue.add(b"one")
        (lease,) = await queue.lease()
        assert lease.lease_number == 1

    play(story)


def test_a_lease_granted_to_a_cancelled_caller_is_given_back_uncounted(play: Callable[[Story], None]) -> None:
    async def story(queue: AsyncQueue) -> None:
        calls = queue._queues._calls
        for trial in range(TRIALS):
            waiting = asyncio.create_task(queue.lease(wait_seconds=60))
            await asyncio.sleep(0)
            await queue.add(b"one")
            for _ in range(trial):  # cancels at another point of its way each time
                await asyncio.sleep(0)
            waiting.cancel()
            (received,) = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(received, list):
                (lease,) = received
            else:
                assert isinstance(received, asyncio.CancelledError)
                await eventually_async(lambda: not calls._unfinished)
                stats = await queue.stats()
                assert (stats.ready, stats.in_flight) == (1, 0)
                (lease,) = await queue.lease()
            assert lease.lease_number == 1
            await queue.delete(lease)

    play(story)


def test_a_lease_that_was_granted_but_not_delivered_yet_is_given_back(play: Callable[[Story], None]) -> None:
    async def story(queue: AsyncQueue) -> None:
        calls, plain = queue._queues._calls, queue._queues._queues.queue(QUEUE)
        waiting = asyncio.create_task(queue.lease(wait_seconds=60))
        await asyncio.sleep(0)
        plain.add(b"one")
        assert eventually(lambda: plain.stats().in_flight)  # the loop stands still, so nothing is delivered
        waiting.cancel()
        (received,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(received, asyncio.CancelledError)
        await eventually_async(lambda: not calls._unfinished)
        (lease,) = plain.lease()
        assert lease.lease_number == 1

    play(story)


def test_a_hundred_waits_leave_room_for_other_verbs_and_for_the_users_threads(play: Callable[[Story], None]) -> None:
    async def story(queue: AsyncQueue) -> None:
        waits = [asyncio.create_task(queue.lease(wait_seconds=60)) for _ in range(100)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(lambda: "free") == "free"
        assert (await queue.stats()).ready == 0
        await queue.add([NewTask(str(number).encode()) for number in range(100)])
        leased = [lease for leases in await asyncio.gather(*waits) for lease in leases]
        assert sorted(int(lease.payload) for lease in leased) == list(range(100))

    play(story)


def test_closing_ends_the_waits_as_if_their_time_were_up(play: Callable[[Story], None]) -> None:
    async def story(queue: AsyncQueue) -> None:
        waiting = asyncio.create_task(queue.lease(wait_seconds=60))
        await asyncio.sleep(0)
        await queue.close()
        assert await waiting == []
        with pytest.raises(StoreUnavailableError, match="this client was closed"):
            await queue.lease()

    play(story)


def test_a_wait_for_any_of_several_queues_can_be_cancelled_too(play: Callable[[Story], None]) -> None:
    async def story(queue: AsyncQueue) -> None:
        queues = queue._queues
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await queues.wait_ready([(QUEUE, ANY)], wait_seconds=60)
        await queue.add(b"one")
        assert await queues.wait_ready([(QUEUE, ANY)], wait_seconds=60) == QUEUE

    play(story)


def test_an_error_of_a_verb_is_raised_where_it_is_awaited(play: Callable[[Story], None]) -> None:
    async def story(queue: AsyncQueue) -> None:
        with pytest.raises(UnknownQueueError):
            await queue._queues.queue("nowhere").stats()

    play(story)


def test_a_queue_is_created_when_it_is_opened_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with await open_queue_async(f"sqlite:///{tmp_path / 'queue.db'}", "thumbs") as queue:
            await queue.add(b"one")
            assert (queue.name, (await queue.stats()).ready) == ("thumbs", 1)

    asyncio.run(story())


def test_closing_ends_the_threads_of_the_client(play: Callable[[Story], None]) -> None:
    async def story(queue: AsyncQueue) -> None:
        before = set(enumerate_threads())
        waiting = asyncio.create_task(queue.lease(wait_seconds=60))
        await asyncio.gather(*(queue.stats() for _ in range(10)))
        own = {one for one in enumerate_threads() if one not in before and one.name in OWN_THREADS}
        assert "towline-wait" in {one.name for one in own}
        await queue.close()
        await waiting
        await eventually_async(lambda: not any(one.is_alive() for one in own))

    play(story)


def test_a_call_that_is_cancelled_before_it_has_a_thread_is_never_made() -> None:
    async def story() -> None:
        calls = ThreadedCalls(clock=SystemClock(), short_limit=1, waits_limit=1)
        go_on, made = Event(), []
        first = asyncio.create_task(calls.run(lambda: go_on.wait(10)))
        second = asyncio.create_task(calls.run(lambda: made.append("second")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        go_on.set()
        assert await first
        await calls.run(lambda: made.append("third"))
        assert made == ["third"]
        calls.end_waits()
        await calls.last(lambda: None)

    asyncio.run(story())


def test_a_verb_sees_the_context_variables_of_its_caller() -> None:
    request: ContextVar[str] = ContextVar("request", default="")

    async def story() -> None:
        calls = ThreadedCalls(clock=SystemClock(), short_limit=1, waits_limit=1)
        request.set("42")
        assert await calls.run(request.get) == "42"
        calls.end_waits()
        await calls.last(lambda: None)

    asyncio.run(story())
