"""Plan which workers to spawn, retire, finish and kill so that a pool gets the decided size. Pure."""

from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import value
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet, Worker, billed_for, least_recently_used, outdated
from orchestrator.scaling.decision import DEFAULT_CONDITIONS, Conditions, Decision
from queue_core.process.wording import counted

MAX_ACTIONS: Final = 64
"""The most actions of one plan; the rest follows in the next turn."""
START_LIMIT_SECONDS: Final = 600.0
"""Age at which a worker without a lease call is killed: its start has failed."""
_REPLACED_SHARE: Final = 4  # one part in this many of a pool is replaced at a time
_STAYING: Final = frozenset({"idle", "busy"})
_FEWER_DO: Final = frozenset({"contention", "failing_work"})
"""Guards that make a pool smaller although it has work, as more workers than their bound do no good."""
_STARTING: Final = frozenset({"starting", "alone"})


@value
class Spawn:
    """The start of one worker; once it has started, the worker `replaces` is stopped."""

    why: str
    replaces: str | None = None


@value
class WorkerRemoval:
    """The removal of one worker, and why."""

    worker: str
    why: str


@value
class Plan:
    """The actions of one turn, to be executed in the order of the fields.

    `kill`: workers whose deadline is past. `retire`: idle workers; fence each at the queue first, and keep it if it
    holds a lease after all. `finish`: workers to fence even if they hold leases, and to drain once they hold none.
    `end`: unresponsive workers; fence each first, as for `retire`.
    """

    kill: tuple[WorkerRemoval, ...] = ()
    retire: tuple[WorkerRemoval, ...] = ()
    finish: tuple[WorkerRemoval, ...] = ()
    spawn: tuple[Spawn, ...] = ()
    end: tuple[WorkerRemoval, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.kill or self.retire or self.finish or self.spawn or self.end)

    @property
    def replacing(self) -> str:
        """The news of a pool that keeps its size: `1 worker is replaced: tasks.py changed after its start`."""
        new = [spawn.why for spawn in self.spawn if spawn.replaces is not None]
        if new:
            return f"{counted(len(new), 'worker is', 'workers are')} replaced: {new[0]}"
        old = [leaves.why for leaves in (*self.end, *self.finish, *self.retire, *self.kill)]
        return f"{counted(len(old), 'worker leaves', 'workers leave')}: {old[0]}" if old else ""


NOTHING_TO_DO: Final = Plan()


def plan_actions(
    decision: Decision,
    *,
    fleet: Fleet,
    spec: PoolSpec,
    now: Monotonic,
    conditions: Conditions = DEFAULT_CONDITIONS,
    reserved: int = 0,
) -> Plan:
    """Return the actions that bring `fleet` towards `decision.target`, at most `MAX_ACTIONS` of them.

    Shrinking retires idle workers, and before them those that wait for a node. A busy worker finishes its leases and
    gets no more, without a deadline, only if the pool is above its upper bound, a guard has found that fewer do as
    much, or it is outdated and its replacement has started or has no place (ADR 17). Every process counts towards the
    upper bound until it is collected, so growth waits for leaving workers; up to `surge_workers` are exempt if
    another one replaces them or they hang (ADR 9). `reserved` places stay free. A worker that hangs is ended after
    its grace, or at once if its place is needed.
    """
    most = spec.workers.max
    if len(fleet.workers) == decision.target <= most and _is_settled(fleet, spec, now):
        return NOTHING_TO_DO
    alive, surge = fleet.alive, spec.surge_workers
    kill = _overdue(fleet, now)
    retire = _surplus(alive, decision, spec=spec, now=now)
    finish = _freed(fleet) + _above_max(alive, retire, spec=spec, decision=decision)
    replaced = _replaced(fleet, spec=spec, now=now)
    present = len(fleet.workers) - _taken(fleet)
    places = most + min(surge, _succeeded(fleet)) - present
    free = max(0, places - reserved)
    wanted = max(0, decision.target - len(alive))
    grow = min(free, wanted)
    end = _hung(fleet, spec=spec, needed=wanted - grow - len(fleet.leaving), now=now)
    spawn = [Spawn(decision.why)] * grow
    if not (grow or retire or finish or replaced or _is_replacing_unwise(decision, fleet, spec)):
        beside = _fitting(max(0, most + surge - present), conditions)
        finish, spawn = _replacing(fleet, alive, spec=spec, places=beside, target=decision.target, now=now)
        if places < 0:  # a worker that went could have no successor before others have gone
            finish = []
    if not (kill or retire or finish or spawn or replaced or end):
        return NOTHING_TO_DO
    for worker, leave in replaced:
        if worker.state == "unresponsive":
            end = [leave, *(other for other in end if other.worker != leave.worker)]
        else:
            finish.append(leave)
    ended = {leave.worker for leave in kill}
    return _bounded(kill, retire, [leave for leave in finish if leave.worker not in ended], spawn, end)


