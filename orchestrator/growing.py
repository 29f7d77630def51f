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
_COMING: Final = 0.5
_SATURATED: Final = 0.5


def grow(scene: Scene) -> Wish | None:
    """The most that any rule asks for; None when none asks for anything."""
    facts = scene.facts
    current, sample = len(facts.alive), facts.sample
    need = _deadline(scene)
    wishes = [Wish(current + need.workers, "deadline", _why_deadline(scene, need))] if need.workers else []
    if sample.ready and not sample.paused and facts.spec.workers.max:
        wishes += [wish for wish in (_late(scene), _saturated(scene)) if wish is not None]
    if scene.course is not None:
        wishes.append(_finish(scene, scene.course))
    if scene.warm.kept:
        wishes.append(_warm(scene))
    if scene.upcoming and (wish := prepare(scene)) is not None:
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


def _late(scene: Scene) -> Wish | None:
    """Late is most urgent: while a task waits longer than the slo there is a slot for each that waits or runs."""
    facts, slo_seconds = scene.facts, scene.pace.slo_seconds
    if scene.oldest_seconds <= slo_seconds:
        return None
    grown = facts.now - facts.sample.at
    late = max(w.position for w in facts.sample.waiting if w.age_seconds + grown > slo_seconds)
    what = "1 task waits" if late == 1 else f"{late} tasks wait"
    target = _slot_each(scene)
    why = f"{what} longer than the slo: a slot for each task, so {target} workers, {facts.current} so far"
    return Wish(target, "late", why)


def _saturated(scene: Scene) -> Wish | None:
    """Near max nothing is put off: what could be started for it later is not there to be started.

    That is where the tasks that wait, and half of those that come within the slo, are more than half of what the
    largest fleet does in that time.
    """
    facts, slo_seconds = scene.facts, scene.pace.slo_seconds
    spec, rate = facts.spec, scene.state.estimates.arrival_rate
    most = spec.workers.max * spec.concurrency * slo_seconds / scene.crew.service_seconds
    asked = facts.sample.ready + _COMING * rate * slo_seconds
    if asked <= _SATURATED * most:
        return None
    why = (
        f"{facts.sample.ready} wait and {rate:.2f} arrive per second, and max {spec.workers.max} does {most:.0f} "
        f"within the slo: nothing is put off, a slot for each task"
    )
    return Wish(_slot_each(scene), "saturated", why)


def _slot_each(scene: Scene) -> int:
    """Workers with a slot for every task that waits or runs, beside what other pools have for them."""
    return math.ceil(scene.tasks / scene.facts.spec.concurrency) - scene.crew.workers_elsewhere


def _warm(scene: Scene) -> Wish:
    why = f"a start takes {scene.pace.startup_seconds:.1f} s, too long for the slo: {scene.warm.kept} are kept warm"
    return Wish(scene.warm.kept - scene.crew.workers_elsewhere, "warm", why)
