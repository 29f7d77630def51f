"""Allocate the host's free memory and CPU to the pools, by priority: how many workers each may add. Pure."""

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from orchestrator.base.values import value

MEMORY_SHARE: Final = 0.85
"""Share of the free memory that is allocated: measurements lag behind, and the host has other work."""
FITTING_SHARE: Final = 0.5
"""Share of a worker's cores that must be free for it to fit: one worker too few leaves a core idle, while one too many
costs the others little."""
PRESSED_SHARE: Final = 0.05
"""Share of all memory below which the free memory is pressed: then an idle worker is let go."""
IDLE_CORES: Final = 0.1
"""Cores below which a worker counts as using none: it mostly waits, so a lack of CPU does not limit such a pool."""
MOST_AT_A_TIME: Final = 64
"""The most workers one allocation grants a pool; a plan starts no more in a turn either."""
PRIOR_BYTES: Final = 64 * 2**20
"""Assumed memory of a worker of which nothing is known yet: a Python interpreter with its libraries."""
MEASURED_SECONDS: Final = 1.0
"""Seconds of busy workers, summed, that must be measured before a worker's CPU usage is known."""
PRIOR_FORK_SECONDS: Final = 0.005
"""Assumed CPU seconds of a forked start until one was measured: twice what the fork itself takes."""
_MIB: Final = 2**20

Scarce = Literal["", "memory", "cpu", "unknown"]
"""`unknown`: the usage of a worker is not known yet."""


@value
class HostCapacity:
    """The memory and cores of the host or the container, in all and free."""

    memory_bytes: float
    free_memory_bytes: float
    cores: float
    free_cores: float

    @property
    def is_pressed(self) -> bool:
        """True if memory is nearly used up."""
        return self.free_memory_bytes < PRESSED_SHARE * self.memory_bytes


@value
class WorkerUsage:
    """The usage of one worker: memory that suffices for nearly all of the pool's; once known, the cores it wants while
    busy, and the CPU seconds of a start. `fork_bytes` and `fork_seconds` are those of a worker that is forked."""

    memory_bytes: float = PRIOR_BYTES
    cores: float | None = None
    start_seconds: float | None = None
    fork_seconds: float | None = None
    fork_bytes: float | None = None

    def bytes_of(self, *, forked: bool) -> float:
        """Return the memory of a worker of that kind; of a forked one, until one was measured, that of the others."""
        return self.memory_bytes if not forked or self.fork_bytes is None else self.fork_bytes

    def next_start_seconds(self, *, forks: bool) -> float | None:
        """Return the CPU seconds of the next start, which is a fork or not; None if unknown."""
        if not forks:
            return self.start_seconds
        return PRIOR_FORK_SECONDS if self.fork_seconds is None else self.fork_seconds


@value
class CapacityDemand:
    """The workers that one pool has, the number it wants, and what each uses.

    `hung` workers free their CPU when they are ended. `starting` ones use CPU that the host's free cores do not fully
    reflect yet, and will still take `promised_bytes`. `untried` is the most workers while the usage of one is unknown;
    None if it is known or can't be measured.
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
    """The number of workers a pool may add now; `scarce` is the resource that limits it, `why` the same in numbers.

    `is_to_yield`: memory is nearly used up, and this pool must let an idle worker go.
    """

    workers: int
    scarce: Scarce = ""
    why: str = ""
    is_to_yield: bool = False


def allocate(host: HostCapacity, demands: Iterable[CapacityDemand]) -> Mapping[str, Allocation]:
    """Return the allocation of every pool that has a demand.

    Pools of higher priority are served first. Within a priority the next worker goes to the pool with the smallest
    dominant share: its part of the host's memory or CPU, whichever is larger, with that worker included. Lack of CPU
    never denies a pool its first worker.

    Source: Ghodsi et al., Dominant Resource Fairness.
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
    """Grant one worker at a time to the pool with the least share, until no pool wants more or nothing fits."""
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
        return f"starting with {demand.untried} until the first worker's memory and CPU use is known"
    return (
        f"{host.free_memory_bytes / _MIB:,.0f} of {host.memory_bytes / _MIB:,.0f} MiB are free, "
        f"and one worker takes {demand.usage.memory_bytes / _MIB:,.0f} MiB"
    )


def _cores(demand: CapacityDemand) -> float:
    cores = demand.usage.cores
    return 0.0 if cores is None or cores < IDLE_CORES else cores


def _share(host: HostCapacity, demand: CapacityDemand, more: int) -> float:
    """Return the dominant share of the host that the pool has with `more` workers."""
    workers = demand.alive + more
    memory = workers * demand.usage.memory_bytes / max(1.0, host.memory_bytes)
    return max(memory, workers * _cores(demand) / max(0.01, host.cores))


def _yields(demands: list[CapacityDemand]) -> str | None:
    """Return the pool that gives up an idle worker: lowest priority first, then most memory in idle workers."""
    idle = [demand for demand in demands if demand.idle]
    if not idle:
        return None
    return min(idle, key=lambda demand: (demand.priority, -demand.idle * demand.usage.memory_bytes, demand.pool)).pool
