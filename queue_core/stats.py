"""Statistics of a queue: counts at an instant, totals since it was created, and finished leases. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from queue_core.clock import MICROSECONDS, NEVER, Instant, seconds_between
from queue_core.fast_values import value

OVERRAN: Final = "MaxLease"
"""The error with which a worker gives a lease back at its end, the queue's `max_lease`, while its handler runs on."""
LeaseOutcome = Literal["deleted", "released", "expired", "removed"]
"""How a lease ended: its holder deleted the task, whose work is done; it was given back; nobody renewed it; somebody
else deleted the task while it was running."""


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The counts of a queue, or of some of its tags, at one instant.

    `ready + held + delayed + in_flight` are the tasks still to be done. `in_flight` counts leases that have not
    expired. `held`: tasks that limits of their tags hold back, which are not `ready`; tasks that became due since the
    last change count as ready. `room`: leases that limits of the whole queue let it grant now; None: it has none.
    Totals only grow, but those of a tag that was empty for a day may restart at 0. `paused`: the queue grants no lease,
    as it is paused or was moved. `as_of`: the instant by the store's clock.
    """

    queue: str
    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    dead: int = 0
    oldest_ready_at: Instant | None = None
    added_total: int = 0
    leased_total: int = 0
    deleted_total: int = 0
    released_total: int = 0
    expired_total: int = 0
    died_total: int = 0
    paused: bool = False
    as_of: Instant | None = field(default=None, compare=False)
    held: int = 0
    room: int | None = None

    @property
    def pending(self) -> int:
        """The tasks still to be done."""
        return self.ready + self.held + self.delayed + self.in_flight

    @property
    def leasable(self) -> int:
        """The tasks that could be leased now: ready ones, as far as the limits of the queue let it grant leases."""
        return self.ready if self.room is None else min(self.ready, self.room)

    def oldest_ready_seconds(self, now: Instant) -> float:
        """Return how long the oldest ready task has waited; 0 when none waits."""
        return 0.0 if self.oldest_ready_at is None else max(0.0, seconds_between(self.oldest_ready_at, now))


@dataclass(frozen=True, slots=True)
class TagStats:
    """The counts of one tag (None: untagged)."""

    tag: str | None
    stats: QueueStats


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """The `position`-th ready task (from 1, in lease order) has been leasable since `ready_at`.

    Among upcoming tasks (`group_upcoming`): `position` tasks become leasable until shortly after `ready_at`.
    """

    position: int
    ready_at: Instant


@value
class FinishedLease:
    """A lease that ended. `died`: its task became dead.

    `reason`: why it died, who removed it, or what was said of the lease when it was given back; "" for nothing.
    `added_at`: when its task was added; `NEVER` where that is not known. `celery_id`: the id that Celery gave its task,
    by which it is found, too; "" for none.
    """

    queue: str
    name: str
    tag: str | None
    worker: str
    lease_number: int
    outcome: LeaseOutcome
    waited_seconds: float
    held_seconds: float
    ended_at: Instant
    died: bool = False
    reason: str = ""
    added_at: Instant = NEVER
    celery_id: str = ""

    @property
    def overran(self) -> bool:
        """True where its worker gave it back at its end, the queue's `max_lease`, while its handler ran on."""
        return self.outcome == "released" and self.reason.startswith(f"{OVERRAN}: ")

    @property
    def leased_at(self) -> Instant:
        """When the lease began."""
        return Instant(self.ended_at - round(self.held_seconds * MICROSECONDS))


@value
class TaskRemoval:
    """Why tasks are deleted without the tokens of their leases, and by whom.

    Args:
        reason: a clause, as the record of a lease that ends by it has it: `deleted by ann@example.com`.
        holder: the worker that deletes its own task by name, as App Engine's do: its work is done then. None: whoever
            deletes is no holder of a lease.
    """

    reason: str = "deleted by name"
    holder: str | None = None

    def finishes(self, worker: str) -> bool:
        """Return whether the lease of this worker ends as done."""
        return self.holder == worker


DELETED_BY_NAME: Final = TaskRemoval()
PURGED: Final = TaskRemoval("purged")


