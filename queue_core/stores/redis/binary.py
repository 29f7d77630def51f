"""The binary form of values in calls and answers: Python reads a list of many short values ten times as slowly.

`lua/records.lua` packs and parses the same. A length precedes its value; text is UTF-8.
"""

from collections.abc import Sequence
from struct import Struct, pack

from queue_core.clock import MICROSECONDS, Instant
from queue_core.stats import FinishedLease, LeaseOutcome
from queue_core.store import Added
from queue_core.stores.extra_settings import extra_settings_text, parse_extra_settings
from queue_core.task import Lease, NewTask, QueueSpec, StoredTask, TagFilter, TaskState

LONG_PAYLOAD_BYTES = 2048
"""The longest payload in a task's body; longer ones are in a hash of their own, which only a lease reads."""

_BODY = Struct(">BQHH")
_LEASE_RECORD = Struct(">IQQBHHHHH")
_FINISHED = Struct(">BIQQQQHHHH")
_LEASE = Struct(">QQQQIIBQHH")
_LEASE_FIXED_BYTES = 40  # of _LEASE before the body
_TASK = Struct(">BQQII")
_SETTINGS = Struct(">BBQdIddQdd")
_LAYOUT = 1
_PAUSED, _DELETES_EXHAUSTED = 1, 2
_LONG = 1
_DIED = 8

_OUTCOMES: tuple[LeaseOutcome, ...] = ("deleted", "deleted", "released", "expired")
_KINDS = {"any": 0, "tags": 1, "untagged": 2, "oldest": 3}
_STATES = (TaskState.READY, TaskState.DELAYED, TaskState.LEASED, TaskState.DEAD)


def pack_body(added_at: Instant, tag: str | None, name: str | None, payload: bytes) -> tuple[bytes, ...]:
    """Pack the body, the part of a task that never changes; a long payload follows as a second value."""
    tag_bytes = b"" if tag is None else tag.encode()
    name_bytes = b"" if name is None else name.encode()
    if len(payload) > LONG_PAYLOAD_BYTES:
        return _BODY.pack(_LONG, added_at, len(tag_bytes), len(name_bytes)) + tag_bytes + name_bytes, payload
    return (_BODY.pack(0, added_at, len(tag_bytes), len(name_bytes)) + tag_bytes + name_bytes + payload,)


def pack_lease_record(task: StoredTask) -> bytes:
    """Pack the lease record (`held` in Lua), the part of a task that leases change, and the task's own bound of leases.

    Empty before the first lease of a task without a bound. `ready_at` of a task that is not LEASED is its eta.
    """
    is_new = not (task.leased_at or task.leases or task.spent or task.max_leases)
    if is_new and task.state in (TaskState.READY, TaskState.DELAYED):
        return b""
    texts = [text.encode() for text in (task.tag or "", task.name or "", task.worker, task.reason)]
    flags = _LONG if len(task.payload) > LONG_PAYLOAD_BYTES else 0
    lengths = map(len, texts)
    fixed = _LEASE_RECORD.pack(task.leases, task.leased_at, task.ready_at, flags, len(task.spent), *lengths)
    return b"".join((fixed, pack_instants(task.spent), *texts, pack_bounds([task]) if task.max_leases else b""))


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
    """Pack a queue's settings, without its pause and its new place."""
    return _SETTINGS.pack(
        _LAYOUT,
        _DELETES_EXHAUSTED if spec.on_exhausted == "delete" else 0,
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
    """Return the settings that no function reads, as JSON; empty when there are none."""
    text = extra_settings_text(spec)
    return b"" if text == "{}" else text.encode()


def parse_settings(name: str, settings: bytes, kept: bytes = b"") -> QueueSpec:
    """Parse the settings of a queue."""
    _, flags, _, max_lease, max_leases, retry_min, retry_max, _, lease, retention = _SETTINGS.unpack_from(settings)
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
        moved_to=settings[_SETTINGS.size :].decode(),
        **(parse_extra_settings(kept.decode()) if kept else {}),
    )


