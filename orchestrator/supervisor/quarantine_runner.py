"""Suspects run alone: a worker is started for each, takes it, and goes. In the place of the one that died."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import SourceUnavailableError, SpawnError
from orchestrator.fleet.exits import WITHOUT_FAULT, Cause
from orchestrator.fleet.quarantine import (
    IsolatedTask,
    cleared_by,
    is_solo_worker,
    next_to_start,
    solo_worker_name,
    still_held,
)
from orchestrator.fleet.workers import joined
from orchestrator.launch import Launch
from orchestrator.runtime import Runtime, SpawnRequest
from orchestrator.source import WorkSource
from orchestrator.supervisor.pool import Pool

log = structlog.get_logger()

AGAIN_SECONDS: Final = 5.0
"""After a start that failed."""


class QuarantineRunner:
    """Starts workers for the suspects of pools. Belongs to one thread."""

    def __init__(
        self,
        *,
        source: WorkSource,
        runtime: Runtime,
        clock: MonotonicClock,
        launch: Launch,
        identify: Callable[[str], str],
    ) -> None:
        self._source = source
        self._runtime = runtime
        self._clock = clock
        self._launch = launch
        self._identify = identify

    def run(self, pool: Pool, spec: PoolSpec) -> None:
        """Start whom there is room for: they count towards the pool's upper bound, and go before its growth."""
        now = self._clock.monotonic()
        pool.suspects = still_held(pool.suspects, now=now)
        if not pool.suspects or (pool.fleet.failed_starts(spec) and now < pool.fleet.crash.retry_at):
            return
        alone = sum(1 for worker in pool.fleet.workers if is_solo_worker(worker))
        taken = len(pool.fleet.workers)
        for suspect in next_to_start(pool.suspects, most=spec.workers.max, taken=taken, solo=alone, now=now):
            if not self._start(pool, spec, suspect, now=now):
                break

    def over(self, pool: Pool, worker: str, *, cause: Cause, held: int) -> None:
        """A worker ended. If it broke before it had its suspect, another may be started for that.

        If it died of it, those go free who were suspected for no more than what that one has done.
        """
        suspect = pool.errands.pop(worker, None)
        if suspect is None or cause in WITHOUT_FAULT:
            return
        if held:
            self._let_go(pool, cleared_by(suspect, pool.suspects))
        elif cause is not Cause.FINISHED:
            pool.suspects = (*pool.suspects, suspect)

    def _let_go(self, pool: Pool, free: Sequence[IsolatedTask]) -> None:
        if not free:
            return
        try:
            self._source.recall(free)
        except SourceUnavailableError:
            return  # they stay in line
        pool.suspects = tuple(one for one in pool.suspects if one not in free)
        log.info(events.TASK_CLEARED, pool=pool.name, tasks=[one.task.task for one in free])

    def _start(self, pool: Pool, spec: PoolSpec, suspect: IsolatedTask, *, now: Monotonic) -> bool:
        worker = solo_worker_name(suspect, identity=self._identify(pool.name))
        environment = {**self._launch.environment(worker, spec), "TOWLINE_CONCURRENCY": "1"}
        others = tuple(one for one in pool.suspects if one is not suspect)
        try:
            handle = self._runtime.spawn(SpawnRequest(worker, spec, environment), now=now)
        except SpawnError as error:
            later = replace(suspect, not_before=Monotonic(now + AGAIN_SECONDS))
            pool.suspects = (*others, later)
            log.warning(events.WORKER_SPAWN_FAILED, pool=pool.name, error=str(error), task=suspect.task.task)
            return False
        pool.suspects = others
        pool.errands[handle.worker] = suspect
        pool.fleet = joined(
            pool.fleet,
            worker=handle.worker,
            ref=handle.ref,
            spec_digest=handle.spec_digest,
            spawned_at=handle.spawned_at,
        )
        log.info(
            events.TASK_ISOLATED,
            pool=pool.name,
            queue=suspect.task.queue,
            task=suspect.task.task,
            worker=handle.worker,
            ref=handle.ref,
        )
        return True
