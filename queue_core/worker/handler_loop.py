"""HandlerLoop: the one event loop, in a thread of its own, that async handlers run in."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from threading import Thread

from queue_core.worker.call import LINES_SHOWN, Call, Failed, Outcome, line_of
from queue_core.worker.shift import Shift

Then = Callable[[Call, Outcome], None]


class HandlerLoop:
    """Starts async handlers from any thread; a call whose leases are lost is cancelled."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._serve, name="towline-handlers", daemon=True)
        self._running: set[asyncio.Task[None]] = set()
        self._end: asyncio.Task[None] | None = None  # the loop itself keeps no strong reference

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def call(self, call: Call, then: Then) -> None:
        """Run the handler; `then` is called in the loop's thread with what came of it, and must not block."""
        self._loop.call_soon_threadsafe(self._begin, call, then)

    def result(self, call: Call) -> Outcome:
        """Run the handler and wait for what comes of it, in a thread that has nothing else to do."""
        future: Future[Outcome] = Future()
        self.call(call, lambda _, outcome: future.set_result(outcome))
        return future.result()

    def close(self, *, timeout_seconds: float) -> bool:
        """Cancel what still runs and end the loop once it has unwound; False when that takes longer than the time."""
        self._loop.call_soon_threadsafe(self._begin_to_end)
        self._thread.join(timeout=timeout_seconds)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _begin(self, call: Call, then: Then) -> None:
        if not call.held():  # lost before it began
            then(call, Failed(()))
            return
        task = self._loop.create_task(self._run(call, then))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        call.where = lambda: _lines_of(task)
        call.cancel = lambda: self._cancel(task)

    def _cancel(self, task: "asyncio.Task[None]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs in it
            self._loop.call_soon_threadsafe(task.cancel)

    def _begin_to_end(self) -> None:
        self._end = self._loop.create_task(self._unwind())

    async def _run(self, call: Call, then: Then) -> None:
        outcome: Outcome
        try:
            returned = call.handler.function(call.argument())
            if isinstance(returned, Coroutine):
                returned = await returned
            outcome = call.returned(returned)
        except BaseException as error:  # noqa: BLE001  whatever a handler raises is its own failure, the loop lives on
            outcome = call.raised(error, now=self._shift.clock.monotonic(), log=self._shift.log)
        then(call, outcome)

    async def _unwind(self) -> None:
        running = tuple(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self._loop.stop()


def _lines_of(task: "asyncio.Task[None]") -> str:
    lines: list[str] = []
    awaiting: object = task.get_coro()
    while (frame := getattr(awaiting, "cr_frame", None)) is not None:
        lines.insert(0, line_of(frame))
        awaiting = getattr(awaiting, "cr_await", None)
    return " < ".join(lines[:LINES_SHOWN])
