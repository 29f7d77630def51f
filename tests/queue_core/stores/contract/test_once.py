"""What every store must do for a client's call that may be sent again: it takes effect once, and is answered alike."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pytest

from queue_core.errors import (
    OutcomeUnknownError,
    QueueError,
    QueueMovedError,
    StorageLimitError,
    StoreUnavailableError,
    UnknownQueueError,
)
from queue_core.store import Store, Unit
from queue_core.task import Lease, NewTask
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Added, ClientCall, Deletion, Granted, Release, Renewal
from tests.support.stores import changes
from tests.support.stores.restored_tasks import opened_again
from tests.support.stores.task_builders import QUEUE, a_queue, stats

T = TypeVar("T")

TASKS = [NewTask(b"a", tag="red"), NewTask(b"b", delay_seconds=60.0), NewTask(b"c", name="named")]
FIRST, AGAIN = ClientCall("s", 1), ClientCall("s", 1, is_repeat=True)


def run(store: Store, step: Callable[[UnitOfWork], T], *, unit: Unit = "transaction") -> T:
    """A step in a transaction of its own, as a server runs it."""
    return QueueService(store, clock=store.clock).run(step, unit=unit)


def add(store: Store, call: ClientCall, *tasks: NewTask) -> list[Added]:
    return run(store, lambda turn: turn.add(QUEUE, tasks or TASKS, call=call), unit="verb")


def lease(store: Store, call: ClientCall | None = None, *, count: int = 1, seconds: float = 60) -> list[Lease]:
    granted = run(store, lambda turn: turn.lease(QUEUE, count=count, seconds=seconds, call=call), unit="verb")
    return list(granted.leases)


def exchange(store: Store, call: ClientCall, *deletions: Deletion) -> tuple[list[Lease], list[str]]:
    granted, lost = run(
        store, lambda turn: turn.exchange(QUEUE, deletions, count=1, seconds=60, call=call), unit="verb"
    )
    return list(granted.leases), list(lost)


def test_a_repeat_is_answered_as_the_first_was_and_adds_nothing(store: Store) -> None:
    first = add(store, FIRST)
    assert [(one.status, one.ready) for one in first] == [("added", True), ("added", False), ("added", True)]
    for _ in range(2):
        assert add(store, AGAIN) == first
    assert stats(store).added_total == 3


def test_the_answer_is_the_first_one_whatever_became_of_the_tasks(store: Store) -> None:
    first = add(store, FIRST, NewTask(b"x", name="x"))
    run(store, lambda turn: turn.delete_by_name(QUEUE, ["x"]))
    assert add(store, AGAIN, NewTask(b"x", name="x")) == first


def test_the_next_call_of_a_session_and_other_sessions_take_effect(store: Store) -> None:
    for session, number in (("s", 1), ("s", 2), ("t", 1), ("s", 7)):
        add(store, ClientCall(session, number), NewTask(b"x"))
    assert stats(store).added_total == 4


def test_a_repeat_whose_first_did_not_arrive_takes_effect(store: Store) -> None:
    assert [one.status for one in add(store, AGAIN, NewTask(b"x"))] == ["added"]


def test_a_straggler_that_comes_after_its_repeat_adds_nothing(store: Store) -> None:
    (first,) = add(store, AGAIN, NewTask(b"x"))
    try:
        assert add(store, FIRST, NewTask(b"x")) == [first]
    except StoreUnavailableError:
        assert store.unit == "transaction"  # which went with it
    assert stats(store).added_total == 1


def test_a_straggler_that_reaches_another_process_after_its_repeat_adds_nothing(store: Store) -> None:
    """As when a server was frozen with a request unread: its client has given it up, and asked another."""
    if store.url == "memory:":
        pytest.skip("a memory: store lives in one process")
    other = opened_again(store)
    try:
        add(other, ClientCall("before", 1), NewTask(b"x"))  # so that it has looked at the store before
        (first,) = add(store, AGAIN, NewTask(b"x"))
        with suppress(StoreUnavailableError):  # a store may refuse it, as nobody waits for its answer any more
            assert add(other, FIRST, NewTask(b"x")) == [first]
        assert stats(store).added_total == 2
        with suppress(StoreUnavailableError, OutcomeUnknownError):
            add(other, ClientCall("before", 1), NewTask(b"x"))
        assert stats(store).added_total == 2
    finally:
        other.close()


def test_a_straggler_that_reaches_a_process_started_after_its_repeat_adds_nothing(store: Store) -> None:
    """As when it waited in the socket that a service manager hands on to the next server."""
    if store.url == "memory:":
        pytest.skip("a memory: store lives in one process")
    (first,) = add(store, AGAIN, NewTask(b"x"))
    other = opened_again(store)
    try:
        with suppress(StoreUnavailableError):
            assert add(other, FIRST, NewTask(b"x")) == [first]
        assert stats(store).added_total == 1
    finally:
        other.close()


@pytest.mark.parametrize("later", [2, 255, 256, 300])
def test_a_first_try_that_comes_after_a_later_call_of_its_session_changes_nothing(store: Store, later: int) -> None:
    add(store, ClientCall("t", 1), NewTask(b"x"), NewTask(b"y"))
    (held,) = lease(store, ClientCall("s", later))
    late = ClientCall("s", 1)
    for verb in (
        lambda: lease(store, late),
        lambda: exchange(store, late, Deletion(held.token)),
        lambda: add(store, late, NewTask(b"z")),
        lambda: run(store, lambda turn: turn.delete(QUEUE, [Deletion(held.token)], call=late), unit="verb"),
    ):
        with pytest.raises(StoreUnavailableError):
            verb()
    assert (stats(store).in_flight, stats(store).ready) == (1, 1)


def test_a_call_that_comes_after_a_later_one_of_its_session_is_in_doubt(store: Store) -> None:
    add(store, ClientCall("s", 5), NewTask(b"x"))
    with pytest.raises(OutcomeUnknownError):
        add(store, ClientCall("s", 4, is_repeat=True), NewTask(b"x"))
    assert stats(store).added_total == 1


def test_an_add_that_was_refused_is_not_remembered_as_done(store: Store) -> None:
    with pytest.raises(UnknownQueueError):
        run(store, lambda turn: turn.add("nowhere", TASKS, call=FIRST))
    assert len(add(store, ClientCall("s", 2))) == 3


def test_a_thousand_tasks_are_remembered(store: Store) -> None:
    tasks = [NewTask(b"%d" % number) for number in range(1000)]
    first = add(store, FIRST, *tasks)
    assert add(store, AGAIN, *tasks) == first


def test_tasks_for_several_queues_are_added_once(store: Store) -> None:
    a_queue(store, "other")
    tasks = [NewTask(b"x"), NewTask(b"y", queue="other")]
    assert add(store, FIRST, *tasks) == add(store, AGAIN, *tasks)
    assert (stats(store).added_total, stats(store, queue="other").added_total) == (1, 1)


# -- leases, and what ends them ---------------------------------------------------------------------------------------


def test_a_lease_asked_for_again_is_the_same_lease(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"1"), NewTask(b"2"), NewTask(b"3"))
    first = lease(store, FIRST, count=2)
    assert lease(store, AGAIN, count=2) == first
    assert [held.payload for held in lease(store, ClientCall("s", 2), count=2)] == [b"3"]


def test_a_lease_that_has_ended_is_not_given_out_again_under_its_old_token(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x"))
    first = lease(store, FIRST)
    run(store, lambda turn: turn.release(QUEUE, [Release(first[0].token, 0.0)]))
    again = lease(store, AGAIN)
    assert not again or again[0].token != first[0].token


def test_a_lease_that_got_nothing_may_get_something_when_it_is_asked_for_again(store: Store) -> None:
    assert lease(store, FIRST) == []
    add(store, ClientCall("p", 1), NewTask(b"x"))
    assert [held.payload for held in lease(store, AGAIN)] == [b"x"]


def test_an_exchange_sent_again_tells_what_it_deleted_and_gives_the_same_lease(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"1"), NewTask(b"2"), NewTask(b"3"))
    (held,) = lease(store)
    gone = replace(held, token="99.1")
    first = exchange(store, FIRST, Deletion(held.token), Deletion(gone.token))
    assert (first[0][0].payload, first[1]) == (b"2", [gone.token])
    assert exchange(store, AGAIN, Deletion(held.token), Deletion(gone.token)) == first
    assert (stats(store).deleted_total, stats(store).in_flight) == (1, 1)


@pytest.mark.parametrize("then", [(), (NewTask(b"next"),)], ids=["alone", "with a successor"])
def test_a_deletion_sent_again_is_told_as_done_and_is_done_once(store: Store, then: tuple[NewTask, ...]) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x"))
    (held,) = lease(store)
    unit: Unit = "transaction" if then else "verb"

    def delete(call: ClientCall) -> tuple[list[Added], list[str]]:
        return run(store, lambda turn: turn.delete(QUEUE, [Deletion(held.token, then)], call=call), unit=unit)

    first = delete(FIRST)
    assert first[1] == []
    assert delete(AGAIN) == first
    assert (stats(store).deleted_total, stats(store).added_total) == (1, 1 + len(then))


def test_a_deletion_that_did_not_arrive_is_refused_when_another_holds_the_task_by_then(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x"))
    (held,) = lease(store)
    run(store, lambda turn: turn.release(QUEUE, [Release(held.token, 0.0)]))
    (other,) = lease(store)
    assert run(store, lambda turn: turn.delete(QUEUE, [Deletion(held.token)], call=AGAIN)) == ([], [held.token])
    assert run(store, lambda turn: turn.delete(QUEUE, [Deletion(other.token)])) == ([], [])


def test_a_release_sent_again_is_told_as_done(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x"))
    (held,) = lease(store)
    releases = [Release(held.token, 0.0)]
    first = run(store, lambda turn: turn.release(QUEUE, releases, call=FIRST))
    assert first[0] is not None
    assert run(store, lambda turn: turn.release(QUEUE, releases, call=AGAIN)) == first
    assert stats(store).released_total == 1


def test_a_renewal_sent_again_is_told_as_it_was(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x"))
    (held,) = lease(store)
    first = run(store, lambda turn: turn.renew(QUEUE, [Renewal(held.token, 90), Renewal("99.1", 90)], call=FIRST))
    assert first[0] is not None and first[1] is None
    assert (
        run(store, lambda turn: turn.renew(QUEUE, [Renewal(held.token, 90), Renewal("99.1", 90)], call=AGAIN)) == first
    )


def test_a_renewal_that_was_late_on_its_way_does_not_shorten_a_later_one(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x"))
    (held,) = lease(store)
    run(store, lambda turn: turn.renew(QUEUE, [Renewal(held.token, 5)], call=AGAIN))
    (longer,) = run(store, lambda turn: turn.renew(QUEUE, [Renewal(held.token, 3000)], call=ClientCall("s", 2)))
    assert longer is not None
    try:
        run(store, lambda turn: turn.renew(QUEUE, [Renewal(held.token, 5)], call=FIRST))
    except QueueError as error:
        assert isinstance(error, StoreUnavailableError)
    (live,) = run(store, lambda turn: turn.transaction.live_leases(QUEUE, limit=1, now=turn.now))
    assert live.expires_at >= longer.expires_at


def test_names_deleted_once_are_told_as_they_were(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x", name="x"))
    for call in (FIRST, AGAIN):
        assert run(store, lambda turn, call=call: changes.delete_by_name_once(turn, call, QUEUE, ["x"])) == ["deleted"]  # type: ignore[misc]


def test_answers_outlive_the_process_that_gave_them(store: Store) -> None:
    if store.url == "memory:":
        pytest.skip("a memory: store lives in one process")
    add(store, ClientCall("p", 1), NewTask(b"1"), NewTask(b"2"))
    (held,) = lease(store, FIRST)
    deleted = run(store, lambda turn: turn.delete(QUEUE, [Deletion(held.token)], call=ClientCall("d", 1)))
    other = opened_again(store)
    try:
        call = ClientCall("d", 1, is_repeat=True)
        assert run(other, lambda turn: turn.delete(QUEUE, [Deletion(held.token)], call=call)) == deleted
        assert len(add(other, ClientCall("p", 1, is_repeat=True), NewTask(b"1"), NewTask(b"2"))) == 2
        assert (stats(other).added_total, stats(other).deleted_total) == (2, 1)
    finally:
        other.close()


def test_calls_of_several_clients_in_one_transaction_are_each_known_again(store: Store) -> None:
    calls = [ClientCall(session, 1) for session in ("a", "b", "c")]
    tasks = [NewTask(b"x")]
    first = run(store, lambda turn: [turn.add(QUEUE, tasks, call=call) for call in calls])
    again = [replace(call, is_repeat=True) for call in calls]
    assert run(store, lambda turn: [turn.add(QUEUE, tasks, call=call) for call in again]) == first
    assert stats(store).added_total == 3


def test_leases_of_several_clients_in_one_transaction_are_told_apart(store: Store) -> None:
    add(store, ClientCall("p", 1), *[NewTask(b"%d" % number) for number in range(6)])
    held = [lease(store, count=1)[0] for _ in range(2)]
    calls = [ClientCall("a", 1), ClientCall("b", 1), ClientCall("c", 1)]

    def steps(turn: UnitOfWork, calls: list[ClientCall]) -> list[tuple[list[str], list[str]]]:
        told = []
        for number, call in enumerate(calls):
            deletions = [Deletion(each.token) for each in held[number : number + 1]]
            granted, lost = turn.exchange(QUEUE, deletions, count=1 + number % 2, seconds=60, call=call)
            told.append(([each.token for each in granted.leases], list(lost)))
        return told

    first = run(store, lambda turn: steps(turn, calls))
    again = [replace(call, is_repeat=True) for call in calls]
    assert run(store, lambda turn: steps(turn, again)) == first
    assert [run(store, lambda turn, call=call: steps(turn, [call]), unit="verb") for call in again[:1]] == [first[:1]]  # type: ignore[misc]
    assert stats(store).deleted_total == 2


# -- a call and its repeat in one transaction: a server that was stopped reads both ---------------------------------


def test_an_add_and_its_repeat_in_one_transaction_add_once(store: Store) -> None:
    first, again = run(store, lambda turn: [turn.add(QUEUE, TASKS, call=call) for call in (FIRST, AGAIN)])
    assert again == first
    assert stats(store).added_total == len(TASKS)


@pytest.mark.parametrize("count", [1, 3])
def test_a_lease_and_its_repeat_in_one_transaction_are_the_same_lease(store: Store, count: int) -> None:
    add(store, ClientCall("p", 1), *[NewTask(b"%d" % number) for number in range(9)])

    def leases(turn: UnitOfWork) -> list[list[Lease]]:
        return [
            list(turn.lease(QUEUE, count=count, seconds=60, call=call).leases)
            for call in (FIRST, ClientCall("other", 1), AGAIN)
        ]

    first, other, again = run(store, leases)
    assert again == first
    assert len({held.name for held in [*first, *other]}) == stats(store).in_flight == 2 * count


def test_an_exchange_and_its_repeat_in_one_transaction_have_one_answer(store: Store) -> None:
    add(store, ClientCall("p", 1), *[NewTask(b"%d" % number) for number in range(4)])
    held = lease(store, count=2)
    deletions = [Deletion(each.token) for each in held]

    def exchanges(turn: UnitOfWork) -> list[tuple[list[Lease], list[str]]]:
        found = [turn.exchange(QUEUE, deletions, count=1, seconds=60, call=call) for call in (FIRST, AGAIN)]
        return [(list(granted.leases), list(lost)) for granted, lost in found]

    first, again = run(store, exchanges)
    assert again == first
    assert (len(first[0]), first[1]) == (1, [])
    assert (stats(store).deleted_total, stats(store).in_flight) == (2, 1)


@pytest.mark.parametrize("then", [(), (NewTask(b"next"),)], ids=["alone", "with a successor"])
def test_a_deletion_and_its_repeat_in_one_transaction_are_both_done(store: Store, then: tuple[NewTask, ...]) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x"))
    (held,) = lease(store)
    deletions = [Deletion(held.token, then)]
    first, again = run(store, lambda turn: [turn.delete(QUEUE, deletions, call=call) for call in (FIRST, AGAIN)])
    assert first[1] == []
    assert again == first
    assert (stats(store).deleted_total, stats(store).added_total) == (1, 1 + len(then))


def test_a_renewal_and_a_release_and_their_repeats_in_one_transaction_are_done_once(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x"))
    (held,) = lease(store)
    renewals, releases = [Renewal(held.token, 90)], [Release(held.token, 0.0)]
    renewed = run(store, lambda turn: [turn.renew(QUEUE, renewals, call=call) for call in (FIRST, AGAIN)])
    assert renewed[0] == renewed[1] != [None]
    calls = (ClientCall("s", 2), ClientCall("s", 2, is_repeat=True))
    released = run(store, lambda turn: [turn.release(QUEUE, releases, call=call) for call in calls])
    assert released[0] == released[1] != [None]
    assert stats(store).released_total == 1


def test_leases_read_again_are_in_the_order_in_which_they_were_granted(store: Store) -> None:
    add(store, ClientCall("p", 1), *[NewTask(b"%d" % priority, priority=priority) for priority in (0, 5, 9, 5)])
    first = lease(store, FIRST, count=4)
    assert [held.payload for held in first] == [b"9", b"5", b"5", b"0"]
    assert lease(store, AGAIN, count=4) == first


# -- a repeat that is refused, or gets nothing: its first try may still come ----------------------------------------


def straggler(call: Callable[[], object]) -> None:
    """A first try that comes after its repeat was answered: nobody waits for its answer, which may be any error."""
    with suppress(QueueError):
        call()


@pytest.mark.parametrize("name", [None, "named"])
def test_an_add_whose_repeat_was_refused_adds_nothing_when_it_comes_late(store: Store, name: str | None) -> None:
    tasks = [NewTask(b"x", name=name)]
    with pytest.raises(UnknownQueueError):
        run(store, lambda turn: turn.add("later", tasks, call=AGAIN), unit="verb")
    a_queue(store, "later")
    straggler(lambda: run(store, lambda turn: turn.add("later", tasks, call=FIRST), unit="verb"))
    assert stats(store, queue="later").added_total == 0


def test_an_add_of_several_queues_whose_repeat_was_refused_adds_nothing_when_it_comes_late(store: Store) -> None:
    tasks = [NewTask(b"x"), NewTask(b"y", queue="later")]
    with pytest.raises(UnknownQueueError):
        add(store, AGAIN, *tasks)
    a_queue(store, "later")
    straggler(lambda: add(store, FIRST, *tasks))
    assert stats(store).added_total == 0


def test_a_lease_whose_repeat_was_refused_leases_nothing_when_it_comes_late(store: Store) -> None:
    def lease_later(call: ClientCall) -> None:
        run(store, lambda turn: turn.lease("later", count=1, seconds=60, call=call), unit="verb")

    with pytest.raises(UnknownQueueError):
        lease_later(AGAIN)
    a_queue(store, "later")
    run(store, lambda turn: turn.add("later", [NewTask(b"x")]))
    straggler(lambda: lease_later(FIRST))
    assert stats(store, queue="later").in_flight == 0


def test_a_deletion_whose_repeat_was_refused_deletes_nothing_when_it_comes_late(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x"))
    (held,) = lease(store)
    run(store, lambda turn: turn.transaction.set_moved(QUEUE, "elsewhere"))

    def delete(call: ClientCall) -> None:
        run(store, lambda turn: turn.delete(QUEUE, [Deletion(held.token)], call=call), unit="verb")

    with pytest.raises(QueueMovedError):
        delete(AGAIN)
    run(store, lambda turn: turn.transaction.set_moved(QUEUE, ""))
    straggler(lambda: delete(FIRST))
    assert stats(store).deleted_total == 0


def test_a_repeat_that_was_refused_is_refused_again_when_it_is_sent_once_more(store: Store) -> None:
    for _ in range(2):
        with pytest.raises(UnknownQueueError, match="later"):
            run(store, lambda turn: turn.add("later", TASKS, call=AGAIN), unit="verb")
        if "later" not in {spec.name for spec in run(store, lambda turn: turn.transaction.queues())}:
            a_queue(store, "later")
    assert stats(store, queue="later").added_total == 0
    run(store, lambda turn: turn.add("later", TASKS, call=ClientCall("s", 2)), unit="verb")
    assert stats(store, queue="later").added_total == len(TASKS)


def test_an_add_that_fills_the_store_is_told_as_done_when_it_is_sent_again(store: Store) -> None:
    run(store, lambda turn: turn.set_storage_limit(10))
    first = add(store, FIRST, NewTask(b"0123456789"))
    assert add(store, AGAIN, NewTask(b"0123456789")) == first
    with pytest.raises(StorageLimitError):
        add(store, ClientCall("s", 2), NewTask(b"x"))


def test_an_add_whose_repeat_found_no_room_adds_nothing_when_it_comes_late(store: Store) -> None:
    run(store, lambda turn: turn.set_storage_limit(5))
    with pytest.raises(StorageLimitError):
        add(store, AGAIN, NewTask(b"0123456789"))
    run(store, lambda turn: turn.set_storage_limit(None))
    straggler(lambda: add(store, FIRST, NewTask(b"0123456789")))
    assert stats(store).added_total == 0


def close(store: Store, call: ClientCall) -> bool:
    return run(store, lambda turn: turn.close_lease(QUEUE, call))


def test_a_lease_that_was_closed_leases_nothing_when_it_comes_late(store: Store) -> None:
    assert lease(store, AGAIN) == []
    assert close(store, AGAIN)
    add(store, ClientCall("p", 1), NewTask(b"x"))
    straggler(lambda: lease(store, FIRST))
    assert stats(store).in_flight == 0
    assert [held.payload for held in lease(store, ClientCall("s", 2))] == [b"x"]


def test_a_lease_that_was_granted_meanwhile_is_not_closed(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"x"))
    first = lease(store, FIRST)
    assert not close(store, AGAIN)
    assert lease(store, AGAIN) == first


# -- the outcomes of what follows on a deletion ---------------------------------------------------------------------


def test_an_exchange_tells_the_outcomes_of_what_follows_and_tells_them_again(store: Store) -> None:
    add(store, ClientCall("p", 1), NewTask(b"1"), NewTask(b"2"), NewTask(b"3", name="taken"))
    one, other = lease(store, count=2)
    then = (NewTask(b"next", name="next"), NewTask(b"more", name="taken"))
    deletions = [Deletion(one.token, then), Deletion(other.token), Deletion("99.1", (NewTask(b"never"),))]

    def exchange_all(call: ClientCall | None) -> Granted:
        return run(store, lambda turn: turn.exchange(QUEUE, deletions, count=1, seconds=60, call=call))[0]

    first = exchange_all(FIRST)
    assert [(one.name, one.status) for one in first.added] == [("next", "added"), ("taken", "exists")]
    assert [(one.name, one.status) for one in exchange_all(AGAIN).added] == [("next", "added"), ("taken", "exists")]
    assert exchange_all(None).added == ()
