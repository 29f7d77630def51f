"""When the settings are to be read again: somebody asked, or the file is another one than before."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.errors import ReloadRefusedError

LOOK_SECONDS: Final = 1.0

Pools = Mapping[str, PoolSpec]
_Mark = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings that can be used. `waiting` names what changed in them but is heeded by the next start only."""

    pools: Pools
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Settings that can't be used, and every mistake in them with its place."""

    mistakes: tuple[str, ...]


class Reloads:
    """Requests for a reload; `ask` may come from another thread or from a signal's handler."""

    def __init__(self, *, load: Callable[[], Pools | Loaded] | None, watched: Path | None) -> None:
        """Args:
        load: reads the pools anew; raises `ReloadRefusedError` for a file that can't be used.
        watched: the file whose change is a request.
        """
        self._load = load
        self._watched = watched
        self._mark = self._look()
        self._look_at = Monotonic(float("-inf"))
        # A deque, and no lock: a handler may run while this very thread is inside `outcome`.
        self._asked: deque[Pools | None] = deque()

    def ask(self, pools: Pools | None = None) -> None:
        """Go on with these pools, or with those of the file."""
        self._asked.append(pools)

    def is_due(self, *, now: Monotonic) -> bool:
        """Whether somebody asked, or the file is another one."""
        has_changed = self._has_changed(now=now)
        return bool(self._asked) or (has_changed and self._load is not None)

    def outcome(self) -> Loaded | Refused:
        """What to go on with; the file is read now."""
        wanted = [self._asked.popleft() for _ in range(len(self._asked))]
        if wanted and wanted[-1] is not None:
            return Loaded(wanted[-1])
        if self._load is None:
            return Refused(("these settings did not come from a file: there is nothing to read again",))
        try:
            found = self._load()
        except ReloadRefusedError as error:
            return Refused(tuple(error.lines))
        return found if isinstance(found, Loaded) else Loaded(found)

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