@dataclass(frozen=True, slots=True)
class History:
    """Ended leases, newest first; an older page ends before `next_before` (None: there is none)."""

    leases: tuple[FinishedLease, ...]
    next_before: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerActivity:
    """A worker's latest calls, as one server saw them.

    Args:
        silent_seconds: since its last call arrived or ended; 0 while one is under way.
        waits: whether its calls wait for work.
        hung_up: whether it closed the connection of its last call before the reply.
        tags: those that its calls lease, None for tasks without one; empty: every task. None: unknown.
    """

    worker: str
    silent_seconds: float
    waits: bool
    hung_up: bool
    tags: tuple[str | None, ...] | None = None


WorkerState = Literal["busy", "leasing", "idle"]


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that a worker holds."""

    queue: str
    task: str
    tag: str | None
    held_seconds: float
    lease_number: int


@dataclass(frozen=True, slots=True)
class LeasingWorker:
    """A worker that leases from the queues of a store.

    Args:
        pool: the pool of a supervisor that its name stands for; "": no supervisor started it.
        host, pid, since: where and since when (seconds since the epoch) it runs, as it registered; "", 0: unknown.
        queues: those it is known to lease from.
        state: `busy`: it holds a task; `leasing`: a call of it waits for one; `idle`: neither, or unknown.
        silent_seconds: since its last call to the server that answers; None: it has not called that one.
        finished: tasks that it has ended: as it registered, or among the newest 1,000 ended leases of its queues.
        holding: tasks that it holds; `tasks` names the first ones, the longest held first.
    """

    worker: str
    pool: str
    host: str
    pid: int
    since: float
    queues: tuple[str, ...]
    state: WorkerState
    silent_seconds: float | None
    finished: int
    holding: int
    tasks: tuple[HeldTask, ...] = ()


@dataclass(frozen=True, slots=True)
class LiveLease:
    """A lease that is held now, without its token and payload."""

    name: str
    tag: str | None
    worker: str
    lease_number: int
    leased_at: Instant
    expires_at: Instant
    ready_at: Instant


@dataclass(frozen=True, slots=True)
class Samples:
    """Finished leases after a cursor, oldest first; the next call passes `cursor`.

    `missed` is true when older ones had been dropped (a bounded number is kept).
    """

    finished: tuple[FinishedLease, ...]
    cursor: int
    missed: bool = False


def positions_of(count: int, *, points: int = 8) -> tuple[int, ...]:
    """Return up to `points` positions, evenly spaced over `count` ready tasks, from 1 (the oldest) to `count`."""
    if count <= points:
        return tuple(range(1, count + 1))
    return tuple(1 + (count - 1) * index // (points - 1) for index in range(points))


def sample_waiting(etas: Sequence[Instant], *, ready: int, newest: Instant, points: int = 8) -> tuple[WaitingTask, ...]:
    """Return the waiting tasks at evenly spaced positions of the ready queue.

    Args:
        etas: the etas at the head of the ready queue, in lease order; the store bounds how many it reads.
        ready: length of the whole ready queue, at least `len(etas)`.
        newest: the last eta of the ready queue.

    Positions beyond `etas` are interpolated up to `newest`, so that a store need not read its whole backlog.
    """
    if not etas:
        return ()
    known = len(etas)
    waiting: list[WaitingTask] = []
    for position in positions_of(max(ready, known), points=points):
        if position <= known:
            eta = etas[position - 1]
        else:
            share = (position - known) / (ready - known)
            eta = Instant(etas[-1] + round((max(newest, etas[-1]) - etas[-1]) * share))
        waiting.append(WaitingTask(position, eta))
    return tuple(waiting)


def group_upcoming(
    etas: Sequence[Instant], *, now: Instant, until: Instant, slices: int = 64
) -> tuple[WaitingTask, ...]:
    """Return how many tasks become leasable until `until`: an entry for each of `slices` equal spans that has any.

    Args:
        etas: the etas of these tasks, in order, each after `now` and at most `until`.

    An entry counts the tasks up to the end of its span and has the eta of the first task in it.
    """
    width = max(1, until - now)
    groups: dict[int, WaitingTask] = {}
    for position, eta in enumerate(etas, start=1):
        slice_of = (eta - now - 1) * slices // width
        first = groups.get(slice_of)
        groups[slice_of] = WaitingTask(position, eta if first is None else first.ready_at)
    return tuple(groups.values())
