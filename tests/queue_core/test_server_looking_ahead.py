"""Before the loop sleeps, callers who were answered together are looked for a moment: the first begins a turn."""

import asyncio
from collections.abc import Sequence

import pytest

from queue_core.server.loop_turns import MAX_READS_AHEAD, TURNS_WITHOUT
from tests.support.shared_turns import Coming, Shared, add


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
