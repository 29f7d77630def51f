"""The binary form of values in calls and answers: Python reads a list of many short values ten times as slowly.

`lua/records.lua` packs and parses the same. A length precedes its value; text is UTF-8.
"""

import json
from collections.abc import Sequence
from struct import Struct, pack, unpack_from
from typing import Literal

from queue_core.attempts.attempt import Attempt, attempts_of, attempts_text
from queue_core.clock import MICROSECONDS, Instant
from queue_core.stats import FinishedLease, LeaseOutcome
from queue_core.stores.extra_settings import extra_settings_text, parse_extra_settings
from queue_core.stores.rare_text import set_rare_text
from queue_core.task import (
    Lease,
    NewTask,
    Progress,
    QueueSpec,
    StoredTask,
    TagFilter,
    TaskState,
    celery_id_of,
)
from queue_core.verbs import Added

LONG_PAYLOAD_BYTES = 2048
"""The longest payload in a task's body; longer ones are in a hash of their own, which only a lease reads."""

_BODY = Struct(">BQHH")
_LEASE_RECORD = Struct(">IQQBHHHHH")
_FINISHED = Struct(">BIQQQQHHHHQ")
_LEASE = Struct(">QQQQIIBQHH")
_LEASE_FIXED_BYTES = 40  # of _LEASE before the body
_TASK = Struct(">BQQII")
_SETTINGS = Struct(">BBQdIddQdd")
_LAYOUT = 1
_PAUSED, _DELETES_EXHAUSTED, _LIMITED, _HAS_PRIORITIES = 1, 2, 8, 16
_LIMITS = Struct(">IQIIQIB")
_PRIORITIES_BYTES = 2
_LONG, _HAS_RARE, _CHECKPOINT = 1, 2, 4  # flags of a body; the last in answers only
_PRIORITY = 16  # the flags of a body plus so many times its priority are its first byte
_HAS_ADDED, _HAS_ATTEMPTS, _HAS_PROGRESS, _HAS_CHECKPOINT = 2, 4, 8, 16  # flags of a lease record, beside _LONG
_HAS_PRIORITY, _HAS_CELERY_ID = 32, 64
_RARE = _HAS_ATTEMPTS | _HAS_PROGRESS | _HAS_CHECKPOINT
_OF_NEW = _HAS_ADDED | _LONG | _HAS_PRIORITY | _HAS_CELERY_ID  # flags of a task without a lease record
_FLAGS_AT = 20  # the index of the flags in a lease record
_OUTCOME, DIED, _KNOWS_ADDED, _KNOWS_CELERY_ID = 7, 8, 16, 32
NewParts = Literal["new attempts", "no new attempts"]

_OUTCOMES: tuple[LeaseOutcome, ...] = ("deleted", "deleted", "released", "expired", "removed")
NUMBER_OF_OUTCOME = {outcome: number for number, outcome in enumerate(_OUTCOMES) if number}
"""How the ends of leases are written."""
_KINDS = {"any": 0, "tags": 1, "untagged": 2, "oldest": 3}
STATES = (TaskState.READY, TaskState.DELAYED, TaskState.LEASED, TaskState.DEAD, TaskState.HELD)
"""The states as tasks are written, from 1 on."""


def pack_body(
    added_at: Instant,
    tag: str | None,
    name: str | None,
    payload: bytes,
    rare: str | None = None,
    priority: int = 0,
) -> tuple[bytes, ...]:
    """Pack the body, the part of a task that never changes; a long payload follows as a second value.

    `rare`: its rare fields, as text.
    """
    if priority:
        head, *rest = pack_body(added_at, tag, name, payload, rare)
        return (bytes([head[0] + _PRIORITY * priority]) + head[1:], *rest)
    if rare is not None:
        return _with_rare(pack_body(added_at, tag, name, b""), payload, rare.encode())
    tag_bytes = b"" if tag is None else tag.encode()
    name_bytes = b"" if name is None else name.encode()
    if len(payload) > LONG_PAYLOAD_BYTES:
        return _BODY.pack(_LONG, added_at, len(tag_bytes), len(name_bytes)) + tag_bytes + name_bytes, payload
    return (_BODY.pack(0, added_at, len(tag_bytes), len(name_bytes)) + tag_bytes + name_bytes + payload,)


