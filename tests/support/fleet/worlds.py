"""Random worlds for a pool: arrivals, service times, start-up cost, slo.

A world depends only on its number. It lasts 20 to 40 minutes and has a few thousand tasks at most, so that it is
simulated in less than a second.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from orchestrator.simulation.results import RunResult
from orchestrator.simulation.rules import RuleScaler, rule_settings
from orchestrator.simulation.scaler import PolicyScaler
from orchestrator.simulation.study import hindsight, simulate
from orchestrator.simulation.workload import SimulatedWorld, Workload, workload_of
from tests.support.fleet.fleet_builders import a_pool

PEERS: Final = ("celery", "keda-hpa-tuned", "one-per-task")
"""The rules that a pool is compared with."""
SAME_LATE: Final = 0.005
MORE_LATE: Final = 0.05
MORE_WAIT: Final = 3.0
MORE_COST: Final = 2.0

_FEWEST_TASKS: Final = 40
_MOST_TASKS: Final = 10_000
_LONGEST_SHARE: Final = 0.25
_CORES: Final = 64

Arrivals = Callable[[Random, float, float], list[float]]
"""Returns arrival times from a mean rate in tasks per second and a duration in seconds."""
Services = Callable[[Random, float, Sequence[float], float], list[float]]
"""Returns service times from a mean in seconds, arrival times, and a duration in seconds."""


@dataclass(frozen=True, slots=True)
class RandomWorld:
    """One world; `most` is the pool's upper bound, `description` is one line."""

    number: int
    description: str
    workload: Workload
    world: SimulatedWorld
    slo_seconds: float
    most: int


@dataclass(frozen=True, slots=True)
class WorldResult:
    """A pool's result in a world beside its peers'; costs are worker-seconds relative to hindsight."""

    world: RandomWorld
    pool: RunResult
    peers: Sequence[RunResult]
    hindsight_seconds: float

    @property
    def best_late_share(self) -> float:
        """The late share of the peer with the fewest late tasks."""
        return min(peer.late_share for peer in self.peers)

    @property
    def best_worst_over_slo(self) -> float:
        """The shortest worst wait of any peer, in slos."""
        return min(peer.worst_over_slo for peer in self.peers)

    @property
    def cost(self) -> float:
        """The pool's cost."""
        return self.pool.worker_seconds / self.hindsight_seconds

    @property
    def least_cost(self) -> float:
        """The cost of the cheapest peer that is no later; of the least late one if all are later."""
        least_late = max(self.pool.late_share, self.best_late_share) + SAME_LATE
        no_later = [peer.worker_seconds for peer in self.peers if peer.late_share <= least_late]
        return min(no_later) / self.hindsight_seconds

    @property
    def regrets(self) -> tuple[str, ...]:
        """Describe where the pool did far worse than a peer; empty in a world where it keeps its promise."""
        found, pool = [], self.pool
        if pool.late_share > self.best_late_share + MORE_LATE:
            found.append(f"late {pool.late_share:.1%} (best {self.best_late_share:.1%})")
        if pool.worst_over_slo > MORE_WAIT * max(1.0, self.best_worst_over_slo):
            found.append(f"worst wait {pool.worst_over_slo:.1f} slo (best {self.best_worst_over_slo:.1f})")
        if self.cost > MORE_COST * self.least_cost:
            found.append(f"cost {self.cost:.2f} (peer no later {self.least_cost:.2f})")
        return tuple(found)

    @property
    def line(self) -> str:
        """Return the world, the pool and its peers in a line: late %, worst wait in slos, cost."""
        rows = " ".join(
            f"{run.scaler} {100 * run.late_share:.1f}/{run.worst_over_slo:.1f}/"
            f"{run.worker_seconds / self.hindsight_seconds:.2f}"
            for run in (self.pool, *self.peers)
        )
        mark, regrets = ("!", " ! " + "; ".join(self.regrets)) if self.regrets else (" ", "")
        return f"{mark} {self.world.number:4} {self.world.description} | {rows}{regrets}"


def a_world(number: int) -> RandomWorld:
    """Return the world of that number, drawn again until its number of tasks is moderate."""
    rng = Random(number)
    while True:
        found = _drawn(rng, number)
        if found is not None:
            return found


