"""Recount the counters, sets and names of every queue, a piece at a time; for a store that is not in use."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct

from queue_core.stores.redis.calls import Calls
from queue_core.stores.redis.client.connection import Answer
from queue_core.stores.redis.keys import key_of
from queue_core.verbs import Check

MAX_PROBLEMS = 50
TAGS_PER_CALL = 500

_TASK = Struct(">QBBBBI")
_COUNTERS = Struct(">" + "6s" * 10 + "7s")
_HELD = Struct(">6s")
_STATES = ("", "ready", "delayed", "leased", "dead", "held")
_UNTAGGED, _TAGGED = b"-", b"="

TaskCounts = Counter[tuple[bytes, int]]
"""Numbers of tasks by the field of their tag's counters and by state."""


def check(calls: Calls) -> Check:
    """See `Store.check`."""
    problems: list[str] = []
    tasks = 0
    for queue in calls.names():
        found, number = _check_queue(calls, queue)
        problems += [f"queue {queue}: {problem}" for problem in found]
        tasks += number
    return Check(tuple(problems[:MAX_PROBLEMS]), tasks)


def _check_queue(calls: Calls, queue: str) -> tuple[list[str], int]:
    problems: list[str] = []
    counts: TaskCounts = Counter()
    beside = Counter[str]()
    stored = 0
    seen: set[int] = set()  # a scan may meet a task twice
    for found, packed in _pieces(calls, queue):
        problems += found
        for task in packed:
            task_id, state, fields, is_named, is_long, payload_bytes = _TASK.unpack_from(task)
            if task_id in seen:
                continue
            seen.add(task_id)
            stored += payload_bytes
            tag = task[_TASK.size :]
            for field in (_TAGGED, _TAGGED + tag) if tag else (_UNTAGGED,):
                counts[field, state] += 1
            beside.update({"fields": fields, "names": is_named, "payloads": is_long})
    beside["bodies"] = len(seen)
    problems += _check_sizes(calls, queue, counts, beside)
    problems += _check_counters(calls, queue, counts)
    counted = calls.client.read("check_stored", (key_of(queue),), ())
    if counted not in (b"", b"%d" % stored):
        problems.append(f"{counted!r} bytes of payloads are counted, but there are {stored}")
    return problems, len(seen)


def _pieces(calls: Calls, queue: str) -> Iterator[tuple[list[str], list[bytes]]]:
    """Scan a queue; yield the problems and the packed tasks of each piece."""
    cursor = b"0"
    while True:
        answer = _list_of(calls.client.read("check_piece", (key_of(queue),), (cursor,)))
        cursor = _cursor_of(answer)
        yield [problem.decode() for problem in _bytes_of(answer[1])], _bytes_of(answer[2])
        if cursor == b"0":
            return


def _check_sizes(calls: Calls, queue: str, counts: TaskCounts, beside: Counter[str]) -> Iterator[str]:
    """Compare the size of each set and hash with the tasks, which finds entries of no task."""
    sizes = _list_of(_list_of(calls.client.read("check_counts", (key_of(queue),)))[0])
    untagged = [counts[_UNTAGGED, state] for state in range(6)]
    tagged = [counts[_TAGGED, state] for state in range(6)]
    expected = {
        "leased tasks": untagged[3] + tagged[3],
        "delayed tasks": untagged[2] + tagged[2],
        "delayed tasks without a tag": untagged[2],
        "dead tasks": untagged[4] + tagged[4],
        "dead tasks without a tag": untagged[4],
        "held tasks": tagged[5],
        "ready tasks with a tag": tagged[1],
        "ready tasks without a tag": untagged[1],
        "names": beside["names"],
        "long payloads": beside["payloads"],
    }
    *sizes, fields, others = sizes
    assert isinstance(others, int), "the functions that check count"
    if fields != others + beside["bodies"] + beside["fields"]:
        yield f"its hash has {fields!r} fields, but should have {others + beside['bodies'] + beside['fields']}"
    for (what, number), size in zip(expected.items(), sizes, strict=True):
        if number != size:
            yield f"{size!r} {what} are kept, but there are {number}"


def _check_counters(calls: Calls, queue: str, counts: TaskCounts) -> Iterator[str]:
    listed = set(_tags(calls, queue))
    fields = {field for field, _ in counts} | {_TAGGED + tag for tag in listed} | {_TAGGED, _UNTAGGED}
    for some in _split_fields(sorted(fields)):
        _, *rows = _list_of(calls.client.read("check_counts", (key_of(queue),), some))
        for field, row in zip(some, rows, strict=True):
            yield from _check_field(field, _list_of(row), counts)


def _check_field(field: bytes, row: Sequence[Answer], counts: TaskCounts) -> Iterator[str]:
    """Compare the counters and set sizes of a tag, or of all tags, with the tasks."""
    shown = {_UNTAGGED: "the untagged", _TAGGED: "all tags"}.get(field, f"tag {field[1:].decode()!r}")
    packed, problem, sizes = row
    row_bytes = packed if isinstance(packed, bytes) else b""
    counted = list(_COUNTERS.unpack_from(row_bytes)[:4]) if row_bytes else [b""] * 4
    counted += _HELD.unpack_from(row_bytes, _COUNTERS.size) if len(row_bytes) > _COUNTERS.size else [b""]
    if isinstance(problem, bytes) and problem:
        yield f"{shown} {problem.decode()}"
    for state, number in enumerate(counted, start=1):
        if int.from_bytes(number, "big") != counts[field, state]:
            kept = int.from_bytes(number, "big")
            yield f"{_STATES[state]} tasks of {shown} are counted as {kept}, but there are {counts[field, state]}"
    if field not in (_UNTAGGED, _TAGGED):
        *in_sets, is_listed = _list_of(sizes)
        for state, size in zip((1, 2, 4, 5), in_sets, strict=True):
            if size != counts[field, state]:
                yield f"the set of {_STATES[state]} tasks of {shown} has {size!r}, but there are {counts[field, state]}"
        if bool(is_listed) != isinstance(packed, bytes):
            yield f"{shown} is listed without counters, or has counters without being listed"


def _tags(calls: Calls, queue: str) -> Iterator[bytes]:
    cursor = b"0"
    while True:
        answer = _list_of(calls.client.read("check_tags", (key_of(queue),), (cursor,)))
        cursor = _cursor_of(answer)
        yield from _bytes_of(answer[1])
        if cursor == b"0":
            return


def _list_of(answer: Answer) -> list[Answer]:
    assert isinstance(answer, list), "the functions that check answer lists"
    return answer


def _cursor_of(answer: Sequence[Answer]) -> bytes:
    assert isinstance(answer[0], bytes), "a scan answers its cursor"
    return answer[0]


def _bytes_of(answer: Answer) -> list[bytes]:
    return [each for each in _list_of(answer) if isinstance(each, bytes)]


def _split_fields(fields: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (fields[first : first + TAGS_PER_CALL] for first in range(0, len(fields), TAGS_PER_CALL))