def _with_rare(plain: tuple[bytes, ...], payload: bytes, text: bytes) -> tuple[bytes, ...]:
    """Return the body of a task that has rare fields, from that of the same task without them and without a payload."""
    is_long = len(payload) > LONG_PAYLOAD_BYTES
    head = bytes([_HAS_RARE | (_LONG if is_long else 0)]) + plain[0][1:] + pack(">H", len(text)) + text
    return (head, payload) if is_long else (head + payload,)


def rare_parts(task: StoredTask) -> list[bytes]:
    """Return the parts of a task that few have, those which the flags of its lease record tell of."""
    attempts = attempts_text(task.attempts)
    return [
        part
        for part in (
            None if attempts is None else attempts.encode(),
            None if task.progress is None else progress_text(task.progress),
            task.checkpoint,
        )
        if part is not None
    ]


def progress_text(progress: Progress) -> bytes:
    """Return progress as it is stored, as JSON."""
    return json.dumps([progress.fraction, progress.text], ensure_ascii=False, separators=(",", ":")).encode()


def pack_lease_record(task: StoredTask) -> bytes:
    """Pack the lease record (`held` in Lua), the part of a task that leases change, and the task's own bound of leases.

    Empty before the first lease of a task without a bound. `ready_at` of a task that is not LEASED is its eta.
    """
    flags = (
        _HAS_ADDED
        + _LONG * (len(task.payload) > LONG_PAYLOAD_BYTES)
        + _HAS_ATTEMPTS * bool(task.attempts)
        + _HAS_PROGRESS * (task.progress is not None)
        + _HAS_CHECKPOINT * (task.checkpoint is not None)
        + _HAS_PRIORITY * bool(task.priority)
        + _HAS_CELERY_ID * bool(celery_id_of(task.headers))
    )
    is_new = not (task.leased_at or task.leases or task.spent or task.max_leases or flags & ~_OF_NEW)
    if is_new and task.state in (TaskState.READY, TaskState.DELAYED):
        return b""
    return _lease_record(task, flags)


def changed_lease_record(packed: bytes, task: StoredTask, new: NewParts) -> bytes:
    """Return the lease record of a task that was changed; empty where it stays as it is.

    Args:
        packed: the task as it was packed before, from which the flags of what `task` lacks are taken.
        new: whether it has attempts that it had not before.
    """
    *_, record_bytes, _ = _TASK.unpack_from(packed)
    before = packed[_TASK.size : _TASK.size + record_bytes]
    if before:
        flags = before[_FLAGS_AT] | _HAS_ADDED | (_HAS_ATTEMPTS if new == "new attempts" else 0)
    elif task.leases or task.spent or task.reason:
        is_long = packed[_TASK.size] & _LONG
        flags = _HAS_ADDED + is_long + _HAS_PRIORITY * bool(task.priority)
        flags += _HAS_CELERY_ID * bool(celery_id_of(task.headers))
    else:
        return b""
    record = _lease_record(task, flags)
    return b"" if record == before else record


def _lease_record(task: StoredTask, flags: int) -> bytes:
    texts = b"" if task.tag is None else task.tag.encode(), b"" if task.name is None else task.name.encode()
    worker, reason = task.worker.encode(), task.reason.encode()
    lengths = len(texts[0]), len(texts[1]), len(worker), len(reason)
    fixed = _LEASE_RECORD.pack(task.leases, task.leased_at, task.ready_at, flags, len(task.spent), *lengths)
    instants = pack_instants([*task.spent, task.added_at])
    priority = bytes([task.priority]) if task.priority else b""
    bound = pack_bounds([task]) if task.max_leases else b""
    return b"".join((fixed, instants, *texts, worker, reason, priority, bound))


def pack_finished(packed: bytes, finished: FinishedLease) -> bytes:
    """Pack a finished lease of a task, which was packed before the end of the lease, as `parse_finished` parses it."""
    _, task_id, *_ = _TASK.unpack_from(packed)
    tag = b"" if finished.tag is None else finished.tag.encode()
    name = b"" if finished.name == f"_{task_id}" else finished.name.encode()
    worker, reason, celery_id = finished.worker.encode(), finished.reason.encode(), finished.celery_id.encode()
    fixed = _FINISHED.pack(
        NUMBER_OF_OUTCOME[finished.outcome]
        | _KNOWS_ADDED
        | (DIED if finished.died else 0)
        | (_KNOWS_CELERY_ID if celery_id else 0),
        finished.lease_number,
        round(finished.waited_seconds * MICROSECONDS),
        round(finished.held_seconds * MICROSECONDS),
        finished.ended_at,
        task_id,
        len(tag),
        len(name),
        len(worker),
        len(reason),
        finished.added_at,
    )
    of_celery = bytes([len(celery_id)]) + celery_id if celery_id else b""
    return b"".join((fixed, tag, name, worker, reason, of_celery))