def forking(world: RandomWorld, share: float) -> RandomWorld:
    """Return the same world with workers that are forked: each start but the first takes this share of its time."""
    seconds = share * world.world.startup_seconds
    return replace(world, world=replace(world.world, fork_seconds=seconds))


def world_result(world: RandomWorld) -> WorldResult:
    """Simulate a world with a pool that knows nothing beforehand, and with each of its peers."""
    spec = a_pool("towline", most=world.most, slo=world.slo_seconds)
    settings = rule_settings(world.workload, slo_seconds=spec.slo, least=0, most=world.most, slots=1)
    scalers = (PolicyScaler(spec, cores=world.world.cores), *(RuleScaler(name, settings) for name in PEERS))
    pool, *peers = (simulate(world.workload, world.world, scaler, slo_seconds=spec.slo) for scaler in scalers)
    yardstick = hindsight(world.workload, slo_seconds=spec.slo, startup_seconds=world.world.startup_seconds)
    return WorldResult(world, pool, peers, yardstick.worker_seconds)


def _drawn(rng: Random, number: int) -> RandomWorld | None:
    seconds = rng.uniform(1_200.0, 2_400.0)
    slo_seconds, startup_seconds = _between(rng, 2.0, 300.0), _between(rng, 0.3, 60.0)
    service_seconds = slo_seconds * _between(rng, 0.01, 20.0)
    load = _between(rng, 0.3, 40.0)
    room = rng.choice((3, 8, 20))
    arrivals, services = rng.choice(list(_ARRIVALS)), rng.choice(list(_SERVICES))
    if service_seconds > _LONGEST_SHARE * seconds or not _FEWEST_TASKS < load * seconds / service_seconds < _MOST_TASKS:
        return None
    ready_at = sorted(_ARRIVALS[arrivals](rng, load / service_seconds, seconds))
    if not _FEWEST_TASKS < len(ready_at) < 2 * _MOST_TASKS:
        return None
    taken = _SERVICES[services](rng, service_seconds, ready_at, seconds)
    workload = workload_of(f"world {number}", list(zip(ready_at, taken, strict=True)))
    most = max(2, math.ceil(room * workload.work_seconds / seconds))
    description = (
        f"{arrivals}/{services} slo {slo_seconds:.3g} start {startup_seconds:.3g} "
        f"service {workload.mean_service_seconds:.3g} tasks {workload.tasks} max {most}"
    )
    return RandomWorld(number, description, workload, SimulatedWorld(startup_seconds, cores=_CORES), slo_seconds, most)


