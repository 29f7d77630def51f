"""When the settings are to be read again: somebody asked, or the file is another one than before."""

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.errors import ReloadRefusedError

log = structlog.get_logger()

LOOK_SECONDS: Final = 1.0

Pools = Mapping[str, PoolSpec]
_Mark = tuple[int, int, int] | None


class Reloads:
    """Requests for a reload; `ask` may come from another thread or from a signal's handler."""

    def __init__(self, *, load: Callable[[], Pools] | None, watched: Path | None) -> None:
        """Args:
        load: reads the pools anew; raises `ReloadRefusedError` for a file that can't be used.
        watched: the file whose change is a request.
        """
        self._load = load
        self._watched = watched
        self._mark = self._look()
        self._look_at = Monotonic(float("-inf"))
        # A deque, and no lock: a handler may run while this very thread is inside `next`.
        self._asked: deque[Pools | None] = deque()

    @property
    def is_asked(self) -> bool:
        """Whether somebody asked since `next`."""
        return bool(self._asked)

    def ask(self, pools: Pools | None = None) -> None:
        """Go on with these pools, or with those of the file."""
        self._asked.append(pools)

    def next(self, *, now: Monotonic) -> Pools | None:
        """The pools to go on with, or None to go on as before; a file that can't be used is told in the log."""
        wanted = [self._asked.popleft() for _ in range(len(self._asked))]
        if wanted and wanted[-1] is not None:
            return wanted[-1]
        if not wanted and not self._has_changed(now=now):
            return None
        if self._load is None:
            return None
        try:
            return self._load()
        except ReloadRefusedError as error:
            log.error(events.SUPERVISOR_RELOAD_REFUSED, mistakes=list(error.lines))  # noqa: TRY400  no bug of ours
            return None

    def _has_changed(self, *, now: Monotonic) -> bool:
        if self._watched is None or now < self._look_at:
            return False
        self._look_at = Monotonic(now + LOOK_SECONDS)
        before, self._mark = self._mark, self._look()
        return self._mark is not None and self._mark != before

    def _look(self) -> _Mark:
        if self._watched is None:
            return None
        try:
            status = self._watched.stat()
        except OSError:  # an editor may be between removing the old file and naming the new one
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
