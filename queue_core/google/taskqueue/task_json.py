"""Convert tasks and queues between values and the JSON of the Task Queue REST API. Pure.

Oddities of the original are kept: instants are microseconds as decimal strings, payloads are URL-safe base64 whose
padding may be missing, and a lease has the long name of the queue where all other methods have the short one.
"""

import asyncio
import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

from pydantic_core import from_json

from queue_core.clock import NEVER, Instant
from queue_core.google.taskqueue.responses import TaskqueueError, invalid
from queue_core.google.taskqueue.selection import Shape
from queue_core.server.base.bodies.value_count import SHORT_BODY_BYTES, check_values
from queue_core.stats import QueueStats
from queue_core.task import Lease, NewTask, QueueSpec, StoredTask, TaskState
from queue_core.verbs.wire import Json

TASK_SHAPE: Shape = {
    name: {}
    for name in (
        "kind",
        "id",
        "queueName",
        "payloadBase64",
        "enqueueTimestamp",
        "leaseTimestamp",
        "retry_count",
        "tag",
    )
}
TASKS_SHAPE: Shape = {"kind": {}, "items": TASK_SHAPE}
QUEUE_SHAPE: Shape = {
    "kind": {},
    "id": {},
    "maxLeases": {},
    "stats": {name: {} for name in ("totalTasks", "oldestTask", "leasedLastMinute", "leasedLastHour")},
    "acl": {name: {} for name in ("consumerEmails", "producerEmails", "adminEmails")},
}

_BASE64 = re.compile(r"[A-Za-z0-9_-]*")
_QUEUE_NAME = re.compile(r"(?:projects/[^/]+/taskqueues/)?([^/]+)")
_TASK_NAME = re.compile(r"[A-Za-z0-9_-]{1,500}")
_MICROSECONDS = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class TaskBody:
    """A task from a request; None: absent. `queue` is the short name, `leased_until` the `leaseTimestamp`."""

    name: str | None = None
    queue: str | None = None
    payload: bytes | None = None
    tag: str | None = None
    leased_until: Instant | None = None


def parse_task(body: bytes) -> TaskBody:
    """Parse a task from a request's body; output-only fields (`kind`, `retry_count`, ...) are ignored.

    Raises `TaskqueueError`.
    """
    check_values(body)
    try:
        value = from_json(body)
    except ValueError as error:
        raise TaskqueueError(400, "parseError", f"The request body must contain a task: {error}") from None
    if not isinstance(value, dict):
        raise TaskqueueError(400, "parseError", "The request body must contain a task.")
    payload = _text(value, "payloadBase64")
    queue = _text(value, "queueName")
    return TaskBody(
        _text(value, "id") or None,
        None if queue is None else short_queue_name(queue),
        None if payload is None else decode_payload(payload),
        _text(value, "tag"),
        _instant(value, "leaseTimestamp"),
    )


async def read_task(body: bytes) -> TaskBody:
    """Parse a task, a long one in a thread. Raises `TaskqueueError`, and a `Problem` for very many values."""
    return parse_task(body) if len(body) <= SHORT_BODY_BYTES else await asyncio.to_thread(parse_task, body)


def new_task(body: TaskBody) -> NewTask:
    """Return the task that an insert adds: `leaseTimestamp` is its eta, 0 means now. Raises `TaskqueueError`."""
    if body.payload is None:
        raise TaskqueueError(400, "required", "payloadBase64 must be specified.", "payloadBase64")
    return NewTask(body.payload, body.name, body.tag or None, body.leased_until or None)


def decode_payload(text: str) -> bytes:
    """Return the bytes of a URL-safe base64 text, padded or not. Raises `TaskqueueError` for another alphabet."""
    bare = text.rstrip("=")
    if not _BASE64.fullmatch(bare):
        raise invalid("Invalid payloadBase64 value: it must be URL-safe base64, with - and _ for + and /.")
    try:
        return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except binascii.Error:
        raise invalid(f"Invalid payloadBase64 value: {len(bare)} characters can't be base64.") from None