def _between(rng: Random, low: float, high: float) -> float:
    """Draw a number with every order of magnitude equally likely."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


# -- how work comes ---------------------------------------------------------------------------------------------------


def _poisson(rng: Random, rate: float, seconds: float) -> list[float]:
    return _thinned(rng, rate, seconds, lambda _: 1.0)


def _thinned(rng: Random, most: float, seconds: float, share: Callable[[float], float]) -> list[float]:
    """Draw at most `most` arrivals a second at random, thinned by the given share at each instant."""
    at, found = 0.0, []
    while (at := at + rng.expovariate(most)) < seconds:
        if rng.random() < share(at):
            found.append(at)
    return found


def _bursts(rng: Random, rate: float, seconds: float) -> list[float]:
    """Put half of the tasks into a few bursts, of a moment or a minute; the others arrive at random."""
    count, width = rng.randint(2, 10), rng.choice((0.5, 10.0, 60.0))
    found = _poisson(rng, rate / 2, seconds)
    for _ in range(count):
        begins_at = rng.uniform(0.0, seconds - width)
        found += [begins_at + rng.uniform(0.0, width) for _ in range(round(rate * seconds / 2 / count))]
    return found


def _square(rng: Random, rate: float, seconds: float) -> list[float]:
    period, part, low = rng.choice((60.0, 240.0, 900.0)), rng.uniform(0.1, 0.6), rng.uniform(0.0, 0.2)
    mean = part + (1.0 - part) * low
    return _thinned(rng, rate / mean, seconds, lambda at: 1.0 if at % period < part * period else low)


def _batches(rng: Random, rate: float, seconds: float) -> list[float]:
    """Add several tasks at once, at even or random times."""
    every, is_even = rng.choice((20.0, 90.0, 400.0)), rng.random() < 0.5
    size, at, found = rate * every, 0.0, []
    while (at := at + (every if is_even else rng.expovariate(1.0 / every))) < seconds:
        found += [at] * max(1, round(size * rng.uniform(0.5, 1.5)))
    return found


def _ramp(rng: Random, rate: float, seconds: float) -> list[float]:
    is_up = rng.random() < 0.5
    return _thinned(rng, 2.0 * rate, seconds, lambda at: at / seconds if is_up else 1.0 - at / seconds)


def _on_off(rng: Random, rate: float, seconds: float) -> list[float]:
    """Alternate busy and quiet periods of random length; the quiet ones are longer."""
    on_seconds, part = rng.choice((30.0, 150.0, 400.0)), rng.uniform(0.2, 0.5)
    found, at = [], rng.uniform(0.0, on_seconds)
    while at < seconds:
        ends_at = min(seconds, at + rng.expovariate(1.0 / on_seconds))
        while (at := at + rng.expovariate(rate / part)) < ends_at:
            found.append(at)
        at = ends_at + rng.expovariate(part / (1.0 - part) / on_seconds)
    return found


_ARRIVALS: Final[Mapping[str, Arrivals]] = {
    "poisson": _poisson,
    "bursts": _bursts,
    "square": _square,
    "batches": _batches,
    "ramp": _ramp,
    "on-off": _on_off,
}


# -- how long it takes ------------------------------------------------------------------------------------------------


def _constant(rng: Random, mean: float, ready_at: Sequence[float], seconds: float) -> list[float]:
    return [mean] * len(ready_at)


def _lognormal(rng: Random, mean: float, ready_at: Sequence[float], seconds: float) -> list[float]:
    deviation = rng.uniform(0.3, 1.3)
    return [mean * math.exp(rng.gauss(-(deviation**2) / 2, deviation)) for _ in ready_at]


def _bimodal(rng: Random, mean: float, ready_at: Sequence[float], seconds: float) -> list[float]:
    """Some tasks take many times as long as the others."""
    share, times = rng.choice((0.02, 0.1, 0.3)), rng.choice((10.0, 40.0, 150.0))
    short = mean / (1.0 - share + share * times)
    return [short * rng.uniform(0.7, 1.3) * (times if rng.random() < share else 1.0) for _ in ready_at]


def _phases(rng: Random, mean: float, ready_at: Sequence[float], seconds: float) -> list[float]:
    """Tasks take many times as long during some minutes of about each quarter of an hour."""
    period, part, times = rng.uniform(300.0, 1_000.0), rng.uniform(0.15, 0.5), rng.choice((3.0, 10.0, 40.0))
    short = mean / (1.0 - part + part * times)
    return [short * rng.uniform(0.8, 1.2) * (times if at % period > (1.0 - part) * period else 1.0) for at in ready_at]


def _heavy_tail(rng: Random, mean: float, ready_at: Sequence[float], seconds: float) -> list[float]:
    """Follow Pareto's law, up to fifty times the mean."""
    shape = rng.uniform(1.3, 2.2)
    return [min(50.0 * mean, mean * (shape - 1.0) / shape * rng.paretovariate(shape)) for _ in ready_at]


def _drift(rng: Random, mean: float, ready_at: Sequence[float], seconds: float) -> list[float]:
    """Tasks take several times longer, or shorter, at the end than at first."""
    slope = rng.uniform(0.5, 1.5) * rng.choice((-1.0, 1.0))
    return [mean * math.exp(slope * (2.0 * at / seconds - 1.0)) * rng.uniform(0.8, 1.2) for at in ready_at]


_SERVICES: Final[Mapping[str, Services]] = {
    "constant": _constant,
    "lognormal": _lognormal,
    "bimodal": _bimodal,
    "phases": _phases,
    "heavy-tail": _heavy_tail,
    "drift": _drift,
}
