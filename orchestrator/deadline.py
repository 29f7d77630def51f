"""How many workers more so that every waiting task is leased before its deadline; what must be warm. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.durations import Remaining
from orchestrator.metrics import Waiting
from orchestrator.value import value

_PUT_OFF_TURNS: Final = 2
_ROUNDING: Final = 1e-9
_BURST_HALF_LIFE_SECONDS: Final = 600.0
_SLOWEST_FORGETTING: Final = 48.0
_BURST_NOISE: Final = 0.2
_MAX_BURST_LOOKS: Final = 256
_LONG_AGO: Final = Monotonic(float("-inf"))


@value
class Crew:
    """What a fleet can lease: slots of its workers, and how long a task occupies one.

    `ready_in_seconds` has, for each starting worker, what is left of its start; `running` how long the busy slots'
    leases have run, as a mean and a number of slots; `helpers` are other pools that take some of the same tasks.
    """

    idle_slots: int
    ready_in_seconds: tuple[float, ...]
    slots_per_worker: int
    remaining: Remaining
    running: tuple[tuple[float, int], ...] = ()
    helpers: tuple["Helper", ...] = ()

    @property
    def service_seconds(self) -> float:
        """How long a task occupies a slot, on average."""
        return self.remaining.mean_seconds

    def can_start(self, within_seconds: float, *, enough: float = math.inf) -> float:
        """Leases that may begin within that time: idle slots at once, then each slot one per service time.

        Beyond `enough` of them it need not be exact.
        """
        remaining = self.remaining
        begun = self.idle_slots * (1.0 + within_seconds / remaining.mean_seconds)
        begun = remaining.begun(self.running, within_seconds, beside=begun, enough=enough)
        for ready_in in self.ready_in_seconds:
            if within_seconds > ready_in:
                begun += self.slots_per_worker * (1.0 + (within_seconds - ready_in) / remaining.mean_seconds)
        for helper in self.helpers:
            begun += helper.can_start(within_seconds)
        return begun

    def slots_up(self, within_seconds: float) -> float:
        """Slots of workers that are up by then."""
        started = sum(1 for ready_in in self.ready_in_seconds if ready_in <= within_seconds)
        own = self.idle_slots + self.busy_slots + started * self.slots_per_worker
        return own + math.fsum(
            [min(helper.most, helper.share * helper.crew.slots_up(within_seconds)) for helper in self.helpers]
        )

    @property
    def busy_slots(self) -> float:
        """Slots that hold a lease."""
        own = sum(slots for _, slots in self.running)
        return own + math.fsum([min(helper.most, helper.share * helper.crew.busy_slots) for helper in self.helpers])

    @property
    def taken_elsewhere(self) -> float:
        """How many of the waiting tasks helpers take sooner or later: all, where they take all of the pool's tags."""
        return math.fsum([helper.most for helper in self.helpers if helper.slots > 0.0])

    @property
    def workers_elsewhere(self) -> int:
        """As many workers of its own as the helpers stand for, whatever they do now."""
        return self._workers_of(self.helpers)

    @property
    def workers_below(self) -> int:
        """The same of helpers that come first: the pool's own are on top of them, and are the first to be spare."""
        return self._workers_of([helper for helper in self.helpers if helper.is_first])

    def _workers_of(self, helpers: Iterable["Helper"]) -> int:
        return math.floor(math.fsum([helper.slots for helper in helpers]) / self.slots_per_worker + _ROUNDING)

    def one_more_can_start(self, within_seconds: float, *, startup_seconds: float) -> float:
        """Leases that one worker spawned now may begin within that time, which is no shorter than its start."""
        return self.slots_per_worker * (1.0 + (within_seconds - startup_seconds) / self.service_seconds)


@value
class Helper:
    """Another pool whose workers take tasks of this one: they hold some, and `share` of what they begin is this pool's.

    `most`: of the tasks that wait they can take no more, as they do not take all of its tags. `is_first`: they were
    decided on before this pool's, so that it is this pool that need not keep what both of them could.
    """

    pool: str
    crew: Crew
    held: int
    share: float = 1.0
    most: float = math.inf
    is_first: bool = False

    @property
    def slots(self) -> float:
        """Slots that hold this pool's tasks, and its share of those that are free or will be up soon."""
        free = self.crew.idle_slots + len(self.crew.ready_in_seconds) * self.crew.slots_per_worker
        return self.held + min(self.share * free, self.most)

    @property
    def told(self) -> str:
        """What is counted, in a few words; "" for nothing."""
        places, some = round(self.slots), "" if math.isinf(self.most) else "some of "
        counted = "1 place" if places == 1 else f"{places} places"
        return f"counts {counted} of pool {self.pool}, which takes {some}its tasks" if places else ""

    def can_start(self, within_seconds: float) -> float:
        """Leases of this pool's tasks that may begin there within that time."""
        return min(self.most, self.share * self.crew.can_start(within_seconds))


