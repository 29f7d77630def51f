"""What the verbs mean for one task. Pure: the memory store runs this, SQL is held to it by tests.

READY and DELAYED are told apart by `eta <= now`; LEASED is live while `eta > now`. `expire` is the whole of what
time does by itself, and every verb settles before it looks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from queue_core.clock import Instant, after, seconds_between
from queue_core.limits import check_eta
from queue_core.stats import FinishedLease, LeaseOutcome
from queue_core.task import NewTask, QueueSpec, StoredTask, TaskState


def retry_delay_seconds(spec: QueueSpec, *, leases: int, jitter: float) -> float:
    """Seconds to wait after the `leases`-th charged lease failed.

    Doubles from `retry_min_seconds` up to `retry_max_seconds`; `jitter` in [0, 1) takes off up to a tenth, so that
    tasks which failed together do not come back together.

    Source: App Engine's `retry_parameters` (min_backoff, max_backoff), with doublings unbounded.
    """
    doublings = min(max(leases - 1, 0), 60)
    longest = min(spec.retry_max_seconds, spec.retry_min_seconds * 2.0**doublings)
    return longest * (1.0 - 0.1 * jitter)


def release_delay_seconds(
    spec: QueueSpec,
    *,
    requested_seconds: float | None,
    charge: Literal["counted", "uncounted"],
    leases: int,
    jitter: float,
) -> float | None:
    """Seconds until a task that is given back may be leased again.

    What the caller asked for; else the queue's back-off. A lease that is not counted never was: None, the task takes
    its old place.
    """
    if requested_seconds is not None:
        return requested_seconds
    return None if charge == "uncounted" else retry_delay_seconds(spec, leases=leases, jitter=jitter)


@dataclass(frozen=True, slots=True)
class LeaseEnd:
    """A lease that ended: what was noted of it, and the task as it is now (None: deleted)."""

    finished: FinishedLease
    task: StoredTask | None


def effective_eta(new: NewTask, *, now: Instant) -> Instant:
    """The eta a new task gets: what was asked, never before `now`. Raises `InvalidEtaError` out of bounds.

    Source: App Engine's proto, "values less than current time are silently increased to the current time".
    """
    if new.eta is not None:
        check_eta(new.eta, now=now)
        return max(new.eta, now)
    return now if new.delay_seconds is None else after(now, new.delay_seconds)


def add(new: NewTask, *, task_id: int, queue: str, now: Instant) -> StoredTask:
    """The task that an add makes. Ties in eta are leased by id, which is the order of insertion."""
    eta = effective_eta(new, now=now)
    state = TaskState.READY if eta <= now else TaskState.DELAYED
    return StoredTask(
        task_id, queue, new.payload, eta, now, new.name, new.tag, state, ready_at=eta, max_leases=new.max_leases
    )


def restore(moved: StoredTask, *, task_id: int, queue: str, now: Instant) -> StoredTask:
    """The task that another store had, as this one takes it up under an id of its own.

    A LEASED one stays so until its eta, for nobody: `leased_at` goes up by one, to an instant at which nothing was
    granted, so that a token of the other store names no lease here even where the ids are the same.
    """
    leased = moved.state is TaskState.LEASED
    early = moved.state is TaskState.READY and moved.eta > now  # this store's clock is behind the other's
    return replace(
        moved,
        id=task_id,
        queue=queue,
        state=TaskState.DELAYED if early else moved.state,
        leased_at=Instant(moved.leased_at + leased),
        worker="" if leased else moved.worker,
    )


def is_due(task: StoredTask, *, now: Instant) -> bool:
    """Whether time alone has made this DELAYED or LEASED task leasable."""
    return task.state in (TaskState.DELAYED, TaskState.LEASED) and task.eta <= now


def expire(task: StoredTask, spec: QueueSpec, *, now: Instant) -> LeaseEnd | StoredTask:
    """Let time act on one task: a due DELAYED one is READY; an expired LEASED one is READY again, or dead.

    An `LeaseEnd` when a lease expired, else the task.
    """
    if not is_due(task, now=now):
        return task
    if task.state is TaskState.DELAYED:
        return replace(task, state=TaskState.READY)
    if not is_exhausted(task, spec):
        ended = replace(task, state=TaskState.READY, ready_at=task.eta)
        return LeaseEnd(finished_lease(task, "expired", ended_at=task.eta), ended)
    return _die(task, spec, outcome="expired", ended_at=task.eta, reason="max_leases")


def is_exhausted(task: StoredTask, spec: QueueSpec) -> bool:
    """Whether no lease is left to a task: by its own bound if it has one, else by the queue's.

    Source: App Engine, where a task's `retry_parameters.retry_limit` goes before its queue's `task_retry_limit`.
    """
    bound = spec.max_leases if task.max_leases is None else task.max_leases
    return bound is not None and task.leases >= bound


def is_delayed_until(task: StoredTask, eta: Instant, *, now: Instant) -> bool:
    """Whether this is a DELAYED task, not due yet, of exactly that eta: the fence of `postpone`
    and of `lease_delayed`."""
    return task.state is TaskState.DELAYED and task.eta == eta > now


def postpone(task: StoredTask, *, eta: Instant, now: Instant) -> StoredTask:
    """Move the eta of a DELAYED task, to `now` at the earliest, where it is READY. Raises `InvalidEtaError`.

    The eta it had is spent: whoever knew the task by it holds no later lease.

    Source: App Engine `ModifyTaskLease`, which knows a holder by the eta alone: that of a task never leased will do.
    """
    check_eta(eta, now=now)
    moved = max(eta, now)
    state = TaskState.READY if moved <= now else TaskState.DELAYED
    spent = tuple(instant for instant in (*task.spent, task.eta) if instant > now)
    return replace(task, state=state, eta=moved, ready_at=moved, spent=spent)


def fitting(sizes: Sequence[int], *, total_bytes: int, each_bytes: int, least: int) -> int:
    """How many tasks of these sizes (`size_of`), from the first, one lease takes: as long as they come to at most
    `total_bytes`, with `each_bytes` more for each; and `least` of them whatever their size.

    Source: App Engine, which returns fewer tasks than it was asked for where more would come to over 32 MB.
    """
    total = 0
    for number, size in enumerate(sizes):
        total += size + each_bytes
        if total > total_bytes and number >= least:
            return number
    return len(sizes)


def size_of(payload_bytes: int, tag: str | None, name: str | None) -> int:
    """Bytes that count for a task: those of its payload, its tag and the name it was given."""
    return payload_bytes + len((tag or "").encode()) + len((name or "").encode())


def lease(task: StoredTask, *, worker: str, seconds: float, now: Instant) -> StoredTask:
    """Grant a lease on READY `task` that ends `seconds` after `now`; the lease is charged in the same step.

    `leased_at` rises with every grant, even when the clock was stepped back: the token can never repeat. The end
    differs by a microsecond from what was asked where an earlier lease, cut short, would have ended there.

    Source: App Engine `QueryAndOwnTasks`, which counts a retry per lease and uses the end as the token.
    """
    leased_at = Instant(max(now, task.leased_at + 1))
    expires_at, spent = unspent_end(after(now, seconds), task.spent, now=now)
    return replace(
        task,
        state=TaskState.LEASED,
        eta=expires_at,
        ready_at=task.eta,
        leases=task.leases + 1,
        leased_at=leased_at,
        worker=worker,
        spent=spent,
    )


def lease_delayed(task: StoredTask, *, worker: str, seconds: float, now: Instant) -> StoredTask:
    """Grant a lease on DELAYED `task` before its eta: postponed to `now` and leased, with nothing in between."""
    return lease(postpone(task, eta=now, now=now), worker=worker, seconds=seconds, now=now)


def unspent_end(end: Instant, spent: tuple[Instant, ...], *, now: Instant) -> tuple[Instant, tuple[Instant, ...]]:
    """The first end from `end` on that no earlier lease of the task had, and the spent ends still ahead of `now`."""
    if not spent:
        return end, spent
    ahead = tuple(instant for instant in spent if instant > now)
    while end in ahead:
        end = Instant(end + 1)
    return end, ahead


def is_current(task: StoredTask, leased_at: Instant, *, now: Instant) -> bool:
    """Whether the token made of `leased_at` still holds the task: the fence of renew, release and delete."""
    return task.state is TaskState.LEASED and task.leased_at == leased_at and task.eta > now


def renew(task: StoredTask, *, seconds: float, now: Instant) -> StoredTask:
    """Move the end of a current lease to `seconds` after `now`; its token stays."""
    cut_short = (*task.spent, task.eta)
    expires_at, spent = unspent_end(after(now, seconds), cut_short, now=now)
    return replace(task, eta=expires_at, spent=spent)


def delete(task: StoredTask, *, now: Instant) -> LeaseEnd:
    """End a current lease by deleting its task: the work is done."""
    return LeaseEnd(finished_lease(task, "deleted", ended_at=now), None)


def release(
    task: StoredTask,
    spec: QueueSpec,
    *,
    delay_seconds: float | None,
    now: Instant,
    charge: Literal["counted", "uncounted"] = "counted",
    dead_reason: str = "",
) -> LeaseEnd:
    """Give a current lease back.

    Args:
        delay_seconds: from `now` until it may be leased again; None: at once, in the place it had before the lease.
        charge: `uncounted` takes this lease off the task's count: the worker never got to the work.
        dead_reason: makes the task dead at once, for this reason.
    """
    leases = task.leases - (charge == "uncounted")
    cut_short = tuple(instant for instant in (*task.spent, task.eta) if instant > now)
    if dead_reason or (charge == "counted" and is_exhausted(task, spec)):
        gone = replace(task, spent=cut_short)
        return _die(gone, spec, outcome="released", ended_at=now, reason=dead_reason or "max_leases")
    eta = min(task.ready_at, now) if delay_seconds is None else after(now, delay_seconds)
    state = TaskState.READY if eta <= now else TaskState.DELAYED
    given_back = replace(task, state=state, eta=eta, ready_at=eta, leases=leases, spent=cut_short)
    return LeaseEnd(finished_lease(task, "released", ended_at=now), given_back)


def release_as_requested(
    task: StoredTask,
    spec: QueueSpec,
    *,
    requested_seconds: float | None,
    charge: Literal["counted", "uncounted"],
    dead_reason: str,
    jitter: float,
    now: Instant,
) -> LeaseEnd:
    """Give a current lease back after the delay its holder asked for, or that the queue's back-off says."""
    delay_seconds = release_delay_seconds(
        spec, requested_seconds=requested_seconds, charge=charge, leases=task.leases, jitter=jitter
    )
    return release(task, spec, delay_seconds=delay_seconds, now=now, charge=charge, dead_reason=dead_reason)


def redrive(task: StoredTask, *, now: Instant) -> StoredTask:
    """Make a dead task ready again, with all its leases before it; its tokens still never repeat."""
    return replace(task, state=TaskState.READY, eta=now, ready_at=now, leases=0, reason="")


def finished_lease(task: StoredTask, outcome: LeaseOutcome, *, ended_at: Instant) -> FinishedLease:
    """What is noted of a lease when it ends; seconds are never negative, whatever the clock did."""
    return FinishedLease(
        task.queue,
        task.shown_name,
        task.tag,
        task.worker,
        task.leases,
        outcome,
        max(0.0, seconds_between(task.ready_at, task.leased_at)),
        max(0.0, seconds_between(task.leased_at, ended_at)),
        ended_at,
    )


def _die(task: StoredTask, spec: QueueSpec, *, outcome: LeaseOutcome, ended_at: Instant, reason: str) -> LeaseEnd:
    finished = replace(finished_lease(task, outcome, ended_at=ended_at), died=True, reason=reason)
    if spec.on_exhausted == "delete":
        return LeaseEnd(finished, None)
    return LeaseEnd(finished, replace(task, state=TaskState.DEAD, eta=ended_at, ready_at=ended_at, reason=reason))
