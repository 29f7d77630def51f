"""Say where a hook stands that keeps a worker from its first lease: a worker that starts for long looks like none."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, get_ident
from types import CodeType
from typing import Any, Final

from queue_core.clock import Clock
from queue_core.process.wording import shown_seconds
from queue_core.worker import events
from queue_core.worker.code_lines import CodeLine, full_lines, lines_from, shown_lines

SLOW_SECONDS: Final = 10.0
"""A hook that runs for so long is logged; then again each time that it has run for twice as long."""


class SlowHooks:
    """Logs each `on_start` hook that runs for long, with the line at which it stands, until it ends."""

    def __init__(self, log: Any, clock: Clock, *, slow_seconds: float = SLOW_SECONDS) -> None:
        self._log = log
        self._clock = clock
        self._slow_seconds = slow_seconds

    @contextmanager
    def watch(self, hook: Callable[..., object], *, until: CodeType) -> Iterator[None]:
        """Watch a hook that runs in this thread meanwhile; `until` is the code that calls it."""
        ended = Event()
        arguments = hook, get_ident(), until, ended
        watcher = Thread(target=self._watch, args=arguments, name="slow-hooks", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def _watch(self, hook: Callable[..., object], thread: int, until: CodeType, ended: Event) -> None:
        begin, wait_seconds = self._clock.monotonic(), self._slow_seconds
        while not ended.wait(wait_seconds):
            seconds = self._clock.monotonic() - begin
            lines = _lines(hook, thread, until)
            name = getattr(hook, "__name__", type(hook).__name__)
            self._log.warning(
                events.HOOK_SLOW,
                hook=f"on_start {name}",
                seconds=round(seconds, 3),
                stack=full_lines(lines),
                sentence=f"on_start {name} has been running for {shown_seconds(seconds)}, at {shown_lines(lines)}: "
                "the worker takes no task before it ends",
            )
            wait_seconds = max(self._slow_seconds, seconds)


def _lines(hook: Callable[..., object], thread: int, until: CodeType) -> tuple[CodeLine, ...]:
    """Return where a hook stands; of an async one, which runs in another thread, where it is written."""
    code = getattr(hook, "__code__", None)
    frame = sys._current_frames().get(thread)  # noqa: SLF001  the only way to see another thread's stack
    lines = lines_from(frame, until=until)
    if code is None or any(line.filename == code.co_filename for line in lines):
        return lines
    return (CodeLine(code.co_filename, code.co_firstlineno, code.co_name),)
