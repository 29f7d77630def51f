"""Shows the fleet to other processes, and keeps what was learned: both on disk, neither often."""

import os
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from orchestrator import events
from orchestrator.clock import Clock, Monotonic
from orchestrator.fleet import Memory
from orchestrator.fleet_view import Phase, view_of
from orchestrator.managed import ManagedPool
from orchestrator.pulse import Pulse
from orchestrator.runtime import WorkerHandle
from orchestrator.runtimes.procfs import boot
from orchestrator.snapshot import WallTime, handle_in, memories_in, snapshot_of, wall_time_in, workers_in
from orchestrator.state import StateDir

log = structlog.get_logger()

SHOW_SECONDS: Final = 1.0
SHOW_IDLE_SECONDS: Final = 10.0
LEARNED_SECONDS: Final = 60.0
TELL_SECONDS: Final = 0.5
TELL_NEWS_SECONDS: Final = 0.1

_AT_ONCE: Final = Monotonic(float("-inf"))


class Showcase:
    """Writes the supervisor's snapshot and its learned state, each at a bounded rate."""

    def __init__(self, files: StateDir, *, clock: Clock, url: str, pulse: Pulse) -> None:
        self._files = files
        self._pulse = pulse
        self._tell_at = _AT_ONCE
        self._told: tuple[object, ...] = ()
        self._clock = clock
        self._started_at = round(clock.wall_seconds(), 3)
        self._url = url
        self._boot = boot()
        self._show_at = _AT_ONCE
        self._keep_at = Monotonic(clock.monotonic() + LEARNED_SECONDS)
        self._is_failing = False
        self._shown: tuple[str, Collection[object], Collection[object]] = ("", (), ())
        self.snapshot: Mapping[str, object] = {}

    def update(self, pools: Collection[ManagedPool], *, phase: Phase) -> None:
        """Show a change of phase, workers or orders at once, other changes once a second, an idle fleet less often.

        A folder that can't be written to is told in the log; the fleet does not depend on it.
        """
        now = self._clock.monotonic()
        workers = {
            (w.worker, w.is_leaving, w.replaced_by, w.hung_at) for pool in pools for w in pool.fleet.workers.values()
        }
        asked = [(pool.conditions.bounds_by, pool.conditions.paused, not pool.conditions.finish_by) for pool in pools]
        if now >= self._show_at or self._shown != (phase, workers, asked):
            is_idle = not workers and not any(pool.sample and pool.sample.ready for pool in pools)
            self._show_at = Monotonic(now + (SHOW_IDLE_SECONDS if is_idle else SHOW_SECONDS))
            self._shown = (phase, workers, asked)
            self._show(pools, phase)
        self._tell(pools, phase=phase, now=now)
        if now >= self._keep_at:
            self._keep_at = Monotonic(now + LEARNED_SECONDS)
            self.keep_learned(pools)

    def _tell(self, pools: Collection[ManagedPool], *, phase: Phase, now: Monotonic) -> None:
        """Other threads are told a change of phase or of a target almost at once, all else twice a second."""
        told = (phase, *[pool.decision and pool.decision.target for pool in pools])
        if now >= self._tell_at or (told != self._told and now >= self._tell_at - TELL_SECONDS + TELL_NEWS_SECONDS):
            self._tell_at = Monotonic(now + TELL_SECONDS)
            self._told = told
            self._pulse.show(view_of(pools, phase=phase, started_at=self._pulse.started_at))

    def keep_learned(self, pools: Collection[ManagedPool]) -> None:
        """Keep now what was learned of each pool."""
        learned = {pool.name: pool.state.to_json() for pool in pools if pool.spec}
        self._write(lambda: self._files.write_learned(learned))

    def learned(self) -> Mapping[str, object]:
        """What an earlier supervisor learned; nothing, with a warning, when that can't be read."""
        try:
            return self._files.read_learned()
        except ValueError as error:
            log.warning(events.STATE_DISCARDED, error=str(error))
            return {}

    def roster(self) -> list[WorkerHandle]:
        """The workers that an earlier supervisor showed last, each as its runtime knew it."""
        shown = self._files.read_snapshot() or {}
        wall = self._time_of(shown)
        return [handle for worker in workers_in(shown) if (handle := handle_in(worker, wall=wall))]

    def memories(self) -> Mapping[str, Memory]:
        """What it was about with each of them."""
        shown = self._files.read_snapshot() or {}
        return memories_in(shown, wall=self._time_of(shown))

    def _time_of(self, shown: Mapping[str, object]) -> WallTime:
        """How a snapshot tells time. Within a boot its own monotonic clock counts: the other one may have been set."""
        found = wall_time_in(shown, boot=self._boot)
        return found or WallTime(wall_seconds=self._clock.wall_seconds(), monotonic=self._clock.monotonic())

    def _show(self, pools: Collection[ManagedPool], phase: str) -> None:
        now, wall_seconds = self._clock.monotonic(), round(self._clock.wall_seconds(), 3)
        wall = WallTime(wall_seconds=wall_seconds, monotonic=now)
        snapshot: Mapping[str, object] = {
            "version": 1,
            "pid": os.getpid(),
            "phase": phase,
            "url": self._url,
            "started_at": self._started_at,
            "shown_at": wall_seconds,
            "shown_at_monotonic": now,
            "boot": self._boot,
            **snapshot_of(pools, wall=wall),
        }
        self._write(lambda: self._files.write_snapshot(snapshot))
        self.snapshot = snapshot

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._is_failing:
                log.warning(events.STATE_NOT_WRITTEN, path=str(self._files.path), error=error.strerror)
            self._is_failing = True
        else:
            if self._is_failing:
                log.info(events.STATE_RECOVERED, path=str(self._files.path))
            self._is_failing = False
