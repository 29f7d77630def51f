"""Group commit in a loop: shared transactions, one sync, failures that take nobody else with them."""

import asyncio
import threading

import pytest

from queue_core.clock import ManualClock
from queue_core.errors import OutcomeUnknownError, StoreFullError, UnknownQueueError
from queue_core.server.base.options import ServeOptions
from queue_core.server.commit.group_commit import (
    LARGE_COMMIT_BYTES,
    MAX_OPERATIONS_PER_COMMIT,
    MAX_WAIT_ROUNDS,
    SLOW_SYNC_SECONDS,
    GroupCommitter,
)
from queue_core.server.leases.call import LeaseAnswer, LeaseCall
from queue_core.server.state import ServerState
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Granted
from tests.support.eventually import eventually_async
from tests.support.stores.slow_disk import BlockingDisk, SlowDisk

QUEUE = "q"


def _committer(*, sync_seconds: float = 0.0) -> tuple[GroupCommitter, SlowDisk]:
    clock = ManualClock()
    store = SlowDisk(clock, sync_seconds=sync_seconds)
    service = QueueService(store, clock=clock)
    service.run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
    store.transactions = store.syncs = 0
    return GroupCommitter(service), store


def _add(turn: UnitOfWork) -> str:
    return turn.add(QUEUE, [NewTask(b"x")])[0].name


@pytest.mark.parametrize("sync_seconds", [0.0, 100 * SLOW_SYNC_SECONDS], ids=["fast disk", "slow disk"])
def test_callers_of_one_turn_share_a_transaction_and_are_answered_in_order(sync_seconds: float) -> None:
    async def main() -> None:
        committer, store = _committer(sync_seconds=sync_seconds)
        for _ in range(3):
            await committer.run(_add)
        before = (store.transactions, store.syncs)
        names = await asyncio.gather(*(committer.run(_add) for _ in range(50)))
        assert names == [f"_{number}" for number in range(4, 54)]
        assert (store.transactions - before[0], store.syncs - before[1]) == (1, 1)
        committer.close()

    asyncio.run(main())


def test_more_callers_than_a_turn_takes_are_answered_by_the_next() -> None:
    async def main() -> None:
        committer, store = _committer()
        calls = [committer.run(_add) for _ in range(2 * MAX_OPERATIONS_PER_COMMIT + 1)]
        await asyncio.wait_for(asyncio.gather(*calls), timeout=10)
        assert store.transactions == 3

    asyncio.run(main())


def test_a_caller_that_comes_while_a_turn_is_committed_shares_its_sync() -> None:
    async def main() -> None:
        committer, store = _committer(sync_seconds=SLOW_SYNC_SECONDS / 2)
        for _ in range(3):
            await committer.run(_add)
        before = (store.transactions, store.syncs)
        first = asyncio.ensure_future(committer.run(_add))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the first is committed now, and its sync put off
        await asyncio.gather(first, committer.run(_add))
        assert (store.transactions - before[0], store.syncs - before[1]) == (2, 1)

    asyncio.run(main())


def test_a_stream_of_callers_does_not_put_a_sync_off_for_ever() -> None:
    async def main() -> None:
        committer, store = _committer(sync_seconds=SLOW_SYNC_SECONDS / 2)
        for _ in range(3):
            await committer.run(_add)
        before = store.syncs
        calls = []
        while store.syncs == before:
            calls.append(asyncio.ensure_future(committer.run(_add)))
            await asyncio.sleep(0)
            assert len(calls) < 100
        await asyncio.gather(*calls)

    asyncio.run(main())


@pytest.mark.parametrize("sync_seconds", [0.0, 100 * SLOW_SYNC_SECONDS], ids=["fast disk", "slow disk"])
def test_a_large_operation_is_committed_alone_in_a_thread_and_later_ones_behind_it(sync_seconds: float) -> None:
    async def main() -> None:
        committer, _ = _committer(sync_seconds=sync_seconds)
        threads: list[bool] = []

        def add(turn: UnitOfWork) -> str:
            threads.append(threading.current_thread() is threading.main_thread())
            return _add(turn)

        large = LARGE_COMMIT_BYTES + 1
        calls = [committer.run(add), committer.run(add, size_bytes=large), committer.run(add)]
        names = await asyncio.gather(*calls, committer.run(add, size_bytes=large), committer.run(add))
        assert names == ["_1", "_2", "_3", "_4", "_5"]
        assert threads == [True, False, True, False, True]
        committer.close()

    asyncio.run(main())