@value
class Pace:
    """The times a decision plans with, in seconds: `usable_slo` is what the slo leaves after slack and one turn."""

    slo_seconds: float
    usable_slo_seconds: float
    startup_seconds: float
    turn_seconds: float

    @property
    def is_start_in_time(self) -> bool:
        """Whether a task that arrives to no worker at all can be leased in time by one that is spawned then.

        If so, arrivals to come need no worker now: their deadlines are later, and can be planned for later.
        """
        return self.startup_seconds + self.turn_seconds <= self.usable_slo_seconds

    def soon_seconds(self, service_seconds: float) -> float:
        """How soon a task is planned to be leased whose deadline passes before a worker spawned now could be up.

        Within one service time or a quarter of the slo, where tasks to come can still be served in time; else at once.
        """
        soon = max(service_seconds, self.slo_seconds / 4) if self.is_start_in_time else 0.0
        return self.startup_seconds + soon

    def longest_seconds(self, service_seconds: float) -> float:
        """The longest time to lease a task that arrives within a start from now at the latest."""
        return max(self.usable_slo_seconds + self.startup_seconds, self.soon_seconds(service_seconds))


@value
class Need:
    """Workers to add, and the task that asks for most: `within_seconds` is the time to lease up to it."""

    workers: int = 0
    position: int = 0
    age_seconds: float = 0.0
    within_seconds: float = 0.0
    can_start: float = 0.0


_NOBODY: Final = Need()


def workers_needed(waiting: Sequence[Waiting], *, crew: Crew, pace: Pace) -> Need:
    """The fewest workers to add so that, in lease order, each task in `waiting` is leased before its deadline.

    A task whose deadline passes before a worker spawned now could be up is lost to new workers. It is planned to be
    leased soon after instead. So an older backlog may ask for fewer workers than one that can just be saved.
    """
    need = _NOBODY
    if not waiting:
        return need
    can_start, planned, last = 0.0, math.inf, waiting[-1].position
    usable_seconds, startup_seconds = pace.usable_slo_seconds, pace.startup_seconds
    for task in waiting:
        within = usable_seconds - task.age_seconds
        if within < startup_seconds:
            within = pace.soon_seconds(crew.service_seconds)
        if within >= planned and task.position <= can_start:
            continue  # as many can begin in less time
        can_start, planned = crew.can_start(within, enough=last), within
        missing = task.position - can_start
        if missing <= _ROUNDING:
            continue
        workers = _needed_now(missing, within, crew=crew, pace=pace)
        if workers > need.workers:
            need = Need(workers, task.position, task.age_seconds, within, can_start)
    return need


def _needed_now(missing: float, within: float, *, crew: Crew, pace: Pace) -> int:
    """Workers to spawn now so that so many more leases begin in time.

    While there is time the last of them is put off: what it would do can be done by one spawned a turn later, and a
    lease that ends until then may save the start. Two turns are kept back, since a start may take longer than planned.
    """
    each = crew.one_more_can_start(within, startup_seconds=pace.startup_seconds)
    workers = math.ceil(missing / each - _ROUNDING)
    if within - _PUT_OFF_TURNS * pace.turn_seconds < pace.startup_seconds:
        return workers
    each_later = crew.one_more_can_start(within - pace.turn_seconds, startup_seconds=pace.startup_seconds)
    return min(workers, math.ceil(missing / each_later - _ROUNDING) - 1)


@value
class Burst:
    """The worst burst lately, in workers that had to be warm for it; half forgotten every ten minutes or more.

    Learned only where a start takes longer than the slo leaves; zero elsewhere. `recent` has the arrivals of the last
    start-up's time.
    """

    workers: float = 0.0
    at: Monotonic = _LONG_AGO
    recent: tuple[tuple[Monotonic, int], ...] = ()

    def after(self, arrivals: int, *, at: Monotonic, crew: Crew, pace: Pace, lateness: float = 0.0) -> "Burst":
        """Learn that `arrivals` came in the turn that ended `at`.

        A pool that is late more often than it may be is slower to forget: by `lateness`, its share of late leases over
        the share that is allowed, or by the square of what is too many. At seven times the share, half in six hours.
        """
        reach = pace.startup_seconds + pace.turn_seconds
        recent = (*self.recent, (at, arrivals))[-_MAX_BURST_LOOKS:] if arrivals else self.recent
        while recent and recent[0][0] <= at - reach:
            recent = recent[1:]
        if pace.is_start_in_time:
            return Burst(0.0, at, recent)
        slower = min(_SLOWEST_FORGETTING, max(1.0, lateness, (lateness - 1.0) ** 2))
        workers = self.workers * 0.5 ** (max(0.0, at - self.at) / (_BURST_HALF_LIFE_SECONDS * slower))
        total = 0
        for then, count in reversed(recent):
            total += count
            leases_each = 1.0 + (at - then + pace.usable_slo_seconds) / crew.service_seconds
            workers = max(workers, total / (crew.slots_per_worker * leases_each))
        return Burst(workers, at, recent)

    @property
    def warm_workers(self) -> int:
        """Workers to keep for the next burst like it."""
        return math.ceil(max(0.0, self.workers - _BURST_NOISE))
