"""Reloads: when the settings are to be read again, how that is carried out, and what whoever asked is answered.

They are asked for by signal, file or command, all answered in the same way; a changed file asks for one too.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.config.diff import PoolChange
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import ReloadRefusedError
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.systemd import Notices

log = structlog.get_logger()

LOOK_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 2.0
"""How long a changed file must be the same before it is read: until then somebody may be writing it."""
REMOVAL_QUIET_SECONDS: Final = 5.0
"""The same where pools are missing in it: half of a file may be a valid one, and their workers would be drained."""

Pools = Mapping[str, PoolSpec]
_Mark = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class ReloadedSettings:
    """Settings that can be used.

    Args:
        waiting: names what changed in them but is heeded by the next start only.
        queues: names the queues that were made for them.
        finish: does what is left to do before they are in force, and returns them as they are then. Raises
            `ReloadRefusedError`.
    """

    pools: Pools
    waiting: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    finish: Callable[[], "ReloadedSettings"] | None = None


@dataclass(frozen=True, slots=True)
class ReloadRefused:
    """Settings that can't be used, and every mistake in them with its place."""

    mistakes: tuple[str, ...]


class Reloads:
    """Requests for a reload; `ask` may come from another thread or from a signal's handler."""

    def __init__(
        self, *, load: Callable[[], Pools | ReloadedSettings] | None, watched: Path | None, pools: Collection[str] = ()
    ) -> None:
        """Args:
        load: reads the pools anew; raises `ReloadRefusedError` for a file that can't be used.
        watched: the file whose change is a request.
        pools: the names of those in force.
        """
        self._load = load
        self._watched = watched
        self._pools = frozenset(pools)
        self._heeded = self._seen = self._look()
        self._still_since = self._now = self._look_at = Monotonic(float("-inf"))
        # A deque, and no lock: a handler may run while this very thread is inside `outcome`.
        self._asked: deque[Pools | None] = deque()

    def ask(self, pools: Pools | None = None) -> None:
        """Go on with these pools, or with those of the file."""
        self._asked.append(pools)

    def is_due(self, *, now: Monotonic) -> bool:
        """Whether somebody asked, or the file is another one and nobody seems to be writing it."""
        has_changed = self._has_changed(now=now)
        return bool(self._asked) or (has_changed and self._load is not None)

    def outcome(self) -> ReloadedSettings | ReloadRefused | None:
        """Return what to go on with; the file is read now. None: a look later is better, as pools are missing in it.

        Who asks is heeded at once.
        """
        wanted = [self._asked.popleft() for _ in range(len(self._asked))]
        if wanted and wanted[-1] is not None:
            return self._heed(ReloadedSettings(wanted[-1]))
        if self._load is None:
            return ReloadRefused(("these settings did not come from a file: there is nothing to read again",))
        mark = self._look()
        try:
            read = self._load()
            found = read if isinstance(read, ReloadedSettings) else ReloadedSettings(read)
            is_early = self._now - self._still_since < REMOVAL_QUIET_SECONDS
            if not wanted and is_early and not self._pools <= found.pools.keys():
                return None
            found = found.finish() if found.finish is not None else found
        except ReloadRefusedError as error:
            self._heeded = mark
            return ReloadRefused(tuple(error.lines))
        self._heeded = mark
        return self._heed(found)

    def _heed(self, found: ReloadedSettings) -> ReloadedSettings:
        self._pools = frozenset(found.pools)
        return found

    def _has_changed(self, *, now: Monotonic) -> bool:
        if self._watched is None or now < self._look_at:
            return False
        self._now, self._look_at = now, Monotonic(now + LOOK_SECONDS)
        found = self._look()
        if found != self._seen:
            self._seen, self._still_since = found, now
        return found not in (None, self._heeded) and now - self._still_since >= QUIET_SECONDS

    def _look(self) -> _Mark:
        if self._watched is None:
            return None
        try:
            status = self._watched.stat()
        except OSError:  # an editor may be between removing the old file and naming the new one
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


class ReloadHandler:
    """The reloads of one supervisor. Belongs to its thread."""

    def __init__(
        self,
        reloads: Reloads,
        *,
        files: StateDir,
        clock: MonotonicClock,
        notices: Notices,
        apply: Callable[[Pools], list[PoolChange]],
        status: Callable[[], str],
    ) -> None:
        """`apply` makes pools the ones to work with; `status` is what the supervisor is about, in a line."""
        self._reloads = reloads
        self._files = files
        self._clock = clock
        self._notices = notices
        self._apply = apply
        self._status = status
        self._asked = files.reload_asked()  # whoever asked before we were there has us now

    def attend(self) -> None:
        """Reload, if somebody asked or the file is another one."""
        asked = self._files.reload_asked()
        if asked != self._asked:
            self._asked = asked
            self._reloads.ask()
        now = self._clock.monotonic()
        if not self._reloads.is_due(now=now):
            return
        found = self._reloads.outcome()
        if found is None:
            return
        self._notices.reloading(now=now)
        if isinstance(found, ReloadRefused):
            log.error(events.SUPERVISOR_RELOAD_REFUSED, mistakes=list(found.mistakes))
            self._answer({"mistakes": list(found.mistakes)})
            self._notices.ready(f"settings refused, as before; {self._status()}")
            return
        changes = [change.to_json() for change in self._apply(found.pools)]
        answer = {"changes": changes, "queues": list(found.queues), "next_start": list(found.waiting)}
        log.info(events.SUPERVISOR_RELOADED, pools=sorted(found.pools), **answer)
        self._answer(answer)
        self._notices.ready(self._status())

    def _answer(self, answer: Mapping[str, object]) -> None:
        at = round(self._clock.wall_seconds(), 3)
        try:
            self._files.answer_reload({"request": self._asked, "at": at, **answer})
        except OSError as error:
            log.warning(events.STATE_NOT_WRITTEN, path=str(self._files.path), error=error.strerror)