def _is_settled(fleet: Fleet, spec: PoolSpec, now: Monotonic) -> bool:
    """Return whether every worker has started, counts and stays; a quick check, as nearly every turn finds this."""
    digest, limits = spec.digest(), spec.recycle
    ages = not (limits.tasks is None and limits.memory is None and limits.age is None)
    for w in fleet.workers.values():
        if w.started_at is None or w.state not in _STAYING or w.deadline_at is not None or w.replaced_by is not None:
            return False
        if (ages or w.changed_file or w.replaced_for or w.spec_digest != digest) and outdated(
            w, spec, digest=digest, now=now
        ):
            return False
    return True


def _overdue(fleet: Fleet, now: Monotonic) -> list[WorkerRemoval]:
    """Return the workers to kill: those that did not finish in time, and those that never started."""
    leaves = []
    for w in fleet.workers.values():
        if w.deadline_at is not None and now >= w.deadline_at:
            leaves.append(WorkerRemoval(w.worker, "it did not finish within its grace"))
        elif w.place.is_unplaced:
            continue  # it may wait for as long as its cluster has no node
        elif w.started_at is None and w.state in _STARTING and _start_seconds(w, now) >= START_LIMIT_SECONDS:
            leaves.append(WorkerRemoval(w.worker, f"it has requested no lease in {START_LIMIT_SECONDS:.0f} s"))
    return leaves


def _start_seconds(worker: Worker, now: Monotonic) -> float:
    """Return how long a worker has been starting, without its wait for a node."""
    return now - worker.since - (worker.place.node_wait_seconds or 0.0)


def _hung(fleet: Fleet, *, spec: PoolSpec, needed: int, now: Monotonic) -> list[WorkerRemoval]:
    """Return the workers to end: those that hang beyond their grace, and up to `needed` others that hang."""
    leaves = []
    for index, w in enumerate(w for w in fleet.unresponsive if not w.place.is_silent):  # nobody could end those
        if now - w.since >= spec.grace:
            leaves.append(WorkerRemoval(w.worker, f"it is unresponsive for longer than its grace of {spec.grace:g} s"))
        elif index < needed:
            leaves.append(WorkerRemoval(w.worker, "it is unresponsive, and its place is needed"))
    return leaves


def _freed(fleet: Fleet) -> list[WorkerRemoval]:
    """Return the workers that were fenced to finish and hold no lease any more."""
    return [
        WorkerRemoval(w.worker, "its tasks are done") for w in fleet.workers.values() if w.is_finishing and not w.leases
    ]


def _surplus(alive: tuple[Worker, ...], decision: Decision, *, spec: PoolSpec, now: Monotonic) -> list[WorkerRemoval]:
    surplus = len(alive) - decision.target
    if surplus <= 0:
        return []
    unplaced = sorted((w for w in alive if w.place.is_unplaced), key=lambda w: (-w.spawned_at, w.worker))
    idle = [w for w in least_recently_used(alive) if not billed_for(w, spec, now=now)]
    return [WorkerRemoval(w.worker, _stop_reason(decision)) for w in [*unplaced, *idle][:surplus]]


def _stop_reason(decision: Decision) -> str:
    """Return why workers leave: the reason of the last guard if one lowered the target, else the rule's."""
    if decision.target < decision.unguarded and decision.limits:
        return decision.limits[-1].why
    return decision.why


