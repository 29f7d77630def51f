"""Look whether pools' applications can be imported, and which workers still run an earlier state of their files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import CrashLoop, with_changed_application
from orchestrator.launch import Launch
from orchestrator.runtime import ApplicationReport, Runtime, SpawnRequest
from orchestrator.state.templates import reason_in
from orchestrator.supervisor.pool import AT_ONCE, Pool
from queue_core.log import get_logger

log = get_logger()

NAME_ENDING: Final = ".import"
"""The end of the name under which a pool's application is imported to look at it."""


class ApplicationChecks:
    """Imports each pool's application at the supervisor's start and at each reload. Belongs to one thread.

    Nothing waits for an import. A pool whose application can't be used is `misconfigured`, and looked at again as soon
    as a file changes; its workers stay. Workers that were started before a file of their application got its content
    are replaced, as after a change of their settings.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        launch: Launch,
        clock: MonotonicClock,
        on_schedules: Callable[[str, Sequence[Mapping[str, object]]], None] | None = None,
    ) -> None:
        """`on_schedules` is called with an application that was imported, and the schedules of its functions."""
        self._on_schedules = on_schedules
        self._runtime = runtime
        self._launch = launch
        self._clock = clock
        self._since = AT_ONCE
        self._pending: set[str] = set()

    def begin(self, pools: Mapping[str, Pool]) -> None:
        """Look at the applications of all pools as their files are now."""
        self._since = self._clock.monotonic()
        for pool in pools.values():
            pool.leased_tags = None  # what is started next may lease others
        self._pending = {pool.name for pool in pools.values() if pool.spec is not None and pool.spec.app is not None}

    def run(self, pools: Mapping[str, Pool]) -> None:
        """Take the results that are there, for as long as some are not; then do nothing."""
        for name in sorted(self._pending):
            pool = pools.get(name)
            if pool is None or pool.spec is None or self._is_over(pool, pool.spec):
                self._pending.discard(name)

    def _is_over(self, pool: Pool, spec: PoolSpec) -> bool:
        """Return whether nothing remains to be looked at."""
        now = self._clock.monotonic()
        name = f"{pool.name}{NAME_ENDING}"
        request = SpawnRequest(name, spec, self._launch.environment(name, spec))
        report = self._runtime.application(request, since=self._since, now=now)
        if report is None:
            return False
        self._record(pool, report)
        if not report.failure and report.served != pool.imported_tags:
            pool.imported_tags, pool.due_at = report.served, AT_ONCE
        if self._on_schedules is not None and spec.app is not None and report.schedules is not None:
            self._on_schedules(spec.app, report.schedules)
        changed_at = Monotonic(now + report.changed_at - self._clock.wall_seconds())
        if not report.failure and report.changed_at and changed_at <= now:
            pool.fleet = with_changed_application(pool.fleet, report.changed_file, at=changed_at)
            old = [w.worker for w in pool.fleet.workers.values() if w.changed_file]
            if old:
                pool.due_at = AT_ONCE
                log.info(events.POOL_APPLICATION_CHANGED, pool=pool.name, file=report.changed_file, workers=old)
        return not report.failure

    def _record(self, pool: Pool, report: ApplicationReport) -> None:
        """Keep and log what the import found; a pool that can be used again need not wait for its next start."""
        failure = reason_in(report.failure)
        if failure == pool.application_failure:
            return
        was, pool.application_failure, pool.due_at = pool.application_failure, failure, AT_ONCE
        if failure:
            sentence = f"its application can't be used: {failure}; it is tried again when a file of it changes"
            log.error(events.POOL_MISCONFIGURED, pool=pool.name, sentence=sentence)
        elif was:
            pool.fleet = replace(pool.fleet, crash=CrashLoop())
            log.info(events.POOL_USABLE, pool=pool.name, sentence="its application can be used again")
