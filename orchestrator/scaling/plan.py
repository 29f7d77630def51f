"""Which workers to start, let go, let finish and end, so that a pool gets the size decided. Pure."""

from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet, Worker, billed_for, least_recently_used, outdated
from orchestrator.scaling.decision import DEFAULT_CONDITIONS, Conditions, Decision
from orchestrator.values import value

MAX_ACTIONS: Final = 64
"""Actions of one plan, at most; what is left over is done in the next turn."""
START_LIMIT_SECONDS: Final = 600.0
"""A worker that has not asked for a lease by then never will: its start has failed."""
_REPLACED_SHARE: Final = 4
_STAYING: Final = frozenset({"idle", "busy"})
_FEWER_DO: Final = frozenset({"contention", "failing_work"})
"""Guards that make a pool smaller although it has work: those beyond their bound are of no use."""
_STARTING: Final = frozenset({"starting", "alone"})


@value
class Spawn:
    """Start one worker; once it is up, `replaces` is let go."""

    why: str
    replaces: str | None = None


@value
class WorkerRemoval:
    """One worker goes, and why."""

    worker: str
    why: str


@value
class Plan:
    """What to do, in the order of the fields.

    `retire`: idle workers; fence each at the queue first, and leave it alone if it holds a lease after all.
    `finish`: fenced at the queue whether or not they hold a lease, and asked to end when they hold none. `kill`: their
    deadline is past. `end`: they hang; fence each first, as those that retire.
    """

    kill: tuple[WorkerRemoval, ...] = ()
    retire: tuple[WorkerRemoval, ...] = ()
    finish: tuple[WorkerRemoval, ...] = ()
    spawn: tuple[Spawn, ...] = ()
    end: tuple[WorkerRemoval, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.kill or self.retire or self.finish or self.spawn or self.end)


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
    """The actions that bring `fleet` towards `decision.target`; at most `MAX_ACTIONS` of them.

    Shrinking retires idle workers only. A worker that holds a lease is let finish, and gets no more, only when the pool
    is above its upper bound, when a guard has found that fewer do as much, or when it is outdated and its replacement
    is up (or there is no place for one); it has no deadline (see orchestrator/doc/adr/0017-busy-workers-are-fenced.md).
    Every process counts towards the upper bound until it is collected, so growth waits for those that leave; but as
    many as `surge_workers` do not while another one takes their place, or because they hang. So many places as are
    `reserved` are left free. A worker that hangs is ended after its grace, and at once where its place is needed.
    """
    most = spec.workers.max
    if len(fleet.workers) == decision.target <= most and _is_settled(fleet, spec, now):
        return NOTHING_TO_DO
    alive, surge = fleet.alive, spec.surge_workers
    kill = _overdue(fleet, now)
    retire = _surplus(alive, decision, spec=spec, now=now)
    finish = _freed(fleet) + _above_max(alive, retire, spec=spec, decision=decision)
    replaced = _replaced(fleet, spec=spec, now=now)
    places = most + min(surge, _succeeded(fleet)) - len(fleet.workers)
    places_left = max(0, places - reserved)
    wanted = max(0, decision.target - len(alive))
    grow = min(places_left, wanted)
    end = _hung(fleet, spec=spec, needed=wanted - grow - len(fleet.leaving), now=now)
    spawn = [Spawn(decision.why)] * grow
    if not (grow or retire or finish or replaced or _is_replacing_unwise(decision, fleet, spec)):
        beside = _fitting(max(0, most + surge - len(fleet.workers)), conditions)
        finish, spawn = _replacing(fleet, alive, spec=spec, places_left=beside, target=decision.target, now=now)
        if places < 0:  # whoever went could have no successor before others have gone
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
    """Whether every worker is up, counts, and is there to stay: what nearly every turn of a pool finds."""
    digest, limits = spec.digest(), spec.recycle
    ages = not (limits.tasks is None and limits.memory is None and limits.age is None)
    for w in fleet.workers.values():
        if w.started_at is None or w.state not in _STAYING or w.deadline_at is not None or w.replaced_by is not None:
            return False
        if (ages or w.spec_digest != digest) and outdated(w, spec, digest=digest, now=now):
            return False
    return True


def _overdue(fleet: Fleet, now: Monotonic) -> list[WorkerRemoval]:
    """Workers that did not finish in time, and starts that will never be."""
    leaves = []
    for w in fleet.workers.values():
        if w.deadline_at is not None and now >= w.deadline_at:
            leaves.append(WorkerRemoval(w.worker, "it did not finish within its grace"))
        elif w.started_at is None and w.state in _STARTING and now - w.since >= START_LIMIT_SECONDS:
            leaves.append(WorkerRemoval(w.worker, f"it has asked for no lease in {START_LIMIT_SECONDS:.0f} s"))
    return leaves


