"""The verbs of a store's schedules, as operations of a unit of work.

A tick is added in the transaction that notes it, where the store has transactions of several verbs; else its task's
name refuses a second add (ADR 38). So any number of callers may add ticks at the same time, and each is added once.

`now` is the wall clock at the store, as ticks are meant by it: store time may lag behind it (ADR 36).
"""

from collections.abc import Collection, Iterable, Sequence

from queue_core.clock import Clock, Instant, StepsClock, after
from queue_core.errors import InvalidRequestError, QueueError, StoreError, UnknownQueueError, UnknownScheduleError
from queue_core.schedules.book import (
    MAX_SCHEDULES,
    ScheduleBook,
    ScheduleChanges,
    decode_book,
    encode_marks,
    encode_schedules,
)
from queue_core.schedules.check import check_schedule
from queue_core.schedules.report import (
    AddedTick,
    ComingTick,
    MissedTicks,
    ScheduleStatus,
    ScheduleTrouble,
    SkippedTicks,
    TickReport,
)
from queue_core.schedules.schedule import ON_TIME_SECONDS, DueTicks, Schedule, ticks_due
from queue_core.schedules.times import tick_text
from queue_core.task import ANY, TaskState
from queue_core.unit.unit_of_work import UnitOfWork

DECLARED = ":schedules"
MARKS = ":schedule-marks"
"""The sessions whose answers are the book's two parts; no client's session has a colon."""
LIVE = frozenset(TaskState) - {TaskState.DEAD}
"""The states of a task that is waiting or running."""
NO_LEADER = "no supervisor adds its ticks: run `towline up`, or `towline supervise` beside the server"


def wall_clock(clock: Clock) -> Instant:
    """Return the wall clock's time at the store."""
    now = clock.now()
    return after(now, clock.steps().lag_seconds) if isinstance(clock, StepsClock) else now


def declare_schedules(
    work: UnitOfWork, schedules: Sequence[Schedule], *, keep: Collection[str], now: Instant
) -> ScheduleChanges:
    """Put these schedules in place of all others, but those of the origins `keep`; return the changes."""
    if len(schedules) > MAX_SCHEDULES:
        raise InvalidRequestError(f"a store has at most {MAX_SCHEDULES:,} schedules: {len(schedules):,}")
    for schedule in schedules:
        check_schedule(schedule)
    before = read_book(work)
    book, changes = before.declared(schedules, keep=keep, now=now)
    if changes.is_any:
        _keep(work, DECLARED, encode_schedules(book))
        _keep(work, MARKS, encode_marks(book))
    return changes


def add_ticks(work: UnitOfWork, *, now: Instant) -> TickReport:
    """Add the tasks of all ticks that are due; a schedule that can't be served now keeps nothing else up."""
    book = read_book(work)
    added: list[AddedTick] = []
    missed: list[MissedTicks] = []
    skipped: list[SkippedTicks] = []
    troubles: list[ScheduleTrouble] = []
    has_more = went_back = has_changed = False
    for name, schedule in book.schedules.items():
        mark = book.mark(name, now=now)
        if mark.paused_at is not None:
            continue
        due = ticks_due(schedule, handled=mark.handled, now=now)
        if not due.is_any and name in book.marks:
            continue
        try:
            if schedule.overlap == "skip" and due.ticks:
                due = due.without_overlap(is_last_live=_is_live(work, schedule, mark.last_task))
            added += _add(work, schedule, due)
        except StoreError:
            raise
        except QueueError as error:
            troubles.append(ScheduleTrouble(name, _why(schedule, error)))
            continue
        if due.missed and due.first_missed is not None and due.last_missed is not None:
            missed.append(
                MissedTicks(name, schedule.queue, due.missed, due.first_missed, due.last_missed, schedule.catch_up)
            )
        book = book.handled(name, due, now=now)
        if due.skipped:
            first, last, task = due.skipped[0], due.skipped[-1], book.marks[name].last_task
            skipped.append(SkippedTicks(name, schedule.queue, len(due.skipped), first, last, task))
        has_more, went_back, has_changed = has_more or due.has_more, went_back or due.went_back, True
    if has_changed:
        _keep(work, MARKS, encode_marks(book))
    coming = [
        ComingTick(name, schedule.queue, schedule.tag, tick)
        for name, schedule in book.schedules.items()
        if (tick := book.next_tick(name, now=now)) is not None
    ]
    return TickReport(
        now,
        tuple(added),
        tuple(missed),
        tuple(troubles),
        tuple(coming),
        went_back,
        has_more,
        tuple(skipped),
    )