def pack_bounds(tasks: Sequence[NewTask | StoredTask]) -> bytes:
    """Pack the tasks' own bounds of leases, 0 for none."""
    return pack(f">{len(tasks)}I", *[task.max_leases or 0 for task in tasks])


def pack_instants(instants: Sequence[int]) -> bytes:
    """Pack instants, or ids, in 8 bytes each."""
    return pack(f">{len(instants)}Q", *instants)


def pack_filter(tags: TagFilter) -> tuple[int, tuple[str, ...]]:
    """Return the kind of a filter, as a number, and its tags."""
    if tags.kind == "tags" and not tags.tags:
        return _KINDS["any"], ()
    return _KINDS[tags.kind], tuple(dict.fromkeys(tags.tags)) if tags.kind != "any" else ()


def pack_settings(spec: QueueSpec) -> bytes:
    """Pack a queue's settings, without its pause, its new place and the priorities of its tasks."""
    limits = _pack_limits(spec)
    return _pack_fixed(spec, _LIMITED if limits else 0) + limits


def _pack_limits(spec: QueueSpec) -> bytes:
    """Pack the limits of each tag and of the queue; empty when there are none."""
    of_tag, of_queue = (spec.per_tag.max_in_flight, spec.per_tag.rate), (spec.max_in_flight, spec.rate)
    numbers = [
        number
        for most, rate in (of_tag, of_queue)
        for number in (most or 0, rate.interval if rate else 0, rate.burst if rate else 0)
    ]
    return _LIMITS.pack(*numbers, spec.per_tag.fair) if any(numbers) or spec.per_tag.fair else b""


def _pack_fixed(spec: QueueSpec, flags: int) -> bytes:
    return _SETTINGS.pack(
        _LAYOUT,
        flags | (_DELETES_EXHAUSTED if spec.on_exhausted == "delete" else 0),
        round(spec.lease_seconds * MICROSECONDS),
        spec.max_lease_seconds,
        spec.max_leases or 0,
        spec.retry_min_seconds,
        spec.retry_max_seconds,
        round(spec.name_retention_seconds * MICROSECONDS),
        spec.lease_seconds,
        spec.name_retention_seconds,
    )


def pack_kept(spec: QueueSpec) -> bytes:
    """Return the settings that no function reads, as JSON; empty when there are none.

    Limits are among them, as a rate can't be told exactly from what `pack_settings` makes of it for the functions.
    """
    text = extra_settings_text(spec)
    return b"" if text == "{}" else text.encode()


def parse_settings(name: str, settings: bytes, kept: bytes = b"") -> QueueSpec:
    """Parse the settings of a queue."""
    _, flags, _, max_lease, max_leases, retry_min, retry_max, _, lease, retention = _SETTINGS.unpack_from(settings)
    moved_at = _SETTINGS.size + (_LIMITS.size if flags & _LIMITED else 0)
    moved_at += _PRIORITIES_BYTES if flags & _HAS_PRIORITIES else 0
    return QueueSpec(
        name,
        lease,
        max_lease,
        max_leases or None,
        retry_min,
        retry_max,
        "delete" if flags & _DELETES_EXHAUSTED else "dead",
        retention,
        paused=bool(flags & _PAUSED),
        moved_to=settings[moved_at:].decode(),
        **(parse_extra_settings(kept.decode()) if kept else {}),
    )


