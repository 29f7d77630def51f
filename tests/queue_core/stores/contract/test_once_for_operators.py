"""Calls of operators, administrators and supervisors take effect once, and a straggler of an answered call none."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Any

import pytest
from pydantic import TypeAdapter

from queue_core.errors import OutcomeUnknownError, QueueError, StoreError, StoreUnavailableError, UnknownQueueError
from queue_core.schedules.schedule import Schedule
from queue_core.server.fast_path import idempotent_operation
from queue_core.store import Store
from queue_core.task import ANY, NewTask, QueueSpec, TagFilter, TaskState
from queue_core.unit.locally import pieces_of
from queue_core.unit.once import once
from queue_core.unit.pieces import (
    CallProgress,
    Piece,
    RunPiece,
    failed_after,
    next_piece,
    run_pieces,
)
from queue_core.unit.queue_verbs import Purge, Redrive
from queue_core.unit.registration_verbs import register, registrations
from queue_core.unit.schedules import declare_schedules, pause_schedule, resume_schedule
from queue_core.unit.searches import ChangePlan, change_pieces, keep_plan, plan_of, read_page, total_of
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall, Release
from queue_core.verbs.change_verbs import PIECE_TASKS
from queue_core.verbs.criteria import ChangeTo, Scan, Search
from tests.support.stores.restored_tasks import opened_again
from tests.support.stores.task_builders import QUEUE, a_queue, stats

CALL, REPEAT = ClientCall("s", 1), ClientCall("s", 1, is_repeat=True)


def run(store: Store, step: Callable[[UnitOfWork], Any]) -> Any:
    return QueueService(store, clock=store.clock).run(step)


def make(store: Store, call: ClientCall, verb: Callable[[UnitOfWork], Any], answers: Any = bool) -> Any:
    """A try of a client's call, as a server runs it."""
    adapter = TypeAdapter(answers)
    operation = idempotent_operation(
        call, lambda work, call: once(work, call, verb, encode=adapter.dump_json, decode=adapter.validate_json)
    )
    return run(store, operation)


def piecewise(store: Store, call: ClientCall, pieces: RunPiece, *, most: int = 1_000) -> CallProgress:
    """A try of a call of several transactions, which stops after so many of them."""
    done = CallProgress()
    for _ in range(most):
        if done.is_over:
            break
        done = run(store, lambda work, done=done: next_piece(work, call, pieces, done=done))
    return done


def add(store: Store, *tasks: NewTask) -> None:
    for begin in range(0, len(tasks), 1_000):
        run(store, lambda work, begin=begin: work.add(QUEUE, tasks[begin : begin + 1_000]))


def is_paused(store: Store) -> bool:
    return stats(store).paused


def names(store: Store) -> list[str]:
    return [spec.name for spec in run(store, lambda work: work.transaction.queues())]


@dataclass(frozen=True)
class Verb:
    """A verb, what undoes it, and what shows that it was done."""

    make: Callable[[UnitOfWork], Any]
    undo: Callable[[UnitOfWork], Any]
    is_done: Callable[[Store], object]
    answers: Any = bool


def _limited(store: Store) -> object:
    return run(store, lambda work: work.transaction.storage()).limit_bytes


def _lead(work: UnitOfWork) -> bool:
    return work.lead("pool", "first", seconds=3_600)


def _leads(store: Store) -> object:
    """Whether the first holder leads, as another one finds when it asks for no time at all."""
    return not run(store, lambda work: work.lead("pool", "other", seconds=0))


def _registered(store: Store) -> object:
    return [one.name for one in run(store, lambda work: registrations(work, "supervisors"))]


VERBS = {
    "pause": Verb(
        lambda work: work.set_paused(QUEUE, "paused"), lambda work: work.set_paused(QUEUE, "running"), is_paused
    ),
    "put a queue": Verb(
        lambda work: work.put_queue(QueueSpec("new")),
        lambda work: work.transaction.delete_queue("new"),
        lambda store: "new" in names(store),
    ),
    "set a queue": Verb(
        lambda work: work.put_queue(QueueSpec(QUEUE, lease_seconds=7.0)),
        lambda work: work.put_queue(QueueSpec(QUEUE, lease_seconds=9.0)),
        lambda store: run(store, lambda work: work.transaction.queue(QUEUE)).lease_seconds == 7.0,
    ),
    "delete a queue": Verb(
        lambda work: work.transaction.delete_queue(QUEUE),
        lambda work: work.put_queue(QueueSpec(QUEUE)),
        lambda store: QUEUE not in names(store),
        int,
    ),
    "limit the storage": Verb(
        lambda work: work.set_storage_limit(1 << 30),
        lambda work: work.set_storage_limit(None),
        _limited,
        NoneType,
    ),
    "lead": Verb(_lead, lambda work: work.lead("pool", "first", seconds=0), _leads),
    "register": Verb(
        lambda work: register(work, "supervisors", "here", {"a": "1"}, seconds=60),
        lambda work: register(work, "supervisors", "here", {}, seconds=0),
        _registered,
        NoneType,
    ),
}


