"""The verbs of `Schedules` as coroutines.

Written by `python -m tests.support.async_facade`: edit queue_core/client/schedules.py instead, and run it again.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from queue_core.client.asynchronous.calls import ThreadedCalls
from queue_core.client.schedules import Schedules
from queue_core.schedules.book import ScheduleChanges
from queue_core.schedules.report import AddedTick, ScheduleStatus, TickReport
from queue_core.schedules.schedule import Schedule

T = TypeVar("T")


class AsyncSchedulesVerbs:
    """The verbs of the schedules of a store that do not wait: see `Schedules`."""

    def __init__(self, calls: ThreadedCalls, find: Callable[[], Schedules]) -> None:
        self._calls = calls
        self._find = find

    async def _call(self, make: Callable[[Schedules], T]) -> T:
        return await self._calls.run(lambda: make(self._find()))

    async def list(self) -> "list[ScheduleStatus]":
        """See `Schedules.list`."""
        return await self._call(lambda it: it.list())

    async def declare(self, schedules: Sequence[Schedule], *, keep: Collection[str] = ()) -> ScheduleChanges:
        """See `Schedules.declare`."""
        return await self._call(lambda it: it.declare(schedules, keep=keep))

    async def add_ticks(self) -> TickReport:
        """See `Schedules.add_ticks`."""
        return await self._call(lambda it: it.add_ticks())

    async def run(self, name: str) -> AddedTick:
        """See `Schedules.run`."""
        return await self._call(lambda it: it.run(name))

    async def pause(self, name: str) -> ScheduleStatus:
        """See `Schedules.pause`."""
        return await self._call(lambda it: it.pause(name))

    async def resume(self, name: str) -> ScheduleStatus:
        """See `Schedules.resume`."""
        return await self._call(lambda it: it.resume(name))
