"""How many more workers a host has room for, and whose they are: memory and CPU, shared by priority. Pure."""

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from orchestrator.values import value

MEMORY_SHARE: Final = 0.85
"""Of what is free this much is given away: measures lag behind, and the host has other work."""
FITTING_SHARE: Final = 0.5
"""A worker fits where so much of the cores that it takes is free: one too few leaves a core idle, one too many costs
the others little."""
PRESSED_SHARE: Final = 0.05
"""With less free memory than this share of all, workers that do nothing are one too many."""
IDLE_CORES: Final = 0.1
"""Workers that use less wait for something else: no lack of CPU is a reason not to have them."""
MOST_AT_A_TIME: Final = 64
"""A pool is granted no more at a time: one turn starts no more either."""
PRIOR_BYTES: Final = 64 * 2**20
"""What a worker may take of which nothing is known yet: a Python interpreter with its libraries."""
MEASURED_SECONDS: Final = 1.0
"""Of busy workers, together, that it takes to know what one of them takes: less says little."""
_MIB: Final = 2**20

Scarce = Literal["", "memory", "cpu", "unknown"]
"""`unknown`: nobody knows yet what a worker takes."""


@value
class HostCapacity:
    """What the host, or the container, has in all and has free now."""

    memory_bytes: float
    free_memory_bytes: float
    cores: float
    free_cores: float

    @property
    def is_pressed(self) -> bool:
        """Whether memory is all but used up."""
        return self.free_memory_bytes < PRESSED_SHARE * self.memory_bytes


@value
class WorkerUsage:
    """What one worker takes: memory, as nearly all of them need no more; once they are known, the cores that it wants
    while busy, and the CPU seconds of a start."""

    memory_bytes: float = PRIOR_BYTES
    cores: float | None = None
    start_seconds: float | None = None


@value
class CapacityDemand:
    """What one pool has and wants of the host.

    `hung` workers take CPU that they give back when they are ended. `starting` ones take CPU that the host's free cores
    do not show in full yet, and `promised_bytes` is what they will still take. `untried`: until it is known what a
    worker takes there are no more than so many; None when it is known, or can't be.
    """

    pool: str
    alive: int
    wanted: int
    usage: WorkerUsage
    idle: int = 0
    starting: int = 0
    promised_bytes: float = 0.0
    priority: int = 0
    hung: int = 0
    untried: int | None = None


@value
class Allocation:
    """Workers a pool may add now; `scarce` is what there is too little of for more, `why` the same in numbers.

    It is to yield an idle worker when memory is all but used up.
    """

    workers: int
    scarce: Scarce = ""
    why: str = ""
    is_to_yield: bool = False


def allocate(host: HostCapacity, demands: Iterable[CapacityDemand]) -> Mapping[str, Allocation]:
    """The room of every pool that demands some.

    Pools of the highest priority are served first. Among equals the next worker goes to the pool that would then have
    the smallest part of the host, counting what it has already, in whichever of memory and CPU it has most of; what one
    does not want is left to the others. For want of CPU no pool is denied its first worker.

    Source: Ghodsi et al., Dominant Resource Fairness, for the order within a priority.
    """
    known = list(demands)
    memory = MEMORY_SHARE * host.free_memory_bytes - math.fsum(demand.promised_bytes for demand in known)
    cores = host.free_cores - math.fsum((demand.starting - demand.hung) * _cores(demand) for demand in known)
    yields = _yields(known) if host.is_pressed else None
    allocations: dict[str, Allocation] = {}
    by_priority: dict[int, list[CapacityDemand]] = {}
    for demand in known:
        by_priority.setdefault(demand.priority, []).append(demand)
    for priority in sorted(by_priority, reverse=True):
        equals = by_priority[priority]
        for demand, granted, scarce in _filled(host, equals, 0.0 if host.is_pressed else memory, cores):
            is_to_yield = demand.pool == yields
            why = _why(host, demand, scarce) if scarce or is_to_yield else ""
            allocations[demand.pool] = Allocation(granted, scarce, why, is_to_yield=is_to_yield)
            memory -= granted * demand.usage.memory_bytes
            cores -= granted * _cores(demand)
    return allocations


def _filled(
    host: HostCapacity, demands: list[CapacityDemand], memory: float, cores: float
) -> list[tuple[CapacityDemand, int, Scarce]]:
    """One worker at a time to whoever has least, until nobody wants or nothing fits."""
    granted = dict.fromkeys(range(len(demands)), 0)
    scarce: dict[int, Scarce] = dict.fromkeys(range(len(demands)), "")
    turn = [(_share(host, demand, 1), index) for index, demand in enumerate(demands) if demand.wanted > demand.alive]
    heapq.heapify(turn)
    while turn:
        _, index = heapq.heappop(turn)
        demand = demands[index]
        needs = _cores(demand)
        is_first = demand.alive + granted[index] == 0
        if demand.usage.memory_bytes > memory:
            scarce[index] = "memory"
        elif demand.untried is not None and demand.alive + granted[index] >= demand.untried:
            scarce[index] = "unknown"
        elif FITTING_SHARE * needs > cores and needs > 0 and not is_first:
            scarce[index] = "cpu"
        else:
            granted[index] += 1
            memory -= demand.usage.memory_bytes
            cores -= needs
            if demand.alive + granted[index] < demand.wanted and granted[index] < MOST_AT_A_TIME:
                heapq.heappush(turn, (_share(host, demand, granted[index] + 1), index))
    return [(demand, granted[index], scarce[index]) for index, demand in enumerate(demands)]


def _why(host: HostCapacity, demand: CapacityDemand, scarce: Scarce) -> str:
    if scarce == "cpu":
        return f"{host.free_cores:.1f} of {host.cores:g} cores are free, and one worker takes {_cores(demand):.1f}"
    if scarce == "unknown":
        return f"nothing is known yet of what a worker takes: {demand.untried} until one was measured for a second"
    return (
        f"{host.free_memory_bytes / _MIB:,.0f} of {host.memory_bytes / _MIB:,.0f} MiB are free, "
        f"and one worker takes {demand.usage.memory_bytes / _MIB:,.0f} MiB"
    )


def _cores(demand: CapacityDemand) -> float:
    cores = demand.usage.cores
    return 0.0 if cores is None or cores < IDLE_CORES else cores


def _share(host: HostCapacity, demand: CapacityDemand, more: int) -> float:
    """The part of the host that the pool has with so many workers more, in what it has most of."""
    workers = demand.alive + more
    memory = workers * demand.usage.memory_bytes / max(1.0, host.memory_bytes)
    return max(memory, workers * _cores(demand) / max(0.01, host.cores))


def _yields(demands: list[CapacityDemand]) -> str | None:
    """The pool that gives up an idle worker: of the lowest priority, with most of them."""
    idle = [demand for demand in demands if demand.idle]
    if not idle:
        return None
    return min(idle, key=lambda demand: (demand.priority, -demand.idle * demand.usage.memory_bytes, demand.pool)).pool
