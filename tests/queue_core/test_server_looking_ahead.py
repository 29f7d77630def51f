"""Before the loop sleeps, a turn is begun for callers who were answered together, and they are looked for a moment."""

import asyncio
from collections.abc import Sequence

import pytest

from queue_core.errors import StoreUnavailableError
from queue_core.server.loop_turns import MAX_READS, MAX_READS_AHEAD, TURNS_WITHOUT
from tests.support.shared_turns import Coming, Shared, add, all_told


async def _answered(shared: Shared, callers: Sequence[Coming], *, others: int = 0) -> None:
    """A turn that these and others share, and what the loop does after it."""
    for caller in callers:
        shared.turns.submit(add, lambda _outcome, caller=caller: shared.returning.answered(caller))  # type: ignore[misc]
    for number in range(others):
        shared.submit(str(number))
    for _ in range(5):
        await asyncio.sleep(0)


def test_who_comes_right_back_begins_a_turn_before_the_loop_sleeps() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        callers = [Coming(shared, 2), Coming(shared, 5)]
        await _answered(shared, callers)
        assert shared.counts() == (2, 2)
        assert list(shared.told.values()) == ["_9"], "the first's answer is told under the same name"
        assert [one.looked for one in callers] == [2, 5]

    asyncio.run(main())


def test_the_transaction_is_open_when_they_are_looked_for() -> None:
    class Watching(Coming):
        def hear(self) -> None:
            begun.append(shared.store.transactions)
            super().hear()

    async def main() -> None:
        await shared.warm()
        await _answered(shared, [Watching(shared, 3), Watching(shared, 3)])
        assert begun == [2] * 6
        assert shared.counts() == (2, 2)

    begun: list[int] = []
    shared = Shared()
    asyncio.run(main())


def test_once_the_first_is_here_the_others_are_looked_for_as_in_any_turn() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        callers = [Coming(shared, 2), Coming(shared, None)]
        await _answered(shared, callers)
        assert [one.looked for one in callers] == [2, 2 + MAX_READS]

    asyncio.run(main())


def test_nothing_is_synced_or_told_for_callers_who_do_not_come() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        told = len(shared.events)
        await _answered(shared, [Coming(shared, None) for _ in range(2)])
        assert shared.counts() == (2, 1), "one transaction was begun for nobody"
        assert len(shared.events) == told + 2
        shared.submit("next")
        await all_told(shared, 1)
        assert shared.counts() == (3, 2)

    asyncio.run(main())


def test_who_is_here_before_the_look_has_a_turn_and_nobody_is_looked_for_in_vain() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        callers = [Coming(shared, 1), Coming(shared, 1)]

        def come_back(_outcome: object) -> None:
            for caller in callers:
                shared.returning.answered(caller)
            asyncio.get_running_loop().call_soon(callers[0].hear)

        shared.submit("first")
        shared.turns.submit(add, come_back)
        for _ in range(2):
            await asyncio.sleep(0)
        assert shared.counts() == (2, 2)
        assert [one.looked for one in callers] == [1, 1]

    asyncio.run(main())


def test_a_store_that_fails_while_nobody_is_there_fails_nobody() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()

        def fails(_outcome: object) -> None:
            shared.returning.answered(callers[0])
            shared.store.commit_failure = StoreUnavailableError("away")

        callers = [Coming(shared, None), Coming(shared, None)]
        shared.turns.submit(add, fails)
        shared.turns.submit(add, lambda _outcome: shared.returning.answered(callers[1]))
        for _ in range(5):
            await asyncio.sleep(0)
        assert shared.turns.failure is shared.store.commit_failure
        shared.store.commit_failure = None
        shared.submit("next")
        await all_told(shared, 1)
        assert shared.turns.failure is None
        assert list(shared.told) == ["next"]

    asyncio.run(main())


def test_who_comes_right_back_again_and_again_is_looked_for_each_time() -> None:
    class Tireless(Coming):
        """Comes back at the second look, whenever it was answered."""

        def hear(self) -> None:
            self.looked += 1
            if self.looked % 2 == 0:
                shared.returning.forget(self)
                shared.turns.submit(add, lambda _outcome: shared.returning.answered(self))
                shared.turns.begin()

    async def main() -> None:
        await shared.warm()
        await _answered(shared, [Tireless(shared, None) for _ in range(2)])
        for _ in range(4 * MAX_READS_AHEAD):
            await asyncio.sleep(0)
        assert shared.store.transactions > MAX_READS_AHEAD

    shared = Shared()
    asyncio.run(main())


def test_nobody_is_looked_for_a_while_after_nobody_came() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        callers = [Coming(shared, None) for _ in range(2)]
        looked = []
        for _ in range(2 * (1 + TURNS_WITHOUT)):
            await _answered(shared, callers)
            looked.append(callers[0].looked)
            callers[0].looked = 0
        once = [MAX_READS_AHEAD // 2] + [0] * TURNS_WITHOUT
        assert looked == 2 * once

    asyncio.run(main())


@pytest.mark.parametrize(("callers", "others"), [(1, 0), (1, 1)], ids=["alone", "the other can't be heard"])
def test_the_loop_sleeps_at_once_unless_all_can_be_heard(callers: int, others: int) -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm(callers=callers + others)
        coming = [Coming(shared, None) for _ in range(callers)]
        await _answered(shared, coming, others=others)
        assert [one.looked for one in coming] == [0] * callers

    asyncio.run(main())
