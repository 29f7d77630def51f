"""The life of one lease call: a client has one waiting call, and each call is answered once."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from queue_core.server.base.options import ServeOptions
from queue_core.server.leases.call import LeaseAnswer, LeaseCall
from queue_core.server.state import ServerState
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, NewTask, QueueSpec
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall
from tests.support.eventually import eventually_async

QUEUE = "q"


class Caller:
    """One call of a client's session, and the payloads of each answer."""

    def __init__(self, number: int, *, wait_seconds: float = 30.0, is_repeat: bool = False) -> None:
        self.answers: list[list[bytes]] = []
        session = ClientCall("session", number, is_repeat=is_repeat)
        self.call = LeaseCall(
            QUEUE, 1, 60.0, ANY, "w", wait_seconds, "w", (), self._answer, lambda: False, client_call=session
        )

    def _answer(self, answer: LeaseAnswer | Exception) -> None:
        assert isinstance(answer, LeaseAnswer), answer
        self.answers.append([lease.payload for lease in answer.granted.leases])


def _add(turn: UnitOfWork) -> object:
    return turn.add(QUEUE, [NewTask(b"x")])


def _add_and_lease(turn: UnitOfWork) -> object:
    _add(turn)
    return turn.lease(QUEUE, count=1, seconds=60.0, worker="w", call=ClientCall("session", 1))


def _with_a_server(story: Callable[[ServerState], Awaitable[None]]) -> None:
    async def main() -> None:
        core = ServerState(MemoryStore(), ServeOptions())
        await core.committer.run(lambda turn: turn.put_queue(QueueSpec(QUEUE)))
        await story(core)
        core.stop()
        core.close()

    asyncio.run(main())


async def _waits(core: ServerState, caller: Caller) -> None:
    core.waiting.start(caller.call)
    await eventually_async(lambda: len(core.waiting) == 1)


def test_a_later_call_of_the_same_client_ends_the_one_that_waits() -> None:
    first, second = Caller(1), Caller(2)

    async def story(core: ServerState) -> None:
        await _waits(core, first)
        await _waits(core, second)
        assert (first.answers, second.answers) == ([[]], [])
        await core.committer.run(_add)
        await eventually_async(lambda: second.answers == [[b"x"]])

    _with_a_server(story)
    assert first.answers == [[]]


def test_a_call_that_comes_after_a_later_one_does_not_wait_and_leaves_that_one_waiting() -> None:
    first, second = Caller(1), Caller(2)

    async def story(core: ServerState) -> None:
        await _waits(core, second)
        core.waiting.start(first.call)
        await eventually_async(lambda: first.answers == [[]])
        assert (second.answers, len(core.waiting)) == ([], 1)
        await core.committer.run(_add)
        await eventually_async(lambda: second.answers == [[b"x"]])

    _with_a_server(story)


def test_a_call_whose_time_is_up_is_answered_once_and_waits_no_more() -> None:
    caller = Caller(1, wait_seconds=0.01)

    async def story(core: ServerState) -> None:
        core.waiting.start(caller.call)
        await eventually_async(lambda: caller.answers == [[]])
        assert len(core.waiting) == 0
        await core.committer.run(_add)

    _with_a_server(story)
    assert caller.answers == [[]]


def test_a_call_whose_caller_hung_up_is_never_answered() -> None:
    caller = Caller(1)

    async def story(core: ServerState) -> None:
        await _waits(core, caller)
        caller.call.cancel()
        assert len(core.waiting) == 0
        await core.committer.run(_add)

    _with_a_server(story)
    assert caller.answers == []


@pytest.mark.parametrize("wait_seconds", [0.0, 0.01])
def test_a_first_try_that_comes_after_its_repeat_got_nothing_is_granted_nothing(wait_seconds: float) -> None:
    again, first, later = Caller(1, wait_seconds=wait_seconds, is_repeat=True), Caller(1, wait_seconds=0.0), Caller(2)

    async def story(core: ServerState) -> None:
        core.waiting.start(again.call)
        await eventually_async(lambda: again.answers == [[]])
        await core.committer.run(_add)
        core.waiting.start(first.call)
        await eventually_async(lambda: first.answers == [[]])
        core.waiting.start(later.call)
        await eventually_async(lambda: later.answers == [[b"x"]])

    _with_a_server(story)
    assert first.answers == [[]]


def test_a_first_try_that_comes_while_its_repeat_waits_takes_nothing_from_it() -> None:
    again = Caller(1, wait_seconds=30.0, is_repeat=True)

    async def story(core: ServerState) -> None:
        await _waits(core, again)
        await core.committer.run(_add_and_lease)
        await eventually_async(lambda: again.answers == [[b"x"]])
        assert (await core.committer.run(lambda turn: turn.stats(QUEUE, ANY))).leased_total == 1

    _with_a_server(story)
    assert again.answers == [[b"x"]]
