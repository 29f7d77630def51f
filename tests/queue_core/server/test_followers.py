"""Who waits for what a turn makes leasable leases it in the turn's own transaction."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from queue_core.clock import ManualClock
from queue_core.errors import StoreError, StoreFullError
from queue_core.server.base.options import ServeOptions
from queue_core.server.leases.call import LeaseAnswer, LeaseCall
from queue_core.server.leases.waiting import MAX_FOLLOWERS
from queue_core.server.state import ServerState
from queue_core.store import Transaction, Unit
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter
from queue_core.unit.unit_of_work import UnitOfWork
from tests.support.eventually import eventually_async
from tests.support.stores.slow_disk import SlowDisk

QUEUE = "q"


class FailingCommit(MemoryStore):
    """Fails at the end of a transaction when told to; nothing has taken effect then."""

    failure: StoreError | None = None

    @contextmanager
    def begin(self, unit: Unit = "transaction") -> Iterator[Transaction]:
        with super().begin(unit) as transaction:
            yield transaction
            if self.failure is not None:
                raise self.failure


class Caller:
    """One that waits for a lease, and what it was answered: payloads, one list for each answer."""

    def __init__(self, name: str, *, count: int = 1, tags: TagFilter = ANY, is_gone: bool = False) -> None:
        self.answers: list[list[bytes]] = []
        self.call = LeaseCall(QUEUE, count, 60.0, tags, name, 30.0, name, (), self._answer, lambda: is_gone)

    def _answer(self, answer: LeaseAnswer | Exception) -> None:
        assert isinstance(answer, LeaseAnswer), answer
        self.answers.append([lease.payload for lease in answer.granted.leases])


def _add(*payloads: bytes, tag: str | None = None) -> Callable[[UnitOfWork], object]:
    return lambda turn: turn.add(QUEUE, [NewTask(payload, tag=tag) for payload in payloads])


async def _waiting(store: MemoryStore, callers: Sequence[Caller]) -> ServerState:
    """A server on which these wait, each having come after the one before, and so the last being the most recent."""
    core = ServerState(store, ServeOptions())
    await core.committer.run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
    for number, caller in enumerate(callers, start=1):
        caller.call.start(core.waiting.context)
        await eventually_async(lambda number=number: len(core.waiting) == number)
        if isinstance(store, SlowDisk):
            store.clock.advance(1)
    return core


def test_a_task_that_somebody_waits_for_is_leased_in_the_transaction_that_adds_it() -> None:
    async def main() -> None:
        store, worker = SlowDisk(ManualClock()), Caller("w")
        core = await _waiting(store, [worker])
        before = (store.transactions, store.syncs)
        await core.committer.run(_add(b"x"))
        assert worker.answers == [[b"x"]]
        assert (store.transactions - before[0], store.syncs - before[1]) == (1, 1)
        core.close()

    asyncio.run(main())


def test_so_is_one_that_is_given_back() -> None:
    async def main() -> None:
        store, worker = SlowDisk(ManualClock()), Caller("w")
        core = await _waiting(store, [])
        await core.committer.run(_add(b"x"))
        granted = await core.committer.run(lambda turn: turn.lease(QUEUE, count=1, seconds=60.0))
        worker.call.start(core.waiting.context)
        await eventually_async(lambda: len(core.waiting) == 1)
        before = store.transactions
        core.waiting.give_back(QUEUE, granted.leases)
        await eventually_async(lambda: worker.answers == [[b"x"]])
        assert store.transactions - before == 1
        core.close()

    asyncio.run(main())


def test_one_that_takes_all_there_is_leaves_the_others_waiting_undisturbed() -> None:
    async def main() -> None:
        idle, busy = Caller("idle"), Caller("busy", count=10)
        store = SlowDisk(ManualClock())
        core = await _waiting(store, [idle, busy])
        before = store.transactions
        await core.committer.run(_add(b"1", b"2", b"3"))
        await asyncio.sleep(0)
        assert (idle.answers, busy.answers) == ([], [[b"1", b"2", b"3"]])
        assert len(core.waiting) == 1
        assert store.transactions - before == 1
        core.close()

    asyncio.run(main())


def test_very_many_are_served_too_a_few_of_them_with_the_turn() -> None:
    async def main() -> None:
        callers = [Caller(f"w-{number}") for number in range(3 * MAX_FOLLOWERS)]
        store = SlowDisk(ManualClock())
        core = await _waiting(store, callers)
        payloads = [str(number).encode() for number in range(len(callers))]
        before = store.transactions
        await core.committer.run(_add(*payloads))
        await eventually_async(lambda: all(caller.answers for caller in callers))
        assert store.transactions - before == 2
        assert [len(caller.answers) for caller in callers] == [1] * len(callers)
        assert sorted(payload for caller in callers for payload in caller.answers[0]) == sorted(payloads)
        core.close()

    asyncio.run(main())


def test_only_those_whose_tags_fit_are_asked() -> None:
    async def main() -> None:
        other, fitting = Caller("other", tags=TagFilter.of("b")), Caller("fitting", tags=TagFilter.of("a"))
        core = await _waiting(SlowDisk(ManualClock()), [fitting, other])
        await core.committer.run(_add(b"x", tag="a"))
        assert (fitting.answers, other.answers) == ([[b"x"]], [])
        core.close()

    asyncio.run(main())


def test_what_one_that_hung_up_does_not_take_goes_to_the_next() -> None:
    async def main() -> None:
        here, gone = Caller("here"), Caller("gone", is_gone=True)
        core = await _waiting(SlowDisk(ManualClock()), [here, gone])
        await core.committer.run(_add(b"x"))
        await eventually_async(lambda: here.answers == [[b"x"]])
        core.close()

    asyncio.run(main())


def test_what_another_process_adds_is_not_kept_from_the_next_by_one_that_hung_up() -> None:
    async def main() -> None:
        here, gone = Caller("here"), Caller("gone", is_gone=True)
        store = SlowDisk(ManualClock())
        core = await _waiting(store, [here, gone])
        core.service.commit([_add(b"x")])
        store.signals.publish(QUEUE, None, 1)
        await eventually_async(lambda: here.answers == [[b"x"]])
        core.close()

    asyncio.run(main())


def test_whoever_went_with_a_turn_that_failed_waits_on() -> None:
    async def main() -> None:
        store, worker = FailingCommit(), Caller("w")
        core = await _waiting(store, [worker])
        store.failure = StoreFullError("no room")
        with pytest.raises(StoreFullError):
            await core.committer.run(_add(b"lost"))
        assert (worker.answers, len(core.waiting)) == ([], 1)
        store.failure = None
        await core.committer.run(_add(b"kept"))
        assert worker.answers == [[b"kept"]]
        core.close()

    asyncio.run(main())
