"""Compute how many more workers are needed so that every waiting task is leased before its deadline. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Waiting
from orchestrator.base.values import value
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Worker
from orchestrator.scaling.estimates import Estimates

_PUT_OFF_TURNS: Final = 2  # turns kept in reserve before a start is put off
_ROUNDING: Final = 1e-9
_START_SHARE: Final = 0.9  # share of the slo that a start and a turn may take to be in time


@value
class ServingCapacity:
    """The leases that a fleet can begin: its workers' slots, and how long a task occupies one.

    `ready_in_seconds` has for each starting worker the time left of its start; `service_seconds` is the mean time a
    task occupies a slot, more than 0; `helpers` are other pools that take some of the same tasks. `is_known`: a lease
    has ended; until then a task might last for ever.
    """

    idle_slots: int
    own_busy_slots: int
    ready_in_seconds: tuple[float, ...]
    slots_per_worker: int
    service_seconds: float
    helpers: tuple["HelperPool", ...] = ()
    is_known: bool = True

    def can_start(self, within_seconds: float) -> float:
        """Return how many leases may begin within that time: idle slots at once, then one per slot and service time."""
        turns = within_seconds / self.service_seconds
        begun = self.idle_slots * (1.0 + turns) + self.own_busy_slots * turns
        for ready_in in self.ready_in_seconds:
            if within_seconds > ready_in:
                begun += self.slots_per_worker * (1.0 + (within_seconds - ready_in) / self.service_seconds)
        for helper in self.helpers:
            begun += helper.can_start(within_seconds)
        return begun

    def slots_up(self, within_seconds: float) -> float:
        """Return the slots of workers that have started by then."""
        started = sum(1 for ready_in in self.ready_in_seconds if ready_in <= within_seconds)
        own = self.idle_slots + self.busy_slots + started * self.slots_per_worker
        return own + math.fsum(
            [min(helper.most, helper.share * helper.capacity.slots_up(within_seconds)) for helper in self.helpers]
        )

    def slots_later(self, within_seconds: float) -> float:
        """Return the slots of workers that will have started only after that time."""
        later = sum(1 for ready_in in self.ready_in_seconds if ready_in >= within_seconds)
        return later * self.slots_per_worker + math.fsum(
            [min(helper.most, helper.share * helper.capacity.slots_later(within_seconds)) for helper in self.helpers]
        )

    def free_slots(self, within_seconds: float) -> float:
        """Return the slots that are free by then if no lease ends before."""
        return self.slots_up(within_seconds) - self.busy_slots

    @property
    def busy_slots(self) -> float:
        """The slots that hold a lease."""
        return self.own_busy_slots + math.fsum(
            [min(helper.most, helper.share * helper.capacity.busy_slots) for helper in self.helpers]
        )

    @property
    def taken_elsewhere(self) -> float:
        """The number of waiting tasks that helpers take sooner or later: infinite if they take all the pool's tags."""
        return math.fsum([helper.most for helper in self.helpers if helper.slots > 0.0])

    @property
    def workers_elsewhere(self) -> int:
        """The number of the pool's own workers that the helpers are worth."""
        return self._workers_of(self.helpers)

    @property
    def workers_below(self) -> int:
        """The same for helpers that come first: the pool's own workers come on top and are the first to be spare."""
        return self._workers_of([helper for helper in self.helpers if helper.is_first])

    def _workers_of(self, helpers: Iterable["HelperPool"]) -> int:
        return math.floor(math.fsum([helper.slots for helper in helpers]) / self.slots_per_worker + _ROUNDING)

    def one_more_can_start(self, within_seconds: float, *, startup_seconds: float) -> float:
        """Return how many leases a worker spawned now may begin within that time, which is at least its start."""
        return self.slots_per_worker * (1.0 + (within_seconds - startup_seconds) / self.service_seconds)


@value
class HelperPool:
    """Another pool whose workers take tasks of this pool: they have `held` ones, and a `share` of what they begin.

    `most` bounds the waiting tasks they can take if they do not take all of this pool's tags. `is_first`: that pool is
    decided first, so this pool need not keep workers that both could keep.
    """

    pool: str
    capacity: ServingCapacity
    held: int
    share: float = 1.0
    most: float = math.inf
    is_first: bool = False

    @property
    def slots(self) -> float:
        """The slots that hold this pool's tasks, and its share of those that are free or starting."""
        free = self.capacity.idle_slots + len(self.capacity.ready_in_seconds) * self.capacity.slots_per_worker
        return self.held + min(self.share * free, self.most)

    @property
    def description(self) -> str:
        """The places it counts for, in words; "" for none."""
        places, some = round(self.slots), "" if math.isinf(self.most) else "some of "
        counted = "1 place" if places == 1 else f"{places} places"
        return f"counts {counted} of pool {self.pool}, which takes {some}its tasks" if places else ""

    def can_start(self, within_seconds: float) -> float:
        """Return how many leases of this pool's tasks may begin there within that time."""
        return min(self.most, self.share * self.capacity.can_start(within_seconds))


