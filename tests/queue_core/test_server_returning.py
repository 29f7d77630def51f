"""Callers who come back together: who is missing is read without the loop while the turn of the others is under way."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from queue_core.clock import MICROSECONDS, ManualClock
from queue_core.errors import StoreFullError
from queue_core.events import Lifecycle, QueueEvent
from queue_core.server.loop_turns import MAX_READS, MAX_READS_AHEAD, SLOW_SYNC_SECONDS, TURNS_WITHOUT, LoopTurns
from queue_core.server.returning import MAX_RETURNING, Returning
from queue_core.service import QueueService
from queue_core.store import Unit
from queue_core.task import NewTask, QueueSpec
from queue_core.verbs import Turn
from tests.support.slow_disk import SlowDisk

QUEUE = "q"


class Disk(SlowDisk):
    """What takes effect together may be chosen."""

    takes_effect: Unit = "verb"

    @property
    def unit(self) -> Unit:
        return self.takes_effect


class Shared:
    """Turns that two callers shared twice, and where they are told."""

    def __init__(self, *, unit: Unit = "verb") -> None:
        clock = self.clock = ManualClock()
        self.events: list[QueueEvent] = []
        self.store = Disk(clock, sync_seconds=SLOW_SYNC_SECONDS / 2)
        self.store.takes_effect = unit
        service = QueueService(self.store, clock=clock, log=self)
        service.run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
        self.returning = Returning()
        self.turns = LoopTurns(service, returning=self.returning)
        self.told: dict[str, object] = {}

    lifecycle: Lifecycle = "task"

    def record(self, events: Sequence[QueueEvent]) -> None:
        """As a log does."""
        self.events += events

    async def warm(self, *, callers: int = 2) -> None:
        await self.turns.run(_add)
        for _ in range(2):
            await asyncio.gather(*(self.turns.run(_add) for _ in range(callers)))
        self.store.transactions = self.store.syncs = 0

    def submit(self, name: str, step: Callable[[Turn], object] | None = None) -> None:
        self.turns.submit(step or _add, lambda outcome: self.told.update({name: outcome}))

    def counts(self) -> tuple[int, int]:
        return self.store.transactions, self.store.syncs


class Coming:
    """A caller that comes back when it is looked for the `looks`-th time, if ever."""

    def __init__(self, shared: Shared, looks: int | None, *, step: Callable[[Turn], object] | None = None) -> None:
        self.looked = 0
        self._shared = shared
        self._looks = looks
        self._step = step
        shared.returning.answered(self)

    def hear(self) -> None:
        self.looked += 1
        if self.looked == self._looks:
            self._shared.returning.forget(self)
            self._shared.submit("coming", self._step)
            self._shared.turns.begin()  # as a connection does


def _add(turn: Turn) -> str:
    return turn.add(QUEUE, [NewTask(b"x")])[0].name


async def _all_told(shared: Shared, count: int) -> None:
    for _ in range(100):
        if len(shared.told) == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"told after a hundred rounds: {shared.told}")


@pytest.mark.parametrize("looks", [1, 2, MAX_READS])
def test_who_comes_back_while_a_turn_is_under_way_goes_with_it(looks: int) -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        Coming(shared, looks)
        shared.submit("first")
        shared.turns.begin()
        assert shared.counts() == (1, 1)
        assert shared.told == {"first": "_6", "coming": "_7"}

    asyncio.run(main())


def test_what_comes_back_in_the_loops_own_round_goes_with_it_too() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        Coming(shared, 3)
        shared.submit("first")
        await asyncio.sleep(0)
        assert shared.counts() == (1, 1)
        assert shared.told == {"first": "_6", "coming": "_7"}

    asyncio.run(main())


def test_who_comes_later_is_served_at_its_own_instant() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        began_at = shared.clock.now()

        def late(turn: Turn) -> object:
            turn.add(QUEUE, [NewTask(name="late")])
            return turn.now

        class Late(Coming):
            """Its call is a second after the turn's beginning."""

            def hear(self) -> None:
                shared.clock.advance(1.0)
                super().hear()

        Late(shared, 1, step=late)
        shared.submit("first", lambda turn: (turn.add(QUEUE, [NewTask(name="first")]), turn.now)[1])
        shared.turns.begin()
        assert shared.told == {"first": began_at, "coming": began_at + MICROSECONDS}
        assert [(event.task, event.at) for event in shared.events[-2:]] == [
            ("first", began_at),
            ("late", began_at + MICROSECONDS),
        ]

    asyncio.run(main())


