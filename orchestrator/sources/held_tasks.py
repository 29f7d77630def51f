"""What a dead worker holds at the queue, and how some of it is held back or made dead, each by its token."""

from collections.abc import Sequence
from typing import Final

from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask, TaskVerdict, solo_worker_name
from queue_core.api import Queues
from queue_core.clock import after, seconds_between
from queue_core.errors import LeaseLostError, QueueError, StoreError, UnknownQueueError
from queue_core.limits import MAX_PEEK_TASKS, MAX_REASON_CHARACTERS
from queue_core.task import ANY, TaskState, parse_token

_NOBODY: Final = "recalled"
_LEASED: Final = frozenset({TaskState.LEASED})


def held_by(queues: Queues, queue: str, worker: str, *, cursor: int) -> list[SuspectedTask]:
    """What the worker holds in this queue, as far as one look shows it.

    `cursor` is where the last look at the queue ended: what it saw is not told again. A queue that is gone, or that we
    may not look at, shows nothing: then its leases are given back as they are.
    """
    try:
        return _held_by(queues, queue, worker, cursor=cursor)
    except StoreError:
        raise
    except QueueError:
        return []


def _held_by(queues: Queues, queue: str, worker: str, *, cursor: int) -> list[SuspectedTask]:
    look = queues.observe(queue, tags=ANY, after=cursor)
    names = [lease.name for lease in look.live if lease.worker == worker]
    if not names:
        return []
    bound = next((spec.max_leases for spec in queues.queues() if spec.name == queue), None)
    held: list[SuspectedTask] = []
    for first in range(0, len(names), MAX_PEEK_TASKS):
        some = names[first : first + MAX_PEEK_TASKS]
        for task in queues.queue(queue).peek(states=_LEASED, names=some, limit=MAX_PEEK_TASKS).tasks:
            if task.worker == worker:
                held_seconds = max(0.0, seconds_between(task.leased_at, look.now))
                most = bound if task.max_leases is None else task.max_leases
                one = SuspectedTask(queue, task.shown_name, task.tag, held_seconds, task.leases, most, task.token)
                held.append(one)
    return held


def apply_verdicts(queues: Queues, verdicts: Sequence[TaskVerdict]) -> list[str]:
    """Hold back and make dead what is to be so. For each its mark: the task's id and eta if it is held back, else "".

    A task whose lease is not current any more has moved on, and is left alone.
    """
    return [_apply(queues, verdict) for verdict in verdicts]


def give_back(queues: Queues, tasks: Sequence[SuspectedTask]) -> list[SuspectedTask]:
    """Release at once, in their old places, uncounted. Returns those whose lease was still current."""
    given = []
    for task in tasks:
        try:
            queues.queue(task.queue).release(task.token, charge="uncounted")
        except (LeaseLostError, UnknownQueueError):
            continue
        given.append(task)
    return given


def _apply(queues: Queues, verdict: TaskVerdict) -> str:
    if verdict.verdict == "given back":
        return ""
    held = verdict.task
    try:
        if verdict.verdict == "dead":
            queues.queue(held.queue).release(held.token, dead_reason=verdict.why[:MAX_REASON_CHARACTERS])
            return ""
        released = queues.queue(held.queue).release(
            held.token, delay_seconds=verdict.hold_seconds, charge=verdict.charge
        )
    except StoreError:
        raise
    except QueueError:
        return ""
    if not released or released[0].died:  # answered twice, or its bound was lowered meanwhile
        return ""
    task_id, _ = parse_token(held.token)
    return f"{task_id}.{after(released[0].ended_at, verdict.hold_seconds)}"


def recall(queues: Queues, suspects: Sequence[IsolatedTask]) -> None:
    """Make tasks ready that are held back: taken as by the worker they wait for, and given back uncharged."""
    for suspect in suspects:
        queue = queues.queue(suspect.task.queue)
        try:
            queue.release(queue.lease(worker=solo_worker_name(suspect, identity=_NOBODY)), charge="uncounted")
        except StoreError:
            raise
        except QueueError:
            continue  # it has moved on
