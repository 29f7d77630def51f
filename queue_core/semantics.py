"""The meaning of each verb for one task. Pure: the memory store runs this, and tests hold SQL and Lua to it.

A task is READY once `eta <= now`, else DELAYED; a LEASED task is live while `eta > now`. `expire` is all that time does
by itself, and every verb expires due tasks before it acts (ADR 2).
"""

from collections.abc import Sequence
from typing import Literal

from queue_core.attempts.attempt import EXPIRED, GIVEN_BACK, WORDS, Attempt, AttemptOutcome, Failure, with_attempt
from queue_core.clock import Instant, after, seconds_between
from queue_core.fast_values import replaced, value
from queue_core.limits import FARTHEST_ETA_SECONDS, check_eta
from queue_core.rare_fields import copy_rare_fields, has_rare_fields
from queue_core.stats import FinishedLease, LeaseOutcome, TaskRemoval
from queue_core.task import NewTask, Progress, QueueSpec, StoredTask, TaskState, celery_id_of


def retry_delay_seconds(spec: QueueSpec, *, leases: int, jitter: float) -> float:
    """Return the seconds to wait after the `leases`-th charged lease failed.

    Doubles from `retry_min_seconds` up to `retry_max_seconds`; `jitter` in [0, 1) subtracts up to a tenth, so that
    tasks which failed together are not retried together.

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
    """Return the seconds until a released task may be leased again: as requested, or the queue's back-off.

    None for an uncounted lease: the task takes its old place in the queue.
    """
    if requested_seconds is not None:
        return requested_seconds
    return None if charge == "uncounted" else retry_delay_seconds(spec, leases=leases, jitter=jitter)


@value
class LeaseEnd:
    """A lease that ended: its record, and the task as it is now (None: deleted)."""

    finished: FinishedLease
    task: StoredTask | None


def effective_eta(new: NewTask, *, now: Instant) -> Instant:
    """Return the eta of a new task: as requested, but never before `now`. Raises `InvalidEtaError`.

    Source: App Engine's proto, "values less than current time are silently increased to the current time".
    """
    if new.eta is not None:
        check_eta(new.eta, now=now, most_seconds=FARTHEST_ETA_SECONDS)
        return max(new.eta, now)
    return now if new.delay_seconds is None else after(now, new.delay_seconds)


def add(new: NewTask, *, task_id: int, queue: str, now: Instant) -> StoredTask:
    """Return the task that an add makes. Ties in eta are leased by id, the order of insertion."""
    eta = effective_eta(new, now=now)
    state = TaskState.READY if eta <= now else TaskState.DELAYED
    task = StoredTask(
        task_id,
        queue,
        new.payload,
        eta,
        now,
        new.name,
        new.tag,
        state,
        ready_at=eta,
        max_leases=new.max_leases,
        priority=new.priority,
    )
    return copy_rare_fields(new, task) if has_rare_fields(new) else task


def lease_order(task: StoredTask) -> tuple[int, Instant, int]:
    """Return the key by which READY tasks are leased: priority, the highest first, then eta, then id."""
    return -task.priority, task.eta, task.id


def admit(task: StoredTask, *, now: Instant) -> StoredTask:
    """Make a HELD task READY; its wait for a lease counts from now."""
    return replaced(task, state=TaskState.READY, eta=now, ready_at=now)


def hold(task: StoredTask) -> StoredTask:
    """Make a READY task HELD, in the place that its eta gives it."""
    return replaced(task, state=TaskState.HELD)


def restore(moved: StoredTask, *, task_id: int, queue: str, now: Instant) -> StoredTask:
    """Return a task of another store under a new id of this store.

    A HELD task becomes READY: whether this queue's limits hold it is found out anew. A LEASED task stays leased,
    without a holder, until its eta. Its `leased_at` grows by one microsecond, so that a token of the other store is
    never valid here even if the ids are equal.
    """
    leased = moved.state is TaskState.LEASED
    state = TaskState.READY if moved.state is TaskState.HELD else moved.state
    early = state is TaskState.READY and moved.eta > now  # this store's clock is behind the other's
    return replaced(
        moved,
        id=task_id,
        queue=queue,
        state=TaskState.DELAYED if early else state,
        leased_at=Instant(moved.leased_at + leased),
        worker="" if leased else moved.worker,
    )


def is_due(task: StoredTask, *, now: Instant) -> bool:
    """Return whether time alone has made this DELAYED or LEASED task leasable."""
    return task.state in (TaskState.DELAYED, TaskState.LEASED) and task.eta <= now


def expire(task: StoredTask, spec: QueueSpec, *, now: Instant) -> LeaseEnd | StoredTask:
    """Return a due DELAYED task as READY, and an expired LEASED task as READY or dead; any other unchanged.

    The result is a `LeaseEnd` when a lease expired.
    """
    if not is_due(task, now=now):
        return task
    if task.state is TaskState.DELAYED:
        return replaced(task, state=TaskState.READY)
    attempts = _attempts(task, "expired", ended_at=task.eta)
    if not is_exhausted(task, spec):
        ended = replaced(task, state=TaskState.READY, ready_at=task.eta, attempts=attempts)
        return LeaseEnd(finished_lease(task, "expired", ended_at=task.eta), ended)
    reason = WORDS["expired"]
    return _die(task, spec, "expired", ended_at=task.eta, reason=reason, spent=task.spent, attempts=attempts)


def is_exhausted(task: StoredTask, spec: QueueSpec) -> bool:
    """Return whether a task used up its leases, by its own `max_leases` if it has one, else by the queue's.

    Source: App Engine, where a task's `retry_parameters.retry_limit` goes before its queue's `task_retry_limit`.
    """
    bound = spec.max_leases if task.max_leases is None else task.max_leases
    return bound is not None and task.leases >= bound


def is_delayed_until(task: StoredTask, eta: Instant, *, now: Instant) -> bool:
    """Return whether a task is DELAYED until exactly `eta`, not due yet: the fence of `postpone`, `lease_delayed`."""
    return task.state is TaskState.DELAYED and task.eta == eta > now


def postpone(task: StoredTask, *, eta: Instant, now: Instant) -> StoredTask:
    """Move the eta of a DELAYED task; an eta not after `now` makes it READY at `now`. Raises `InvalidEtaError`.

    The old eta is spent: no later lease may end at it, as App Engine clients identify a lease by its eta.

    Source: App Engine `ModifyTaskLease`, which accepts the eta of a task that was never leased.
    """
    check_eta(eta, now=now, most_seconds=FARTHEST_ETA_SECONDS)
    moved = max(eta, now)
    state = TaskState.READY if moved <= now else TaskState.DELAYED
    spent = tuple(instant for instant in (*task.spent, task.eta) if instant > now)
    return replaced(task, state=state, eta=moved, ready_at=moved, spent=spent)


def retag(task: StoredTask, *, tag: str | None, now: Instant) -> StoredTask:
    """Change the tag of a task that nobody has leased; None: it has no tag any more.

    A HELD task without a tag is admitted at `now`, as the untagged have no lane. What is READY keeps its eta; a lane of
    the new tag may hold it.
    """
    moved = replaced(task, tag=tag)
    return admit(moved, now=now) if tag is None and task.state is TaskState.HELD else moved


def fitting(sizes: Sequence[int], *, total_bytes: int, each_bytes: int, least: int) -> int:
    """Return how many tasks of these sizes (`size_of`) one lease takes, counted from the first.

    They fit while their sizes, plus `each_bytes` each, total at most `total_bytes`; `least` of them always fit.

    Source: App Engine, which returns fewer tasks than requested when more would exceed 32 MB.
    """
    total = 0
    for number, size in enumerate(sizes):
        total += size + each_bytes
        if total > total_bytes and number >= least:
            return number
    return len(sizes)


def size_of(payload_bytes: int, tag: str | None, name: str | None) -> int:
    """Return the size of a task in bytes: its payload, its tag and its given name."""
    return payload_bytes + len((tag or "").encode()) + len((name or "").encode())


def lease(task: StoredTask, *, worker: str, seconds: float, now: Instant) -> StoredTask:
    """Grant a lease on READY `task` that ends `seconds` after `now`, and charge it.

    `leased_at` rises with every grant even if the clock stepped back, so that a token never repeats. The end is moved
    by a microsecond where an earlier lease, cut short, would have ended at it.

    Source: App Engine `QueryAndOwnTasks`, which counts a retry per lease and uses the end as the token.
    """
    leased_at = Instant(max(now, task.leased_at + 1))
    expires_at, spent = unspent_end(after(now, seconds), task.spent, now=now)
    return replaced(
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
    """Grant a lease on DELAYED `task` before its eta: postpone it to `now` and lease it."""
    return lease(postpone(task, eta=now, now=now), worker=worker, seconds=seconds, now=now)


def unspent_end(end: Instant, spent: tuple[Instant, ...], *, now: Instant) -> tuple[Instant, tuple[Instant, ...]]:
    """Return the first end from `end` on that no earlier lease had, and the spent ends still ahead of `now`."""
    if not spent:
        return end, spent
    ahead = tuple(instant for instant in spent if instant > now)
    while end in ahead:
        end = Instant(end + 1)
    return end, ahead


def is_current(task: StoredTask, leased_at: Instant, *, now: Instant) -> bool:
    """Return whether the token of `leased_at` is current: the fence of renew, release and delete."""
    return task.state is TaskState.LEASED and task.leased_at == leased_at and task.eta > now


def renew(
    task: StoredTask,
    *,
    seconds: float,
    now: Instant,
    progress: Progress | None = None,
    checkpoint: bytes | None = None,
) -> StoredTask:
    """Move the end of a current lease to `seconds` after `now`; its token stays.

    `progress` and `checkpoint` take the place of those reported before; None leaves them.
    """
    cut_short = (*task.spent, task.eta)
    expires_at, spent = unspent_end(after(now, seconds), cut_short, now=now)
    return replaced(
        task,
        eta=expires_at,
        spent=spent,
        progress=task.progress if progress is None else progress,
        checkpoint=task.checkpoint if checkpoint is None else checkpoint,
    )


def delete(task: StoredTask, *, now: Instant) -> LeaseEnd:
    """End a current lease by deleting its task: the work is done."""
    return LeaseEnd(finished_lease(task, "deleted", ended_at=now), None)


def remove(task: StoredTask, removal: TaskRemoval, *, now: Instant) -> LeaseEnd:
    """End a current lease by deleting its task without its token: it is not done, unless its holder deletes it."""
    if removal.finishes(task.worker):
        return delete(task, now=now)
    return LeaseEnd(finished_lease(task, "removed", ended_at=now, reason=removal.reason), None)


def release(
    task: StoredTask,
    spec: QueueSpec,
    *,
    delay_seconds: float | None,
    now: Instant,
    charge: Literal["counted", "uncounted"] = "counted",
    dead_reason: str = "",
    failure: Failure = GIVEN_BACK,
) -> LeaseEnd:
    """Give a current lease back, and keep it among the task's attempts.

    Args:
        delay_seconds: from `now` until it may be leased again; None: at once, in the place it had before the lease.
        charge: `uncounted` takes this lease off the task's count, as the worker never started the work.
        dead_reason: makes the task dead at once, for this reason.
        failure: why it is given back: the reason of a task that used up its leases.
    """
    leases = task.leases - (charge == "uncounted")
    cut_short = tuple(instant for instant in (*task.spent, task.eta) if instant > now)
    attempts = _attempts(task, failure.outcome, ended_at=now, failure=failure)
    if dead_reason or (charge == "counted" and is_exhausted(task, spec)):
        reason = dead_reason or failure.text
        return _die(task, spec, "released", ended_at=now, reason=reason, spent=cut_short, attempts=attempts)
    eta = min(task.ready_at, now) if delay_seconds is None else after(now, delay_seconds)
    state = TaskState.READY if eta <= now else TaskState.DELAYED
    given_back = replaced(task, state=state, eta=eta, ready_at=eta, leases=leases, spent=cut_short, attempts=attempts)
    return LeaseEnd(finished_lease(task, "released", ended_at=now, reason=failure.given_reason), given_back)


def release_as_requested(
    task: StoredTask,
    spec: QueueSpec,
    *,
    requested_seconds: float | None,
    charge: Literal["counted", "uncounted"],
    dead_reason: str,
    jitter: float,
    now: Instant,
    failure: Failure = GIVEN_BACK,
) -> LeaseEnd:
    """Give a current lease back after the delay that its holder requested, or the queue's back-off."""
    delay_seconds = release_delay_seconds(
        spec, requested_seconds=requested_seconds, charge=charge, leases=task.leases, jitter=jitter
    )
    return release(
        task, spec, delay_seconds=delay_seconds, now=now, charge=charge, dead_reason=dead_reason, failure=failure
    )


