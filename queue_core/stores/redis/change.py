"""The primitives of `ChangeVerbs`: which tasks a verb means, and what is written of its outcomes (`lua/changes.lua`).

A record is a task as `hold` told it. Redis compares it with the task as it is before it changes any, as nothing is
locked meanwhile.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from struct import Struct, pack

from queue_core.attempts.attempt import attempts_text
from queue_core.changes import Depth, HeldTasks, InStates, LeasedBy, Named, Outcome, Removed, Selector
from queue_core.clock import Instant
from queue_core.stores.redis import admin
from queue_core.stores.redis.binary import (
    DIED,
    NUMBER_OF_OUTCOME,
    STATES,
    pack_filter,
    pack_instants,
    parse_settings,
    parse_task,
    without_payload,
)
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.client.connection import Cell
from queue_core.task import QueueSpec, StoredTask, TaskState

_SIZES = Struct(">II")
_LENGTH = Struct(">I")
_TASK = Struct(">BQIHHI")
_END = Struct(">BQII")
_DEPTHS: dict[Depth, int] = {"id": 0, "task": 1, "whole": 2}
_NUMBER_OF_STATE = {state: number for number, state in enumerate(STATES, 1)}
_YES = ord("1")


def hold(calls: Calls, queue: str, selector: Selector, *, now: Instant) -> HeldTasks[bytes]:
    """See `ChangeVerbs.hold`. A repeat of a client's call gets the tasks that its first try changed."""
    before = calls.changed_before(queue)
    if before is not None:
        return replace(_held(admin.queue(calls, queue), before, 0, selector), is_repeat=True)
    settles, limit = True, 0
    depth: Depth = "task"
    cells: tuple[Cell, ...]
    match selector:
        case Named():
            settles, depth, cells = selector.settles, selector.depth, ("n", *selector.names)
        case LeasedBy():
            limit, cells = selector.limit, ("w", selector.worker)
        case InStates():
            kind, tags = pack_filter(selector.tags)
            states = bytes(_NUMBER_OF_STATE[state] for state in selector.states)
            limit, depth, cells = selector.limit, selector.depth, ("s", states, bytes([kind]), *tags)
    data = calls.plain.change("hold", queue, pack(">QBBI", now, _DEPTHS[depth], settles, limit), *cells)
    settings_bytes, kept_bytes = _SIZES.unpack_from(data, DATA)
    kept_at = DATA + _SIZES.size + settings_bytes
    tasks_at = kept_at + kept_bytes
    spec = parse_settings(queue, data[DATA + _SIZES.size : kept_at], data[kept_at:tasks_at])
    return _held(spec, data, tasks_at, selector)


def _held(spec: QueueSpec, data: bytes, at: int, selector: Selector) -> HeldTasks[bytes]:
    records: list[bytes] = []
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        records.append(data[at + _LENGTH.size : at + _LENGTH.size + size])
        at += _LENGTH.size + size
    read = partial(_task_of, spec.name)
    names = [read(record).shown_name for record in records] if isinstance(selector, Named) else []
    return HeldTasks(spec, records, read, names)


def _task_of(queue: str, record: bytes) -> StoredTask:
    return parse_task(queue, record, 0)[0]


def change(calls: Calls, queue: str, changes: Sequence[tuple[bytes, Outcome]], *, now: Instant) -> bool:
    """See `ChangeVerbs.change`."""
    told = b"".join([_LENGTH.pack(len(record)) + record for record in (without_payload(one) for one, _ in changes)])
    outcomes = [_packed(outcome) for _, outcome in changes]
    return calls.change_held(queue, pack(">Q", now), b"1" if calls.is_repeatable else b"0", told, *outcomes)


def _packed(outcome: Outcome) -> bytes:
    """Pack an outcome as `change_tasks` of `lua/changes.lua` parses it."""
    if isinstance(outcome, Removed):
        return b"d" if outcome is Removed.DELETED else b"r"
    if isinstance(outcome, StoredTask):
        return b"t" + _packed_task(outcome)
    finished, task = outcome.finished, outcome.task
    reason = finished.reason.encode()
    attempts = b"" if task is None else (attempts_text(task.attempts) or "").encode()
    how = NUMBER_OF_OUTCOME[finished.outcome] | (DIED if finished.died else 0)
    end = b"e" + _END.pack(how, finished.ended_at, len(reason), len(attempts)) + reason + attempts
    return end if task is None else end + _packed_task(task)


def _packed_task(task: StoredTask) -> bytes:
    """Pack a task as it is afterwards; what becomes ready waits for its tag's lane, if there is one."""
    state = _NUMBER_OF_STATE[TaskState.READY if task.state is TaskState.HELD else task.state]
    tag, reason = (task.tag or "").encode(), task.reason.encode()
    fixed = _TASK.pack(state, task.eta, task.leases, len(task.spent), len(tag), len(reason))
    return fixed + pack_instants(task.spent) + tag + reason


def taken_names(calls: Calls, queue: str, names: Sequence[str], *, now: Instant) -> set[str]:
    """See `ChangeVerbs.taken_names`."""
    letters = calls.read("taken_names", queue, pack(">Q", now), *names)[DATA:]
    return {name for name, letter in zip(names, letters, strict=True) if letter == _YES}
