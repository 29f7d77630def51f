"""Simulate one pool in virtual time: tasks arrive, workers start, lease, finish and leave. A scaler sets its size.

For speed, tasks are numbers and events are tuples: a day with a task a second takes seconds.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Outcome
from orchestrator.fleet.exits import Fate
from orchestrator.simulation.limits import SimulatedLimits
from orchestrator.simulation.workload import SimulatedWorld, Workload

NEVER: Final = math.inf


@dataclass(slots=True)
class SimulatedWorker:
    """A simulated worker. `up_at` is its first lease call; `used_at` the end of its last lease, if any."""

    name: str
    born_at: float
    used_at: float
    up_at: float | None = None
    is_leaving: bool = False
    leases: int = 0
    is_forked: bool = False


@dataclass(slots=True)
class SimulatedLease:
    """A simulated lease, held until `ended_at`. `at_a_time` counts the pool's leases when it began, itself included."""

    worker: SimulatedWorker
    task: int
    began_at: float
    waited_seconds: float
    number: int
    at_a_time: int
    ended_at: float = NEVER
    outcome: Outcome = "deleted"


@dataclass(frozen=True, slots=True)
class SimulatedExit:
    """The exit of a simulated worker, as a runtime reports it (see `exits.EndedWorker`)."""

    worker: str
    at: Monotonic
    code: int | None = 0
    signal: int | None = None
    out_of_memory: bool = False
    memory_limit_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_own_bytes: int | None = None
    is_forked: bool = False
    reason: str = ""
    is_stopped: bool = False
    is_removed: bool = False
    fate: Fate = ""
    last_lines: tuple[str, ...] = ()
    stack: tuple[str, ...] = ()


@dataclass(slots=True)
class SimulationEvents:
    """The events since they were last taken."""

    arrivals: int
    finished: list[SimulatedLease]
    gone: list[SimulatedExit]


MAX_UPCOMING: Final = 1_000
"""The most upcoming tasks of a sample, as in the queue."""

_SEARCHED_AHEAD: Final = 64  # upcoming tasks that are searched for the next visible one
_START: Final = 0
_END: Final = 1
_OVERDUE: Final = 2
_RETRY: Final = 3
_NOTHING: Final = 4
_OPEN: Final = 5


