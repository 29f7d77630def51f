"""Reload the settings: decide when, apply them, and answer the request.

A signal, a file or a command requests a reload, all with the same answer; a changed settings file causes one too.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import ReloadRefusedError
from orchestrator.config.diff import PoolChange
from orchestrator.config.pools import PoolSpec
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.systemd import ServiceNotifier
from queue_core.log import get_logger

log = get_logger()

CHECK_SECONDS: Final = 1.0
"""Interval between two checks whether the settings file changed."""
QUIET_SECONDS: Final = 2.0
"""A changed file is read once it has been unchanged for this long: until then somebody may be writing it."""
REMOVAL_QUIET_SECONDS: Final = 5.0
"""The same when pools are missing from it: half a file may be valid, and its missing pools would be drained."""

Pools = Mapping[str, PoolSpec]
_Mark = tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class ReloadedSettings:
    """Settings that are valid.

    Args:
        waiting: names of changed settings that take effect only at the next start.
        queues: names of the queues that were created for them.
        schedules: those of the file, as JSON; None: they stay.
        finish: does the rest of the work before they take effect, and returns the final settings. Raises
            `ReloadRefusedError`.
    """

    pools: Pools
    waiting: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    schedules: Sequence[Mapping[str, object]] | None = None
    finish: Callable[[], "ReloadedSettings"] | None = None


@dataclass(frozen=True, slots=True)
class ReloadRefused:
    """Settings that are invalid: one message for each error, with its place."""

    messages: tuple[str, ...]


class ReloadRequests:
    """Reload requests; `request` may be called from another thread or a signal handler."""

    def __init__(
        self, *, load: Callable[[], Pools | ReloadedSettings] | None, watched: Path | None, pools: Collection[str] = ()
    ) -> None:
        """Args:
        load: reads the pools again; raises `ReloadRefusedError` for an invalid file.
        watched: the file whose change causes a reload.
        pools: the names of the current pools.
        """
        self._load = load
        self._watched = watched
        self._pools = frozenset(pools)
        self._applied = self._seen = self._file_mark()
        self._still_since = self._now = self._check_at = Monotonic(float("-inf"))
        # A deque and no lock: a signal handler may run while this same thread is inside `outcome`.
        self._requests: deque[Pools | None] = deque()

    def request(self, pools: Pools | None = None) -> None:
        """Request a reload with these pools, or with those of the file."""
        self._requests.append(pools)

    def is_due(self, *, now: Monotonic) -> bool:
        """Return whether a reload was requested, or the file has changed and is no longer being written."""
        has_changed = self._has_changed(now=now)
        return bool(self._requests) or (has_changed and self._load is not None)

    def outcome(self) -> ReloadedSettings | ReloadRefused | None:
        """Read the file now and return the new settings; None to wait because pools are missing from it.

        An explicit request never waits.
        """
        wanted = [self._requests.popleft() for _ in range(len(self._requests))]
        if wanted and wanted[-1] is not None:
            return self._apply(ReloadedSettings(wanted[-1]))
        if self._load is None:
            return ReloadRefused(("these settings did not come from a file, so there is nothing to reload",))
        mark = self._file_mark()
        try:
            read = self._load()
            found = read if isinstance(read, ReloadedSettings) else ReloadedSettings(read)
            is_early = self._now - self._still_since < REMOVAL_QUIET_SECONDS
            if not wanted and is_early and not self._pools <= found.pools.keys():
                return None
            found = found.finish() if found.finish is not None else found
        except ReloadRefusedError as error:
            self._applied = mark
            return ReloadRefused(tuple(error.lines))
        self._applied = mark
        return self._apply(found)

    def load_errors(self) -> tuple[str, ...]:
        """Return the mistakes in the file as it is now, each with its place. Changes nothing."""
        try:
            if self._load is not None:
                self._load()
        except ReloadRefusedError as error:
            return tuple(error.lines)
        return ()

    def _apply(self, found: ReloadedSettings) -> ReloadedSettings:
        self._pools = frozenset(found.pools)
        return found

    def _has_changed(self, *, now: Monotonic) -> bool:
        if self._watched is None or now < self._check_at:
            return False
        self._now, self._check_at = now, Monotonic(now + CHECK_SECONDS)
        found = self._file_mark()
        if found != self._seen:
            self._seen, self._still_since = found, now
        return found not in (None, self._applied) and now - self._still_since >= QUIET_SECONDS

    def _file_mark(self) -> _Mark:
        if self._watched is None:
            return None
        try:
            status = self._watched.stat()
        except OSError:  # an editor may be replacing the file
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


class ReloadHandler:
    """Carries out one supervisor's reloads. Belongs to its thread."""

    def __init__(
        self,
        reloads: ReloadRequests,
        *,
        files: StateDir,
        clock: MonotonicClock,
        notifier: ServiceNotifier,
        apply: Callable[[Pools], list[PoolChange]],
        status: Callable[[], str],
        schedules: Callable[[Sequence[Mapping[str, object]]], Sequence[str]] | None = None,
    ) -> None:
        """Args:
        apply: replaces the pools and returns the changes.
        status: returns the supervisor's status text.
        schedules: replaces the schedules of the file, and returns the names of those that changed.
        """
        self._set_schedules = schedules
        self._reloads = reloads
        self._files = files
        self._clock = clock
        self._notifier = notifier
        self._apply = apply
        self._status = status
        self.not_in_force: tuple[str, ...] = ()
        """Settings that the last reload found changed, and that wait for the next start."""
        self._request_id = files.reload_request()  # a request from before our start is fulfilled by it

    def reload_if_due(self) -> None:
        """Reload if requested, or if the file has changed."""
        request_id = self._files.reload_request()
        if request_id != self._request_id:
            self._request_id = request_id
            self._reloads.request()
        now = self._clock.monotonic()
        if not self._reloads.is_due(now=now):
            return
        found = self._reloads.outcome()
        if found is None:
            return
        self._notifier.reloading(now=now)
        if isinstance(found, ReloadRefused):
            log.error(events.SUPERVISOR_RELOAD_REFUSED, mistakes=list(found.messages))
            self._answer({"mistakes": list(found.messages)})
            self._notifier.ready(f"settings refused, the old ones stay; {self._status()}")
            return
        changes = [change.to_json() for change in self._apply(found.pools)]
        schedules: Sequence[str] = ()
        if self._set_schedules is not None and found.schedules is not None:
            schedules = self._set_schedules(found.schedules)
        self.not_in_force = tuple(found.waiting)
        answer = {
            "changes": changes,
            "queues": list(found.queues),
            "schedules": list(schedules),
            "next_start": list(found.waiting),
        }
        log.info(events.SUPERVISOR_RELOADED, pools=sorted(found.pools), **answer)
        self._answer(answer)
        self._notifier.ready(self._status())

    def _answer(self, answer: Mapping[str, object]) -> None:
        at = round(self._clock.wall_seconds(), 3)
        try:
            self._files.write_reload_answer({"request": self._request_id, "at": at, **answer})
        except OSError as error:
            log.warning(events.STATE_NOT_WRITTEN, path=str(self._files.path), error=error.strerror)
