"""What every store must do for a call whose number another call of its session has: refuse it, and change nothing."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from queue_core.errors import KeyReusedError, StoreUnavailableError
from queue_core.server.fast_path import RepeatableOperation
from queue_core.store import Store
from queue_core.task import ANY, NewTask, TagFilter
from queue_core.unit.locally import pieces_of
from queue_core.unit.once import once
from queue_core.unit.pieces import next_piece
from queue_core.unit.queue_verbs import Purge
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall, Deletion, Release, Renewal, meaning_of
from tests.support.stores import changes
from tests.support.stores.restored_tasks import opened_again
from tests.support.stores.task_builders import QUEUE, a_queue, stats

Verb = Callable[[UnitOfWork, ClientCall, str], object]
VERBS: Final[dict[str, Verb]] = {
    "add": lambda work, call, _: work.add(QUEUE, [NewTask(b"new")], call=call),
    "add with a name": lambda work, call, _: work.add(QUEUE, [NewTask(b"new", name="new")], call=call),
    "lease": lambda work, call, _: work.lease(QUEUE, count=1, seconds=60, call=call),
    "lease of several": lambda work, call, _: work.lease(QUEUE, count=2, seconds=60, call=call),
    "exchange": lambda work, call, token: work.exchange(QUEUE, [Deletion(token)], count=1, seconds=60, call=call),
    "exchange with then": lambda work, call, token: work.exchange(
        QUEUE, [Deletion(token, (NewTask(b"then"),))], count=1, seconds=60, call=call
    ),
    "delete": lambda work, call, token: work.delete(QUEUE, [Deletion(token)], call=call),
    "renew": lambda work, call, token: work.renew(QUEUE, [Renewal(token, 120)], call=call),
    "release": lambda work, call, token: work.release(QUEUE, [Release(token)], call=call),
    "delete by name": lambda work, call, _: changes.delete_by_name_once(work, call, QUEUE, ["named"]),
    "pause": lambda work, call, _: once(
        work, call, lambda work: work.set_paused(QUEUE, "paused"), encode=lambda _: b"true", decode=lambda _: True
    ),
}
MINE, OTHER = meaning_of("mine", b""), meaning_of("other", b"")
UNITS: Final = ("verb", "transaction")


def run(store: Store, step: Callable[[UnitOfWork], Any], *, unit: Any = "transaction") -> Any:
    return QueueService(store, clock=store.clock).run(step, unit=unit)


def make(store: Store, verb: Verb, token: str, meaning: str, *, is_repeat: bool, unit: Any = "transaction") -> object:
    """A try of call 7 of a session, as a server makes it: once more where the store took no effect."""
    call = ClientCall("s", 7, is_repeat=is_repeat, meaning=meaning)
    operation = RepeatableOperation(call, lambda work, call: verb(work, call, token))
    try:
        return run(store, operation, unit=unit)
    except StoreUnavailableError:
        return run(store, operation, unit=unit)


def _with_leases(store: Store) -> tuple[str, str]:
    """Two leases of three tasks, one of which has a name."""
    tasks = [NewTask(b"a"), NewTask(b"b"), NewTask(b"c"), NewTask(b"d"), NewTask(b"e"), NewTask(b"f", name="named")]
    run(store, lambda work: work.add(QUEUE, tasks))
    first, second = run(store, lambda work: work.lease(QUEUE, count=2, seconds=60)).leases
    return first.token, second.token


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("is_repeat", [False, True], ids=["as a first try", "as a repeat"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_call_of_another_meaning_under_a_used_number_changes_nothing(
    store: Store, verb: str, is_repeat: bool, unit: str
) -> None:
    first, second = _with_leases(store)
    answer = make(store, VERBS[verb], first, MINE, is_repeat=False, unit=unit)
    before = stats(store)
    with pytest.raises(KeyReusedError, match="Idempotency-Key s/7 "):
        make(store, VERBS[verb], second, OTHER, is_repeat=is_repeat, unit=unit)
    assert stats(store) == before
    if verb != "release":  # whose answer has what the task was then
        assert _shown(make(store, VERBS[verb], first, MINE, is_repeat=True, unit=unit)) == _shown(answer)
    assert stats(store) == before


def _shown(answer: object) -> object:
    """What an answer tells: of leases, which."""
    granted = answer[0] if isinstance(answer, tuple) else answer
    leases = getattr(granted, "leases", None)
    return answer if leases is None else [lease.token for lease in leases]


def test_an_answer_that_was_kept_without_a_fingerprint_is_that_of_its_number(store: Store) -> None:
    """As an earlier version kept it, and as callers keep theirs that number each call themselves."""
    token, _ = _with_leases(store)
    for number, verb in enumerate(("add", "lease", "delete", "renew", "pause")):
        first = ClientCall(f"old-{number}", 1)
        answer = run(store, lambda work, verb=verb, first=first: VERBS[verb](work, first, token))
        again = ClientCall(f"old-{number}", 1, is_repeat=True, meaning=MINE)
        repeated = run(store, lambda work, verb=verb, again=again: VERBS[verb](work, again, token))
        assert _shown(repeated) == _shown(answer)


def test_another_process_refuses_a_reused_number_too(store: Store) -> None:
    if store.url == "memory:":
        pytest.skip("a memory: store lives in one process")
    first, second = _with_leases(store)
    make(store, VERBS["lease"], first, MINE, is_repeat=False)
    other = opened_again(store)
    try:
        for is_repeat in (False, True):
            with pytest.raises(KeyReusedError):
                make(other, VERBS["lease"], second, OTHER, is_repeat=is_repeat)
    finally:
        other.close()


def test_a_purge_of_other_tags_under_a_used_number_purges_nothing(store: Store) -> None:
    run(store, lambda work: work.add(QUEUE, [NewTask(b"x", tag="red"), NewTask(b"y", tag="blue")]))

    def purge(tag: str, meaning: str) -> int:
        pieces = pieces_of(Purge(QUEUE, TagFilter.of(tag)), by="somebody")
        call = ClientCall("s", 7, is_repeat=True, meaning=meaning)
        done = run(store, lambda work: next_piece(work, call, pieces, done=None))  # type: ignore[arg-type]
        return int(done.total)

    assert purge("red", MINE) == 1
    with pytest.raises(KeyReusedError):
        purge("blue", OTHER)
    assert stats(store, tags=ANY).ready == 1


def test_a_refusal_is_kept_for_its_own_call_alone(store: Store) -> None:
    """A repeat that is refused keeps that: another call under its number is not told of it."""
    late = NewTask(b"x", queue="later")

    def add(task: NewTask, meaning: str) -> object:
        call = ClientCall("s", 7, is_repeat=True, meaning=meaning)
        return run(store, lambda work: work.add(QUEUE, [task], call=call))

    for _ in range(2):
        with pytest.raises(Exception, match="no queue 'later'"):
            add(late, MINE)
    a_queue(store, "later")
    with pytest.raises(KeyReusedError):
        add(NewTask(b"other"), OTHER)
    assert stats(store).ready == 0


@pytest.mark.parametrize(
    ("about", "body", "by"),
    [("add work", b"{}", b"a"), ("add other", b"{}", b""), ("lease work", b"{}", b""), ("add work", b"{ }", b"")],
    ids=["another caller", "another queue", "another verb", "another body"],
)
def test_whatever_is_another_about_a_call_is_another_fingerprint(about: str, body: bytes, by: bytes) -> None:
    assert meaning_of(about, body, by=by) != meaning_of("add work", b"{}")
    assert meaning_of(about, bytearray(body), by=by) == meaning_of(about, body, by=by)