class SimulatedPool:
    """The queue and the workers. `now` moves with each event; a scaler acts between two events."""

    def __init__(
        self, workload: Workload, world: SimulatedWorld, *, slots: int, recent_first: bool, rng: Random
    ) -> None:
        """Args:
        slots: leases one worker holds at a time.
        recent_first: whether a task goes to the free worker used last, else to any.
        """
        self.now = 0.0
        self.ready: deque[int] = deque()
        self.workers: dict[str, SimulatedWorker] = {}
        self.leases: dict[int, SimulatedLease] = {}
        self.free: dict[str, SimulatedWorker] = {}  # workers with a free slot; the most recently used is last
        self.starting = 0
        self.leaving = 0
        self.retrying = 0
        self.dead = 0
        self.starts = 0
        self.killed = 0
        self.worker_seconds = 0.0
        self.peak = 0
        self.waits: list[float] = []
        self.leased_at: list[float] = []  # of the same leases
        self.sizes: list[tuple[float, int]] = [(0.0, 0)]
        self.wants_turn = False
        self.forks = False
        self._world = world
        self._slots = slots
        self._recent_first = recent_first
        self.rng = rng
        self._tasks = workload.tasks
        self._ready_at = (*workload.ready_at, NEVER)
        self._service = workload.service_seconds
        self._failures = workload.failures
        self._added_at = workload.added_at
        self._adds = sorted(workload.added_at) if workload.added_at is not None else None
        self._ready_again: dict[int, float] = {}
        self._numbers: dict[int, int] = {}
        self._next = 0
        self._taken = 0
        self._arrives_at = self._ready_at[0]
        self._is_contended = any(world.contention)
        self._is_failing = workload.failures is not None or world.failing is not None
        self._events: list[tuple[float, int, int, int | str]] = [(NEVER, 0, _NOTHING, 0)]  # never empty
        self._order = 0
        self._recent = SimulationEvents(0, [], [])
        self._opens_at = NEVER
        self.limits = None if world.limits.are_none else SimulatedLimits(world.limits, workload.tags)

    # -- time -----------------------------------------------------------------------------------------------------

    def next_at(self) -> float:
        """Return when the next event happens by itself; `NEVER` if none will."""
        return min(self._events[0][0], self._arrives_at)

    def next_visible_at(self, ahead_seconds: float) -> float:
        """Return the same, counting as events also added tasks that come within `ahead_seconds` of their eta."""
        visible_at = self.next_at()
        if self._added_at is None or not ahead_seconds:
            return visible_at
        for task in range(self._next, min(self._next + _SEARCHED_AHEAD, self._tasks)):
            seen_at = self._ready_at[task] - ahead_seconds
            if seen_at >= visible_at:
                break
            visible_at = min(visible_at, max(seen_at, self._added_at[task]))
        return visible_at

    @property
    def steps(self) -> int:
        """The number of events so far and scheduled; it only grows."""
        return self._next + self._order

    @property
    def is_over(self) -> bool:
        """True if every task has come and gone."""
        return len(self.waits) >= self._tasks

    def advance(self, until: float, *, wakes: bool) -> None:
        """Run the next event and all before `until`; with `wakes` stop when a turn is wanted."""
        events, ready_at, arrives_at = self._events, self._ready_at, self._arrives_at
        ready, free, limits = self.ready, self.free, self.limits
        happens_at = events[0][0]
        while True:
            if arrives_at <= happens_at:
                self.now, task = arrives_at, self._next
                self._next = task + 1
                self._arrives_at = arrives_at = ready_at[task + 1]
                if limits is not None:
                    self._recent.arrivals -= 1  # it counts when its lane admits it
                    self._enter(task)
                else:
                    ready.append(task)
                    if free or len(ready) == 1:  # else it waits behind other tasks
                        self._arrived()
            else:
                self.now, _, kind, key = heappop(events)
                if kind == _END:
                    self._end(key)  # type: ignore[arg-type]
                else:
                    self._happen(kind, key)
            happens_at = events[0][0]
            if arrives_at <= self.now:
                continue  # tasks that are added together are seen together
            if (arrives_at >= until and happens_at >= until) or (wakes and self.wants_turn):
                return

    def _happen(self, kind: int, key: int | str) -> None:
        if kind == _START:
            self._come_up(key)  # type: ignore[arg-type]
        elif kind == _RETRY:
            self.retrying -= 1
            self._come_back(key)  # type: ignore[arg-type]
        elif kind == _OPEN:
            self._open()
        else:
            self._overdue(key)  # type: ignore[arg-type]

    def _come_back(self, task: int) -> None:
        if self.limits is None:
            self._admit([task])
        else:
            self._enter(task)

    # -- limits ---------------------------------------------------------------------------------------------------

    @property
    def leasable(self) -> int:
        """The number of tasks that could be leased now."""
        return len(self.ready) if self.limits is None else min(len(self.ready), self.limits.room(self.now))

    def _open(self) -> None:
        """Make tasks ready that time alone lets be leased, and lease what the queue has room for again."""
        assert self.limits is not None, "only limits make openings"
        self._admit(self.limits.open(self.now))
        self.serve()
        self._plan_opening()

    def _enter(self, task: int) -> None:
        assert self.limits is not None, "without limits a task is ready"
        self._admit(self.limits.enter(task, self.now))
        self._plan_opening()

    def _admit(self, tasks: Iterable[int]) -> None:
        """Make tasks ready now."""
        for task in tasks:
            self._ready_again[task] = self.now
            self._recent.arrivals += 1
            self.ready.append(task)
            self._arrived()

    def _plan_opening(self) -> None:
        """Plan the event at which time alone next lets a task be leased."""
        assert self.limits is not None, "only limits make openings"
        opens_at = self.limits.opens_at(self.now, ready=len(self.ready))
        if opens_at < self._opens_at or self._opens_at <= self.now:
            self._opens_at = opens_at
            if opens_at < NEVER:
                self._push(max(opens_at, self.now), _OPEN, 0)

    def take_events(self) -> SimulationEvents:
        """Return the events since the last call."""
        events, self._recent = self._recent, SimulationEvents(0, [], [])
        events.arrivals += self._next - self._taken
        self._taken = self._next
        return events

    # -- observation ----------------------------------------------------------------------------------------------

    @property
    def staying(self) -> int:
        """The number of workers that were not asked to leave."""
        return len(self.workers) - self.leaving

    @property
    def delayed(self) -> int:
        """The number of tasks that were added and are not leasable yet."""
        if self._adds is None:
            return self.retrying
        return max(0, bisect_right(self._adds, self.now) - self._next) + self.retrying

    def upcoming_seconds(self, within_seconds: float) -> list[float]:
        """Return in how many seconds each added and never leased task becomes leasable, the first ones in order."""
        if self._added_at is None:
            return []
        now, first = self.now, self._next
        last = min(bisect_right(self._ready_at, now + within_seconds, first), first + MAX_UPCOMING)
        return [self._ready_at[task] - now for task in range(first, last) if self._added_at[task] <= now]

    def waited_seconds(self, positions: Iterable[int]) -> list[float]:
        """Return how long the tasks at these positions of the ready queue, from 1, have waited."""
        now, ready, ready_at, again = self.now, self.ready, self._ready_at, self._ready_again
        if again:
            return [now - again.get(ready[position - 1], ready_at[ready[position - 1]]) for position in positions]
        return [now - ready_at[ready[position - 1]] for position in positions]

    # -- actions of a scaler --------------------------------------------------------------------------------------

    def spawn(self, count: int) -> list[str]:
        """Start `count` workers; return their names."""
        self.starting += count
        names = [f"w{self.starts + number}" for number in range(1, count + 1)]
        self.starts += count
        for name in names:
            self.workers[name] = SimulatedWorker(name, self.now, self.now, is_forked=self.forks)
            seconds = self._world.start_seconds(self.rng, at_a_time=self.starting, forked=self.forks)
            self._push(self.now + seconds, _START, name)
        self._resized()
        return names

    def leave(self, name: str, *, grace_seconds: float = NEVER) -> None:
        """Ask a worker to leave: now if it holds nothing, else after its leases, or killed after the grace."""
        worker = self.workers.get(name)
        if worker is None or worker.is_leaving:
            return
        if not worker.leases:
            self._remove(worker)
            return
        worker.is_leaving = True
        self.leaving += 1
        self.free.pop(name, None)
        if grace_seconds < NEVER:
            self._push(self.now + grace_seconds, _OVERDUE, name)

    def kill(self, name: str) -> None:
        """End a worker now; its tasks become leasable again, before all others."""
        worker = self.workers.get(name)
        if worker is None:
            return
        for number in [number for number, lease in self.leases.items() if lease.worker is worker]:
            self._give_back(self.leases.pop(number).task)
            self.killed += 1
        worker.leases = 0
        self._remove(worker, signal=9)

    def _give_back(self, task: int) -> None:
        """Put the task of a killed worker before all others, or into its lane."""
        if self.limits is None:
            self.ready.appendleft(task)
        else:
            self._admit(self.limits.end(task, self.now, gives_back=True))

    def serve(self) -> None:
        """Lease ready tasks to free workers."""
        while self.leasable and self.free:
            self._lease(self._chosen())

    # -- events ---------------------------------------------------------------------------------------------------

    def _arrived(self) -> None:
        if self.free:
            if self.limits is None or self.limits.room(self.now) > 0:
                self._lease(self._chosen())
            else:
                self._plan_opening()
        elif len(self.ready) == 1 and len(self.workers) == self.leaving:
            self.wants_turn = True

    def _come_up(self, name: str) -> None:
        worker = self.workers.get(name)
        if worker is None:
            return
        if self.now < self._world.no_start_until:
            self._remove(worker, code=1)
            self.wants_turn = True
            return
        self.starting -= 1
        self.forks = self._world.fork_seconds is not None
        worker.up_at = worker.used_at = self.now
        self._serve(worker)

    def _end(self, number: int) -> None:
        lease = self.leases.pop(number, None)
        if lease is None:
            return  # its worker was killed
        worker, now = lease.worker, self.now
        lease.ended_at = now
        self._recent.finished.append(lease)
        if not (self._is_failing and self._fails(lease)):
            self.waits.append(lease.waited_seconds)
            self.leased_at.append(lease.began_at)
        worker.leases -= 1
        worker.used_at = now
        if self.limits is not None:
            self._admit(self.limits.end(lease.task, now))
        if not worker.is_leaving:
            self._serve(worker)
        elif not worker.leases:
            self._remove(worker)
            self.wants_turn = True

    def _overdue(self, name: str) -> None:
        worker = self.workers.get(name)
        if worker is not None and worker.leases:
            self.kill(name)
            self.serve()

    # -- internals ------------------------------------------------------------------------------------------------

    def _serve(self, worker: SimulatedWorker) -> None:
        """Lease tasks to a worker that has just become free, as many as it has slots."""
        ready, slots = self.ready, self._slots
        while worker.leases < slots:
            if not ready or not self.leasable:
                self.free.pop(worker.name, None)
                self.free[worker.name] = worker
                if ready:
                    self._plan_opening()
                return
            self._lease(worker)

    def _chosen(self) -> SimulatedWorker:
        if self._recent_first:
            return self.free[next(reversed(self.free))]
        return self.free[self.rng.choice(list(self.free))]

    def _lease(self, worker: SimulatedWorker) -> None:
        task, now = self.ready.popleft(), self.now
        worker.leases += 1
        if self.free and worker.leases >= self._slots:
            self.free.pop(worker.name, None)
        number = 1
        if self._is_failing:
            number = self._numbers[task] = self._numbers.get(task, 0) + 1
        since = self._ready_at[task]
        if self._ready_again:
            since = self._ready_again.get(task, since)
        leases, seconds = self.leases, self._service[task]
        at_a_time = len(leases) + 1
        if self._is_contended:
            seconds = self._world.held_seconds(seconds, at_a_time=at_a_time)
        if self.limits is not None:
            self.limits.lease(task, now)
            self._plan_opening()
        self._order = order = self._order + 1
        leases[order] = SimulatedLease(worker, task, now, now - since, number, at_a_time)
        heappush(self._events, (now + seconds, order, _END, order))

    def _fails(self, lease: SimulatedLease) -> bool:
        """Set how a lease ended; return whether its task comes back."""
        outcome = lease.outcome = self._outcome(lease.task, lease.number)
        if outcome == "released":
            self.retrying += 1
            self._push(self.now + self._world.retry_seconds(lease.number), _RETRY, lease.task)
            return True
        self.dead += outcome == "died"
        return False

    def _outcome(self, task: int, leases: int) -> Outcome:
        failing = self._world.failing
        fails = failing is not None and failing[0] <= self.now <= failing[1]
        if self._failures is not None and not fails:
            fails = self._failures[task] < 0 or leases <= self._failures[task]
        if not fails:
            return "deleted"
        return "died" if leases >= self._world.max_leases else "released"

    def _remove(self, worker: SimulatedWorker, *, code: int = 0, signal: int | None = None) -> None:
        self.worker_seconds += self.now - worker.born_at
        del self.workers[worker.name]
        self.free.pop(worker.name, None)
        self.starting -= worker.up_at is None
        self.leaving -= worker.is_leaving
        self._recent.gone.append(SimulatedExit(worker.name, Monotonic(self.now), None if signal else code, signal))
        self._resized()

    def _resized(self) -> None:
        size = len(self.workers)
        self.peak = max(self.peak, size)
        if self.sizes[-1][0] == self.now:
            self.sizes[-1] = (self.now, size)
        else:
            self.sizes.append((self.now, size))

    def _push(self, at: float, kind: int, key: int | str) -> None:
        self._order += 1
        heappush(self._events, (at, self._order, kind, key))
