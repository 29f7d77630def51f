"""Evaluate a run's lifecycle log: who held which task, how long tasks waited, what became of them. Pure."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from queue_core.clock import Instant, seconds_between

Event = Mapping[str, object]

_READY_BY: Final = {"task.added": 1, "task.leased": -1, "lease.released": 1, "lease.expired": 1}
_ENDS_A_LEASE: Final = frozenset({"task.deleted", "task.died", "lease.released", "lease.expired"})


@dataclass(slots=True)
class DemoRecord:
    """The state of a run, from its lifecycle events in order."""

    added: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    died: set[str] = field(default_factory=set)
    held: dict[str, tuple[str, Instant]] = field(default_factory=dict)
    """Leased task to its worker and the instant of the lease."""
    added_at: dict[str, list[Instant]] = field(default_factory=dict)
    """Tag to the instants at which its tasks were added."""
    waits: list[float] = field(default_factory=list)
    leased_at: list[Instant] = field(default_factory=list)
    """The instants of the same leases."""
    leases: dict[str, list[tuple[Instant, str]]] = field(default_factory=dict)
    ready: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    """Tag to the number of its tasks that are ready, leased, or finished."""
    unfinished: dict[str, set[str]] = field(default_factory=dict)
    """Worker to the tasks it held without finishing them."""

    def take(self, event: Event) -> None:
        """Apply one event."""
        task, worker, name = str(event.get("task")), str(event.get("worker")), event.get("event")
        tag = str(event.get("tag"))
        self.ready[tag] += _READY_BY.get(str(name), 0)
        if name == "task.leased":
            self.in_flight[tag] += 1
        elif task in self.held and name in _ENDS_A_LEASE:
            self.in_flight[tag] -= 1
        if name == "task.added":
            self.added.add(task)
            self.added_at.setdefault(tag, []).append(_instant(event))
        elif name == "task.leased":
            at = _instant(event)
            self.held[task] = (worker, at)
            self.leases.setdefault(task, []).append((at, worker))
            waited = event.get("waited_seconds")
            self.waits.append(float(waited) if isinstance(waited, int | float) else 0.0)
            self.leased_at.append(at)
        elif name == "task.deleted":
            self.deleted.add(task)
            self.done[tag] += 1
            self.held.pop(task, None)
        elif name in ("lease.released", "lease.expired"):
            self.held.pop(task, None)
            self.unfinished.setdefault(worker, set()).add(task)
        elif name == "task.died":
            self.died.add(task)
            if self.held.pop(task, None) is None:
                self.ready[tag] -= 1

    def busy(self, *, besides: Iterable[str] = ()) -> list[str]:
        """Return the workers that hold a task, newest lease first: it is the least likely to be finished already."""
        left_out = set(besides)
        held = [(at, worker) for worker, at in self.held.values() if worker and worker not in left_out]
        return [worker for _, worker in sorted(held, reverse=True)]

    def restarted_seconds(self, worker: str, killed_at: Instant) -> float | None:
        """Return the time from a worker's death until all its tasks were leased again.

        Return None while one of them waits, or when it held none.
        """
        times = []
        for task in self.unfinished.get(worker, ()):
            again = [at for at, by in self.leases[task] if at >= killed_at and by != worker]
            if not again:
                return None
            times.append(seconds_between(killed_at, min(again)))
        return max(times) if times else None

    def lost(self, expected: Iterable[str], *, kept: Iterable[str] = ()) -> set[str]:
        """Return tasks that were acknowledged but neither finished nor dead, nor among those that the store kept."""
        return (set(expected) | self.added) - self.deleted - self.died - set(kept)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a run."""

    added: int
    done: int
    left: int
    lost: int
    dead: int
    duplicated: int
    peak_workers: int
    final_workers: int
    wait_p50: float
    wait_p95: float
    slo: float
    decisions: int
    killed: int
    restarted_seconds: float | None
    pages: int
    seconds: float
    report: str
    stopped: bool = False

    @property
    def is_good(self) -> bool:
        """Return whether nothing was lost and no worker is left, nor a task unless somebody stopped the demo."""
        is_over = self.lost == 0 and self.dead == 0 and self.final_workers == 0
        return is_over and self.done + (self.left if self.stopped else 0) == self.added

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie; 0 when there are none."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=1000, method="inclusive")[max(0, min(998, round(share * 1000) - 1))]


def twice(names: Iterable[str]) -> int:
    """Return how many names occur more than once."""
    return sum(1 for count in Counter(names).values() if count > 1)


def _instant(event: Event) -> Instant:
    at = event["at"]
    return Instant(at if isinstance(at, int) else 0)
