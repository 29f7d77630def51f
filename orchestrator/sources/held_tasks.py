"""Find what a dead worker holds at the queue, and hold back, release or kill those tasks by their tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orchestrator.fleet.exits import DeathNotice
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask, TaskVerdict, solo_worker_name
from queue_core.attempts.attempt import MAX_ERROR_CHARACTERS, Failure
from queue_core.attempts.failures import failure_of, host_name
from queue_core.client.queue import Queues
from queue_core.clock import after, seconds_between
from queue_core.errors import LeaseLostError, QueueError, StoreError, UnknownQueueError
from queue_core.limits import MAX_PEEK_TASKS, MAX_REASON_CHARACTERS
from queue_core.task import ANY, TaskState, parse_token

_NOBODY: Final = "recalled"
_LEASED: Final = frozenset({TaskState.LEASED})
_RECALLED: Final = Failure("given_back", message="may run beside others again")


def failure_of_death(notice: DeathNotice) -> Failure:
    """Return a worker's end as the attempts of its tasks show it: secrets are replaced, long texts cut."""
    host = host_name() if notice.is_on_this_host else ""
    error = notice.error[:MAX_ERROR_CHARACTERS]
    return replace(failure_of(notice.message), outcome="worker_died", error=error, host=host)


def held_by(queues: Queues, queue: str, worker: str, *, cursor: int, payload_bytes: int = 0) -> list[SuspectedTask]:
    """Return the tasks that the worker holds in this queue, as far as one observation shows them.

    `cursor` is the end of the last observation, whose leases are not repeated. A queue that is gone or forbidden to us
    yields nothing; its leases are released as they are.
    """
    try:
        return _held_by(queues, queue, worker, cursor=cursor, payload_bytes=payload_bytes)
    except StoreError:
        raise
    except QueueError:
        return []


def _held_by(queues: Queues, queue: str, worker: str, *, cursor: int, payload_bytes: int) -> list[SuspectedTask]:
    observation = queues.observe(queue, tags=ANY, after=cursor)
    names = [lease.name for lease in observation.live if lease.worker == worker]
    if not names:
        return []
    bound = next((spec.max_leases for spec in queues.queues() if spec.name == queue), None)
    held: list[SuspectedTask] = []
    for first in range(0, len(names), MAX_PEEK_TASKS):
        some = names[first : first + MAX_PEEK_TASKS]
        found = queues.queue(queue).peek(states=_LEASED, names=some, limit=MAX_PEEK_TASKS, payload_bytes=payload_bytes)
        for task in found.tasks:
            if task.worker == worker:
                held_seconds = max(0.0, seconds_between(task.leased_at, observation.now))
                most = bound if task.max_leases is None else task.max_leases
                held.append(
                    SuspectedTask(
                        queue,
                        task.shown_name,
                        task.tag,
                        held_seconds,
                        task.leases,
                        most,
                        task.token,
                        task.payload,
                    )
                )
    return held


def apply_verdicts(queues: Queues, verdicts: Sequence[TaskVerdict], notice: DeathNotice) -> list[str]:
    """Apply verdicts: hold tasks back or make them dead. Return for each its mark, id and eta, if held back, else "".

    A task whose lease is no longer current is left alone.
    """
    failure = failure_of_death(notice)
    return [_apply(queues, verdict, failure) for verdict in verdicts]


def give_back(queues: Queues, tasks: Sequence[SuspectedTask], notice: DeathNotice) -> list[SuspectedTask]:
    """Release tasks at once, in their old places and uncounted; return those whose lease was still current."""
    given = []
    failure = failure_of_death(notice)
    for task in tasks:
        try:
            queues.queue(task.queue).release(task.token, charge="uncounted", error=failure)
        except (LeaseLostError, UnknownQueueError):
            continue
        given.append(task)
    return given


def _apply(queues: Queues, verdict: TaskVerdict, failure: Failure) -> str:
    if verdict.verdict == "given back":
        return ""
    held = verdict.task
    try:
        if verdict.verdict == "dead":
            reason = verdict.why[:MAX_REASON_CHARACTERS]
            queues.queue(held.queue).release(held.token, dead_reason=reason, error=failure)
            return ""
        released = queues.queue(held.queue).release(
            held.token, delay_seconds=verdict.hold_seconds, charge=verdict.charge, error=failure
        )
    except StoreError:
        raise
    except QueueError:
        return ""
    if not released or released[0].died:  # already released, or its max_leases was lowered meanwhile
        return ""
    task_id, _ = parse_token(held.token)
    return f"{task_id}.{after(released[0].ended_at, verdict.hold_seconds)}"


def recall(queues: Queues, tasks: Sequence[IsolatedTask]) -> None:
    """Make held-back tasks ready: lease each as the worker it waits for, and release it uncounted."""
    for suspect in tasks:
        queue = queues.queue(suspect.task.queue)
        try:
            leases = queue.lease(worker=solo_worker_name(suspect, identity=_NOBODY))
            queue.release(leases, charge="uncounted", error=_RECALLED)
        except StoreError:
            raise
        except QueueError:
            continue  # it is no longer held back