def parse_leases(queue: str, worker: str, answer: bytes, at: int) -> tuple[Lease, ...]:
    """Parse the leases from `at` to the end of the answer."""
    leases: list[Lease] = []
    end = len(answer)
    while at < end:
        task_id, leased_at, expires_at, ready_at, number, size, flags, added_at, tag_bytes, name_bytes = (
            _LEASE.unpack_from(answer, at)
        )
        tag_at = at + _LEASE.size
        name_at = tag_at + tag_bytes
        payload_at = name_at + name_bytes
        at += _LEASE_FIXED_BYTES + size
        rare = checkpoint = None
        name_end, payload_end = payload_at, at
        if flags > _LONG:
            rare, payload_at = _rare_text(flags, answer, payload_at)
            checkpoint, payload_end = _checkpoint(flags, answer, at)
        lease = Lease(
            queue,
            answer[name_at:name_end].decode() if name_bytes else f"_{task_id}",
            answer[tag_at:name_at].decode() if tag_bytes else None,
            answer[payload_at:payload_end],
            f"{task_id}.{leased_at}",
            worker,
            number,
            leased_at,
            expires_at,
            ready_at,
            added_at,
            None,
            checkpoint,
        )
        leases.append(lease if rare is None else set_rare_text(lease, rare))
    return tuple(leases)


def _rare_text(flags: int, answer: bytes, at: int) -> tuple[str | None, int]:
    """Return the text of the rare fields of a body, if it has any, and the index of its payload."""
    if not flags & _HAS_RARE:
        return None, at
    end = at + 2 + int.from_bytes(answer[at : at + 2], "big")
    return answer[at + 2 : end].decode(), end


def _checkpoint(flags: int, answer: bytes, end: int) -> tuple[bytes | None, int]:
    """Return the checkpoint at the end of a lease, if it has one, and the index behind its payload."""
    if not flags & _CHECKPOINT:
        return None, end
    begin = end - 4 - int.from_bytes(answer[end - 4 : end], "big")
    return answer[begin : end - 4], begin


def parse_finished(queue: str, answer: bytes, at: int) -> tuple[FinishedLease, int]:
    """Parse a finished lease; also return the index behind it."""
    outcome, number, waited, held, ended_at, task_id, tag_bytes, name_bytes, worker_bytes, reason_bytes, added_at = (
        _FINISHED.unpack_from(answer, at)
    )
    tag_at = at + _FINISHED.size
    name_at = tag_at + tag_bytes
    worker_at = name_at + name_bytes
    reason_at = worker_at + worker_bytes
    reason_end = end = reason_at + reason_bytes
    celery_id = ""
    if outcome & _KNOWS_CELERY_ID:
        end += 1 + answer[reason_end]
        celery_id = answer[reason_end + 1 : end].decode()
    finished = FinishedLease(
        queue,
        answer[name_at:worker_at].decode() if name_bytes else f"_{task_id}",
        answer[tag_at:name_at].decode() if tag_bytes else None,
        answer[worker_at:reason_at].decode(),
        number,
        _OUTCOMES[outcome & _OUTCOME],
        waited / MICROSECONDS,
        held / MICROSECONDS,
        ended_at,
        outcome & DIED != 0,
        answer[reason_at:reason_end].decode() if reason_bytes else "",
        added_at,
        celery_id,
    )
    return finished, end


def parse_all_finished(queue: str, answer: bytes, at: int, number: int) -> tuple[tuple[FinishedLease, ...], int]:
    """Parse `number` finished leases; also return the index behind them."""
    finished: list[FinishedLease] = []
    for _ in range(number):
        lease, at = parse_finished(queue, answer, at)
        finished.append(lease)
    return tuple(finished), at


def parse_added(tasks: Sequence[NewTask | StoredTask], answer: bytes, at: int) -> tuple[list[Added], int]:
    """Parse the outcomes of adding these tasks; also return the index behind them."""
    task_id = int.from_bytes(answer[at : at + 8], "big")
    at += 8
    outcomes: list[Added] = []
    for task in tasks:
        letter = answer[at]
        at += 1
        if letter in b"rd":
            name = f"_{task_id}" if task.name is None else task.name
            outcomes.append(Added(name, "added", letter == ord("r")))
            task_id += 1
        else:
            outcomes.append(Added(task.name or "", "exists" if letter == ord("e") else "tombstoned"))
    return outcomes, at


def parse_lease_record(answer: bytes, at: int) -> tuple[tuple[int, ...], tuple[Instant, ...], list[str], int]:
    """Parse a lease record: its numbers (leases, leased_at, ready_at, flags), spent ends and texts.

    The texts are tag, name, worker and reason. The fourth value is the index behind them, where the task's priority
    and its own bound are, if it has them.
    """
    leases, leased_at, ready_at, flags, spents, *lengths = _LEASE_RECORD.unpack_from(answer, at)
    at += _LEASE_RECORD.size
    spent = _instants(answer, at, spents)
    at += 8 * spents + (8 if flags & _HAS_ADDED else 0)
    texts: list[str] = []
    for length in lengths:
        texts.append(answer[at : at + length].decode() if length else "")
        at += length
    return (leases, leased_at, ready_at, flags), spent, texts, at


