"""Decode and answer plain BulkAdd requests fast, without a record for each task. Pure.

A plain request has tasks of one queue, with the fields that every client sends, in the order of their numbers. For any
other request, valid or not, `read` returns None and `adding` handles it; both give the same results.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from queue_core.clock import Instant
from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import EIGHT_BYTES, LAST_BITS, CodecError, decode, encode, seven_bits_each
from queue_core.google.appengine.codes import ApplicationError, TaskQueueErrorCode
from queue_core.google.appengine.fields import given_name, queue_of, tag_of
from queue_core.google.appengine.schema import Label, MessageTable, ProtoRecord
from queue_core.task import NewTask
from queue_core.verbs import Added

MAX_TASKS_PER_ADD = 100
"""Tasks of one BulkAdd. Source: App Engine's limit."""
STATUS = {
    "added": TaskQueueErrorCode.OK,
    "exists": TaskQueueErrorCode.TASK_ALREADY_EXISTS,
    "tombstoned": TaskQueueErrorCode.TOMBSTONED_TASK,
}

_ADD, _QUEUE, _NAME, _ETA, _BODY = 0x0A, 0x0A, 0x12, 0x18, 0x4A
_HEADER, _KEY, _VALUE, _HEADER_END = 0x33, 0x3A, 0x42, 0x34
"""Tags of a batch's request and of the first fields in it."""
_REST = MessageTable(
    "TaskQueueAddRequest", tuple(replace(field, label=Label.OPTIONAL) for field in messages.ADD_REQUEST.fields)
)
_RESULTS = {
    code: encode(messages.BULK_ADD_RESPONSE, {"taskresult": [ProtoRecord(result=int(code))]})
    for code in TaskQueueErrorCode
}
_CHOSEN = b"\x0b\x10\x00\x1a%c%b\x0c"
"""Encoded result of a task whose name the queue chose; such a name is shorter than 128 bytes."""


@dataclass(frozen=True, slots=True)
class PlainAdds:
    """A batch for one queue; `etas` in the order of the tasks, whose own eta is not set."""

    queue: str
    tasks: Sequence[NewTask]
    etas: Sequence[int]

    def tasks_at(self, now: Instant) -> Sequence[NewTask]:
        """Return the tasks, with their eta where it is after `now`."""
        if max(self.etas) <= now:
            return self.tasks
        return [
            replace(task, eta=Instant(eta)) if eta > now else task
            for task, eta in zip(self.tasks, self.etas, strict=True)
        ]


class _NotPlainError(Exception):
    """The request is not plain."""


def read(payload: bytes) -> PlainAdds | None:
    """Decode a `TaskQueueBulkAddRequest`, or return None for one that is not plain."""
    try:
        return _read(payload)
    except (_NotPlainError, IndexError, CodecError, ApplicationError):
        return None


def _read(payload: bytes) -> PlainAdds:
    """Decode a plain request. The loop is long for speed: it takes most of the time of an add by this API."""
    at, end = 0, len(payload)
    queue, head = _head(payload)
    tasks: list[NewTask] = []
    etas: list[int] = []
    tags: dict[bytes, str | None] = {}
    while at < end and len(tasks) < MAX_TASKS_PER_ADD:
        begins_right = payload[at] == _ADD
        size, at = _size(payload, at + 1)
        stop = at + size
        begins_right &= payload.startswith(head, at)
        at += len(head)
        size = payload[at]
        begins_right &= size < 0x80
        name = given_name(payload[at + 1 : at + 1 + size]) if size else None
        at += 1 + size
        raw = int.from_bytes(payload[at + 1 : at + 9], "little")
        if not begins_right or payload[at] != _ETA or raw & LAST_BITS != EIGHT_BYTES:
            raise _NotPlainError
        at += 9
        if payload[at] != _BODY:
            at = _after_headers(payload, at)
        size, at = _size(payload, at + 1)
        body_stop = at + size
        if body_stop > stop or stop > end:
            raise _NotPlainError
        rest = payload[body_stop:stop]
        if rest not in tags:
            tags[rest] = _tag(rest)
        tasks.append(NewTask(payload[at:body_stop], name, tags[rest]))
        etas.append(seven_bits_each(raw))
        at = stop
    if at < end:
        raise _NotPlainError
    return PlainAdds(queue, tasks, etas)


def _head(payload: bytes) -> tuple[str, bytes]:
    """Return the first request's queue, and the bytes that every request for this queue begins with."""
    _, at = _size(payload, 1)
    stop = at + 2 + payload[at + 1]
    if payload[at] != _QUEUE or payload[stop] != _NAME:
        raise _NotPlainError
    return queue_of(payload[at + 2 : stop]), payload[at : stop + 1]


def _after_headers(payload: bytes, at: int) -> int:
    """Skip the headers that Java's client sends, and return the position of the body."""
    while payload[at] == _HEADER:
        key = payload[at + 2]
        value_at = at + 3 + key
        value = payload[value_at + 1]
        end_at = value_at + 2 + value
        if payload[at + 1] != _KEY or payload[value_at] != _VALUE or payload[end_at] != _HEADER_END:
            raise _NotPlainError
        if key >= 0x80 or value >= 0x80:
            raise _NotPlainError
        at = end_at + 1
    if payload[at] != _BODY:
        raise _NotPlainError
    return at


def _size(payload: bytes, at: int) -> tuple[int, int]:
    """Return a length of one or two bytes, and the position after it."""
    low = payload[at]
    if low < 0x80:
        return low, at + 1
    high = payload[at + 1]
    if high >= 0x80:
        raise _NotPlainError
    return low & 0x7F | high << 7, at + 2


def _tag(rest: bytes) -> str | None:
    """Decode the fields after a body, the mode and the optional tag, and return the tag."""
    record = decode(_REST, rest)
    if record.pop("mode", None) != messages.PULL or record.keys() - {"tag"}:
        raise _NotPlainError
    return tag_of(record.octets("tag"))


def answer(tasks: Sequence[NewTask], added: Sequence[Added]) -> bytes:
    """Encode the `TaskQueueBulkAddResponse` for tasks that were added or whose names were taken."""
    return b"".join(
        [
            result(TaskQueueErrorCode.OK, one.name) if task.name is None else _RESULTS[STATUS[one.status]]
            for task, one in zip(tasks, added, strict=True)
        ]
    )


def result(code: TaskQueueErrorCode, chosen_name: str) -> bytes:
    """Encode the result of one task, with its name if the queue chose it ("": it did not)."""
    return _CHOSEN % (len(chosen_name), chosen_name.encode()) if chosen_name else _RESULTS[code]