@value
class Pace:
    """The durations a decision plans with, in seconds.

    `usable_slo` is the slo less slack and one turn; `startup` is the time allowed for a start, `usual_start` the mean
    time of one.
    """

    slo_seconds: float
    usable_slo_seconds: float
    startup_seconds: float
    turn_seconds: float
    usual_start_seconds: float = 0.0

    @property
    def is_start_in_time(self) -> bool:
        """True if a task that meets an empty pool can be leased in time by a worker spawned then.

        If so, future arrivals need no worker now. The slack is ignored: it is small in a pool that is late for lack of
        workers, which a warm reserve would not help.
        """
        return self.usual_start_seconds + self.turn_seconds <= _START_SHARE * self.slo_seconds


def capacity_of(
    alive: Iterable[Worker],
    held_seconds: Sequence[float],
    *,
    estimates: Estimates,
    spec: PoolSpec,
    now: Monotonic,
) -> ServingCapacity:
    """Return the serving capacity of these workers; `held_seconds` has the age of each lease that is held."""
    slots = spec.concurrency
    executed, forked = estimates.executed.mean_seconds, estimates.forked.mean_seconds
    up = busy_slots = 0
    ready_in_seconds: list[float] = []
    for w in alive:
        if w.state == "starting":
            mean_start = forked if w.is_forked else executed
            if w.place.is_unplaced:
                mean_start += estimates.nodes.usual_seconds
            ready_in_seconds.append(max(0.0, mean_start - (now - w.spawned_at)))
            continue
        leases = w.leases
        if leases > slots:
            leases = slots
        up += 1
        busy_slots += leases
    service_seconds = estimates.service.mean_seconds(held_seconds)
    is_known = estimates.service.count > 0.0
    return ServingCapacity(
        up * slots - busy_slots, busy_slots, tuple(ready_in_seconds), slots, service_seconds, is_known=is_known
    )


def pace_of(estimates: Estimates, spec: PoolSpec) -> Pace:
    """Return the durations that a decision on this pool plans with."""
    startup = estimates.startup
    return Pace(
        spec.slo,
        estimates.usable_slo_seconds(spec),
        startup.planned_seconds,
        estimates.turn_seconds(spec),
        startup.mean_seconds,
    )


@value
class Need:
    """The workers to add, and the task that needs the most: all up to it must be leased `within_seconds`."""

    workers: int = 0
    position: int = 0
    age_seconds: float = 0.0
    within_seconds: float = 0.0
    can_start: float = 0.0


_NOBODY: Final = Need()


def workers_needed(waiting: Sequence[Waiting], *, capacity: ServingCapacity, pace: Pace) -> Need:
    """Return the fewest workers to add so that, in lease order, each task in `waiting` is leased before its deadline.

    A task whose deadline comes before a worker spawned now can have started will be late in any case: it gets a slot of
    its own, already starting or new, so that it is not late for long. Until the first lease ends the service time is a
    guess; near a deadline a slot then counts for one task only.
    """
    need = _NOBODY
    if not waiting:
        return need
    can_start, planned = 0.0, math.inf
    usable_seconds, startup_seconds = pace.usable_slo_seconds, pace.startup_seconds
    at_stake_seconds = startup_seconds + _PUT_OFF_TURNS * pace.turn_seconds
    for task in waiting:
        within = max(0.0, usable_seconds - task.age_seconds)
        if within >= planned and task.position <= can_start:
            continue  # a shorter time was enough for as many
        is_guess = not capacity.is_known and within < at_stake_seconds
        planned = within
        can_start = capacity.free_slots(within) if is_guess else capacity.can_start(within)
        is_late = within < startup_seconds
        missing = task.position - can_start - (capacity.slots_later(within) if is_late else 0.0)
        if missing <= _ROUNDING:
            continue
        if is_late or is_guess:
            workers = math.ceil(missing / capacity.slots_per_worker - _ROUNDING)
        else:
            workers = _needed_now(missing, within, capacity=capacity, pace=pace)
        if workers > need.workers:
            need = Need(workers, task.position, task.age_seconds, within, can_start)
    return need


def _needed_now(missing: float, within: float, *, capacity: ServingCapacity, pace: Pace) -> int:
    """Return the workers to spawn now so that `missing` more leases begin in time.

    While there is time the last worker is put off: one spawned a turn later may do as much, and a lease that ends until
    then may save the start. Two turns are kept in reserve, as a start may take longer than planned.
    """
    each = capacity.one_more_can_start(within, startup_seconds=pace.startup_seconds)
    workers = math.ceil(missing / each - _ROUNDING)
    if within - _PUT_OFF_TURNS * pace.turn_seconds < pace.startup_seconds:
        return workers
    each_later = capacity.one_more_can_start(within - pace.turn_seconds, startup_seconds=pace.startup_seconds)
    return min(workers, math.ceil(missing / each_later - _ROUNDING) - 1)
