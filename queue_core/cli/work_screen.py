"""Show what `towline work` does on a terminal: sentences, between the lines that its handlers print themselves."""

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from queue_core.cli.event_lines import EventLine, FailureCounts, LineLayout
from queue_core.cli.output import terminal_width
from queue_core.cli.worker_events import EventReader, worker_line
from queue_core.client.connect import open_queues
from queue_core.client.http.caller import Retries
from queue_core.clock import MICROSECONDS, Clock
from queue_core.errors import QueueError
from queue_core.process import forking
from queue_core.process.terminal import allows_colours, write_at_once
from queue_core.task import QueueSpec
from queue_core.worker import events
from queue_core.worker.settings import WorkerSettings

QUESTION_SECONDS = 2.0
"""How long the question for the queues' settings may take, once."""


class WorkScreen:
    """Writes a worker's log entries to the terminal as sentences; any thread may give one."""

    def __init__(self, settings: WorkerSettings, *, level: str, clock: Clock) -> None:
        """`level`: the least that is shown."""
        self._settings = settings
        self._clock = clock
        self._reader = EventReader(level=level, folder=Path.cwd(), is_alone=True)
        self._asks: Callable[[], Mapping[str, QueueSpec]] | None = lambda: _specs(settings)
        self._layout = LineLayout(has_colours=allows_colours())
        self._failures = FailureCounts()
        self._is_stopping = False
        self._lock = threading.Lock()
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """Replace the lock in the child of a fork."""
        self._lock = threading.Lock()

    def show(self, entry: Mapping[str, object]) -> None:
        """Show an entry, unless it is no news, or a failure of which others like it were shown just now."""
        if entry.get("event") == events.HANDLER_FAILED and self._asks is not None:
            ask, self._asks = self._asks, None
            self._reader = replace(self._reader, queues=ask())
        line = worker_line(entry, self._reader)
        now = self._clock.monotonic()
        with self._lock:
            is_over = entry.get("event") == events.WORKER_DRAINED
            lines = self._failures.rest() if is_over else self._failures.due(now=now)
            if line is not None and (not line.kind or self._failures.is_new(line, now=now)):
                lines.append(line)
            self._is_stopping = self._is_stopping or entry.get("event") == events.WORKER_DRAINING
            self._write(lines)

    def _write(self, lines: list[EventLine]) -> None:
        self._layout.width = terminal_width(err=True)
        at = self._clock.now() / MICROSECONDS
        text = "".join(f"{shown}\n" for line in lines for shown in self._layout.lines(line, at=at))
        if text:
            # A terminal echoes Ctrl-C as ^C; the first line after it is written over that.
            text = f"\r{text}" if self._is_stopping else text
            with contextlib.suppress(OSError, ValueError):
                write_at_once(sys.stderr, text)


def _specs(settings: WorkerSettings) -> Mapping[str, QueueSpec]:
    """Return the queues as they are set; none where they can't be had now."""
    try:
        queues = open_queues(
            settings.url, token=settings.token, retries=Retries(tries=1), timeout_seconds=QUESTION_SECONDS
        )
        try:
            return {spec.name: spec for spec in queues.queues()}
        finally:
            queues.close()
    except QueueError:
        return {}
