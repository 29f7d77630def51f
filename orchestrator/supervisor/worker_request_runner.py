"""Carry out orders about workers: drain one, kill one, replace all of a pool. Each is done once, as soon as it can be.

They are read from the state directory whenever that has changed, so that a supervisor that starts heeds them too.
"""

from collections.abc import Mapping
from typing import Final

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.config.overrides import Moment
from orchestrator.config.worker_requests import NO_WORKER_REQUESTS, ReplaceRequest, WorkerRequest
from orchestrator.fleet.workers import with_replacement_ordered
from orchestrator.runtimes.procfs import boot
from orchestrator.scaling.plan import WorkerRemoval
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.executor import PlanExecutor
from orchestrator.supervisor.log_once import LogOnce
from orchestrator.supervisor.pool import AT_ONCE, Pool
from queue_core.log import get_logger
from queue_core.process.wording import counted

log = get_logger()

_UNREAD: Final = (-1, -1, -1)


class WorkerRequestRunner:
    """Carries out the orders of one state directory. Belongs to the supervisor's thread."""

    def __init__(self, files: StateDir, executor: PlanExecutor, clock: MonotonicClock) -> None:
        self._files = files
        self._executor = executor
        self._clock = clock
        self._boot = boot()
        self._mark: tuple[int, int, int] | None = _UNREAD
        self._orders = NO_WORKER_REQUESTS
        self._replaced: dict[str, ReplaceRequest] = {}
        self._is_pending = False
        self._read_errors = LogOnce()

    def run(self, pools: Mapping[str, Pool]) -> None:
        """Carry out the orders that are new, and those that could not be carried out yet."""
        has_changed = self._has_changed()
        if not (has_changed or self._is_pending):
            return
        now = self._clock.monotonic()
        for name, replacing in self._orders.pools.items():
            pool = pools.get(name)
            if pool is not None and self._replaced.get(name) != replacing:
                self._replaced[name] = replacing
                self._replace(pool, replacing, now=now)
        self._is_pending = False
        for pool in pools.values():
            for worker in self._orders.workers.keys() & pool.fleet.workers.keys():
                if not self._is_done(pool, worker, self._orders.workers[worker], now=now):
                    self._is_pending = True

    def _is_done(self, pool: Pool, worker: str, order: WorkerRequest, *, now: Monotonic) -> bool:
        """Carry out an order about a worker, and return whether that was possible; False: its queue is unavailable."""
        known = pool.fleet.workers[worker]
        if order.verb == "kill":
            if not known.killed_by and not known.is_external:
                self._executor.kill(pool, worker, why=f"killed by {order.by}", now=now, by=order.by)
                pool.due_at = AT_ONCE
            return True
        if known.is_leaving:
            return True
        grace_seconds = pool.spec.grace if pool.spec is not None else pool.grace_seconds
        removal = WorkerRemoval(worker, f"drained by {order.by}")
        is_done = self._executor.finish(pool, removal, grace_seconds=grace_seconds, now=now)
        if is_done:
            pool.due_at = AT_ONCE
        return is_done

    def _replace(self, pool: Pool, order: ReplaceRequest, *, now: Monotonic) -> None:
        """Mark the workers that were there at the order; the next turns replace them, new before old (ADR 9)."""
        at = Monotonic(now + order.at.left_seconds(Moment(self._clock.wall_seconds(), now, self._boot)))
        pool.fleet = with_replacement_ordered(pool.fleet, order.by, at=at)
        old = [one.worker for one in pool.fleet.workers.values() if one.replaced_for and not one.is_leaving]
        if old:
            pool.due_at = AT_ONCE
            are = counted(len(old), "worker is", "workers are")
            sentence = f"{are} replaced, new before old: ordered by {order.by}"
            log.info(events.POOL_REPLACED, pool=pool.name, by=order.by, workers=old, sentence=sentence)

    def _has_changed(self) -> bool:
        """Read the orders if their file changed; return whether it did. What can't be read is left alone."""
        mark = self._files.worker_requests_mark()
        if mark == self._mark:
            return False
        try:
            self._orders = self._files.read_worker_requests()
        except ValueError as error:
            self._mark, self._orders = mark, NO_WORKER_REQUESTS
            log.warning(events.STATE_DISCARDED, error=str(error))
            return False
        except OSError as error:  # the file exists: retry at the next pass
            if self._read_errors.is_new(error):
                log.warning(events.STATE_NOT_READ, path=str(self._files.path), error=error.strerror)
            return False
        self._read_errors.recovers()
        self._mark = mark
        return mark is not None