def _above_max(
    alive: tuple[Worker, ...], retire: list[WorkerRemoval], *, spec: PoolSpec, decision: Decision
) -> list[WorkerRemoval]:
    """Return the workers beyond the upper bound that must finish: starting ones, then those with fewest leases."""
    most, why = spec.workers.max, f"the pool is above its max of {spec.workers.max}"
    why_fewer = next((limit.why for limit in decision.limits if limit.guard in _FEWER_DO), "")
    if decision.target < decision.current and why_fewer:
        most, why = min(most, max(decision.target, 1)), why_fewer
    surplus = len(alive) - len(retire) - most
    if surplus <= 0 or decision.target > most:  # at a higher target a guard holds the pool as it is
        return []
    gone = {leave.worker for leave in retire}
    left = [w for w in alive if w.worker not in gone]
    left.sort(key=lambda w: (not w.place.is_unplaced, w.state != "starting", w.leases, -w.since, w.worker))
    return [WorkerRemoval(w.worker, why) for w in left[:surplus]]


def _replaced(fleet: Fleet, *, spec: PoolSpec, now: Monotonic) -> list[tuple[Worker, WorkerRemoval]]:
    """Return the workers whose replacement has started."""
    up = []
    for w in fleet.workers.values():
        successor = None if w.replaced_by is None else fleet.workers.get(w.replaced_by)
        if successor is not None and successor.started_at is not None and not w.is_leaving:
            why = outdated(w, spec, digest=spec.digest(), now=now) or "its replacement is up"
            up.append((w, WorkerRemoval(w.worker, why)))
    return up


def _succeeded(fleet: Fleet) -> int:
    """Return how many workers do not count against the upper bound for their successors: replaced or hanging ones."""
    return sum(
        1
        for w in fleet.workers.values()
        if w.hung_at is not None or (w.replaced_by is not None and (w.is_leaving or w.replaced_by in fleet.workers))
    )


def _taken(fleet: Fleet) -> int:
    """Return how many workers their cluster takes away: they hold no place, as their successors start now."""
    return sum(1 for w in fleet.workers.values() if w.place.is_leaving)


def _fitting(places: int, conditions: Conditions) -> int:
    """Return how many replacements fit into memory; a lack of CPU is ignored, as it ends with the replaced workers."""
    allocation = conditions.allocation
    return places if allocation is None or allocation.scarce != "memory" else min(places, allocation.workers)


def _is_replacing_unwise(decision: Decision, fleet: Fleet, spec: PoolSpec) -> bool:
    """Return whether not to replace workers now: starts fail, or the sample is stale."""
    return fleet.failed_starts(spec) > 0 or "stale_sample" in decision.limited_by


def _replacing(
    fleet: Fleet, alive: tuple[Worker, ...], *, spec: PoolSpec, places: int, target: int, now: Monotonic
) -> tuple[list[WorkerRemoval], list[Spawn]]:
    """Replace outdated workers a few at a time, new before old; without a free place, old before new.

    In the latter case no replacement is started: the policy grows the pool again when work needs it.
    """
    finish: list[WorkerRemoval] = []
    spawn: list[Spawn] = []
    digest = spec.digest()
    old = [(w, why) for w in alive if (why := outdated(w, spec, digest=digest, now=now))]
    if not old:
        return [], []
    at_a_time = max(1, target // _REPLACED_SHARE) - max(_under_way(fleet, alive, spec, now), target - len(alive))
    old.sort(key=lambda pair: (pair[0].state != "idle", pair[0].leases, pair[0].since, pair[0].worker))
    for w, why in old[: max(0, at_a_time)]:
        if places:
            places -= 1
            spawn.append(Spawn(why, replaces=w.worker))
        else:
            finish.append(WorkerRemoval(w.worker, why))
    return finish, spawn


def _under_way(fleet: Fleet, alive: tuple[Worker, ...], spec: PoolSpec, now: Monotonic) -> int:
    """Return how many workers leave or wait for their replacement; those that finish slowly delay no other."""
    slow = sum(1 for w in fleet.workers.values() if w.is_finishing and now - w.since >= spec.grace)
    return len(fleet.workers) - len(alive) - slow


def _bounded(
    kill: list[WorkerRemoval],
    retire: list[WorkerRemoval],
    finish: list[WorkerRemoval],
    spawn: list[Spawn],
    end: list[WorkerRemoval],
) -> Plan:
    left = MAX_ACTIONS
    parts: list[tuple[WorkerRemoval, ...]] = []
    for leaves in (kill, retire, end, finish):
        parts.append(tuple(leaves[:left]))
        left -= len(parts[-1])
    return Plan(parts[0], parts[1], parts[3], tuple(spawn[:left]), parts[2])
