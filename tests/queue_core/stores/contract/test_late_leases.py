"""What every store must do for leases that are answered late: they are renewed, and a repeat of the call finds them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from queue_core.clock import seconds_between
from queue_core.server.leases.call import WAITED_SUFFIX
from queue_core.server.leases.late_leases import renew_late
from queue_core.store import Store, Unit
from queue_core.task import Lease, NewTask
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import ClientCall, Deletion, Release, Renewal
from tests.support.stores.task_builders import QUEUE, a_queue, stats

T = TypeVar("T")

FIRST, AGAIN = ClientCall("s", 1), ClientCall("s", 1, is_repeat=True)
SECONDS = 60.0


def run(store: Store, step: Callable[[UnitOfWork], T], *, unit: Unit = "transaction") -> T:
    return QueueService(store, clock=store.clock).run(step, unit=unit)


def waited(call: ClientCall) -> ClientCall:
    return replace(call, session=call.session + WAITED_SUFFIX)


def add(store: Store, count: int = 1) -> None:
    run(store, lambda turn: turn.add(QUEUE, [NewTask(b"x")] * count))


def lease(store: Store, call: ClientCall | None = None, *, count: int = 1) -> list[Lease]:
    granted = run(store, lambda turn: turn.lease(QUEUE, count=count, seconds=SECONDS, call=call), unit="verb")
    return list(granted.leases)


def asked_again(store: Store, *deletions: Deletion, count: int = 1) -> tuple[list[Lease], list[str]]:
    """The answer to the call's repeat, which looks for what the call was granted at first, and after it had waited."""

    def exchange(turn: UnitOfWork) -> tuple[list[Lease], list[str]]:
        granted, lost = turn.exchange(QUEUE, deletions, count=count, seconds=SECONDS, call=AGAIN)
        if not granted.leases:
            granted = turn.lease(QUEUE, count=count, seconds=SECONDS, call=waited(AGAIN))
        return list(granted.leases), list(lost)

    return run(store, exchange)


def renewed(store: Store, leases: Sequence[Lease]) -> list[Lease]:
    return run(store, lambda turn: renew_late(turn, QUEUE, leases, seconds=SECONDS, call=waited(FIRST)))


def test_late_leases_are_renewed_and_a_repeat_finds_them_however_often(store: Store) -> None:
    add(store, 3)
    first = lease(store, FIRST, count=2)
    for _ in range(2):
        now = store.clock.now()
        again = renewed(store, first)
        assert [one.token for one in again] == [one.token for one in first]
        assert min(seconds_between(now, one.expires_at) for one in again) > SECONDS - 1
        found, _ = asked_again(store, count=2)
        assert sorted(found, key=lambda one: one.token) == sorted(again, key=lambda one: one.token)
        first = again
    assert (stats(store).leased_total, stats(store).in_flight) == (2, 2)


def test_leases_that_others_of_their_transaction_were_granted_are_not_found_by_a_repeat(store: Store) -> None:
    add(store, 2)
    other = ClientCall("t", 1)

    def both(turn: UnitOfWork) -> list[Lease]:
        calls = (FIRST, other)
        return [turn.lease(QUEUE, count=1, seconds=SECONDS, call=call).leases[0] for call in calls]

    ours, theirs = run(store, both)

    def both_renewed(turn: UnitOfWork) -> None:
        for lease, call in ((ours, FIRST), (theirs, other)):
            renew_late(turn, QUEUE, [lease], seconds=SECONDS, call=waited(call))

    run(store, both_renewed)
    found, _ = asked_again(store)
    assert [one.token for one in found] == [ours.token]


def test_an_exchange_whose_lease_was_renewed_late_tells_its_repeat_what_it_deleted(store: Store) -> None:
    add(store, 2)
    (held,) = lease(store)
    deletions = [Deletion(held.token)]
    granted, lost = run(
        store, lambda turn: turn.exchange(QUEUE, deletions, count=1, seconds=SECONDS, call=FIRST), unit="verb"
    )
    assert list(lost) == []
    again = renewed(store, granted.leases)
    assert asked_again(store, *deletions) == (again, [])
    assert stats(store).deleted_total == 1


def test_a_lease_that_its_holder_renewed_meanwhile_keeps_its_end(store: Store) -> None:
    """Another server has answered the call's repeat: the holder counts on the time that it was told."""
    add(store)
    first = lease(store, FIRST)
    (told,) = run(store, lambda turn: turn.renew(QUEUE, [Renewal(first[0].token, 3000)]))
    assert told is not None
    assert [one.expires_at for one in renewed(store, first)] == [told.expires_at]


def test_a_task_that_another_holds_by_now_is_not_answered(store: Store) -> None:
    add(store)
    first = lease(store, FIRST)
    run(store, lambda turn: turn.release(QUEUE, [Release(first[0].token, 0.0)]))
    (theirs,) = lease(store)
    assert renewed(store, first) == []
    (live,) = run(store, lambda turn: turn.transaction.live_leases(QUEUE, limit=9, now=turn.now))
    assert live.expires_at == theirs.expires_at


def test_a_late_lease_as_long_as_a_lease_may_last_is_answered_as_it_is(store: Store) -> None:
    a_queue(store, lease_seconds=SECONDS, max_lease_seconds=SECONDS)
    add(store)
    first = lease(store, FIRST)
    assert renewed(store, first) == first
    assert asked_again(store) == (first, [])


def test_a_late_renewal_does_not_hide_what_a_later_call_was_granted(store: Store) -> None:
    """The client was answered by another server, and went on."""
    add(store, 2)
    first = lease(store, FIRST)
    later = ClientCall("s", 2)
    second = lease(store, waited(later))
    renewed(store, first)
    assert lease(store, replace(waited(later), is_repeat=True)) == second
