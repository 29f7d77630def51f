"""One finished lease for the next, again and again, while another process or another verb changes what comes next."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw
import pytest

from queue_core.clock import Instant
from queue_core.store import Store
from queue_core.stores.sqlite.driver import stdlib_driver
from queue_core.stores.sqlite.rows import LONG_PAYLOAD_BYTES
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import ANY, Lease, NewTask, TagFilter
from queue_core.verbs import Deletion, LeaseRequest, Release, Renewal
from tests.support.stores.task_builders import (
    MICROSECOND,
    QUEUE,
    a_queue,
    add,
    at,
    delete,
    exchange_one,
    lease,
    samples,
    stats,
)

FILE = "queue.db"
TASKS = 144


@contextmanager
def filled(folder: Path) -> Iterator[SqliteStore]:
    """A store whose queue has `TASKS` tasks."""
    with closing(SqliteStore(folder / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask(b"%d" % number) for number in range(1, TASKS + 1)])
        yield store


def exchange(store: Store, held: Lease, *, now: Instant, seconds: float = 600.0, queue: str = QUEUE) -> Lease:
    """The next task for a finished one."""
    (outcome,), (taken,) = exchange_one(store, held.token, now=now, seconds=seconds, worker=held.worker, queue=queue)
    assert outcome is not None
    assert outcome.finished.name == held.name
    return taken


def exchange_on(store: Store, held: Lease, number: int, *, now: Instant) -> Lease:
    """So many, one after the other."""
    for _ in range(number):
        held = exchange(store, held, now=now)
    return held


def first(store: Store, *, worker: str = "worker-1", now: Instant | None = None) -> Lease:
    """The first lease of a worker, from which it goes on; this process knows the worker by then."""
    (held,) = lease(store, 1, seconds=600.0, worker=worker, now=now or at(1))
    assert lease(store, 1, tags=TagFilter.of("none has this"), worker=worker, now=now or at(1)) == []
    return held


def ended(store: Store) -> list[str]:
    """The names of finished leases, in order."""
    return [finished.name for finished in samples(store).finished]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with filled(tmp_path) as store:
        yield store


@pytest.fixture
def other(store: SqliteStore, tmp_path: Path) -> Iterator[SqliteStore]:
    """The same file, as another process has it open."""
    with closing(SqliteStore(tmp_path / FILE)) as other:
        yield other


def test_all_of_it_is_told(store: Store, tmp_path: Path) -> None:
    held = exchange_on(store, first(store), 3, now=at(2))
    counted = stats(store, now=at(3))
    assert (counted.ready, counted.in_flight, counted.deleted_total, counted.leased_total) == (TASKS - 4, 1, 3, 4)
    found = samples(store).finished
    assert [each.name for each in found] == ["_1", "_2", "_3"]
    assert [(each.outcome, each.worker, each.lease_number, each.ended_at) for each in found] == [
        ("deleted", "worker-1", 1, at(2))
    ] * 3
    assert [each.held_seconds for each in found] == [1.0, 0.0, 0.0]
    with store.read() as transaction:
        (live,) = transaction.live_leases(QUEUE, limit=9, now=at(3))
    assert (live.name, live.worker, live.expires_at) == (held.name, held.worker, held.expires_at)
    assert store.check().problems == ()


def test_the_same_with_the_standard_librarys_sqlite(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE, driver=stdlib_driver())) as store:
        a_queue(store)
        add(store, *[NewTask()] * TASKS)
        held = exchange_on(store, first(store), TASKS - 1, now=at(2))
        assert held.name == f"_{TASKS}"
        assert ended(store) == [f"_{number}" for number in range(1, TASKS)]
        counted = stats(store, now=at(3))
        assert (counted.ready, counted.in_flight, counted.deleted_total) == (0, 1, TASKS - 1)
        assert store.check().problems == ()


def test_names_tags_and_long_payloads(tmp_path: Path) -> None:
    long = b"x" * (LONG_PAYLOAD_BYTES + 1)
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask(long, name=f"n{number}", tag="ab"[number % 2]) for number in range(6)])
        held = first(store)
        for number in range(1, 4):
            held = exchange(store, held, now=at(2))
            assert (held.name, held.tag, held.payload) == (f"n{number}", "ab"[number % 2], long)
        (again,) = add(store, NewTask(name="n1"), now=at(3))
        assert again.status == "tombstoned"
        first_name = [add(store, NewTask(name="n0"), now=now)[0].status for now in (at(102 - MICROSECOND), at(102))]
        assert first_name == ["tombstoned", "added"]
        assert [(each.name, each.tag) for each in samples(store).finished] == [("n0", "a"), ("n1", "b"), ("n2", "a")]
        counted = [stats(store, TagFilter.of(tag), now=at(3)) for tag in "ab"]
        assert [(each.ready, each.in_flight, each.deleted_total) for each in counted] == [(1, 0, 2), (1, 1, 1)]
        with closing(apsw.Connection(str(tmp_path / FILE))) as connection:
            assert connection.execute("SELECT count(*) FROM payloads").fetchall() == [(3,)]
        assert store.check().problems == ()


def test_samples_tell_when_each_lease_ended_in_that_order(store: Store) -> None:
    one, two = first(store), first(store, worker="worker-2")
    two = exchange(store, two, now=at(2))
    one = exchange(store, one, now=at(3))
    exchange(store, two, now=at(4))
    exchange(store, one, now=at(5))
    found = samples(store).finished
    assert [(each.name, each.ended_at) for each in found] == [
        ("_2", at(2)),
        ("_1", at(3)),
        ("_3", at(4)),
        ("_4", at(5)),
    ]


def test_the_wait_is_counted_from_when_it_was_ready_again(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, NewTask())
        (given_back,) = lease(store, 1, now=at(1))
        with store.begin() as transaction:
            transaction.release(QUEUE, [Release(given_back.token, 5.0)], now=at(1))
        assert stats(store, now=at(6)).ready == 1
        add(store, *[NewTask()] * 3, now=at(4))
        held = exchange_on(store, first(store, now=at(7)), 3, now=at(10))
        assert (held.name, held.waited_seconds) == (given_back.name, 4.0)
        add(store, *[NewTask()] * 2, now=at(10))
        exchange(store, held, now=at(11))
        last = samples(store).finished[-1]
        assert (last.name, last.lease_number, last.waited_seconds) == (given_back.name, 2, 4.0)


def test_one_has_a_ticket_to_wait_for(store: Store) -> None:
    held = first(store)
    before = store.ticket()
    exchange(store, held, now=at(2))
    assert store.ticket() == before + 1


def test_exchanges_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * 9)
        child = os.fork()
        if child == 0:
            try:
                of_child = SqliteStore(tmp_path / FILE)
                exchange_on(of_child, first(of_child), 5, now=at(2))
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert ended(store) == [f"_{number}" for number in range(1, 6)]
        counted = stats(store, now=at(2))
        assert (counted.deleted_total, counted.in_flight, counted.ready) == (5, 1, 3)
        assert store.check().problems == ()


def test_exchanges_are_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * 9)
        held = exchange_on(store, first(store), 5, now=at(2))
    with closing(SqliteStore(tmp_path / FILE)) as store:
        assert lease(store, 1, worker=held.worker, now=at(3))[0].name == "_7"
        assert exchange(store, held, now=at(3)).name == "_8"
        assert ended(store) == [f"_{number}" for number in range(1, 7)]


def test_samples_of_a_queue_that_is_deleted_go_with_it(store: Store, tmp_path: Path) -> None:
    a_queue(store, "other")
    add(store, *[NewTask()] * 5, queue="other")
    held = exchange(store, first(store), now=at(2))
    (of_other,) = lease(store, 1, now=at(1), queue="other")
    of_other = exchange(store, of_other, now=at(2), queue="other")
    exchange(store, of_other, now=at(2), queue="other")
    exchange(store, held, now=at(3))
    with closing(SqliteStore(tmp_path / FILE)) as elsewhere, elsewhere.begin() as transaction:
        transaction.delete_queue("other")
    assert ended(store) == ["_1", "_2"]
    assert store.check().problems == ()


@pytest.mark.parametrize(
    "verb",
    [
        lambda transaction, held: transaction.renew(QUEUE, [Renewal(held.token, 900.0)], now=at(3)),
        lambda transaction, held: transaction.release(QUEUE, [Release(held.token, 0.0)], now=at(3)),
        lambda transaction, held: transaction.delete(QUEUE, [Deletion(held.token)], now=at(3)),
        lambda transaction, held: transaction.delete_by_name(QUEUE, [held.name], now=at(3)),
        lambda transaction, held: transaction.exchange(
            QUEUE, [Deletion(held.token)], LeaseRequest(2, 60.0, ANY, held.worker), now=at(3)
        )[0],
        lambda transaction, held: transaction.release_worker(held.worker, now=at(3)),
    ],
    ids=["renew", "release", "delete", "delete_by_name", "exchange of several", "release_worker"],
)
def test_every_other_verb_finds_the_lease(
    store: Store, tmp_path: Path, verb: Callable[..., list[object | None]]
) -> None:
    held = exchange_on(store, first(store), 3, now=at(2))
    with store.begin() as transaction:
        (outcome,) = verb(transaction, held)
    assert outcome not in (None, "unknown")
    assert store.check().problems == ()


def test_a_token_is_good_once(store: Store) -> None:
    old = exchange(store, first(store), now=at(2))
    held = exchange(store, old, now=at(3))
    (outcome,), (another,) = exchange_one(store, old.token, now=at(4))
    assert (outcome, another.name) == (None, "_4")
    (outcome,), _ = exchange_one(store, held.token.replace(".", ".1"), now=at(4))
    assert outcome is None
    assert delete(store, held, now=at(5)) != [None]
    assert delete(store, held, now=at(5)) == [None]


@pytest.mark.parametrize(("after", "is_over"), [(60.0 - MICROSECOND, False), (60.0, True)])
def test_a_lease_that_is_not_renewed_ends_at_its_instant(store: Store, after: float, is_over: bool) -> None:
    other, lost = first(store, worker="worker-2"), exchange(store, first(store), now=at(2), seconds=60.0)
    exchange(store, other, now=at(2 + after))
    assert (lost.name in ended(store)) is is_over
    assert (exchange_one(store, lost.token, now=at(2 + after))[0] == [None]) is is_over
    assert stats(store, now=at(2 + after)).expired_total == is_over
    assert store.check().problems == ()


def test_the_soonest_of_several_ends_counts(store: Store, tmp_path: Path) -> None:
    held, other = first(store), first(store, worker="worker-2")
    held, lost = exchange(store, held, now=at(2)), exchange(store, other, now=at(2), seconds=30.0)
    exchange_on(store, held, 3, now=at(32))
    assert ended(store) == ["_1", "_2", held.name, lost.name, "_5", "_6"]
    assert store.check().problems == ()


def test_a_lease_elsewhere_that_ended_and_a_task_that_is_due_come_first(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, NewTask(), NewTask(b"due", delay_seconds=5.0), NewTask(b"later", delay_seconds=50.0))
        add(store, *[NewTask(b"ready")] * 3, now=at(6))
        held = first(store, now=at(0))
        held = exchange(store, held, now=at(7))
        assert held.payload == b"due"
        (lost,) = lease(store, 1, seconds=1.0, worker="worker-2", now=at(8))
        held = exchange(store, held, now=at(10))
        assert lost.name in ended(store)


def test_a_task_whose_lease_was_cut_short_never_ends_at_the_same_instant_again(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask()] * 2)
        (cut,) = lease(store, 1, seconds=60.0, now=at(1))
        with store.begin() as transaction:
            transaction.renew(QUEUE, [Renewal(cut.token, 1.0)], now=at(1))
        held = first(store, now=at(1))
        assert lease(store, 1, tags=TagFilter.of("none has this"), now=at(2)) == []  # it is ready again from now on
        again = exchange(store, held, now=at(4), seconds=57.0)
        assert (again.name, again.expires_at) == (cut.name, cut.expires_at + 1)


def test_a_token_of_another_queue_is_not_current(store: Store) -> None:
    a_queue(store, "other")
    add(store, *[NewTask()] * 5, queue="other")
    (of_other,) = lease(store, 1, now=at(1), queue="other")
    first(store)
    assert exchange_one(store, of_other.token, now=at(2))[0] == [None]
    of_other = exchange(store, of_other, now=at(2), queue="other")
    of_other = exchange(store, of_other, now=at(2), queue="other")
    assert exchange_one(store, of_other.token, now=at(2))[0] == [None]
    assert exchange(store, of_other, now=at(3), queue="other").name == "_148"


def test_a_task_added_alone_is_not_overtaken(store: Store, tmp_path: Path) -> None:
    held = exchange(store, first(store), now=at(20))
    add(store, NewTask(b"late"), now=at(20))
    held = exchange(store, held, now=at(21))
    assert held.name == "_3"  # those that were there come first
    add(store, NewTask(b"early"), now=at(-5))  # of a clock that is behind
    held = exchange(store, held, now=at(21))
    assert held.payload == b"early"
    assert store.check().problems == ()


def test_added_and_exchanged_in_one_transaction(store: Store) -> None:
    held = first(store)
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(b"early")], now=at(-5))
        _, granted = transaction.exchange(
            QUEUE, [Deletion(held.token)], LeaseRequest(1, 60.0, ANY, held.worker), now=at(2)
        )
    assert [each.payload for each in granted.leases] == [b"early"]
    with store.begin() as transaction:
        transaction.add(QUEUE, [NewTask(b"late")], now=at(2))
        _, granted = transaction.exchange(
            QUEUE, [Deletion(granted.leases[0].token)], LeaseRequest(1, 60.0, ANY, held.worker), now=at(2)
        )
    assert [each.payload for each in granted.leases] == [b"2"]
    counted = stats(store, now=at(3))
    assert (counted.ready, counted.in_flight) == (TASKS - 1, 1)
    assert store.check().problems == ()


def test_where_payloads_are_limited_a_deletion_makes_room_at_once(store: Store, tmp_path: Path) -> None:
    held = exchange(store, first(store), now=at(2))
    with store.begin() as transaction:
        transaction.set_storage_limit(10_000)
    held = exchange(store, held, now=at(3))
    with store.begin() as transaction:
        before = transaction.storage().used_bytes
    exchange(store, held, now=at(3))
    with store.begin() as transaction:
        assert transaction.storage().used_bytes == before - len(held.payload)


@contextmanager
def stepped_back(folder: Path, *early: NewTask) -> Iterator[tuple[SqliteStore, SqliteStore]]:
    """A file as two processes have it open: after those tasks thirty more, by a clock that was stepped back then."""
    with closing(SqliteStore(folder / FILE)) as store, closing(SqliteStore(folder / FILE)) as other:
        a_queue(store)
        add(store, *early)
        add(store, *[NewTask()] * 30, now=at(9))
        yield store, other


def take(store: Store, held: Lease, tag: str | None = None) -> Lease:
    """The next task of a tag, or of all, for a finished one."""
    tags = ANY if tag is None else TagFilter.of(tag)
    with store.begin() as transaction:
        request = LeaseRequest(1, 600.0, tags, held.worker)
        (outcome,), granted = transaction.exchange(QUEUE, [Deletion(held.token)], request, now=at(2))
    assert outcome is not None
    (taken,) = granted.leases
    return taken


CHANGES: dict[str, tuple[Callable[[Store, Lease], object], list[str]]] = {
    "looked": (lambda to, _: stats(to, now=at(2)), ["_5", "_6", "_7"]),
    "leased the next": (lambda to, _: lease(to, 2, worker="worker-2", now=at(2)), ["_7", "_8", "_9"]),
    "deleted the next": (
        lambda to, _: delete(to, *lease(to, 1, worker="worker-2", now=at(2)), now=at(2)),
        ["_6", "_7", "_8"],
    ),
    "added to the end": (lambda to, _: add(to, NewTask(), now=at(2)), ["_5", "_6", "_7"]),
    "added a batch to the head": (
        lambda to, _: add(to, NewTask(name="urgent"), NewTask(name="next"), now=at(-5)),
        ["urgent", "next", "_5"],
    ),
}


@pytest.mark.parametrize("who", ["another process", "this one"])
@pytest.mark.parametrize("what", CHANGES)
def test_what_was_done_in_between_is_seen(store: Store, other: Store, who: str, what: str) -> None:
    change, expected = CHANGES[what]
    held = exchange_on(store, first(store), 3, now=at(2))
    change(other if who == "another process" else store, held)
    found = []
    for _ in range(3):
        held = exchange(store, held, now=at(3))
        found.append(held.name)
    assert found == expected
    assert store.check().problems == ()
    assert other.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_a_task_deleted_by_name_is_not_leased(store: Store, other: Store, who: str) -> None:
    add(store, NewTask(name="mine"), NewTask(name="gone"), NewTask(name="kept"), now=at(-1))
    held = exchange(store, exchange(store, first(store), now=at(2)), now=at(2))
    assert held.name == "kept"
    with (other if who == "another process" else store).begin() as transaction:
        transaction.delete_by_name(QUEUE, ["_1", "_3"], now=at(2))
    assert exchange(store, exchange(store, held, now=at(2)), now=at(2)).name == "_4"
    assert store.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_after_a_purge_there_is_none(store: Store, other: Store, who: str) -> None:
    held = exchange_on(store, first(store), 3, now=at(2))
    with (other if who == "another process" else store).begin() as transaction:
        assert transaction.purge(QUEUE, ANY, limit=1000, now=at(2)) > 0
    (outcome,), leases = exchange_one(store, held.token, now=at(3))
    assert leases == []
    assert (outcome is None) == (stats(store, now=at(3)).in_flight == 0)
    assert stats(store, now=at(3)).ready == 0
    assert store.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_while_the_queue_is_paused_nothing_is_leased(store: Store, other: Store, who: str) -> None:
    held = exchange_on(store, first(store), 3, now=at(2))
    who_pauses = other if who == "another process" else store
    with who_pauses.begin() as transaction:
        transaction.set_paused(QUEUE, "paused")
    assert exchange_one(store, held.token, now=at(3))[1] == []
    with who_pauses.begin() as transaction:
        transaction.set_paused(QUEUE, "running")
    assert [held.name for held in lease(store, 1, now=at(3))] == ["_5"]


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_a_lease_renewed_or_released_or_deleted_meanwhile(store: Store, other: Store, who: str) -> None:
    by = other if who == "another process" else store
    held = exchange_on(store, first(store), 2, now=at(2))
    with by.begin() as transaction:
        assert transaction.renew(QUEUE, [Renewal(held.token, 900.0)], now=at(3)) != [None]
    held = exchange_on(store, held, 2, now=at(4))
    with by.begin() as transaction:
        assert transaction.release(QUEUE, [Release(held.token, 0.0)], now=at(5)) != [None]
    (outcome,), (taken,) = exchange_one(store, held.token, now=at(6))
    assert (outcome, taken.name) == (None, "_6")
    taken = exchange_on(store, taken, 2, now=at(6))
    assert delete(by, taken, now=at(7)) != [None]
    (outcome,), (last,) = exchange_one(store, taken.token, now=at(8))
    assert (outcome, last.name) == (None, "_9")
    assert ended(store) == [f"_{number}" for number in range(1, 9)]
    assert store.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_a_lease_that_ends_brings_its_task_back_first(tmp_path: Path, who: str) -> None:
    with stepped_back(tmp_path, NewTask(name="short")) as (store, other):
        lease(other if who == "another process" else store, 1, seconds=3.0, worker="worker-2", now=at(1))
        held = exchange_on(store, first(store), 3, now=at(2))
        assert held.name == "_5"
        held = exchange(store, held, now=at(4))
        assert held.name == "short"
        assert exchange(store, held, now=at(4)).name == "_6"
        finished = [(each.name, each.outcome, each.lease_number) for each in samples(store).finished]
        assert finished[-1] == ("short", "deleted", 2)
        assert store.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_a_lease_given_since_brings_its_task_back_first_when_it_ends(tmp_path: Path, who: str) -> None:
    with stepped_back(tmp_path, *[NewTask()] * 5) as (store, other):
        held = exchange_on(store, first(store), 3, now=at(2))
        (short,) = lease(other if who == "another process" else store, 1, seconds=3.0, worker="worker-2", now=at(2))
        held = exchange_on(store, held, 2, now=at(4))
        assert (short.name, held.name) == ("_5", "_7")
        held = exchange(store, held, now=at(6))
        assert held.name == "_5"
        assert exchange(store, held, now=at(6)).name == "_8"
        assert store.check().problems == ()


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_a_task_that_was_released_is_leased_again_in_its_turn(tmp_path: Path, who: str) -> None:
    with stepped_back(tmp_path, *[NewTask()] * 5) as (store, other):
        held = exchange(store, first(store), now=at(2))
        with (other if who == "another process" else store).begin() as transaction:
            assert transaction.release(QUEUE, [Release(held.token, 0.0)], now=at(3)) != [None]
        names = [held.name]
        held = first(store, now=at(3))
        for _ in range(4):
            held = exchange(store, held, now=at(4))
            names.append(held.name)
        assert names == ["_2", "_4", "_5", "_2", "_6"]
        assert store.check().problems == ()


def test_one_that_has_become_due_is_no_longer_delayed(store: Store, other: Store) -> None:
    held = exchange_on(store, first(store), 2, now=at(2))
    add(other, NewTask(name="soon", eta=at(5)), now=at(2))
    held = exchange_on(store, held, 2, now=at(4))
    held = exchange_on(store, held, 2, now=at(6))
    counted = stats(other, now=at(6))
    assert (counted.delayed, counted.ready) == (0, TASKS + 1 - 7)
    assert store.check().problems == ()


def test_two_processes_and_two_holders_in_each_lease_every_task_once(store: Store, other: Store) -> None:
    holders = [(by, first(by, worker=f"worker-{number}")) for number, by in enumerate([store, other, store, other])]
    names = [held.name for _, held in holders]
    for turn in range(TASKS - len(holders)):
        place = (turn * 7 + turn // 5) % len(holders)  # neither by turns nor one for long
        by, held = holders[place]
        holders[place] = by, exchange(by, held, now=at(2))
        names.append(holders[place][1].name)
    assert names == [f"_{number}" for number in range(1, TASKS + 1)]
    for by, held in holders:
        assert exchange_one(by, held.token, now=at(3))[1] == []
    assert sorted(ended(store)) == sorted(names)
    assert store.check().problems == ()


def test_one_goes_on_where_the_other_stopped(store: Store, other: Store) -> None:
    mine, theirs = first(store), first(other, worker="worker-2")
    mine = exchange_on(store, mine, 5, now=at(2))
    theirs = exchange_on(other, theirs, 32, now=at(2))
    assert int(theirs.name[1:]) == 7 + 32
    assert int(exchange(store, mine, now=at(2)).name[1:]) == 8 + 32
    assert store.check().problems == ()


def test_a_lease_given_here_is_finished_there(store: Store, other: Store) -> None:
    held = exchange_on(store, first(store), 3, now=at(2))
    first(other, worker="worker-2")
    for turn in range(48):
        held = exchange(store if turn % 2 else other, held, now=at(2))
    assert len(ended(store)) == 48 + 3
    (outcome,), _ = exchange_one(store, held.token, now=at(3))
    assert outcome is not None
    (outcome,), _ = exchange_one(store, held.token, now=at(3))
    assert outcome is None
    assert store.check().problems == ()


def test_a_lease_that_another_process_has_finished_is_not_current(store: Store, other: Store) -> None:
    first(other)
    held = exchange_on(store, first(store), 3, now=at(2))
    exchange(other, held, now=at(2))
    (outcome,), _ = exchange_one(store, held.token, now=at(2))
    assert outcome is None
    assert ended(store).count(held.name) == 1
    assert store.check().problems == ()


def test_tags_and_all_side_by_side_never_lease_a_task_twice(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask(tag="ab"[number % 2]) for number in range(TASKS)])
        held = first(store)
        names = [held.name]
        for turn in range(60):
            held = take(store, held, [None, "a", "b", "a"][turn % 4])
            names.append(held.name)
        assert len(set(names)) == len(names) == 61
        assert names[:5] == ["_1", "_2", "_3", "_4", "_5"]
        assert ended(store) == names[:-1]
        assert store.check().problems == ()


def test_a_token_is_good_once_and_in_its_queue_only(store: Store) -> None:
    a_queue(store, "b")
    add(store, *[NewTask()] * 9, queue="b")
    (beside,) = lease(store, 1, queue="b", seconds=600.0, now=at(1))
    held = exchange_on(store, first(store), 3, now=at(2))
    (outcome,), (beside_too,) = exchange_one(store, held.token, now=at(2), queue="b")
    assert outcome is None
    beside = exchange(store, beside, now=at(2), queue="b")
    assert int(beside.name[1:]) == int(beside_too.name[1:]) + 1
    held_too = exchange(store, held, now=at(2))
    (outcome,), (third,) = exchange_one(store, held.token, now=at(2))
    assert (outcome, third.name) == (None, "_6")
    assert exchange(store, held_too, now=at(2)).name == "_7"
    assert store.check().problems == ()


def test_what_was_rolled_back_is_not_remembered(store: Store, tmp_path: Path) -> None:
    held, beside = (first(store, worker="") for _ in range(2))
    held, beside = exchange(store, held, now=at(2)), exchange(store, beside, now=at(2))
    with pytest.raises(ZeroDivisionError), store.begin() as transaction:
        request = LeaseRequest(1, 600.0, ANY, held.worker)
        _, granted = transaction.exchange(QUEUE, [Deletion(held.token)], request, now=at(3))
        (lost,) = granted.leases
        raise ZeroDivisionError
    beside = exchange(store, beside, now=at(2))
    assert beside.name == lost.name == "_5"
    (outcome,), (other,) = exchange_one(store, lost.token, now=at(2))
    assert (outcome, other.name) == (None, "_6")
    assert exchange(store, held, now=at(2)).name == "_7"
    assert store.check().problems == ()


def test_a_payload_is_whole_and_a_lease_counted_however_the_task_was_found(tmp_path: Path) -> None:
    payloads = [b"%d" % number * (LONG_PAYLOAD_BYTES if number % 5 == 0 else 1) for number in range(40)]
    with closing(SqliteStore(tmp_path / FILE)) as store:
        a_queue(store)
        add(store, *[NewTask(payload, name=f"n{number}") for number, payload in enumerate(payloads)])
        taken = lease(store, 20, seconds=600.0, now=at(0.5))
        with store.begin() as transaction:
            transaction.release(QUEUE, [Release(each.token, 0.0) for each in taken], now=at(0.75))
        held = first(store)
        seen = {held.name: held.payload}
        for _ in range(39):
            held = exchange(store, held, now=at(2))
            seen[held.name] = held.payload
        assert seen == {f"n{number}": payload for number, payload in enumerate(payloads)}
        counted = {each.name: each.lease_number for each in samples(store).finished if each.outcome == "deleted"}
        assert counted == {f"n{number}": 2 if number < 20 else 1 for number in range(40) if f"n{number}" != held.name}
        assert store.check().problems == ()