def parse_leases(queue: str, worker: str, answer: bytes, at: int) -> tuple[Lease, ...]:
    """Parse the leases from `at` to the end of the answer."""
    leases: list[Lease] = []
    end = len(answer)
    while at < end:
        task_id, leased_at, expires_at, ready_at, number, size, _, added_at, tag_bytes, name_bytes = _LEASE.unpack_from(
            answer, at
        )
        tag_at = at + _LEASE.size
        name_at = tag_at + tag_bytes
        payload_at = name_at + name_bytes
        at += _LEASE_FIXED_BYTES + size
        leases.append(
            Lease(
                queue,
                answer[name_at:payload_at].decode() if name_bytes else f"_{task_id}",
                answer[tag_at:name_at].decode() if tag_bytes else None,
                answer[payload_at:at],
                f"{task_id}.{leased_at}",
                worker,
                number,
                leased_at,
                expires_at,
                ready_at,
                added_at,
            )
        )
    return tuple(leases)


def parse_finished(queue: str, answer: bytes, at: int) -> tuple[FinishedLease, int]:
    """Parse a finished lease; also return the index behind it."""
    outcome, number, waited, held, ended_at, task_id, tag_bytes, name_bytes, worker_bytes, reason_bytes = (
        _FINISHED.unpack_from(answer, at)
    )
    tag_at = at + _FINISHED.size
    name_at = tag_at + tag_bytes
    worker_at = name_at + name_bytes
    reason_at = worker_at + worker_bytes
    end = reason_at + reason_bytes
    finished = FinishedLease(
        queue,
        answer[name_at:worker_at].decode() if name_bytes else f"_{task_id}",
        answer[tag_at:name_at].decode() if tag_bytes else None,
        answer[worker_at:reason_at].decode(),
        number,
        _OUTCOMES[outcome & ~_DIED],
        waited / MICROSECONDS,
        held / MICROSECONDS,
        ended_at,
        outcome >= _DIED,
        answer[reason_at:end].decode(),
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
    """Parse a lease record: numbers (leases, leased_at, ready_at), spent ends, texts (tag, name, worker, reason).

    The fourth value is the index behind them, where the task's own bound is, if it has one.
    """
    leases, leased_at, ready_at, _, spents, *lengths = _LEASE_RECORD.unpack_from(answer, at)
    at += _LEASE_RECORD.size
    spent = tuple(Instant(int.from_bytes(answer[at + 8 * i : at + 8 * i + 8], "big")) for i in range(spents))
    at += 8 * spents
    texts: list[str] = []
    for length in lengths:
        texts.append(answer[at : at + length].decode())
        at += length
    return (leases, leased_at, ready_at), spent, texts, at


def parse_task(queue: str, answer: bytes, at: int) -> tuple[StoredTask, int]:
    """Parse a task as it is stored; also return the index behind it."""
    state_number, task_id, eta, record_bytes, body_bytes = _TASK.unpack_from(answer, at)
    record_at = at + _TASK.size
    body_at = record_at + record_bytes
    end = body_at + body_bytes
    _, added_at, tag_bytes, name_bytes = _BODY.unpack_from(answer, body_at)
    tag_at = body_at + _BODY.size
    name_at = tag_at + tag_bytes
    payload_at = name_at + name_bytes
    state = _STATES[state_number - 1]
    numbers: tuple[int, ...] = (0, 0, 0)
    spent: tuple[Instant, ...] = ()
    worker = reason = ""
    bound = 0
    if record_bytes:
        numbers, spent, (_, _, worker, reason), bound_at = parse_lease_record(answer, record_at)
        bound = int.from_bytes(answer[bound_at:body_at], "big")
    return (
        StoredTask(
            task_id,
            queue,
            answer[payload_at:end],
            eta,
            added_at,
            answer[name_at:payload_at].decode() if name_bytes else None,
            answer[tag_at:name_at].decode() if tag_bytes else None,
            state,
            numbers[0],
            Instant(numbers[1]),
            Instant(numbers[2]) if state is TaskState.LEASED else eta,
            worker,
            reason,
            spent,
            bound or None,
        ),
        end,
    )
