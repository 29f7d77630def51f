"""The primitives of `ChangeVerbs`: which tasks a verb means, and what is written of its outcomes (`lua/changes.lua`).

A record is a task as `hold` sent it. Redis compares it with the task as it is before it changes any, as nothing is
locked meanwhile. A task that is removed unread is not even sent: its record says of which set it is any one, and Redis
removes as many of that set as `hold` counted, or nothing if there are fewer by then (ADR 128).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from struct import Struct, pack

from queue_core.attempts.attempt import attempts_text
from queue_core.clock import NEVER, Instant
from queue_core.stores.redis import admin
from queue_core.stores.redis.binary import (
    DIED,
    NUMBER_OF_OUTCOME,
    STATES,
    NewParts,
    changed_lease_record,
    pack_filter,
    pack_finished,
    parse_settings,
    parse_task,
    without_payload,
)
from queue_core.stores.redis.calls import DATA, Calls
from queue_core.stores.redis.client.connection import Cell
from queue_core.task import QueueSpec, StoredTask, TaskState
from queue_core.verbs.change_verbs import Depth, HeldTasks, InStates, LeasedBy, Named, Outcome, Removed, Selector

_SIZES = Struct(">IIQ")
_LENGTH = Struct(">I")
_TASK = Struct(">BQHI")
_END = Struct(">BQII")
_DEPTHS: dict[Depth, int] = {"id": 0, "task": 1, "whole": 2}
_NUMBER_OF_STATE = {state: number for number, state in enumerate(STATES, 1)}
_YES = ord("1")
_SET_BYTE = 0
"""The first byte of a record that stands for any task of a set; all others begin with a state."""
_SET = bytes([_SET_BYTE])


def hold(calls: Calls, queue: str, selector: Selector, *, now: Instant) -> HeldTasks[bytes]:
    """See `ChangeVerbs.hold`. A repeat of a client's call gets the tasks that its first try changed."""
    before = calls.changed_before(queue)
    if before is not None:
        return _changed_before(admin.queue(calls, queue), before, selector)
    settles, limit = True, 0
    depth: Depth = "task"
    cells: tuple[Cell, ...]
    match selector:
        case Named():
            settles, depth, cells = selector.settles, selector.depth, ("n", *selector.names)
        case LeasedBy():
            limit, cells = selector.limit, ("w", selector.worker, pack(">Q", selector.begin))
        case InStates():
            kind, tags = pack_filter(selector.tags)
            limit, depth, cells = selector.limit, selector.depth, ("s", _states(selector), bytes([kind]), *tags)
    data = calls.plain.change("hold", queue, pack(">QBBI", now, _DEPTHS[depth], settles, limit), *cells)
    settings_bytes, kept_bytes, rest_at = _SIZES.unpack_from(data, DATA)
    kept_at = DATA + _SIZES.size + settings_bytes
    tasks_at = kept_at + kept_bytes
    spec = parse_settings(queue, data[DATA + _SIZES.size : kept_at], data[kept_at:tasks_at])
    if isinstance(selector, InStates) and depth == "id":
        return _of_set(spec, selector, *_LENGTH.unpack_from(data, tasks_at))
    rest = replace(selector, begin=Instant(rest_at)) if rest_at and isinstance(selector, LeasedBy) else None
    return replace(_held(spec, _records(data, tasks_at), selector), rest=rest)


def _changed_before(spec: QueueSpec, sent: bytes, selector: Selector) -> HeldTasks[bytes]:
    """Return the tasks that the first try of this call sent to `change`."""
    records = _records(sent, 0)
    if isinstance(selector, InStates) and selector.depth == "id":
        sets = [record for record in records if record[0] == _SET_BYTE]
        number = sum(_LENGTH.unpack_from(record, len(_SET))[0] for record in sets) + len(records) - len(sets)
        return replace(_of_set(spec, selector, number), is_repeat=True)
    # The rest is searched from the beginning: the tasks that the first try changed are no longer found.
    rest = replace(selector, begin=NEVER) if isinstance(selector, LeasedBy) else None
    return replace(_held(spec, records, selector), is_repeat=True, rest=rest)