def _attempts(
    task: StoredTask, outcome: AttemptOutcome, *, ended_at: Instant, failure: Failure = EXPIRED
) -> tuple[Attempt, ...]:
    """Return the attempts of a task whose present lease ended unsuccessfully, with that one."""
    attempt = Attempt(
        task.leases,
        task.worker,
        task.leased_at,
        ended_at,
        outcome,
        failure.error,
        failure.message,
        failure.place,
        failure.host,
        failure.error_path,
        failure.traceback,
    )
    return with_attempt(task.attempts, attempt)


def redrive(task: StoredTask, *, now: Instant) -> StoredTask:
    """Make a dead task ready again with no lease charged; its tokens still never repeat, its attempts are kept."""
    return replaced(task, state=TaskState.READY, eta=now, ready_at=now, leases=0, reason="")


def finished_lease(
    task: StoredTask, outcome: LeaseOutcome, *, ended_at: Instant, reason: str = "", died: bool = False
) -> FinishedLease:
    """Return the record of a lease that ended; seconds are never negative, whatever the clock did."""
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
        died,
        reason,
        task.added_at,
        celery_id_of(task.headers),
    )


def _die(
    task: StoredTask,
    spec: QueueSpec,
    outcome: LeaseOutcome,
    *,
    ended_at: Instant,
    reason: str,
    spent: tuple[Instant, ...],
    attempts: tuple[Attempt, ...],
) -> LeaseEnd:
    finished = finished_lease(task, outcome, ended_at=ended_at, reason=reason, died=True)
    if spec.on_exhausted == "delete":
        return LeaseEnd(finished, None)
    dead = replaced(
        task,
        state=TaskState.DEAD,
        eta=ended_at,
        ready_at=ended_at,
        reason=reason,
        spent=spent,
        attempts=attempts,
    )
    return LeaseEnd(finished, dead)
