"""Turn what a supervisor logs into sentences for people: decisions, deaths, reloads, warnings. Pure.

Any event with a `sentence` is shown as that sentence, so that a new one needs nothing here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.base import events
from orchestrator.base.json_fields import count_in, list_in, mappings_of
from orchestrator.fleet.exits import ENDS_WELL, Cause
from orchestrator.fleet.figures import DRAINED
from orchestrator.fleet.quarantine import SOLO_MARK
from queue_core.cli.event_lines import EventLine, pairs_of
from queue_core.cli.worker_events import EventReader, finishing, plain_line, unfinished_tasks
from queue_core.process.wording import counted, shown_seconds

Entry = Mapping[str, object]

_BY_SIGNAL: Final = "ended by "
_TOLD_BY_THE_DEATH: Final = frozenset({events.LEASES_RELEASED, events.WORKER_CUT_SHORT, events.WORKER_KILLED})
"""Events that the line of a death tells."""
_NOT_IMPORTED: Final = "can't import "


@dataclass(frozen=True, slots=True)
class OrphanedTask:
    """A task that a worker held at its end; `fate`: `given back`, `lease ended`, `held back`, `dead` or `deleted`."""

    queue: str
    task: str
    fate: str = ""


def fleet_lines(entry: Entry, reader: EventReader) -> list[EventLine]:
    """Return the lines of an event; none for what is no news to a person. Deaths are `death_line`'s."""
    event, level = str(entry.get("event")), str(entry.get("level") or "info")
    if not reader.shows(level):
        return []
    name = short_name(str(entry.get("worker") or entry.get("pool") or ""))
    if event == events.WORKER_REAPED and not reader.is_whole:
        return []  # it ended well
    if isinstance(entry.get("sentence"), str):
        return [
            _named(plain_line(entry, reader), str(entry.get("pool") or entry.get("queue") or entry.get("worker") or ""))
        ]
    if event in _SENTENCES:
        return _SENTENCES[event](entry, reader)
    if not reader.is_whole and (level in {"debug", "info"} or event in _TOLD_BY_THE_DEATH):
        return []
    if event == events.TEMPLATE_LOST and str(entry.get("reason")).startswith(_NOT_IMPORTED):
        return []  # its pool's application can't be used, which is told with what comes next
    return [_named(plain_line(entry, reader), name)]


def is_death(entry: Entry) -> bool:
    """Return whether an event is the end of a worker that did not end well."""
    return entry.get("event") == events.WORKER_REAPED and entry.get("cause") not in set(ENDS_WELL)


def held_tasks(entry: Entry) -> list[OrphanedTask]:
    """Return the tasks that a dead worker held, as far as its event names them."""
    return [
        OrphanedTask(str(one.get("queue")), str(one.get("task")), str(one.get("fate")))
        for one in mappings_of(entry.get("tasks"))
    ]


def death_line(entry: Entry, fate: str) -> EventLine:
    """Return the line of a worker's death; `fate`: what became of the tasks it held, "" where there were none."""
    worker = short_name(str(entry.get("worker")))
    text = exit_summary(entry) + (f"; {fate}" if fate else "")
    return EventLine(text, name=worker, mark="x", hint=f"towline why-died {worker}")


def exit_summary(entry: Entry) -> str:
    """Return a worker's end in words, without what it held: `killed by SIGKILL`, `ended with exit code 3`."""
    cause, detail = entry.get("cause"), str(entry.get("detail") or "")
    if cause == Cause.SIGNALLED and detail.startswith(_BY_SIGNAL):
        return f"killed by {detail.removeprefix(_BY_SIGNAL)}"
    return f"ended with {detail}" if detail.startswith("exit code") else detail or f"ended: {cause}"