def _states(selector: InStates) -> bytes:
    return bytes(_NUMBER_OF_STATE[state] for state in selector.states)


def _of_set(spec: QueueSpec, selector: InStates, number: int) -> HeldTasks[bytes]:
    """Return so many tasks of a set. Their record says which set it is, as `change_tasks` parses it."""
    kind, tags = pack_filter(selector.tags)
    cells = [tag.encode() for tag in tags]
    of_tags = b"".join([pack(">H", len(cell)) + cell for cell in cells])
    record = _SET + bytes([kind, len(selector.states)]) + _states(selector) + of_tags
    return HeldTasks(spec, [record] * number, _read_none)


def _read_none(_: bytes) -> StoredTask:
    raise AssertionError("a task of a set is not read")


def _records(data: bytes, at: int) -> list[bytes]:
    records: list[bytes] = []
    end = len(data)
    while at < end:
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + size
        records.append(data[at - size : at])
    return records


def _held(spec: QueueSpec, records: list[bytes], selector: Selector) -> HeldTasks[bytes]:
    if isinstance(selector, LeasedBy) or selector.depth != "whole":
        tasks = {record: parse_task(spec.name, record, 0, "without")[0] for record in records}
    else:
        whole, records = records, list(map(without_payload, records))  # which is not sent back
        tasks = {record: parse_task(spec.name, one, 0)[0] for record, one in zip(records, whole, strict=True)}
    names = [tasks[record].shown_name for record in records] if isinstance(selector, Named) else []
    return HeldTasks(spec, records, tasks.__getitem__, names)


def change(calls: Calls, queue: str, changes: Sequence[tuple[bytes, Outcome]], *, now: Instant) -> bool:
    """See `ChangeVerbs.change`. Of a set that is removed only the number is sent."""
    sent: list[bytes] = []
    outcomes: list[bytes] = []
    sets = Counter([record for record, _ in changes if record[0] == _SET_BYTE])
    for chosen, number in sets.items():
        entry = _SET + _LENGTH.pack(number) + chosen[len(_SET) :]
        sent += (_LENGTH.pack(len(entry)), entry)
    for record, outcome in changes:
        if record[0] != _SET_BYTE:
            sent += (_LENGTH.pack(len(record)), record)
            outcomes.append(_packed(record, outcome))
    return calls.change_held(queue, now, b"".join(sent), outcomes)


def _packed(sent: bytes, outcome: Outcome) -> bytes:
    """Pack what becomes of a task as `change_tasks` of `lua/changes.lua` parses it."""
    if isinstance(outcome, StoredTask):
        return b"t" + _packed_task(sent, outcome)
    if isinstance(outcome, Removed):
        return b"d" if outcome is Removed.DELETED else b"r"
    finished, task = outcome.finished, outcome.task
    record = pack_finished(sent, finished)
    attempts = b"" if task is None else (attempts_text(task.attempts) or "").encode()
    how = NUMBER_OF_OUTCOME[finished.outcome] | (DIED if finished.died else 0)
    end = b"e" + _END.pack(how, finished.ended_at, len(record), len(attempts)) + record + attempts
    return end if task is None else end + _packed_task(sent, task, "new attempts" if attempts else "no new attempts")


def _packed_task(sent: bytes, task: StoredTask, new: NewParts = "no new attempts") -> bytes:
    """Pack a task as it is afterwards; what becomes ready waits for its tag's lane, if there is one."""
    state = _NUMBER_OF_STATE[TaskState.READY if task.state is TaskState.HELD else task.state]
    tag, record = (task.tag or "").encode(), changed_lease_record(sent, task, new)
    return _TASK.pack(state, task.eta, len(tag), len(record)) + tag + record


def taken_names(calls: Calls, queue: str, names: Sequence[str], *, now: Instant) -> set[str]:
    """See `ChangeVerbs.taken_names`."""
    letters = calls.read("taken_names", queue, pack(">Q", now), *names)[DATA:]
    return {name for name, letter in zip(names, letters, strict=True) if letter == _YES}
