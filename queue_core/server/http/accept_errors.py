"""What happens when no descriptor is left for another connection: told once, and once more when that is over.

Callers wait meanwhile, in the kernel's queue of connections; asyncio tries again every second.
"""

import asyncio
import errno
import resource
from collections.abc import Mapping
from typing import Final

import structlog

from queue_core.server import events

ACCEPTED_AT_ONCE: Final = 16
"""Connections taken in one turn of the loop, at most. asyncio goes on after a refusal, reports each of so many, and
tries as often again: with the length of the kernel's queue it would do nothing else any more."""
OVER_SECONDS: Final = 3.0
"""So long without another refusal, and there is room again."""
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = structlog.get_logger()


class AcceptErrors:
    """Hears of a loop's errors. Belongs to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._refused_at = 0.0
        self._is_refusing = False
        loop.set_exception_handler(self._heard)

    def _heard(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _NO_ROOM and "accept" in str(context.get("message"))):
            told = str(context.get("message", ""))
            log.error(events.LOOP_FAILED, message=told, exc_info=error if isinstance(error, Exception) else None)
            return
        self._refused_at = loop.time()
        if self._is_refusing:
            return
        self._is_refusing = True
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        log.error(events.CONNECTIONS_REFUSED, error=error.strerror, limit=limit, fix="raise LimitNOFILE, or ulimit -n")
        loop.call_later(OVER_SECONDS, self._look)

    def _look(self) -> None:
        left = self._refused_at + OVER_SECONDS - self._loop.time()
        if left > 0:
            self._loop.call_later(left, self._look)
            return
        self._is_refusing = False
        log.info(events.CONNECTIONS_ACCEPTED)
