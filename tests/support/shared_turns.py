"""Turns of a server's loop that callers share, and callers that come back when they are looked for."""

import asyncio
from collections.abc import Callable, Sequence

from queue_core.clock import ManualClock
from queue_core.events import Lifecycle, QueueEvent
from queue_core.server.loop_turns import SLOW_SYNC_SECONDS, LoopTurns
from queue_core.server.returning import Returning
from queue_core.server.turns import Prepare
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
    """Turns that callers shared twice, and where they are told; a log of its own."""

    lifecycle: Lifecycle = "task"

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

    def record(self, events: Sequence[QueueEvent]) -> None:
        """As a log does."""
        self.events += events

    async def warm(self, *, callers: int = 2) -> None:
        await self.turns.run(add)
        for _ in range(2):
            await asyncio.gather(*(self.turns.run(add) for _ in range(callers)))
        self.store.transactions = self.store.syncs = 0

    def submit(self, name: str, step: Callable[[Turn], object] | None = None, prepare: Prepare | None = None) -> None:
        self.turns.submit(step or add, lambda outcome: self.told.update({name: outcome}), prepare=prepare)

    def counts(self) -> tuple[int, int]:
        return self.store.transactions, self.store.syncs


class Coming:
    """A caller that comes back when it is looked for the `looks`-th time, if ever."""

    def __init__(
        self, shared: Shared, looks: int | None, *, step: Callable[[Turn], object] | None = None, name: str = "coming"
    ) -> None:
        self.looked = 0
        self._shared = shared
        self._looks = looks
        self._step = step
        self._name = name
        shared.returning.answered(self)

    def hear(self) -> None:
        self.looked += 1
        if self.looked == self._looks:
            self._shared.returning.forget(self)
            self._shared.submit(self._name, self._step)
            self._shared.turns.begin()  # as a connection does


def add(turn: Turn) -> str:
    return turn.add(QUEUE, [NewTask(b"x")])[0].name


async def all_told(shared: Shared, count: int) -> None:
    for _ in range(100):
        if len(shared.told) == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"told after a hundred rounds: {shared.told}")