def short_queue_name(name: str) -> str:
    """Return NAME of `projects/P/taskqueues/NAME`; any other text is returned as it is."""
    match = _QUEUE_NAME.fullmatch(name)
    return match[1] if match else name


def is_task_name(name: str) -> bool:
    """Return whether the text is a valid task name."""
    return _TASK_NAME.fullmatch(name) is not None


def task_json(task: StoredTask, *, now: Instant) -> Json:
    """Return a task as JSON for all methods but lease."""
    return _task_json(
        task.shown_name,
        task.queue,
        task.payload,
        task.tag,
        added_at=task.added_at,
        leased_until=lease_timestamp(task, now=now),
        leases=task.leases,
    )


def listed_json(task: StoredTask, *, now: Instant) -> Json:
    """Return a task as JSON for a list: without its payload."""
    shown = task_json(task, now=now)
    del shown["payloadBase64"]
    return shown


def lease_json(lease: Lease, *, project: str) -> Json:
    """Return a leased task as JSON."""
    return _task_json(
        lease.name,
        f"projects/{project}/taskqueues/{lease.queue}",
        lease.payload,
        lease.tag,
        added_at=lease.added_at,
        leased_until=lease.expires_at,
        leases=lease.lease_number,
    )


def lease_timestamp(task: StoredTask, *, now: Instant) -> Instant:
    """Return the end of the task's lease, or its eta; 0 for a leasable task that was never leased.

    Source: the reference, "if this task has never been leased, it will be zero". A delayed task shows its eta all the
    same, because `update` requires it.
    """
    never_leased = task.leased_at == NEVER and task.state in (TaskState.READY, TaskState.DELAYED)
    return NEVER if never_leased and task.eta <= now else task.eta


def queue_json(spec: QueueSpec) -> Json:
    """Return a queue as JSON without its counts; `maxLeases` 0 means no limit."""
    value: Json = {"kind": "taskqueues#taskqueue", "id": spec.name, "maxLeases": spec.max_leases or 0}
    acl = {"consumerEmails": list(spec.user_emails), "producerEmails": list(spec.writer_emails)}
    if any(acl.values()):
        value["acl"] = {name: emails for name, emails in acl.items() if emails}
    return value


def stats_json(stats: QueueStats, *, oldest: Instant | None, last_minute: int, last_hour: int) -> Json:
    """Return a queue's counts as JSON: tasks left, and recent leases. `oldest` is the lowest eta."""
    return {
        "totalTasks": stats.pending,
        "oldestTask": str((oldest or 0) // 1_000_000),
        "leasedLastMinute": str(last_minute),
        "leasedLastHour": str(last_hour),
    }


def _task_json(
    name: str,
    queue: str,
    payload: bytes,
    tag: str | None,
    *,
    added_at: Instant,
    leased_until: Instant,
    leases: int,
) -> Json:
    value: Json = {
        "kind": "taskqueues#task",
        "id": name,
        "queueName": queue,
        "payloadBase64": urlsafe_b64encode(payload).decode(),
        "enqueueTimestamp": str(added_at),
        "leaseTimestamp": str(leased_until),
        "retry_count": leases,
    }
    if tag is not None:
        value["tag"] = tag
    return value


def _text(value: Json, name: str) -> str | None:
    found = value.get(name)
    if found is not None and not isinstance(found, str):
        raise invalid(f"{name} must be a string: {type(found).__name__}")
    return found


def _instant(value: Json, name: str) -> Instant | None:
    found = value.get(name)
    if found is None:
        return None
    text = str(found) if isinstance(found, int) and not isinstance(found, bool) else found
    if not isinstance(text, str) or not _MICROSECONDS.fullmatch(text):
        raise invalid(f"{name} must be microseconds since 1970, as a decimal number: {str(found)[:40]!r}")
    return Instant(int(text))
