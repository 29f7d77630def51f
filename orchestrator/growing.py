"""The rules that ask for more workers: a deadline, a wake-up, a warm reserve, the lower bound. Pure."""

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from orchestrator.deadline import Need, workers_needed
from orchestrator.finishing import Course
from orchestrator.metrics import Waiting
from orchestrator.scene import Scene, Wish
from orchestrator.upcoming import prepare

_DAY_SECONDS: Final = 86_400.0
_NOISE_TASKS: Final = 0.2  # a rate that has all but decayed keeps nobody warm


def grow(scene: Scene) -> Wish | None:
    """The most that any rule asks for; None when none asks for anything."""
    facts = scene.facts
    current, sample = len(facts.alive), facts.sample
    need = _deadline(scene)
    wishes = [Wish(current + need.workers, "deadline", _why_deadline(scene, need))] if need.workers else []
    if scene.course is not None:
        wishes.append(_finish(scene, scene.course))
    if not scene.pace.is_start_in_time:
        wishes += [_arrivals_during_a_start(scene), _one_worker_per_task(scene), _warm(scene)]
    if sample.upcoming and (wish := prepare(scene)) is not None:
        wishes.append(wish)
    if current == 0 and sample.ready > scene.crew.taken_elsewhere:
        wishes.append(Wish(1, "wake", f"{sample.ready} ready and nobody to lease them"))
    low, by = facts.spec.workers.min, facts.conditions.bounds_by
    if low > current:
        wishes.append(Wish(low, "min", f"at least min {low}" + (f" ({by})" if by else "")))
    return max(wishes, key=attrgetter("target")) if wishes else None


def _deadline(scene: Scene) -> Need:
    sample = scene.facts.sample
    waiting: Sequence[Waiting] = sample.waiting
    grown = scene.facts.now - sample.at
    if grown > 0.0:
        waiting = [Waiting(w.position, w.age_seconds + grown) for w in waiting]
    return workers_needed(waiting, crew=scene.crew, pace=scene.pace)


def _why_deadline(scene: Scene, need: Need) -> str:
    starting = len(scene.crew.ready_in_seconds)
    return (
        f"{scene.facts.sample.ready} ready, #{need.position} is {need.age_seconds:.1f} s old: "
        f"must be leased within {need.within_seconds:.1f} s; "
        f"{scene.busy} busy + {len(scene.idle)} idle + {starting} starting can begin {need.can_start:.0f}; "
        f"{need.workers} more needed"
    )


def _finish(scene: Scene, course: Course) -> Wish:
    return Wish(scene.facts.current + course.workers, "finish_by", told(scene, course) if course.workers else "")


def told(scene: Scene, course: Course) -> str:
    """How the work that waits stands to the instant by which it is to be done."""
    finish_by = scene.facts.conditions.finish_by
    if finish_by is None:
        return ""
    done_in, ready = course.done_in_seconds, scene.facts.sample.ready
    by = finish_by.clock()
    if not course.is_in_time:
        # Of an estimate that is beyond a day the time of day says nothing.
        days = done_in / _DAY_SECONDS
        later = done_in - finish_by.within_seconds
        when = f"{finish_by.clock(later)} at the earliest" if days < 1 else f"more than {min(days, 999):.0f} d"
        return f"{ready} ready can't be done by {by} with max {scene.facts.spec.workers.max}: {when}"
    return f"{ready} ready are to be done by {by}: {course.workers} more needed for that"


def _arrivals_during_a_start(scene: Scene) -> Wish:
    """Tasks that arrive while a worker starts cannot wait for the next one: plan for them as if they were here."""
    arrivals, sample, pace = scene.state.estimates.arrivals, scene.facts.sample, scene.pace
    rate = arrivals.peak_rate if sample.ready or sample.in_flight else arrivals.fast_rate
    expected = sample.ready + math.ceil(max(0.0, rate * pace.startup_seconds - _NOISE_TASKS))
    # Their deadline counts from their arrival, up to a start from now: a task that is younger than new.
    last = Waiting(expected, -pace.startup_seconds)
    need = workers_needed([last], crew=scene.crew, pace=pace)
    why = f"{rate:.2f} arrive per second, and a start takes {pace.startup_seconds:.1f} s"
    return Wish(scene.facts.current + need.workers, "warm", why)


def _one_worker_per_task(scene: Scene) -> Wish:
    sample = scene.facts.sample
    tasks, slots = sample.in_flight + sample.ready, scene.facts.spec.concurrency
    why = f"a start takes {scene.pace.startup_seconds:.1f} s, too long for the slo: a slot for each of {tasks} tasks"
    return Wish(math.ceil(tasks / slots) - scene.crew.workers_elsewhere if sample.ready else 0, "warm", why)


def _warm(scene: Scene) -> Wish:
    why = f"a start takes {scene.pace.startup_seconds:.1f} s, too long for the slo: kept warm for a burst"
    return Wish(scene.state.burst.warm_workers - scene.crew.workers_elsewhere, "warm", why)