def _hung(fleet: Fleet, *, spec: PoolSpec, needed: int, now: Monotonic) -> list[WorkerRemoval]:
    """Workers that hang and whose grace is over; and so many more whose places are `needed`."""
    leaves = []
    for index, w in enumerate(fleet.unresponsive):
        if now - w.since >= spec.grace:
            leaves.append(WorkerRemoval(w.worker, f"it is unresponsive for longer than its grace of {spec.grace:g} s"))
        elif index < needed:
            leaves.append(WorkerRemoval(w.worker, "it is unresponsive, and its place is needed"))
    return leaves


def _freed(fleet: Fleet) -> list[WorkerRemoval]:
    """Workers that were let finish, and have."""
    return [
        WorkerRemoval(w.worker, "what it held is done")
        for w in fleet.workers.values()
        if w.is_finishing and not w.leases
    ]


def _surplus(alive: tuple[Worker, ...], decision: Decision, *, spec: PoolSpec, now: Monotonic) -> list[WorkerRemoval]:
    surplus = len(alive) - decision.target
    if surplus <= 0:
        return []
    idle = [w for w in least_recently_used(alive) if not billed_for(w, spec, now=now)]
    return [WorkerRemoval(w.worker, _why_leave(decision)) for w in idle[:surplus]]


def _why_leave(decision: Decision) -> str:
    """A guard may have more to say on it than the rule."""
    if decision.target < decision.unguarded and decision.limits:
        return decision.limits[-1].why
    return decision.why


def _above_max(
    alive: tuple[Worker, ...], retire: list[WorkerRemoval], *, spec: PoolSpec, decision: Decision
) -> list[WorkerRemoval]:
    """With its upper bound lowered a pool does without those that hold least: starting, then with fewest leases."""
    most, why = spec.workers.max, f"the pool is above its max of {spec.workers.max}"
    why_fewer = next((limit.why for limit in decision.limits if limit.guard in _FEWER_DO), "")
    if decision.target < decision.current and why_fewer:
        most, why = min(most, max(decision.target, 1)), why_fewer
    surplus = len(alive) - len(retire) - most
    if surplus <= 0 or decision.target > most:  # at a higher target a guard holds the pool as it is
        return []
    gone = {leave.worker for leave in retire}
    left = [w for w in alive if w.worker not in gone]
    left.sort(key=lambda w: (w.state != "starting", w.leases, -w.since, w.worker))
    return [WorkerRemoval(w.worker, why) for w in left[:surplus]]


def _replaced(fleet: Fleet, *, spec: PoolSpec, now: Monotonic) -> list[tuple[Worker, WorkerRemoval]]:
    """Workers whose replacement is up."""
    up = []
    for w in fleet.workers.values():
        successor = None if w.replaced_by is None else fleet.workers.get(w.replaced_by)
        if successor is not None and successor.started_at is not None and not w.is_leaving:
            why = outdated(w, spec, digest=spec.digest(), now=now) or "its replacement is up"
            up.append((w, WorkerRemoval(w.worker, why)))
    return up


def _succeeded(fleet: Fleet) -> int:
    """How many workers have a successor, up or not, that is there, or leave after they had one; or hang: no loss."""
    return sum(
        1
        for w in fleet.workers.values()
        if w.hung_at is not None or (w.replaced_by is not None and (w.is_leaving or w.replaced_by in fleet.workers))
    )


def _fitting(places_left: int, conditions: Conditions) -> int:
    """No more at a time than there is memory for; a lack of CPU passes with those that are replaced."""
    host = conditions.allocation
    return places_left if host is None or host.scarce != "memory" else min(places_left, host.workers)


def _is_replacing_unwise(decision: Decision, fleet: Fleet, spec: PoolSpec) -> bool:
    """A replacement that does not start, or a view that is old, is no reason to let a working worker go."""
    return fleet.failed_starts(spec) > 0 or "stale_sample" in decision.limited_by


def _replacing(
    fleet: Fleet, alive: tuple[Worker, ...], *, spec: PoolSpec, places_left: int, target: int, now: Monotonic
) -> tuple[list[WorkerRemoval], list[Spawn]]:
    """Replace outdated workers a few at a time, new before old; without places for so many, old before new.

    Then nobody is started for the one that leaves: the policy grows the pool again when work asks for it.
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
        if places_left:
            places_left -= 1
            spawn.append(Spawn(why, replaces=w.worker))
        else:
            finish.append(WorkerRemoval(w.worker, why))
    return finish, spawn


def _under_way(fleet: Fleet, alive: tuple[Worker, ...], spec: PoolSpec, now: Monotonic) -> int:
    """How many leave, or have a replacement that is not up yet; who takes long to finish holds up nobody else."""
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
