"""Callers who come back together: who is missing is read without the loop while the turn of the others is under way."""

import asyncio

import pytest

from queue_core.clock import MICROSECONDS
from queue_core.errors import StoreFullError
from queue_core.server.loop_turns import MAX_READS
from queue_core.server.returning import MAX_RETURNING
from queue_core.store import Unit
from queue_core.task import NewTask
from queue_core.verbs import Turn
from tests.support.shared_turns import QUEUE, Coming, Shared, add, all_told


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
        await all_told(shared, 1)
        assert shared.counts() == (1, 1)
        shared.submit("again")
        await all_told(shared, 2)
        assert away.looked == MAX_READS, "others were answered since, and it is not expected any more"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("callers", "returning"),
    [
        pytest.param(1, 1, id="a lone caller waits for nobody"),
        pytest.param(2, 0, id="the missing one can't be heard"),
        pytest.param(MAX_RETURNING + 1, MAX_RETURNING, id="the loop reads many faster"),
    ],
)
def test_a_turn_is_left_to_the_loop(callers: int, returning: int) -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm(callers=callers)
        coming = [Coming(shared, 1) for _ in range(returning)]
        shared.submit("first")
        shared.turns.begin()
        assert shared.counts() == (0, 0)
        await all_told(shared, 1)
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
        await asyncio.gather(shared.turns.run(add), shared.turns.run(add))
        shared.submit("first")
        await all_told(shared, 1)
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
        await all_told(shared, 2)
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


def test_who_came_with_one_whose_step_breaks_is_told_too() -> None:
    def broken(_turn: Turn) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        shared = Shared()
        await shared.warm(callers=3)
        Coming(shared, 1, step=broken)
        Coming(shared, 1, name="other")
        shared.submit("first")
        shared.turns.begin()
        await all_told(shared, 3)
        outcomes = [type(shared.told[name]) for name in ("first", "coming", "other")]
        assert outcomes == [str, ZeroDivisionError, str]

    asyncio.run(main())


def test_what_a_step_submits_gets_a_turn_of_its_own() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.warm()

        def submits(turn: Turn) -> str:
            shared.submit("later")
            return add(turn)

        shared.submit("first", submits)
        await all_told(shared, 2)
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