def test_operations_share_a_transaction_up_to_a_size() -> None:
    async def main() -> None:
        committer, store = _committer()
        calls = [committer.run(_add, size_bytes=LARGE_COMMIT_BYTES // 2) for _ in range(4)]
        await asyncio.gather(*calls)
        assert store.transactions == 2

    asyncio.run(main())


def test_a_large_operation_that_fails_takes_nobody_with_it() -> None:
    async def main() -> None:
        committer, _ = _committer()

        def unknown(turn: UnitOfWork) -> object:
            return turn.add("nowhere", [NewTask(b"x")])

        def broken(_turn: UnitOfWork) -> object:
            raise ZeroDivisionError

        large = LARGE_COMMIT_BYTES + 1
        calls = [committer.run(unknown, size_bytes=large), committer.run(broken, size_bytes=large)]
        outcomes = await asyncio.gather(*calls, committer.run(_add), return_exceptions=True)
        assert [type(one) for one in outcomes] == [UnknownQueueError, ZeroDivisionError, str]
        committer.close()

    asyncio.run(main())


def test_an_error_is_one_callers_alone() -> None:
    async def main() -> None:
        committer, store = _committer()
        outcomes = await asyncio.gather(
            committer.run(_add),
            committer.run(lambda turn: turn.add("nowhere", [NewTask()])),
            committer.run(_add),
            return_exceptions=True,
        )
        assert [outcomes[0], outcomes[2]] == ["_1", "_2"]
        assert isinstance(outcomes[1], UnknownQueueError)
        assert store.transactions == 1

    asyncio.run(main())


def test_a_broken_step_does_not_take_the_others_with_it() -> None:
    def broken(turn: UnitOfWork) -> str:
        raise ZeroDivisionError

    async def main() -> None:
        committer, _ = _committer()
        outcomes = await asyncio.gather(
            committer.run(broken), committer.run(lambda _turn: "fine"), return_exceptions=True
        )
        assert isinstance(outcomes[0], ZeroDivisionError)
        assert outcomes[1] == "fine"
        committer.close()

    asyncio.run(main())


def test_what_a_step_submits_gets_a_turn_of_its_own() -> None:
    async def main() -> None:
        committer, store = _committer()
        told: list[object] = []

        def submits(turn: UnitOfWork) -> str:
            committer.submit(_add, told.append)
            return _add(turn)

        assert await committer.run(submits) == "_1"
        await eventually_async(lambda: told == ["_2"])
        assert store.transactions == 2

    asyncio.run(main())


def test_a_store_that_fails_is_told_to_all_and_recovers() -> None:
    async def main() -> None:
        committer, store = _committer()
        store.commit_failure = StoreFullError("no room")
        outcomes = await asyncio.gather(committer.run(_add), committer.run(_add), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreFullError, StoreFullError]
        assert committer.failure is store.commit_failure
        store.commit_failure = None
        assert await committer.run(_add) == "_1"
        assert committer.failure is None

    asyncio.run(main())


@pytest.mark.parametrize("sync_seconds", [0.0, 100 * SLOW_SYNC_SECONDS], ids=["fast disk", "slow disk"])
def test_nobody_is_answered_when_the_disk_does_not_confirm(sync_seconds: float) -> None:
    async def main() -> None:
        committer, store = _committer(sync_seconds=sync_seconds)
        await committer.run(_add)
        store.sync_failure = StoreFullError("no room")
        with pytest.raises(OutcomeUnknownError):
            await committer.run(_add)
        committer.close()

    asyncio.run(main())


def test_a_later_change_is_not_answered_before_an_earlier_one_whose_sync_goes_on() -> None:
    told: list[object] = []

    async def main() -> None:
        clock = ManualClock()
        # Just slow enough for the thread; the sync after it, which takes no time, makes the disk count as fast again.
        store = BlockingDisk(clock, seconds=[0.0, 9 * SLOW_SYNC_SECONDS], held_from=3)
        service = QueueService(store, clock=clock)
        service.run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
        committer = GroupCommitter(service)
        await committer.run(_add)
        committer.submit(_add, told.append)
        await eventually_async(lambda: store.syncs == 3)
        committer.submit(_add, told.append)
        for _ in range(MAX_WAIT_ROUNDS):
            await asyncio.sleep(0)
        store.gates[0].set()
        await eventually_async(lambda: told == ["_2"] and store.syncs == 4)
        store.gates[2].set()  # whoever syncs a third time is not held
        committer.submit(_add, told.append)
        for _ in range(100):
            await asyncio.sleep(0)
        assert told == ["_2"]
        store.gates[1].set()
        await eventually_async(lambda: len(told) == 3)
        committer.close()

    asyncio.run(main())
    assert told == ["_2", "_3", "_4"]


def test_a_caller_that_went_away_before_its_turn_is_granted_nothing() -> None:
    answers: list[object] = []

    async def main() -> None:
        core = ServerState(MemoryStore(), ServeOptions())
        await core.committer.run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
        first, _ = await core.committer.run(_add), await core.committer.run(_add)
        call = LeaseCall(QUEUE, 1, 60.0, ANY, "gone", 10.0, "gone", (), answers.append, lambda: False)
        call.start(core.waiting.context)
        call.cancel()
        await core.committer.run(lambda _turn: None)
        assert core.service.read(lambda turn: turn.stats(QUEUE, ANY)).leased_total == 0
        granted = await core.committer.run(lambda turn: turn.lease(QUEUE, count=1, seconds=60.0))
        assert [(lease.name, lease.lease_number) for lease in granted.leases] == [(first, 1)]
        core.close()

    asyncio.run(main())
    assert answers == []


def test_what_a_caller_that_went_away_in_mid_lease_was_granted_takes_its_old_place() -> None:
    answers: list[object] = []

    async def main() -> None:
        core = ServerState(MemoryStore(), ServeOptions())
        await core.committer.run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
        first, _ = await core.committer.run(_add), await core.committer.run(_add)

        def lease_and_hang_up(turn: UnitOfWork) -> Granted:
            granted = turn.lease(QUEUE, count=1, seconds=60.0)
            call.cancel()
            return granted

        call = LeaseCall(
            QUEUE, 1, 60.0, ANY, "gone", 10.0, "gone", (), answers.append, lambda: False, grant=lease_and_hang_up
        )
        call.start(core.waiting.context)
        await eventually_async(lambda: core.service.read(lambda turn: turn.stats(QUEUE, ANY)).released_total == 1)
        granted = await core.committer.run(lambda turn: turn.lease(QUEUE, count=1, seconds=60.0))
        assert [(lease.name, lease.lease_number) for lease in granted.leases] == [(first, 1)]
        core.close()

    asyncio.run(main())
    assert answers == []


def test_a_caller_whose_socket_is_gone_is_not_granted_what_woke_it() -> None:
    answers: list[object] = []

    async def main() -> None:
        core = ServerState(MemoryStore(), ServeOptions())
        await core.committer.run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
        call = LeaseCall(QUEUE, 1, 60.0, ANY, "gone", 10.0, "gone", (), answers.append, lambda: True)
        call.start(core.waiting.context)
        await eventually_async(lambda: len(core.waiting) == 1)
        await core.committer.run(_add)
        await eventually_async(lambda: len(core.waiting) == 1)
        assert core.service.read(lambda turn: turn.stats(QUEUE, ANY)).leased_total == 0
        core.stop()
        core.close()

    asyncio.run(main())
    assert [answer.granted.leases for answer in answers if isinstance(answer, LeaseAnswer)] == [()]


def test_two_callers_that_come_back_together_share_a_transaction_though_one_is_a_little_later() -> None:
    async def later(committer: GroupCommitter) -> str:
        for _ in range(MAX_WAIT_ROUNDS // 2):
            await asyncio.sleep(0)
        return await committer.run(_add)

    async def main() -> None:
        committer, store = await _turns_shared_by(2, times=2)
        before = (store.transactions, store.syncs)
        await asyncio.gather(committer.run(_add), later(committer))
        assert (store.transactions - before[0], store.syncs - before[1]) == (1, 1)

    asyncio.run(main())


def test_callers_who_stay_away_are_waited_for_once_and_not_for_long() -> None:
    async def main() -> None:
        committer, _store = await _turns_shared_by(1, times=2)
        alone = await _rounds(committer)
        committer, _store = await _turns_shared_by(10, times=2)
        assert await _rounds(committer) == alone + MAX_WAIT_ROUNDS
        assert await _rounds(committer) == alone

    asyncio.run(main())


def test_callers_who_met_by_chance_are_not_waited_for() -> None:
    async def main() -> None:
        committer, _store = await _turns_shared_by(1, times=2)
        alone = await _rounds(committer)
        committer, _store = await _turns_shared_by(10, times=1)
        assert await _rounds(committer) == alone

    asyncio.run(main())


async def _turns_shared_by(callers: int, *, times: int) -> tuple[GroupCommitter, SlowDisk]:
    """Turns over a disk that takes its time, after so many callers have shared so many of them, one after the other."""
    committer, store = _committer(sync_seconds=SLOW_SYNC_SECONDS / 2)
    await committer.run(_add)
    for _ in range(times):
        await asyncio.gather(*(committer.run(_add) for _ in range(callers)))
    return committer, store


async def _rounds(committer: GroupCommitter) -> int:
    """How many times round the loop a caller's answer takes."""
    answer = asyncio.ensure_future(committer.run(_add))
    count = 0
    while not answer.done():
        await asyncio.sleep(0)
        count += 1
    return count
