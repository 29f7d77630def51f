"""Generate arrivals from a short description: `poisson:2/s,service=3s,for=4h`.

A shape is a rate (tasks per s, m, h or d), then settings in any order:

    poisson:2/s           random arrivals at one rate
    even:2/s              evenly spaced arrivals at one rate
    sine:1/s..5/s         random arrivals at a rate that swings between the two; `every=2h` from low to low
    steps:1/s..5/s        random arrivals at the first rate, then as long at the second; `every=30m` both together
    bursts:600,every=1h   that many tasks at a time, within `within=2s`; between bursts `base=1/m`

`service` is the mean service time, `spread` its deviation over its mean, `for` how long tasks arrive. With `tags=20`
each task has one of so many tags, at random, for limits per tag.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from orchestrator.simulation.workload import ServiceTimes, Workload, WorkloadError, workload_of
from orchestrator.simulation.workloads.arrival_file import MAX_TASKS
from queue_core.config.messages import did_you_mean
from queue_core.config.units import parse_seconds

_PER_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE: Final = re.compile(r"([0-9]*\.?[0-9]+)/([smhd])")
_DEFAULTS: Final = {"service": "3s", "spread": "1", "for": "4h", "every": "1h", "within": "2s", "base": "", "tags": "0"}
MAX_TAGS: Final = 1_000_000
_LIKE: Final = "write one such as poisson:2/s,service=3s,for=4h"


@dataclass(frozen=True, slots=True)
class _Shape:
    text: str
    kind: str
    amount: str
    settings: dict[str, str]

    def seconds(self, key: str) -> float:
        try:
            seconds = parse_seconds(self.settings[key])
        except ValueError as error:
            raise WorkloadError(f"{key}={error}", where=self.text, fix=_LIKE) from None
        if seconds <= 0:
            raise WorkloadError(f"{key} must be more than 0 s", where=self.text, fix=_LIKE)
        return seconds

    def rate(self, text: str) -> float:
        """Return a rate in tasks per second."""
        found = _RATE.fullmatch(text)
        if found is None:
            raise WorkloadError(f"not a rate: {text!r}", where=self.text, fix="write a rate such as 2/s, 30/m or 5/h")
        return float(found[1]) / _PER_SECONDS[found[2]]

    def rates(self) -> tuple[float, float]:
        """Return the low and the high rate."""
        low, dots, high = self.amount.partition("..")
        if not dots:
            what = f"{self.kind} needs two rates: {self.amount!r}"
            raise WorkloadError(what, where=self.text, fix=f"write them as in {self.kind}:1/s..5/s")
        return self.rate(low), self.rate(high)


def read_shape(text: str, *, rng: Random) -> Workload:
    """Generate the tasks of a shape. Raises `WorkloadError`."""
    shape = _parsed(text)
    try:
        spread = float(shape.settings["spread"])
    except ValueError:
        spread = -1.0
    if not 0 <= spread <= 100:
        what = f"spread must be a number in [0, 100]: {shape.settings['spread']!r}"
        raise WorkloadError(what, where=text, fix="1 is usual; with 0 all tasks take equally long")
    services = ServiceTimes(shape.seconds("service"), spread)
    ready_at = _KINDS[shape.kind](shape, rng)
    if not ready_at:
        raise WorkloadError("no task comes in that time", where=text, fix="give a higher rate or a longer time (for=)")
    tasks = list(zip(ready_at, services.drawn(len(ready_at), rng), strict=True))
    count = _tags_of(shape)
    tags = [f"tag-{rng.randrange(count) + 1}" for _ in tasks] if count else None
    return workload_of(text, tasks, tags=tags)


def _tags_of(shape: _Shape) -> int:
    given = shape.settings["tags"]
    if not given.isdecimal() or int(given) > MAX_TAGS:
        raise WorkloadError(f"tags must be in [0, {MAX_TAGS:,}]: {given!r}", where=shape.text, fix="write tags=20")
    return int(given)


def _parsed(text: str) -> _Shape:
    head, *rest = text.split(",")
    kind, _, amount = head.partition(":")
    if kind not in _KINDS or not amount:
        what = f"no such shape: {head!r}{did_you_mean(kind, list(_KINDS))}"
        raise WorkloadError(what, where=text, fix=f"it begins with one of {', '.join(_KINDS)}; {_LIKE}")
    settings = dict(_DEFAULTS)
    for part in rest:
        key, equals, value = part.strip().partition("=")
        if key not in _DEFAULTS or not equals:
            what = f"no such setting of a shape: {part!r}{did_you_mean(key, list(_DEFAULTS))}"
            raise WorkloadError(what, where=text, fix=f"there are {', '.join(_DEFAULTS)}")
        settings[key] = value
    return _Shape(text, kind, amount, settings)


def _random(shape: _Shape, rng: Random, *, highest: float, rate_at: Callable[[float], float]) -> list[float]:
    """Return random arrivals at a changing rate: those at the highest rate, thinned out."""
    seconds = shape.seconds("for")
    _check(shape, highest * seconds)
    found: list[float] = []
    at = 0.0
    while highest > 0:
        at += rng.expovariate(highest)
        if at >= seconds:
            break
        if rng.random() * highest < rate_at(at):
            found.append(at)
    return found


def _poisson(shape: _Shape, rng: Random) -> list[float]:
    rate = shape.rate(shape.amount)
    return _random(shape, rng, highest=rate, rate_at=lambda _: rate)


def _even(shape: _Shape, rng: Random) -> list[float]:  # noqa: ARG001  nothing is random
    rate, seconds = shape.rate(shape.amount), shape.seconds("for")
    _check(shape, rate * seconds)
    return [number / rate for number in range(math.floor(rate * seconds))] if rate else []


def _sine(shape: _Shape, rng: Random) -> list[float]:
    (low, high), every = shape.rates(), shape.seconds("every")

    def rate_at(at: float) -> float:
        return low + (high - low) * (1.0 - math.cos(2.0 * math.pi * at / every)) / 2.0

    return _random(shape, rng, highest=max(low, high), rate_at=rate_at)


def _steps(shape: _Shape, rng: Random) -> list[float]:
    (low, high), every = shape.rates(), shape.seconds("every")
    return _random(
        shape, rng, highest=max(low, high), rate_at=lambda at: high if (2.0 * at / every) % 2.0 >= 1.0 else low
    )


def _bursts(shape: _Shape, rng: Random) -> list[float]:
    if not shape.amount.isdecimal():
        what = f"bursts needs a number of tasks: {shape.amount!r}"
        raise WorkloadError(what, where=shape.text, fix="write it as in bursts:600,every=1h")
    count, every, seconds = int(shape.amount), shape.seconds("every"), shape.seconds("for")
    within = shape.seconds("within")
    _check(shape, count * seconds / every)
    found = [burst * every + rng.random() * within for burst in range(math.ceil(seconds / every)) for _ in range(count)]
    if shape.settings["base"]:
        base = shape.rate(shape.settings["base"])
        found += _random(shape, rng, highest=base, rate_at=lambda _: base)
    return found


def _check(shape: _Shape, tasks: float) -> None:
    if tasks > MAX_TASKS:
        what = f"about {tasks:,.0f} tasks, and {MAX_TASKS:,} are the most"
        raise WorkloadError(what, where=shape.text, fix="give a lower rate, or a shorter time (for=)")


_KINDS: Final[dict[str, Callable[[_Shape, Random], list[float]]]] = {
    "poisson": _poisson,
    "even": _even,
    "sine": _sine,
    "steps": _steps,
    "bursts": _bursts,
}