def test_who_stays_away_is_looked_for_so_often_and_the_turn_goes_on() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        away = Coming(shared, None)
        shared.submit("first")
        shared.turns.begin()
        assert (away.looked, shared.counts(), shared.told) == (MAX_READS, (1, 0), {})
        await _all_told(shared, 1)
        assert shared.counts() == (1, 1)
        shared.submit("again")
        await _all_told(shared, 2)
        assert away.looked == MAX_READS, "others were answered since, and it is not expected any more"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("callers", "returning"),
    [pytest.param(1, 1, id="a lone caller waits for nobody"), pytest.param(2, 0, id="the missing one can't be heard")],
)
def test_a_turn_is_left_to_the_loop(callers: int, returning: int) -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm(callers=callers)
        coming = [Coming(shared, 1) for _ in range(returning)]
        shared.submit("first")
        shared.turns.begin()
        assert shared.counts() == (0, 0)
        await _all_told(shared, 1)
        assert [one.looked for one in coming] == [0] * returning

    asyncio.run(main())


def test_nobody_is_looked_for_once_all_are_here() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        third = Coming(shared, 1)
        shared.submit("first")
        shared.submit("second")
        shared.turns.begin()
        assert (shared.counts(), third.looked) == ((1, 1), 0)
        assert shared.told == {"first": "_6", "second": "_7"}

    asyncio.run(main())


def test_who_comes_back_later_than_the_next_answer_is_not_looked_for() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        slow = Coming(shared, 1)
        await asyncio.gather(shared.turns.run(_add), shared.turns.run(_add))
        shared.submit("first")
        await _all_told(shared, 1)
        assert slow.looked == 0

    asyncio.run(main())


@pytest.mark.parametrize("unit", ["transaction", "verb"])
def test_a_store_that_fails_is_told_to_all_for_whom_it_did(unit: Unit) -> None:
    def fail(_turn: Turn) -> None:
        raise StoreFullError("no room")

    async def main() -> None:
        shared = Shared(unit=unit)
        await shared.warm()
        Coming(shared, 1, step=fail)
        shared.submit("first")
        shared.turns.begin()
        outcomes = [type(shared.told[name]) for name in ("first", "coming")]
        assert outcomes == [StoreFullError if unit == "transaction" else str, StoreFullError]

    asyncio.run(main())


def test_a_broken_step_of_who_came_does_not_take_the_others_with_it() -> None:
    def broken(_turn: Turn) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        shared = Shared()
        await shared.warm()
        Coming(shared, 1, step=broken)
        shared.submit("first")
        shared.turns.begin()
        await _all_told(shared, 2)
        assert [type(shared.told[name]) for name in ("first", "coming")] == [str, ZeroDivisionError]

    asyncio.run(main())


def test_a_turn_is_not_begun_within_another() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        Coming(shared, 1)
        Coming(shared, None)
        shared.submit("first")
        shared.turns.begin()
        assert shared.counts() == (1, 1)
        assert shared.told == {"first": "_6", "coming": "_7"}

    asyncio.run(main())


def test_nothing_is_begun_for_nobody() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()
        callers = [Coming(shared, 1) for _ in range(2)]
        shared.turns.begin()
        assert shared.counts() == (0, 0)
        assert [one.looked for one in callers] == [0, 0]

    asyncio.run(main())


def test_several_who_stay_away_are_looked_for_no_oftener_together() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm(callers=3)
        callers = [Coming(shared, None) for _ in range(2)]
        shared.submit("first")
        shared.turns.begin()
        assert [one.looked for one in callers] == [MAX_READS // 2] * 2

    asyncio.run(main())


async def _answered(shared: Shared, callers: Sequence[Coming], *, others: int = 0) -> None:
    """A turn that these and others share, and what the loop does after it."""
    for caller in callers:
        shared.turns.submit(_add, lambda _outcome, caller=caller: shared.returning.answered(caller))  # type: ignore[misc]
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
                shared.turns.submit(_add, lambda _outcome: shared.returning.answered(self))
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


def test_what_a_step_submits_gets_a_turn_of_its_own() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()

        def submits(turn: Turn) -> str:
            shared.submit("later")
            return _add(turn)

        shared.submit("first", submits)
        await _all_told(shared, 2)
        assert shared.store.transactions == 2

    asyncio.run(main())


def test_few_are_remembered() -> None:
    shared = Shared()
    callers = [Coming(shared, 1) for _ in range(MAX_RETURNING + 1)]
    assert len(shared.returning) == MAX_RETURNING
    shared.returning.forget(callers[0])
    shared.returning.forget(callers[0])
    assert len(shared.returning) == MAX_RETURNING - 1
    shared.returning.clear()
    assert len(shared.returning) == 0
