"""What workers of each pool take of a host, learned from measurements now and then. Pure but for being a table."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.fleet import Fleet
from orchestrator.room import PRIOR_BYTES, Appetite
from orchestrator.runtime import Usage
from orchestrator.value import value

NEARLY_ALL: Final = 0.95
_FORGET: Final = 0.1
_LEARN: Final = 0.3


@value
class _Measured:
    """A worker's CPU seconds so far, as of an instant at which it was busy or not."""

    at: Monotonic
    cpu_seconds: float
    is_busy: bool


class Appetites:
    """What one worker of each pool takes; a pool of which nothing is known is like the others."""

    def __init__(self, known: Mapping[str, Appetite] | None = None) -> None:
        self._known: dict[str, Appetite] = dict(known or {})
        self._measured: dict[str, _Measured] = {}

    def of(self, pool: str) -> Appetite:
        """What is known of the pool; else the mean of all, with no word on CPU; else a guess."""
        known = self._known.get(pool)
        if known is not None:
            return known
        if not self._known:
            return Appetite(PRIOR_BYTES)
        return Appetite(math.fsum(one.memory_bytes for one in self._known.values()) / len(self._known))

    def learn(self, fleets: Iterable[Fleet], usage: Mapping[str, Usage], *, now: Monotonic) -> None:
        """Learn from one measurement of all workers.

        Memory is what nearly all workers that are up have, and is slow to fall; CPU is what those take that were busy
        both at this measurement and at the one before.
        """
        measured: dict[str, _Measured] = {}
        for fleet in fleets:
            memory: list[int] = []
            cores: list[float] = []
            for worker in fleet.workers.values():
                used = usage.get(worker.worker)
                if used is None or worker.state == "starting":
                    continue
                memory.append(used.memory_bytes)
                is_busy = worker.state == "busy"
                before = self._measured.get(worker.worker)
                if before is not None and before.is_busy and is_busy and now > before.at:
                    cores.append(max(0.0, used.cpu_seconds - before.cpu_seconds) / (now - before.at))
                measured[worker.worker] = _Measured(now, used.cpu_seconds, is_busy)
            if memory:
                self._known[fleet.pool] = _after(self._known.get(fleet.pool), sorted(memory), cores)
        self._measured = measured

    def forget(self, pools: Collection[str]) -> None:
        """Pools other than these are no more."""
        self._known = {name: one for name, one in self._known.items() if name in pools}

    def to_json(self) -> dict[str, object]:
        """As plain values."""
        return {
            name: {
                "memory_bytes": round(one.memory_bytes),
                "cores": None if one.cores is None else round(one.cores, 4),
            }
            for name, one in self._known.items()
        }

    @staticmethod
    def from_json(data: object) -> "Appetites":
        """What `to_json` gave. Raises `ValueError` for anything else."""
        if not isinstance(data, Mapping):
            raise ValueError(f"no appetites: {data!r}")  # noqa: TRY004  a caller meets one class of error
        known = {}
        for name, one in data.items():
            match one:
                case {"memory_bytes": int() | float() as memory, "cores": (int() | float() | None) as cores}:
                    known[str(name)] = Appetite(float(memory), cores)
                case _:
                    raise ValueError(f"no appetite: {one!r}")
        return Appetites(known)


def _after(known: Appetite | None, memory: list[int], cores: list[float]) -> Appetite:
    nearly_all = float(memory[math.ceil(NEARLY_ALL * len(memory)) - 1])
    if known is not None:
        nearly_all = max(nearly_all, known.memory_bytes + _FORGET * (nearly_all - known.memory_bytes))
    each = known.cores if known is not None else None
    if cores:
        mean = math.fsum(cores) / len(cores)
        each = mean if each is None else each + _LEARN * (mean - each)
    return Appetite(nearly_all, each)
