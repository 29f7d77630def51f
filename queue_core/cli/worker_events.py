"""Turn what workers log into sentences for people: failures with the user's part of their traceback, warnings. Pure."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from queue_core.cli.event_lines import (
    EventLine,
    Mark,
    again_in,
    event_words,
    folded_traceback,
    is_library_file,
    of_tasks,
    pairs_of,
    short_path,
)
from queue_core.errors import AppImportError
from queue_core.process.logs import PROGRAM_LOGGED
from queue_core.process.wording import counted, shown_seconds
from queue_core.semantics import retry_delay_seconds
from queue_core.task import QueueSpec
from queue_core.worker import events
from queue_core.worker.events import DELETED

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_ABOUT: Final = frozenset(
    {"timestamp", "level", "event", "worker", "pool", "queue", "tag", "lease_number", "traceback", "exception"}
)
"""Fields that a line of a program's own log leaves out: its prefix says them, or its lines below."""
_SAYING: Final = ("sentence", "message", "reason", "why", "error", "detail")
"""Fields that are a sentence; the first that is there is shown."""
MAX_NAMED: Final = 3
"""Tasks that one sentence names at most."""
_TRACEBACKS: Final = ("traceback", "exception")
_NO_APP: Final = AppImportError.__name__


@dataclass(frozen=True, slots=True)
class EventReader:
    """A reader of log entries: the queues as they are set, and how much is shown.

    `level`: the least that is shown; at debug all fields and whole tracebacks are. `folder`: where the program is.
    `is_alone`: the worker is the program itself: its start and its end are told too.
    """

    queues: Mapping[str, QueueSpec] = field(default_factory=dict)
    level: str = "info"
    folder: Path | None = None
    is_alone: bool = False

    @property
    def is_whole(self) -> bool:
        """True where everything is shown."""
        return self.level == "debug"

    def shows(self, level: str) -> bool:
        """Return whether entries of a level are shown."""
        return level not in LEVELS or LEVELS.index(level) >= LEVELS.index(self.level)

    def path(self, path: str) -> str:
        """Return a path as its program's folder has it, unless all is shown."""
        return path if self.is_whole else short_path(path, self.folder)

    def traceback(self, entry: Mapping[str, object]) -> tuple[str, ...]:
        """Return the lines of an entry's traceback, folded unless all is shown."""
        text = next((str(entry[name]) for name in _TRACEBACKS if entry.get(name)), "")
        return tuple(folded_traceback(text, folder=self.folder, is_whole=self.is_whole)) if text else ()


def worker_line(entry: Mapping[str, object], reader: EventReader, *, name: str = "") -> EventLine | None:
    """Return the line of an entry in a worker's log; None for what is no news to a person.

    `name`: the worker's, as the line shows it. An entry of the program's own log is shown as its output.
    """
    event, level = str(entry.get("event")), str(entry.get("level") or "info")
    if not reader.shows(level) or (_repeats_death(entry) and not (reader.is_alone or reader.is_whole)):
        return None
    if _repeats_refusal(entry) and not reader.is_whole:
        return None
    if reader.is_alone and event in _OF_ITSELF:
        line = _OF_ITSELF[event](entry, reader)
    elif event in _SENTENCES:
        line = _SENTENCES[event](entry, reader)
    elif event in _NAMES:
        if level in {"debug", "info"} and not reader.is_whole:
            return None
        line = plain_line(entry, reader)
    else:
        line = _programs(entry, reader)
    return replace(line, name=name)


def _repeats_death(entry: Mapping[str, object]) -> bool:
    """Return whether the line of the worker's end, which a supervisor tells, says the same."""
    event = entry.get("event")
    if event == events.HANDLER_TIMED_OUT:  # of a task, or of the worker that ends for it
        return entry.get("task") is None
    return event == events.HANDLER_STUCK or (event == events.WORKER_REFUSED and entry.get("error") == _NO_APP)


def _repeats_refusal(entry: Mapping[str, object]) -> bool:
    """Return whether it is the end of a worker whose refusal was told with its error just before."""
    return entry.get("event") == events.WORKER_REFUSED and entry.get("error") is None


def plain_line(entry: Mapping[str, object], reader: EventReader) -> EventLine:
    """Return an entry as a line: its field that is a sentence, with the event before all but `sentence` itself."""
    level = str(entry.get("level") or "info")
    marks: dict[str, Mark] = {"warning": "!", "error": "x", "critical": "x"}
    saying = next((field for field in _SAYING if isinstance(entry.get(field), str) and entry[field]), "")
    said = event_words(str(entry.get("event")))
    if saying == "sentence":
        said = str(entry[saying])
    elif saying:
        said += f": {entry[saying]}"
    task = entry.get("task")
    if task is not None and saying != "sentence":
        said = f"task {task}: {said}"
    if reader.is_whole:
        others = pairs_of(entry, without=("timestamp", "level", "event", "traceback", "exception", saying))
        said += f"   {others}" if others else ""
    return EventLine(said, mark=marks.get(level, ""), more=reader.traceback(entry))