@pytest.fixture(params=VERBS.values(), ids=VERBS)
def verb(request: pytest.FixtureRequest) -> Verb:
    found: Verb = request.param
    return found


def test_a_repeat_gets_the_first_answer_and_changes_nothing(store: Store, verb: Verb) -> None:
    first = make(store, CALL, verb.make, verb.answers)
    assert verb.is_done(store)
    run(store, verb.undo)
    assert make(store, REPEAT, verb.make, verb.answers) == first
    assert not verb.is_done(store)


def test_a_straggler_changes_nothing_after_its_repeat_was_answered(store: Store, verb: Verb) -> None:
    make(store, REPEAT, verb.make, verb.answers)
    run(store, verb.undo)
    with suppress(StoreUnavailableError):
        make(store, CALL, verb.make, verb.answers)
    assert not verb.is_done(store)


def test_a_straggler_in_another_process_changes_nothing(store: Store, verb: Verb) -> None:
    if store.url == "memory:":
        pytest.skip("a memory: store lives in one process")
    other = opened_again(store)
    try:
        run(other, lambda work: work.transaction.queues())
        make(store, REPEAT, verb.make, verb.answers)
        run(store, verb.undo)
        with suppress(StoreUnavailableError):
            make(other, CALL, verb.make, verb.answers)
        assert not verb.is_done(store)
    finally:
        other.close()


def test_a_call_and_its_repeat_in_one_transaction_have_one_answer(store: Store, verb: Verb) -> None:
    adapter = TypeAdapter(verb.answers)

    def both(work: UnitOfWork) -> list[Any]:
        return [
            once(work, call, verb.make, encode=adapter.dump_json, decode=adapter.validate_json)
            for call in (CALL, REPEAT)
        ]

    first, again = run(store, both)
    assert first == again
    assert verb.is_done(store)


def test_a_repeat_that_was_refused_stays_refused_when_its_first_try_comes_late(store: Store) -> None:
    def pause(work: UnitOfWork) -> bool:
        return work.set_paused("later", "paused")

    with pytest.raises(QueueError):
        make(store, REPEAT, pause)
    a_queue(store, "later")
    with pytest.raises(QueueError):
        make(store, CALL, pause)
    assert not stats(store, queue="later").paused


def test_a_paused_schedule_is_not_paused_again_by_a_straggler(store: Store) -> None:
    schedule = Schedule("nightly", QUEUE, every=60)
    now = store.clock.now()
    run(store, lambda work: declare_schedules(work, [schedule], keep=(), now=now))

    def pause(work: UnitOfWork) -> bool:
        return pause_schedule(work, "nightly", now=now).paused_at is not None

    assert make(store, REPEAT, pause)
    status = run(store, lambda work: resume_schedule(work, "nightly", now=now))
    assert status.paused_at is None
    with suppress(StoreUnavailableError):
        make(store, CALL, pause)
    with suppress(StoreUnavailableError):
        make(store, REPEAT, pause)
    status = run(store, lambda work: resume_schedule(work, "nightly", now=now + 1))
    assert status.paused_at is None


def _skip_if_it_never_fails(store: Store) -> None:
    if store.url == "memory:":
        pytest.skip("a memory: store does not fail, and rolls nothing back")


# -- calls of several transactions -----------------------------------------------------------------------------------

MANY = PIECE_TASKS + 3


def test_a_purge_sent_again_has_the_count_of_the_whole_call_and_deletes_nothing_new(store: Store) -> None:
    pieces = pieces_of(Purge(QUEUE), by="somebody")
    add(store, *[NewTask(b"old")] * MANY)
    assert piecewise(store, CALL, pieces).total == MANY
    add(store, NewTask(b"new"))
    assert piecewise(store, REPEAT, pieces).total == MANY
    assert piecewise(store, CALL, pieces).total == MANY
    assert stats(store).ready == 1


def test_a_purge_that_stopped_half_way_is_finished_by_its_repeat_and_left_alone_afterwards(store: Store) -> None:
    pieces = pieces_of(Purge(QUEUE), by="somebody")
    add(store, *[NewTask(b"old")] * MANY)
    begun = piecewise(store, CALL, pieces, most=1)
    assert (begun.total, begun.is_over) == (PIECE_TASKS, False)
    assert piecewise(store, REPEAT, pieces).total == MANY
    add(store, NewTask(b"new"))
    late = run(store, lambda work: next_piece(work, CALL, pieces, done=begun))
    assert (late.total, late.is_over) == (MANY, True)
    assert stats(store).ready == 1


