"""What the hour and the worker-hours used mean for a simulated pool: its windows, its budget, its deadline. Pure.

The host's room and people's orders are not simulated.
"""

from dataclasses import replace

from orchestrator.budget import full
from orchestrator.config import PoolSpec
from orchestrator.decision import Conditions, FinishBy
from orchestrator.schedule import Bounds, bounds_at, next_daily


class Hours:
    """The conditions of one pool, from its time 0 on, which is the epoch second `begins_at`."""

    def __init__(self, spec: PoolSpec, *, cores: int, start_seconds: float | None, begins_at: float) -> None:
        self._spec = spec
        self._effective = spec
        self._begins_at = begins_at
        self._conditions = Conditions(cores=cores, start_seconds=start_seconds)
        self._bounds = Bounds(spec.workers.min, spec.workers.max, until=-1.0)
        self._budget = None if spec.budget is None else full(spec.budget)
        self._spent_at = 0.0
        self._finish_at, self._offset = 0.0, 0

    @property
    def conditions(self) -> Conditions:
        """Those of the last moment that was asked about."""
        return self._conditions

    @property
    def are_plain(self) -> bool:
        """Whether they are the same at all times."""
        return not self._spec.schedule and self._spec.finish_by is None

    def at(self, now: float, *, workers: int) -> tuple[PoolSpec, Conditions]:
        """The pool with its bounds of this moment, and what else bears on its size; `workers` were there until now."""
        spec, wall = self._spec, self._begins_at + now
        if spec.schedule and wall >= self._bounds.until:
            self._bounds = bounds_at(spec.workers, spec.schedule, now=wall)
            self._effective = spec.bounded(self._bounds.min, self._bounds.max)
            self._conditions = replace(self._conditions, bounds_by=self._bounds.by)
        if self._budget is not None and spec.budget is not None:
            elapsed, self._spent_at = now - self._spent_at, now
            self._budget = self._budget.after(workers, elapsed_seconds=elapsed, hours_per_day=spec.budget)
            if self._budget.state != self._conditions.budget:
                self._conditions = replace(self._conditions, budget=self._budget.state)
        if spec.finish_by is not None:
            if wall >= self._finish_at:
                self._finish_at, self._offset = next_daily(spec.finish_by, now=wall)
            finish_by = FinishBy(self._finish_at - wall, self._finish_at, self._offset)
            self._conditions = replace(self._conditions, finish_by=finish_by)
        return self._effective, self._conditions
