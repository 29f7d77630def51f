"""Learn the usage of one worker of each pool from measurements. Pure, but for the table it keeps."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import value
from orchestrator.capacity.allocation import MEASURED_SECONDS, PRIOR_BYTES, WorkerUsage
from orchestrator.fleet.workers import Fleet
from orchestrator.runtime import Usage

NEARLY_ALL: Final = 0.95  # quantile of the workers whose memory counts
_FORGET: Final = 0.1  # share of a fall in memory that is learned at once
_LEARN: Final = 0.3  # weight of a new measurement of CPU


@value
class _Measured:
    """The usage of a worker at an instant, and whether it was busy then."""

    at: Monotonic
    used: Usage
    is_busy: bool


@value
class _Sum:
    """Measured seconds of busy workers that are not learned from yet, and the core-seconds they wanted."""

    seconds: float = 0.0
    core_seconds: float = 0.0

    @property
    def cores(self) -> float | None:
        """The cores that one of them wanted; None while too little was measured."""
        return self.core_seconds / self.seconds if self.seconds >= MEASURED_SECONDS else None


class WorkerUsages:
    """The usage of one worker of each pool; an unknown pool is taken to be like the others."""

    def __init__(self, known: Mapping[str, WorkerUsage] | None = None) -> None:
        self._known: dict[str, WorkerUsage] = dict(known or {})
        self._measured: dict[str, _Measured] = {}
        self._sums: dict[str, _Sum] = {}

    def of(self, pool: str) -> WorkerUsage:
        """Return the pool's usage; if unknown, the mean memory and start of all pools, or a prior."""
        known = self._known.get(pool)
        if known is not None:
            return known
        if not self._known:
            return WorkerUsage(PRIOR_BYTES)
        memory = _mean([one.memory_bytes for one in self._known.values()])
        starts = [one.start_seconds for one in self._known.values() if one.start_seconds is not None]
        # A fork's cost is mostly its application's, so it is not taken from other pools.
        return WorkerUsage(memory, start_seconds=_mean(starts) if starts else None)

    def is_start_unknown(self, pool: str, *, forked: bool) -> bool:
        """Return whether no start of that kind has been measured; executed ones of other pools count."""
        usage = self.of(pool)
        return (usage.fork_seconds if forked else usage.start_seconds) is None

    def learn(self, fleets: Iterable[Fleet], usage: Mapping[str, Usage], *, now: Monotonic) -> None:
        """Learn from one measurement of all workers.

        Memory is what nearly all started workers of a kind use, and falls slowly. CPU is what workers want that were
        busy at this measurement and the previous one, whether or not they got it. A start costs the CPU that a worker
        has used when it is first found started, at most the time its start took; of forked ones the cheapest counts,
        as a task may have computed for longer than a fork.
        """
        measured: dict[str, _Measured] = {}
        for fleet in fleets:
            memory: list[int] = []
            forked_memory: list[int] = []
            starts: list[float] = []
            forks: list[float] = []
            total = self._sums.pop(fleet.pool, _Sum())
            for worker in fleet.workers.values():
                used = usage.get(worker.worker)
                if used is None or worker.state == "starting":
                    continue
                (forked_memory if worker.is_forked else memory).append(used.memory_bytes)
                is_busy = worker.state == "busy"
                before = self._measured.get(worker.worker)
                if before is None and worker.started_at is not None and not worker.adopted:
                    of_kind = forks if worker.is_forked else starts
                    of_kind.append(min(used.cpu_seconds, worker.started_at - worker.spawned_at))
                if before is not None and before.is_busy and is_busy and now > before.at:
                    seconds = now - before.at
                    wanted = _cores_wanted(before.used, used, seconds)
                    total = _Sum(total.seconds + seconds, total.core_seconds + wanted * seconds)
                if before is not None and used.cpu_seconds < before.used.cpu_seconds:
                    used = before.used  # a child process ended just then; its time is counted next time
                measured[worker.worker] = _Measured(now, used, is_busy)
            if total.cores is None:
                self._sums[fleet.pool] = total
            if memory or forked_memory:
                self._known[fleet.pool] = _after(
                    self._known.get(fleet.pool),
                    memory,
                    forked_memory,
                    cores=total.cores,
                    start=_mean(starts) if starts else None,
                    fork=min(forks, default=None),
                )
        self._measured = measured

    def forget(self, pools: Collection[str]) -> None:
        """Forget all pools but these."""
        self._known = {name: one for name, one in self._known.items() if name in pools}
        self._sums = {name: one for name, one in self._sums.items() if name in pools}

    def to_json(self) -> dict[str, object]:
        """Return the usages as plain values."""
        return {
            name: {
                "memory_bytes": round(one.memory_bytes),
                "cores": None if one.cores is None else round(one.cores, 4),
                "start_seconds": None if one.start_seconds is None else round(one.start_seconds, 4),
                "fork_seconds": None if one.fork_seconds is None else round(one.fork_seconds, 4),
                "fork_bytes": None if one.fork_bytes is None else round(one.fork_bytes),
            }
            for name, one in self._known.items()
        }

    @staticmethod
    def from_json(data: object) -> "WorkerUsages":
        """Read what `to_json` returned. Raises `ValueError` for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"not worker usages: {data!r}")  # noqa: TRY004  callers handle one class of error
        known = {}
        for name, one in data.items():
            match one:
                case {
                    "memory_bytes": int() | float() as memory,
                    "cores": (int() | float() | None) as cores,
                    "start_seconds": (int() | float() | None) as start,
                    **rest,
                }:
                    fork, own = (_number(rest.get(key)) for key in ("fork_seconds", "fork_bytes"))
                    known[str(name)] = WorkerUsage(float(memory), cores, start, fork, own)
                case _:
                    raise ValueError(f"not a worker usage: {one!r}")
        return WorkerUsages(known)


def _after(
    known: WorkerUsage | None,
    memory: list[int],
    forked_memory: list[int],
    *,
    cores: float | None,
    start: float | None,
    fork: float | None,
) -> WorkerUsage:
    """Return the usage after a measurement; None is what it does not tell."""
    executed_bytes = _settled(None if known is None else known.memory_bytes, memory)
    known = known or WorkerUsage()
    return WorkerUsage(
        PRIOR_BYTES if executed_bytes is None else executed_bytes,
        _learned(known.cores, cores),
        _learned(known.start_seconds, start),
        _learned(known.fork_seconds, fork),
        _settled(known.fork_bytes, forked_memory),
    )


def _settled(known: float | None, memory: list[int]) -> float | None:
    """Return what nearly all of a kind need, after a measurement of those that are there."""
    if not memory:
        return known
    nearly_all = float(sorted(memory)[math.ceil(NEARLY_ALL * len(memory)) - 1])
    return nearly_all if known is None else max(nearly_all, known + _FORGET * (nearly_all - known))


def _number(given: object) -> float | None:
    if isinstance(given, int | float | None):
        return given
    raise ValueError(f"not a worker usage: {given!r}")


def _learned(known: float | None, seen: float | None) -> float | None:
    if known is None or seen is None:
        return known if seen is None else seen
    return known + _LEARN * (seen - known)


def _cores_wanted(before: Usage, after: Usage, seconds: float) -> float:
    """Return the cores that a worker would have used between two measurements had it never waited for one.

    One thread that ran for 5 ms, waited for 20 and slept for 95 would have run for 5 of 100. Many threads that wait at
    the same time would all have run.
    """
    taken = max(0.0, after.cpu_seconds - before.cpu_seconds) / seconds
    waited = max(0.0, after.waited_seconds - before.waited_seconds) / seconds
    return taken + waited if waited >= 1.0 else min(taken + waited, taken / (1.0 - waited))


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
