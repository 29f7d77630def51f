"""The last words of a worker: what its own log lines say of its end, and its stack of where it hung. Pure.

Only workers of an `app` log such lines, as JSON; a line may be cut. What the user's program prints is shown, and never
taken for more than text.
"""

import json
import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final, TypeAlias

from orchestrator.base.values import value
from queue_core.process.wording import counted

MAX_REASON_CHARS: Final = 300
"""Length at which a worker's reason is cut."""
_KINDS: Final = ("stuck", "lost", "unfinished", "timed_out")
GIVEN_BACK: Final = "the worker gave it back"
"""The reason with which a worker logs a lease that it gave back when it had to end."""
DELETED: Final = "the task was deleted while it was running"
"""How the reason begins of a lease that ended as somebody deleted its task."""
_WORKER_CODE: Final = "/queue_core/worker/"
_LIBRARY: Final = re.compile(r"/lib/python\d|/site-packages/|/dist-packages/|/queue_core/|^<")
_FRAME: Final = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
_TRACED: Final = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+)')
_ERROR: Final = re.compile(r"([A-Za-z_][\w.]{0,200})(?::|$)")

Entry: TypeAlias = dict[str, object]


@value
class HangingCall:
    """A call of a handler that ran on without its lease; `place` is the line of the user's code that it was at."""

    queue: str
    task: str
    tag: str | None
    lease_number: int
    handler: str
    place: str
    seconds: float
    is_deleted: bool = False
    """Its lease ended as somebody deleted its task."""


@value
class LastWords:
    """The part of a worker's log that is about its end.

    Args:
        reason: why it ended, in one line; "" where it said nothing.
        stuck: calls that it gave up waiting for.
        lost: calls that had lost their lease, of which nothing more is known.
        unfinished: calls that were not done when it had to end: it gave their tasks back.
        timed_out: calls that ran beyond their timeout.
    """

    reason: str = ""
    stuck: tuple[HangingCall, ...] = ()
    lost: tuple[HangingCall, ...] = ()
    unfinished: tuple[HangingCall, ...] = ()
    timed_out: tuple[HangingCall, ...] = ()

    @property
    def hanging(self) -> tuple[HangingCall, ...]:
        """The calls that hang, as far as is known."""
        return self.stuck or self.lost

    @property
    def condition(self) -> str:
        """The call that hangs, for a worker that still lives; "" where it named none."""
        if not self.hanging:
            return ""
        call = self.hanging[-1]
        return f"{call.handler} runs on without its lease{f', at {call.place}' if call.place else ''}"


def last_words_of(lines: Sequence[str]) -> LastWords:
    """Return what the last lines of a worker's output say of its end."""
    reason, failed = "", ""
    calls: dict[str, dict[tuple[str, int], HangingCall]] = {kind: {} for kind in _KINDS}
    for line in lines:
        entry = _entry(line)
        match entry.get("event"):
            case "worker.drained":
                reason = failed or _text(entry, "reason")
            case "worker.refused":
                reason = _text(entry, "reason")
            case "worker.failed":
                reason = failed = f"an internal error in its {_text(entry, 'thread')}{_error(line, entry)}"
            case _ if entry.get("task") and (kind := _kind(entry)):
                call = _call(entry)
                calls[kind][call.task, call.lease_number] = call
    return LastWords(_one_line(reason), *(tuple(calls[kind].values()) for kind in _KINDS))


def last_traceback(lines: Sequence[str]) -> str:
    """Return the error of the Python traceback that the last lines are, as `ValueError (tasks.py:14)`; "" for none.

    Its text is left out: it may quote a payload.
    """
    traceback: list[str] = []
    for line in lines:
        if line.startswith("Traceback (most recent call last):"):
            traceback = [line]
        elif traceback:
            traceback.append(line)
    frames = [frame for line in traceback if (frame := _TRACED.match(line))]
    said = next((line for line in traceback[1:] if line and not line[0].isspace()), "")
    error = _ERROR.match(said)
    if error is None or not frames:
        return ""
    frame = next((one for one in reversed(frames) if not _LIBRARY.search(one["file"])), frames[-1])
    return f"{error[1].rpartition('.')[2]} ({PurePath(frame['file']).name}:{frame['line']})"