def _programs(entry: Mapping[str, object], reader: EventReader) -> EventLine:
    """Return an entry of the user's program: its own words, then its own fields."""
    level = str(entry.get("level") or "info")
    left_out = set(_ABOUT)
    said = str(entry.get("event"))
    if said == PROGRAM_LOGGED:
        said = str(entry.get("message"))
        left_out |= {"message", "logger", "exc_info"}
    pairs = " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)}"
        for name, value in entry.items()
        if name not in left_out and value is not None
    )
    head = f"{level}: " if level in {"warning", "error", "critical"} else ""
    return EventLine(f"{head}{said}{f'   {pairs}' if pairs else ''}", mark="|", more=reader.traceback(entry))


def _failed(entry: Mapping[str, object], reader: EventReader) -> EventLine:
    error, message = str(entry.get("error") or ""), str(entry.get("message") or entry.get("reason") or "")
    place = str(entry.get("place") or "")
    first = message.split("\n", maxsplit=1)[0].strip()
    said = ": ".join(part for part in (error, first) if part) or "its handler failed"
    return _failure(entry, reader, "failed", said, place, (error, place))


def _timed_out(entry: Mapping[str, object], reader: EventReader) -> EventLine:
    if entry.get("task") is None:
        return EventLine(f"ends: {entry.get('reason')}", mark="x")
    seconds, place = entry.get("timeout_seconds"), str(entry.get("place") or "")
    limit = f" of {shown_seconds(seconds)}" if isinstance(seconds, int | float) else ""
    line = _failure(entry, reader, "ran beyond its timeout", f"the limit{limit} is over", place, ("timeout", place))
    return replace(line, more=_stood_at(str(entry.get("where") or ""), place, reader))


def _stood_at(where: str, place: str, reader: EventReader) -> tuple[str, ...]:
    """Return the lines of the user's program at which a handler stood, innermost first, if there are others than one.

    `where`: as a worker logs it, `/srv/tasks.py:14 in resize < ...`.
    """
    frames = where.split(" < ") if where else []
    own = [frame for frame in frames if not is_library_file(frame.rpartition(":")[0])]
    if reader.is_whole:
        own = frames
    elif len(own) <= 1 and place:
        return ()
    return tuple(f"{'it stood at' if at == 0 else 'called at'} {reader.path(frame)}" for at, frame in enumerate(own))


def _gave_up(entry: Mapping[str, object], _reader: EventReader) -> EventLine:
    place = str(entry.get("place") or "")
    said = f"{_tasks(entry)} was given up by its handler: {entry.get('reason')}{f', {place}' if place else ''}"
    kind = ("gave_up", str(entry.get("handler")), place)
    short = f"given up by {entry.get('handler')}{f', {place}' if place else ''}"
    return EventLine(f"{said}; it is dead", mark="x", hint=_redrive(entry), kind=kind, short=short)


def _failure(
    entry: Mapping[str, object], reader: EventReader, verb: str, said: str, place: str, kind: tuple[str, ...]
) -> EventLine:
    number = entry.get("lease_number")
    spec = reader.queues.get(str(entry.get("queue")))
    most = entry.get("attempts") or (spec.max_leases if spec is not None else None)
    text = f"{_tasks(entry)} {verb}"
    if isinstance(number, int):
        text += f" (lease {number}{f' of {most}' if isinstance(most, int) and number <= most else ''})"
    text += f": {said}{f', {place}' if place else ''}"
    again, is_answered = entry.get("again_seconds"), entry.get("level") == "info"  # by what its handler maps it to
    is_last = isinstance(number, int) and isinstance(most, int) and number >= most and not is_answered
    if again is None and spec is not None and isinstance(number, int) and not is_answered:
        again = retry_delay_seconds(spec, leases=number, jitter=0.0)
    if is_last:
        text += (
            "; it is dead"
            if spec is None or spec.on_exhausted == "dead"
            else "; it is deleted, as its leases are used up"
        )
    elif isinstance(again, int | float):
        text += f"; {again_in(again)}"
    return EventLine(
        text,
        mark="x",
        more=reader.traceback(entry),
        hint=_redrive(entry) if is_last else "",
        kind=(*kind, str(entry.get("handler")), str(entry.get("queue")), "dead" if is_last else ""),
        short=f"{said.split(': ', maxsplit=1)[0]}{f', {place}' if place else ''}{'; dead now' if is_last else ''}",
    )


def finishing(entry: Mapping[str, object], named: Sequence[str], *, again: str) -> str:
    """Return which tasks are being finished, for how long at most, and what a second Ctrl-C does; "" for none.

    `named`: some of them in words; `entry` has their number and the grace.
    """
    count, grace = entry.get("held_total"), entry.get("grace_seconds")
    total = count if isinstance(count, int) else len(named)
    if not total:
        return ""
    more = [f"{total - len(named):,} more"] if named and total > len(named) else []
    what = f" ({'; '.join([*named, *more])})" if named else ""
    at_most = f", for at most {shown_seconds(float(grace))}" if isinstance(grace, int | float) else ""
    return f"Finishing {counted(total, 'task')}{what}{at_most}. {again}"


