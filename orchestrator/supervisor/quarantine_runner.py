"""Run each suspected task alone: start a solo worker for it, in place of the worker that died (ADR 14)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import SourceUnavailableError, SpawnError
from orchestrator.config.pools import PoolSpec
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
from queue_core.log import get_logger

log = get_logger()

RETRY_SECONDS: Final = 5.0
"""Pause after a solo worker failed to start."""


class QuarantineRunner:
    """Starts solo workers for pools' suspected tasks. Belongs to one thread."""

    def __init__(
        self,
        *,
        source: WorkSource,
        runtime: Runtime,
        clock: MonotonicClock,
        launch: Launch,
        identify: Callable[[str], str],
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_act` tells whether workers may be started now."""
        self._may_act = may_act
        self._source = source
        self._runtime = runtime
        self._clock = clock
        self._launch = launch
        self._identify = identify

    def run(self, pool: Pool, spec: PoolSpec) -> None:
        """Start solo workers within the pool's max; they go before the pool's own growth."""
        now = self._clock.monotonic()
        pool.suspected = still_held(pool.suspected, now=now)
        if not pool.suspected or (pool.fleet.failed_starts(spec) and now < pool.fleet.crash.retry_at):
            return
        alone = sum(1 for worker in pool.fleet.workers if is_solo_worker(worker))
        taken = len(pool.fleet.workers)
        for suspect in next_to_start(pool.suspected, most=spec.workers.max, taken=taken, solo=alone, now=now):
            if not self._may_act() or not self._start(pool, spec, suspect, now=now):
                break

    def ended(self, pool: Pool, worker: str, *, cause: Cause, held: int) -> None:
        """Handle a solo worker's end: if it failed before it leased its task, queue the task again.

        If the task killed it, release the suspected tasks whose deaths this one explains.
        """
        suspect = pool.solo_workers.pop(worker, None)
        if suspect is None or cause in WITHOUT_FAULT:
            return
        if held:
            self._release(pool, cleared_by(suspect, pool.suspected))
        elif cause is not Cause.FINISHED:
            pool.suspected = (*pool.suspected, suspect)

    def _release(self, pool: Pool, free: Sequence[IsolatedTask]) -> None:
        if not free:
            return
        try:
            self._source.recall(free)
        except SourceUnavailableError:
            return  # they stay suspected
        pool.suspected = tuple(one for one in pool.suspected if one not in free)
        log.info(events.TASK_CLEARED, pool=pool.name, tasks=[one.task.task for one in free])

    def _start(self, pool: Pool, spec: PoolSpec, suspect: IsolatedTask, *, now: Monotonic) -> bool:
        worker = solo_worker_name(suspect, identity=self._identify(pool.name))
        environment = {**self._launch.environment(worker, spec), "TOWLINE_CONCURRENCY": "1"}
        others = tuple(one for one in pool.suspected if one is not suspect)
        try:
            handle = self._runtime.spawn(SpawnRequest(worker, spec, environment), now=now)
        except SpawnError as error:
            later = replace(suspect, not_before=Monotonic(now + RETRY_SECONDS))
            pool.suspected = (*others, later)
            log.warning(events.WORKER_SPAWN_FAILED, pool=pool.name, error=str(error), task=suspect.task.task)
            return False
        pool.suspected = others
        pool.solo_workers[handle.worker] = suspect
        pool.fleet = joined(
            pool.fleet,
            worker=handle.worker,
            ref=handle.ref,
            spec_digest=handle.spec_digest,
            spawned_at=handle.spawned_at,
            is_forked=handle.is_forked,
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