def whole_line(line: str) -> str:
    """Return a log line as valid JSON, of one that was cut what is left of it; other output as it is."""
    entry = _entry(line)
    return json.dumps(entry, ensure_ascii=False) if entry else line


def place_in_stack(stack: Sequence[str]) -> str:
    """Return the line at which a handler stands, as `tasks.py:14 in resize`, from the stacks of a worker's threads.

    It is the innermost line of the user's code in the thread in which the worker called it; "" where none did.
    """
    for thread in _threads(stack):
        above = [frame for frame in thread[: _depth_of_worker(thread)] if not _LIBRARY.search(frame["file"])]
        if above and len(thread) > _depth_of_worker(thread):
            frame = above[0]
            return f"{PurePath(frame['file']).name}:{frame['line']} in {frame['function']}"
    return ""


def _depth_of_worker(thread: Sequence[re.Match[str]]) -> int:
    """Return how many calls, from the innermost on, are not the worker's own."""
    return next((depth for depth, frame in enumerate(thread) if _WORKER_CODE in frame["file"]), len(thread))


def _threads(stack: Sequence[str]) -> list[list[re.Match[str]]]:
    """Return the frames of each thread, innermost first."""
    threads: list[list[re.Match[str]]] = [[]]
    for line in stack:
        frame = _FRAME.match(line)
        if frame is None:
            threads.append([])
        else:
            threads[-1].append(frame)
    return threads


def folded_stack(stack: Sequence[str]) -> list[str]:
    """Return the stacks for people: a worker's own calls, which lead to the handler, are counted, not listed."""
    lines: list[str] = []
    folded = 0
    for line in [*stack, ""]:
        frame = _FRAME.match(line)
        if frame is not None and (folded or _WORKER_CODE in frame["file"]):
            folded += 1
            continue
        if folded:
            lines.append(f"  ... and {counted(folded, 'call')} of the worker itself")
        folded = 0
        lines += [line] if line else []
    return lines


def _kind(entry: Entry) -> str:
    """Return what an entry says of a call, as the fields of `LastWords` are named; "" for nothing."""
    match entry.get("event"):
        case "handler.stuck":
            return "stuck"
        case "handler.timed_out":
            return "timed_out"
        case "lease.lost":
            return "unfinished" if entry.get("reason") == GIVEN_BACK else "lost"
    return ""


def _call(entry: Entry) -> HangingCall:
    number, seconds, tag = entry.get("lease_number"), entry.get("seconds"), entry.get("tag")
    return HangingCall(
        _text(entry, "queue"),
        _text(entry, "task"),
        tag if isinstance(tag, str) else None,
        number if isinstance(number, int) else 1,
        _text(entry, "handler"),
        _text(entry, "place"),
        float(seconds) if isinstance(seconds, int | float) else 0.0,
        _text(entry, "reason").startswith(DELETED),
    )


def _entry(line: str) -> Entry:
    """Return a log line's fields, of one that was cut those before the cut; none for other output."""
    if not line.startswith('{"'):
        return {}
    # A cut falls into a text, as a rule; else the field it fell into is left out.
    for text in (line, line + '"}', line[: max(0, line.rfind(',"'))] + "}"):
        try:
            found = json.loads(text)
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}
    return {}


def _text(entry: Entry, name: str) -> str:
    known = entry.get(name)
    return known if isinstance(known, str) else ""


def _error(line: str, entry: Entry) -> str:
    """Return the exception at the end of an entry's traceback; of one that was cut, where it is."""
    lines = _text(entry, "traceback").strip().splitlines()
    return f": {lines[-1]}" if lines and line.endswith("}") else "; its log has the traceback"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARS else f"{line[: MAX_REASON_CHARS - 3]}..."