def test_a_piece_that_was_done_and_not_noted_is_not_done_again(store: Store) -> None:
    """As on Redis, where a server may stop between the two."""
    _skip_if_it_never_fails(store)
    add(store, *[NewTask(b"old")] * MANY)
    pieces = pieces_of(Purge(QUEUE), by="somebody")

    def stopped(piece: Piece) -> tuple[int, bool]:
        pieces(piece)
        raise StoreUnavailableError("stopped here")

    with pytest.raises(StoreUnavailableError):
        piecewise(store, CALL, stopped)
    assert piecewise(store, REPEAT, pieces).total == MANY


def test_a_purge_that_was_refused_stays_refused_when_its_first_try_comes_late(store: Store) -> None:
    pieces = pieces_of(Purge("later"), by="somebody")
    with pytest.raises(UnknownQueueError):
        piecewise(store, REPEAT, pieces)
    a_queue(store, "later")
    run(store, lambda work: work.add("later", [NewTask(b"new")]))
    with pytest.raises(UnknownQueueError):
        piecewise(store, CALL, pieces)
    assert stats(store, queue="later").ready == 1


def test_a_redrive_sent_again_redrives_nothing_that_died_since(store: Store) -> None:
    a_queue(store, max_leases=1)
    pieces = pieces_of(Redrive(QUEUE), by="somebody")

    def die() -> None:
        (held,) = run(store, lambda work: work.lease(QUEUE, count=1, seconds=60)).leases
        run(store, lambda work: work.release(QUEUE, [Release(held.token, 0.0)]))

    add(store, NewTask(b"x"))
    die()
    assert piecewise(store, REPEAT, pieces).total == 1
    die()
    assert piecewise(store, CALL, pieces).total == 1
    assert stats(store).dead == 1


def _plan(store: Store, call: ClientCall, search: Search) -> ChangePlan:
    scan = Scan(search, after=0, limit=1_000, most=10_000)
    total = run(store, lambda work: total_of(work, QUEUE, search))
    while scan.goes_on:
        scan.take(run(store, lambda work: read_page(work, QUEUE, scan)))
    plan: ChangePlan = run(store, lambda work: keep_plan(work, call, plan_of(scan, total)))
    return plan


def test_a_change_of_all_that_match_answers_for_the_whole_call_when_it_is_sent_again(store: Store) -> None:
    search = Search(TagFilter.of("old"), frozenset({TaskState.READY}))
    add(store, *[NewTask(b"%d" % number, tag="old") for number in range(120)])
    to = ChangeTo(tag="new")
    plan = _plan(store, CALL, search)
    pieces = change_pieces(QUEUE, "retag", search, plan, to=to, by="somebody")
    begun = piecewise(store, CALL, pieces, most=1)
    assert 0 < begun.total < 120

    again = _plan(store, REPEAT, search)
    assert again == plan
    finished = piecewise(store, REPEAT, change_pieces(QUEUE, "retag", search, again, to=to, by="somebody"))
    assert (again.answer(finished.total).matched, finished.total) == (120, 120)

    add(store, NewTask(b"later", tag="old"))
    late = run(store, lambda work: next_piece(work, CALL, pieces, done=begun))
    assert (late.total, late.is_over) == (120, True)
    assert stats(store, tags=TagFilter.of("old")).ready == 1


def test_a_piece_of_a_change_that_was_not_noted_counts_what_it_changed(store: Store) -> None:
    _skip_if_it_never_fails(store)
    search = Search(ANY, frozenset({TaskState.READY}))
    add(store, *[NewTask(b"%d" % number) for number in range(60)])
    plan = _plan(store, CALL, search)
    pieces = change_pieces(QUEUE, "delete", search, plan, to=ChangeTo(), by="somebody")

    def stopped(piece: Piece) -> tuple[int, bool]:
        pieces(piece)
        raise StoreUnavailableError("stopped here")

    with pytest.raises(StoreUnavailableError):
        piecewise(store, CALL, stopped)
    assert piecewise(store, REPEAT, pieces).total == 60
    assert stats(store).ready == 0


def test_a_failure_of_a_later_piece_says_how_many_tasks_were_changed(store: Store) -> None:
    add(store, *[NewTask(b"x")] * MANY)
    pieces = pieces_of(Purge(QUEUE), by="somebody")

    def fails_later(piece: Piece) -> tuple[int, bool]:
        if piece.number:
            raise StoreUnavailableError("the disk is away; nothing was changed")
        return pieces(piece)

    with pytest.raises(OutcomeUnknownError, match=f"{PIECE_TASKS:,} tasks were changed"):
        run_pieces(lambda operation: run(store, operation), fails_later)
    assert stats(store).ready == 3


def test_a_failure_of_the_first_piece_is_the_stores_own_error() -> None:
    error = StoreError("broken")
    assert failed_after(CallProgress(), error) is error