def run_schedule(work: UnitOfWork, name: str, *, now: Instant) -> AddedTick:
    """Add a task of a schedule now, beside its ticks, paused or not."""
    schedule = _schedule(read_book(work), name)
    task = f"{name}-manual-{tick_text(now)[:-1]}-{now % 1_000_000:06}Z"
    (added,) = work.add(schedule.queue, [schedule.task(task, eta=work.now)])
    return AddedTick(name, schedule.queue, now, added.name, added.status == "added")


def pause_schedule(work: UnitOfWork, name: str, *, now: Instant) -> ScheduleStatus:
    """Add no more ticks of a schedule until it is resumed."""
    book = read_book(work)
    _schedule(book, name)
    return _changed(work, book, book.paused(name, now=now), name, now=now)


def resume_schedule(work: UnitOfWork, name: str, *, now: Instant) -> ScheduleStatus:
    """Add a schedule's ticks again, from now on."""
    book = read_book(work)
    _schedule(book, name)
    return _changed(work, book, book.resumed(name, now=now), name, now=now)


def list_schedules(work: UnitOfWork, *, now: Instant) -> list[ScheduleStatus]:
    """Return all schedules, by name."""
    book = read_book(work)
    return [_status(work, book, name, now=now) for name in sorted(book.schedules)]


def read_book(work: UnitOfWork) -> ScheduleBook:
    """Return the book of the store's schedules."""
    declared, marks = (work.transaction.last_answer(session) for session in (DECLARED, MARKS))
    return decode_book(declared and declared[1], marks and marks[1])


def _keep(work: UnitOfWork, session: str, kept: bytes) -> None:
    """Keep a part of the book. Raises `StoreUnavailableError` when another caller has changed it meanwhile."""
    last = work.transaction.last_answer(session)
    work.transaction.keep_answer(session, last[0] + 1 if last else 1, kept, now=work.now, kept="always")


def _add(work: UnitOfWork, schedule: Schedule, due: DueTicks) -> Iterable[AddedTick]:
    """Add the tasks of the ticks that are due. Their eta is the tick, but never beyond store time."""
    if not due.ticks:
        return ()
    tasks = [schedule.task(schedule.task_name(tick), eta=Instant(min(tick, work.now))) for tick in due.ticks]
    outcomes = work.add(schedule.queue, tasks)
    return [
        AddedTick(schedule.name, schedule.queue, tick, outcome.name, outcome.status == "added")
        for tick, outcome in zip(due.ticks, outcomes, strict=True)
    ]


def _is_live(work: UnitOfWork, schedule: Schedule, task: str) -> bool:
    """Return whether a task of a schedule is waiting or running; one that failed for good is neither."""
    if not task:
        return False
    found = work.transaction.peek(schedule.queue, ANY, LIVE, names=[task], limit=1, payload_bytes=0, now=work.now)
    return bool(found.tasks)


def _schedule(book: ScheduleBook, name: str) -> Schedule:
    if name not in book.schedules:
        raise UnknownScheduleError.among(name, sorted(book.schedules)[:5])
    return book.schedules[name]


def _changed(work: UnitOfWork, before: ScheduleBook, book: ScheduleBook, name: str, *, now: Instant) -> ScheduleStatus:
    if book is not before:
        _keep(work, MARKS, encode_marks(book))
    return _status(work, book, name, now=now)


def _status(work: UnitOfWork, book: ScheduleBook, name: str, *, now: Instant) -> ScheduleStatus:
    schedule, mark = book.schedules[name], book.mark(name, now=now)
    next_tick = book.next_tick(name, now=now)
    trouble = ""
    try:
        work.transaction.queue(schedule.queue)
    except QueueError as error:
        trouble = _why(schedule, error)
    if not trouble and next_tick is not None and next_tick < after(now, -ON_TIME_SECONDS):
        trouble = NO_LEADER
    return ScheduleStatus(
        name,
        schedule.queue,
        schedule.cron,
        schedule.every,
        schedule.timezone,
        schedule.tag,
        schedule.catch_up,
        schedule.origin,
        next_tick,
        mark.last_tick,
        mark.last_task,
        mark.missed,
        mark.last_missed,
        mark.paused_at,
        trouble,
        schedule.overlap,
        mark.skipped,
        mark.last_skipped,
    )


def _why(schedule: Schedule, error: QueueError) -> str:
    if isinstance(error, UnknownQueueError):
        return f"there is no queue '{schedule.queue}': make it, or take the schedule out"
    return str(error)