def _instants(answer: bytes, at: int, number: int) -> tuple[Instant, ...]:
    return tuple(Instant(instant) for instant in unpack_from(f">{number}Q", answer, at))


def without_payload(task: bytes) -> bytes:
    """Return a packed task without its payload; the same one if it has none."""
    *head, record_bytes, body_bytes = _TASK.unpack_from(task)
    body_at = _TASK.size + record_bytes
    flags, _, tag_bytes, name_bytes = _BODY.unpack_from(task, body_at)
    _, payload_at = _rare_text(flags, task, body_at + _BODY.size + tag_bytes + name_bytes)
    if payload_at == body_at + body_bytes:
        return task
    kept = task[_TASK.size : payload_at]
    return _TASK.pack(*head, record_bytes, payload_at - body_at) + kept + task[body_at + body_bytes :]


def parse_task(
    queue: str, answer: bytes, at: int, rare: Literal["with rare parts", "without"] = "with rare parts"
) -> tuple[StoredTask, int]:
    """Parse a task as it is stored; also return the index behind it.

    Args:
        rare: whether it comes with the parts that few tasks have, those of which its lease record tells.
    """
    state_number, task_id, eta, record_bytes, body_bytes = _TASK.unpack_from(answer, at)
    record_at = at + _TASK.size
    body_at = record_at + record_bytes
    end = body_at + body_bytes
    body_flags, added_at, tag_bytes, name_bytes = _BODY.unpack_from(answer, body_at)
    tag_at = body_at + _BODY.size
    name_at = tag_at + tag_bytes
    name_end = name_at + name_bytes
    text, payload_at = _rare_text(body_flags, answer, name_end)
    state = STATES[state_number - 1]
    leases = leased_at = ready_at = flags = bound = 0
    priority = body_flags // _PRIORITY
    spent: tuple[Instant, ...] = ()
    worker = reason = ""
    if record_bytes:  # as `parse_lease_record`, without tag and name, which the body has
        leases, leased_at, ready_at, flags, spents, tags, names, workers, reasons = _LEASE_RECORD.unpack_from(
            answer, record_at
        )
        spent_at = record_at + _LEASE_RECORD.size
        worker_at = spent_at + 8 * spents + (8 if flags & _HAS_ADDED else 0) + tags + names
        reason_at = worker_at + workers
        bound_at = reason_at + reasons + bool(flags & _HAS_PRIORITY)
        spent = _instants(answer, spent_at, spents) if spents else ()
        worker = answer[worker_at:reason_at].decode()
        reason = answer[reason_at : reason_at + reasons].decode() if reasons else ""
        bound = int.from_bytes(answer[bound_at:body_at], "big") if bound_at < body_at else 0
    attempts, progress, checkpoint, next_at = _rare(flags if rare == "with rare parts" else 0, answer, end)
    task = StoredTask(
        task_id,
        queue,
        answer[payload_at:end],
        eta,
        added_at,
        answer[name_at:name_end].decode() if name_bytes else None,
        answer[tag_at:name_at].decode() if tag_bytes else None,
        state,
        leases,
        Instant(leased_at),
        Instant(ready_at) if state is TaskState.LEASED else eta,
        worker,
        reason,
        spent,
        bound or None,
        None,
        attempts,
        progress,
        checkpoint,
        priority,
    )
    return task if text is None else set_rare_text(task, text), next_at


def _rare(flags: int, answer: bytes, at: int) -> tuple[tuple[Attempt, ...], Progress | None, bytes | None, int]:
    """Parse the parts that few tasks have, as the flags of a lease record tell; also return the index behind them."""
    if not flags & _RARE:
        return (), None, None, at
    parts: list[bytes | None] = []
    for flag in (_HAS_ATTEMPTS, _HAS_PROGRESS, _HAS_CHECKPOINT):
        part = None
        if flags & flag:
            begin = at + 4
            at = begin + int.from_bytes(answer[at:begin], "big")
            part = answer[begin:at]
        parts.append(part)
    attempts, progress, checkpoint = parts
    return (
        attempts_of(attempts.decode()) if attempts else (),
        None if progress is None else Progress(*json.loads(progress)),
        checkpoint,
        at,
    )
