"""Registers a worker that no supervisor started, so that every listener of its store lists it (ADR 97).

Nothing depends on it: a token that may not register, a full list or a store that does not answer ends no work.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Final

from queue_core.client.queue import Queues
from queue_core.clock import Clock
from queue_core.errors import PermissionDeniedError, QueueError, UnauthenticatedError
from queue_core.verbs.registration import WORKERS

SHORTEST_RENEWAL_SECONDS: Final = 20.0
"""Pause between two registrations, at least."""
SECONDS_EACH: Final = 0.1
"""Added to that pause for each worker that is registered: all of them are one record, which each renewal writes."""
LASTING: Final = 3.0
"""A registration holds for so many pauses."""


class WorkerRegistration:
    """The registration of one worker, renewed from a thread of its own."""

    def __init__(self, queues: Queues, worker: str, *, queue: str, finished: Callable[[], int], clock: Clock) -> None:
        """`finished`: returns how many tasks it has ended."""
        self._queues = queues
        self._worker = worker
        self._queue = queue
        self._finished = finished
        self._since = clock.now() // 1_000_000
        self._ended = Event()
        self._thread = Thread(target=self._work, name="towline-presence", daemon=True)

    def start(self) -> None:
        """Begin to register."""
        self._thread.start()

    def end(self) -> None:
        """End the registration, as far as the store answers at once."""
        self._ended.set()
        self._thread.join(timeout=1.0)

    def facts(self) -> dict[str, str]:
        """Return what is registered."""
        return {
            "host": socket.gethostname(),
            "pid": str(os.getpid()),
            "queue": self._queue,
            "since": str(self._since),
            "finished": str(self._finished()),
        }

    def _work(self) -> None:
        pause_seconds, is_registered = SHORTEST_RENEWAL_SECONDS, False
        while not self._ended.is_set():
            try:
                count = len(self._queues.registrations(WORKERS))
                pause_seconds = max(SHORTEST_RENEWAL_SECONDS, SECONDS_EACH * count)
                self._queues.register(WORKERS, self._worker, self.facts(), seconds=LASTING * pause_seconds)
                is_registered = True
            except (PermissionDeniedError, UnauthenticatedError):
                return  # this token, or an older server, registers no worker
            except (QueueError, OSError):
                pass  # the worker itself says when its queue is out of reach
            self._ended.wait(pause_seconds)
        if is_registered:
            with suppress(QueueError, OSError):
                self._queues.register(WORKERS, self._worker, {}, seconds=0.0)