def unfinished_tasks(entry: Mapping[str, object]) -> list[str]:
    """Return the tasks of an entry that are being finished, in words: `resize-d2v, task 9, 8 s so far`."""
    held = entry.get("held")
    named = []
    for one in (held if isinstance(held, list) else ())[:MAX_NAMED]:
        seconds = one.get("seconds")
        so_far = f"{shown_seconds(float(seconds))} so far" if isinstance(seconds, int | float) else ""
        named.append(", ".join(part for part in (one.get("worker"), f"task {one.get('task')}", so_far) if part))
    return named


def _began(entry: Mapping[str, object], _reader: EventReader) -> EventLine:
    tags = entry.get("tags")
    of = f", tags {', '.join(map(str, tags))}" if isinstance(tags, list) else f", {tags} tasks"
    at_a_time = entry.get("concurrency")
    number = counted(at_a_time if isinstance(at_a_time, int) else 1, "task")
    return EventLine(f"Works on {entry.get('queue')}{of}, {number} at a time. Ctrl-C lets it finish.")


def _draining(entry: Mapping[str, object], _reader: EventReader) -> EventLine:
    reason = str(entry.get("reason"))
    count = entry.get("held_total")
    if reason.endswith(" again"):
        number = counted(count if isinstance(count, int) else 0, "task")
        return EventLine(f"Gives back {number}: you asked twice.")
    text = finishing(entry, unfinished_tasks(entry), again="Ctrl-C again gives it back at once.")
    return EventLine(text or f"Stopping: {reason}.")


def _drained(entry: Mapping[str, object], _reader: EventReader) -> EventLine:
    tasks, seconds = entry.get("tasks"), entry.get("seconds")
    after = f" in {shown_seconds(float(seconds))}" if isinstance(seconds, int | float) else ""
    return EventLine(f"Stopped. {counted(tasks if isinstance(tasks, int) else 0, 'task')} handled{after}.")


def _recycled(entry: Mapping[str, object], _reader: EventReader) -> EventLine:
    return EventLine(f"Starts afresh: {entry.get('reason')}.")


def _refused(entry: Mapping[str, object], reader: EventReader) -> EventLine:
    return EventLine(f"can't work: {entry.get('reason')}", mark="x", more=reader.traceback(entry))


def _lost(entry: Mapping[str, object], _reader: EventReader) -> EventLine:
    if entry.get("task") is None:
        count = entry.get("count")
        number = count if isinstance(count, int) else 1
        return EventLine(f"lost {counted(number, 'lease')}: {entry.get('reason')}", mark="!")
    reason = str(entry.get("reason"))
    if reason.startswith(DELETED):
        who = reason.removeprefix(DELETED).removeprefix(": deleted")
        return EventLine(f"task {entry.get('task')} was deleted while it was running{who}", mark="!")
    return EventLine(f"lost the lease of task {entry.get('task')}: {reason}", mark="!")


def _unreached(entry: Mapping[str, object], _reader: EventReader) -> EventLine:
    return EventLine(f"the queue does not answer: {entry.get('error')}; it is tried again", mark="!")


def _reached(entry: Mapping[str, object], _reader: EventReader) -> EventLine:
    seconds = entry.get("seconds")
    after = f" after {shown_seconds(float(seconds))}" if isinstance(seconds, int | float) else ""
    return EventLine(f"the queue answers again{after}")


def _tasks(entry: Mapping[str, object]) -> str:
    count = entry.get("count")
    return of_tasks(count if isinstance(count, int) else 1, entry.get("task"))


def _redrive(entry: Mapping[str, object]) -> str:
    return f"towline redrive {entry.get('queue')} --named {entry.get('task')}" if entry.get("queue") else ""


_SENTENCES: Final[Mapping[str, Callable[[Mapping[str, object], EventReader], EventLine]]] = {
    events.HANDLER_FAILED: _failed,
    events.HANDLER_TIMED_OUT: _timed_out,
    events.HANDLER_GAVE_UP: _gave_up,
    events.WORKER_REFUSED: _refused,
    events.LEASE_LOST: _lost,
    events.QUEUE_UNREACHED: _unreached,
    events.QUEUE_REACHED: _reached,
}
_OF_ITSELF: Final[Mapping[str, Callable[[Mapping[str, object], EventReader], EventLine]]] = {
    events.WORKER_STARTED: _began,
    events.WORKER_DRAINING: _draining,
    events.WORKER_DRAINED: _drained,
    events.WORKER_RECYCLED: _recycled,
}
_NAMES: Final = frozenset(name for name in vars(events).values() if isinstance(name, str) and "." in name)
