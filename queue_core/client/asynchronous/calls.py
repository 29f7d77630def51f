"""Calls: functions of the plain client, run in threads and awaited, with an end for each way of cancelling one.

waiting for a thread -> cancelled: it is never made
under way            -> cancelled: it is interrupted where it can be; its result is discarded in its thread
over, not delivered  -> cancelled: its result is discarded in another thread
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Condition, Lock
from typing import Final, Generic, Literal, TypeVar

from queue_core.client.asynchronous.call_threads import CallThreads, Job
from queue_core.clock import Clock
from queue_core.errors import QueueError, StoreUnavailableError

T = TypeVar("T")

FIRST_INTERRUPT_SECONDS: Final = 0.05
"""Pause before an interrupt is repeated, doubled each time: the first may come before the wait has begun."""
LONGEST_INTERRUPT_SECONDS: Final = 2.0

State = Literal["queued", "running", "over", "abandoned"]


class Call(Generic[T]):
    """One call. `make` and `discard` run in a thread; the rest in the loop that awaits it, or in the one that closes.

    Args:
        interrupt: ends a wait of `make` early; called any number of times.
        discard: undoes a result that nobody receives.
    """

    def __init__(
        self, make: Callable[[], T], *, interrupt: Callable[[], None] | None, discard: Callable[[T], None] | None
    ) -> None:
        self._make = make
        self._interrupt = interrupt
        self._discard = discard
        self._lock = Lock()
        self._state: State = "queued"
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self.future: asyncio.Future[T] = self._loop.create_future()
        self._results: list[T] = []

    def run(self) -> None:
        """Make the call in this thread, unless it was cancelled before."""
        with self._lock:
            if self._is_abandoned():
                self._state = "over"
                return
            self._state = "running"
        result: T | None = None
        failed: BaseException | None = None
        try:
            result = self._context.run(self._make)
        except BaseException as error:  # noqa: BLE001  the top of a thread: the error is the awaiting caller's
            failed = error
        with self._lock:
            is_awaited = not self._is_abandoned()
            self._state = "over"
            if failed is None:
                self._results.append(result)  # type: ignore[arg-type]  # T may be None
        try:
            if is_awaited:
                self._loop.call_soon_threadsafe(self._deliver, failed)
        except RuntimeError:  # the loop was closed, and its caller is gone with it
            is_awaited = False
        if not is_awaited:
            self.undo()

    def abandon(self) -> bool:
        """Record that nobody awaits the call. False if it is over: its result is there, to be undone."""
        with self._lock:
            if self._state == "over":
                return False
            self._state = "abandoned"
        self._interrupt_until_over(FIRST_INTERRUPT_SECONDS)
        return True

    def end_wait(self) -> None:
        """Interrupt the call; it is still awaited, and returns what it has."""
        with suppress(RuntimeError):  # its loop is closed: nobody awaits it
            self._loop.call_soon_threadsafe(self._interrupt_until_over, FIRST_INTERRUPT_SECONDS)

    def undo(self) -> None:
        """Discard a result that nobody receives; a store that can't be reached lets it expire."""
        while self._results:
            result = self._results.pop()
            if self._discard is not None:
                with suppress(QueueError):
                    self._discard(result)

    def _is_abandoned(self) -> bool:
        return self._state == "abandoned"

    def _deliver(self, failed: BaseException | None) -> None:
        if self.future.done():
            return  # cancelled: `abandon` found it over, and its result is undone
        if failed is not None:
            self.future.set_exception(failed)
        else:
            self.future.set_result(self._results[0])

    def _interrupt_until_over(self, pause_seconds: float) -> None:
        """Interrupt, and again after a pause while the call goes on: the first time may have been too early."""
        if self._interrupt is None or self._state == "over" or self._loop.is_closed():
            return
        self._interrupt()
        longer = min(2 * pause_seconds, LONGEST_INTERRUPT_SECONDS)
        self._loop.call_later(pause_seconds, self._interrupt_until_over, longer)


class ThreadedCalls:
    """The calls of one client: short ones and those that wait, each kind with threads of its own.

    A call that waits for tasks takes a thread for as long, so a hundred of them leave the short ones alone.
    """

    def __init__(self, *, clock: Clock, short_limit: int, waits_limit: int) -> None:
        self.clock = clock
        self._short = CallThreads("towline-call", limit=short_limit)
        self._waits = CallThreads("towline-wait", limit=waits_limit)
        self._changed = Condition()
        self._unfinished: dict[object, Callable[[], None]] = {}
        """How to end the wait of each call that is not over."""
        self._is_closed = False

    async def run(self, make: Callable[[], T]) -> T:
        """Make a short call. When its caller is cancelled it is done or not, as when a connection is lost."""
        return await self._awaited(Call(make, interrupt=None, discard=None), self._short)

    async def wait(self, make: Callable[[], T], *, interrupt: Callable[[], None], discard: Callable[[T], None]) -> T:
        """Make a call that may wait for long; see `Call`."""
        return await self._awaited(Call(make, interrupt=interrupt, discard=discard), self._waits)

    async def _awaited(self, call: Call[T], threads: CallThreads) -> T:
        with self._changed:
            if self._is_closed:
                raise StoreUnavailableError("this client was closed: open another one")
            self._unfinished[call] = call.end_wait

        threads.submit(lambda: self._run_to_end(call, call.run))
        try:
            return await call.future
        except asyncio.CancelledError:
            if not call.abandon():
                with self._changed:
                    self._unfinished[call] = call.end_wait
                self._short.submit(lambda: self._run_to_end(call, call.undo))
            raise

    def _run_to_end(self, call: Call[T], job: Job) -> None:
        try:
            job()
        finally:
            with self._changed:
                self._unfinished.pop(call, None)
                self._changed.notify_all()

    def end_waits(self) -> None:
        """Take no more calls, and end the waits of those that wait: they return what they have."""
        with self._changed:
            self._is_closed = True
            ends = list(self._unfinished.values())
        for end_wait in ends:
            end_wait()

    async def last(self, make: Callable[[], None]) -> None:
        """Make the last call, after `end_waits`, and end the threads, each after its call. A cancelled caller leaves
        it to them."""
        call = Call(make, interrupt=None, discard=None)
        self._waits.submit(call.run)
        self._short.close()
        self._waits.close()
        await call.future

    def join(self, *, timeout_seconds: float) -> bool:
        """Block until the calls are over; False if some are not, at the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unfinished, timeout=timeout_seconds)
