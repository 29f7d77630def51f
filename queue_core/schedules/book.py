"""The book of a store's schedules: how they are declared, and how far each has come. Pure.

It is kept in two parts, so that a tick writes no payload: the declarations, and a mark for each schedule (ADR 38).
"""

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic_core import from_json, to_json

from queue_core.clock import Instant
from queue_core.schedules.schedule import DueTicks, Schedule

MAX_SCHEDULES = 1_000
"""Schedules of one store: all of their marks are written at each tick."""


@dataclass(frozen=True, slots=True)
class ScheduleMark:
    """How far a schedule has come.

    Args:
        handled: all ticks up to this instant are added or given up.
        last_tick: the last tick that was added, and `last_task` the name of its task.
        missed: how many ticks were given up, since it was declared.
        paused_at: since when it is paused; None: it is not.
        skipped: how many ticks were skipped because they overlapped, since it was declared.
    """

    handled: Instant
    last_tick: Instant | None = None
    last_task: str = ""
    missed: int = 0
    last_missed: Instant | None = None
    paused_at: Instant | None = None
    skipped: int = 0
    last_skipped: Instant | None = None


@dataclass(frozen=True, slots=True)
class ScheduleChanges:
    """The names of schedules that a declaration added, changed and removed."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def is_any(self) -> bool:
        """Return whether there was a change."""
        return bool(self.added or self.changed or self.removed)


@dataclass(frozen=True, slots=True)
class ScheduleBook:
    """All schedules of a store, by name, and their marks."""

    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    marks: Mapping[str, ScheduleMark] = field(default_factory=dict)

    def mark(self, name: str, *, now: Instant) -> ScheduleMark:
        """Return a schedule's mark; one without a mark begins now."""
        return self.marks.get(name) or ScheduleMark(now)

    def declared(
        self, schedules: Iterable[Schedule], *, keep: Collection[str], now: Instant
    ) -> tuple["ScheduleBook", ScheduleChanges]:
        """Return the book with these schedules in place of all others, and the changes.

        A new schedule, and one whose times changed, begin now: ticks from before were never missed. It stays paused.

        Args:
            keep: origins whose schedules stay as they are, as nothing is known of them now.
        """
        new = {one.name: one for one in schedules}
        kept = {name: one for name, one in self.schedules.items() if name not in new and one.origin in keep}
        found = {**kept, **new}
        marks = {}
        added, changed = [], []
        for name, schedule in found.items():
            before = self.schedules.get(name)
            mark = self.mark(name, now=now)
            if before is None:
                added.append(name)
                mark = ScheduleMark(now)
            elif before != schedule:
                changed.append(name)
                if before.rhythm != schedule.rhythm:
                    mark = replace(mark, handled=now)
            marks[name] = mark
        removed = [name for name in self.schedules if name not in found]
        return ScheduleBook(found, marks), ScheduleChanges(tuple(added), tuple(changed), tuple(removed))

    def handled(self, name: str, due: DueTicks, *, now: Instant) -> "ScheduleBook":
        """Return the book after what was due of a schedule is done."""
        mark = replace(self.mark(name, now=now), handled=due.handled)
        if due.ticks:
            mark = replace(mark, last_tick=due.ticks[-1], last_task=self.schedules[name].task_name(due.ticks[-1]))
        if due.missed:
            mark = replace(mark, missed=mark.missed + due.missed, last_missed=due.last_missed)
        if due.skipped:
            mark = replace(mark, skipped=mark.skipped + len(due.skipped), last_skipped=due.skipped[-1])
        return replace(self, marks={**self.marks, name: mark})

    def paused(self, name: str, *, now: Instant) -> "ScheduleBook":
        """Return the book with a schedule paused; the same book if it is."""
        mark = self.mark(name, now=now)
        if mark.paused_at is not None:
            return self
        return replace(self, marks={**self.marks, name: replace(mark, paused_at=now)})

    def resumed(self, name: str, *, now: Instant) -> "ScheduleBook":
        """Return the book with a schedule running again from now on; ticks of its pause were not missed."""
        mark = self.mark(name, now=now)
        if mark.paused_at is None:
            return self
        return replace(self, marks={**self.marks, name: replace(mark, paused_at=None, handled=now)})

    def next_tick(self, name: str, *, now: Instant) -> Instant | None:
        """Return a schedule's next tick that is not handled; None while it is paused, or if there is none."""
        mark = self.mark(name, now=now)
        return None if mark.paused_at is not None else self.schedules[name].next_tick(after=mark.handled)


# -- as bytes and as JSON ----------------------------------------------------------------------------------------------


def schedule_json(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON: its payload in base64; without `overlap` as an earlier version knows it, if it can."""
    json = {**asdict(schedule), "payload": b64encode(schedule.payload).decode()}
    if schedule.overlap == "queue":
        del json["overlap"]
    return json


def schedule_of(json: Mapping[str, Any]) -> Schedule:
    """Return the schedule that the JSON shows."""
    return Schedule(**{**json, "payload": b64decode(json.get("payload", ""))})


def encode_schedules(book: ScheduleBook) -> bytes:
    """Return the declarations as bytes."""
    return to_json([schedule_json(one) for one in book.schedules.values()])


def encode_marks(book: ScheduleBook) -> bytes:
    """Return the marks as bytes; each as an earlier version knows it, unless a tick of it was skipped."""
    return to_json({name: _mark_json(mark) for name, mark in book.marks.items()})


def _mark_json(mark: ScheduleMark) -> dict[str, Any]:
    json = asdict(mark)
    if not mark.skipped:
        del json["skipped"], json["last_skipped"]
    return json


def decode_book(schedules: bytes | None, marks: bytes | None) -> ScheduleBook:
    """Return the book of these parts; None: nothing was kept yet."""
    declared: Sequence[Mapping[str, Any]] = from_json(schedules) if schedules else []
    found: Mapping[str, Mapping[str, Any]] = from_json(marks) if marks else {}
    return ScheduleBook(
        {one["name"]: schedule_of(one) for one in declared},
        {name: ScheduleMark(**mark) for name, mark in found.items()},
    )