def fate_of(
    tasks: Sequence[OrphanedTask], *, held: int, restarted_after: float | None, is_stopping: bool = False
) -> str:
    """Return what became of the tasks that a dead worker held.

    `restarted_after`: seconds from the death until the last of them was restarted; None: not all of them were yet.
    """
    if not held:
        return ""
    whose = "its task" if held == 1 else f"its {held:,} tasks"
    verb = "is" if held == 1 else "are"
    fates = {task.fate for task in tasks}
    if fates == {"dead"}:
        return f"{whose} {verb} dead"
    if fates == {"deleted"}:
        return f"{whose} {'was' if held == 1 else 'were'} deleted while running"
    if fates == {"held back"}:
        return f"{whose} will run alone"
    if fates == {"lease ended"} and restarted_after is None:
        ready = "was ready again when its lease" if held == 1 else "were ready again when their leases"
        return f"{whose} {ready} ended"
    if restarted_after is not None:
        return f"{whose} {'was' if held == 1 else 'were'} restarted after {shown_seconds(restarted_after)}"
    return f"{whose} {verb} waiting in the queue" if is_stopping else f"{whose} {verb} waiting for another worker"


def short_name(worker: str) -> str:
    """Return a worker's name without what is added for one that runs alone; commands take its beginning."""
    return worker.partition(SOLO_MARK)[0]


def _decided(entry: Entry, reader: EventReader) -> list[EventLine]:
    current, target, why = entry.get("current"), entry.get("target"), str(entry.get("why"))
    limits = [str(limit) for limit in list_in(entry, "limits") if str(limit) not in why]
    notes = [str(note) for note in list_in(entry, "notes") if str(note).startswith("dry run")]
    if current == target and not reader.is_whole and "misconfigured" in list_in(entry, "limited_by"):
        return []  # the pool's own line told it
    said = "; ".join([why, *limits, *notes])
    text = f"stays at {target}: {said}" if current == target else f"{current} -> {target}: {said}"
    if reader.is_whole:
        text += f"   {pairs_of(entry, without=('timestamp', 'level', 'event', 'pool', 'current', 'target', 'why'))}"
    return [EventLine(text, name=str(entry.get("pool")))]


def _started(entry: Entry, _reader: EventReader) -> list[EventLine]:
    adopted = entry.get("adopted")
    if not isinstance(adopted, int) or not adopted:
        return []
    return [EventLine(f"Took over {counted(adopted, 'worker')} that an earlier supervisor left running.")]


def _standby(entry: Entry, _reader: EventReader) -> list[EventLine]:
    return [EventLine(f"Stands by, and starts no worker: {entry.get('why')}.", mark="!")]


def _reloaded(entry: Entry, _reader: EventReader) -> list[EventLine]:
    changes = mappings_of(entry.get("changes"))
    made = [str(queue) for queue in list_in(entry, "queues")]
    lines = [EventLine(_change(change), name=str(change.get("pool"))) for change in changes]
    lines += [EventLine(f"The queue {queue} was made.") for queue in made]
    waiting = [str(setting) for setting in list_in(entry, "next_start")]
    lines += [EventLine(not_in_force(setting), mark="!") for setting in waiting]
    if list_in(entry, "schedules"):
        return lines  # told when they are declared
    return lines or [EventLine("Settings reloaded: no changes.")]


def not_in_force(setting: str) -> str:
    """Return the sentence for a setting that is changed in the file and takes effect only at the next start."""
    return f"{setting} is changed in the settings file, and not in force until `towline up` is started again."


def _change(change: Entry) -> str:
    if change.get("kind") == "removed":
        return "removed from the settings; its workers finish what they hold"
    if change.get("kind") == "added":
        return "added to the settings"
    settings = change.get("settings")
    names = ", ".join(map(str, settings)) if isinstance(settings, list) else "settings"
    workers = "its workers are replaced, new before old" if change.get("replaces") else "no worker is replaced"
    return f"{names}{'' if '->' in names else ' changed'}; {workers}"


def _reload_refused(entry: Entry, _reader: EventReader) -> list[EventLine]:
    mistakes = tuple(str(mistake) for mistake in list_in(entry, "mistakes"))
    text = "The settings file can't be used, so the old settings stay:"
    return [EventLine(text, mark="x", more=mistakes, hint="towline check")]


def _overridden(entry: Entry, _reader: EventReader) -> list[EventLine]:
    overrides = entry.get("overrides")
    orders = pairs_of(overrides, without=()) if isinstance(overrides, dict) else ""
    return [EventLine(f"changed by an operator: {orders or 'back to its settings'}", name=str(entry.get("pool")))]


def _suspected(entry: Entry, _reader: EventReader) -> list[EventLine]:
    deaths = entry.get("deaths")
    died = counted(deaths, "worker") if isinstance(deaths, int) else "workers"
    text = f"task {entry.get('task')} was held by {died} that died: it is tried alone next, in a worker of its own"
    return [EventLine(text, name=str(entry.get("pool")), mark="!")]


def _condemned(entry: Entry, _reader: EventReader) -> list[EventLine]:
    text = f"task {entry.get('task')} is dead: {entry.get('why')}"
    hint = f"towline redrive {entry.get('queue')} --named {entry.get('task')}"
    return [EventLine(text, name=str(entry.get("pool")), mark="x", hint=hint)]


def _spawn_failed(entry: Entry, _reader: EventReader) -> list[EventLine]:
    return [EventLine(f"a worker can't be started: {entry.get('error')}", name=str(entry.get("pool")), mark="x")]


def _unresponsive(entry: Entry, _reader: EventReader) -> list[EventLine]:
    seconds, condition = entry.get("seconds"), entry.get("condition")
    so_long = f" for {shown_seconds(float(seconds))}" if isinstance(seconds, int | float) else ""
    text = str(condition or f"not responding{so_long}")
    return [EventLine(f"{text}; another worker takes its place", name=short_name(str(entry.get("worker"))), mark="!")]


def _source_unavailable(entry: Entry, _reader: EventReader) -> list[EventLine]:
    text = f"the queue does not answer, so no worker starts or ends until it does: {entry.get('error')}"
    return [EventLine(text, name=str(entry.get("pool") or entry.get("worker") or ""), mark="!")]


def _source_recovered(entry: Entry, _reader: EventReader) -> list[EventLine]:
    return [EventLine("the queue answers again", name=str(entry.get("pool") or ""))]


def _stopping(entry: Entry, _reader: EventReader) -> list[EventLine]:
    text = finishing(entry, unfinished_tasks(entry), again="Ctrl-C again ends it at once.")
    return [EventLine(text)] if text else []


def _counted(entry: Entry, _reader: EventReader) -> list[EventLine]:
    done, dead, waiting = (count_in(entry, name) for name in ("done", "dead", "waiting"))
    waits = "waits" if waiting == 1 else "wait"
    text = f"Stopped. {done:,} done, {dead:,} dead, {waiting:,} still {waits} in {entry.get('store')}."
    return [EventLine(text)]


def _named(line: EventLine, name: str) -> EventLine:
    return EventLine(line.text, name=name, mark=line.mark, more=line.more, hint=line.hint)


_SENTENCES: Final[Mapping[str, Callable[[Entry, EventReader], list[EventLine]]]] = {
    events.POOL_DECIDED: _decided,
    events.POOL_OVERRIDDEN: _overridden,
    events.SOURCE_RECOVERED: _source_recovered,
    events.SOURCE_UNAVAILABLE: _source_unavailable,
    events.SUPERVISOR_DRAINING: lambda _entry, _reader: [EventLine(f"{DRAINED[0].upper()}{DRAINED[1:]}.", mark="!")],
    events.SUPERVISOR_RELOADED: _reloaded,
    events.SUPERVISOR_RELOAD_REFUSED: _reload_refused,
    events.SUPERVISOR_STANDBY: _standby,
    events.SUPERVISOR_STARTED: _started,
    events.SUPERVISOR_STOPPING: _stopping,
    events.TASK_CONDEMNED: _condemned,
    events.TASK_SUSPECTED: _suspected,
    events.WORKER_SPAWN_FAILED: _spawn_failed,
    events.WORKER_UNRESPONSIVE: _unresponsive,
    events.WORK_COUNTED: _counted,
}
