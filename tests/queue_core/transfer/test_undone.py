"""An aborted migration restores the old queue unless the new one was used; a queue may move back."""

import pytest

from queue_core.errors import MoveRefusedError
from queue_core.store import Store
from queue_core.task import ANY, NewTask, QueueSpec
from queue_core.verbs import LeaseRequest
from tests.support.stores.transfers import (
    MAX_WRITES,
    QUEUE,
    ProcessEndedError,
    a_move,
    gives_out,
    interrupted,
    moved,
    moved_to,
    tasks_of,
)


def add(store: Store, *tasks: NewTask) -> list[str]:
    """Add tasks; how that went."""
    with store.begin() as transaction:
        return [one.status for one in transaction.add(QUEUE, tasks, now=store.clock.now())]


def lease_all(store: Store) -> list[str]:
    """Lease what can be leased; the names."""
    names: list[str] = []
    while True:
        with store.begin() as transaction:
            granted = transaction.lease(QUEUE, LeaseRequest(1000, 60, ANY, "new-1"), now=store.clock.now())
        names += [lease.name for lease in granted.leases]
        if not granted.leases and not granted.more_due:
            return names


@pytest.mark.parametrize("at", range(1, 12))
def test_a_move_that_was_broken_off_can_be_undone(old: Store, new: Store, at: int) -> None:
    before = tasks_of(old)
    with pytest.raises(ProcessEndedError):
        moved(old, interrupted(new, at=at, when="after"))
        raise ProcessEndedError  # it was done before: then it is undone as a whole
    try:
        a_move(old, new).abort()
    except MoveRefusedError:
        assert moved_to(old) == ""  # nothing had been begun
    assert (tasks_of(old), moved_to(old)) == (before, "")
    assert not _has_queue(new) or tasks_of(new) == []
    assert moved(old, new).tasks == len(before)


def test_a_move_that_is_done_can_be_undone_until_somebody_uses_the_new_queue(old: Store, new: Store) -> None:
    moved(old, new)
    assert a_move(old, new).abort() == 49
    assert not _has_queue(new)
    assert len(lease_all(old)) > 0


@pytest.mark.parametrize("use", ["lease", "add", "delete", "purge"])
def test_a_move_is_not_undone_once_the_new_queue_was_used(old: Store, new: Store, use: str) -> None:
    moved(old, new)
    now = new.clock.now()
    with new.begin() as transaction:
        if use == "lease":
            transaction.lease(QUEUE, LeaseRequest(1, 60, ANY, "new-1"), now=now)
        elif use == "add":
            transaction.add(QUEUE, [NewTask()], now=now)
        elif use == "delete":
            transaction.delete_by_name(QUEUE, ["name-3"], now=now)
        else:
            transaction.purge(QUEUE, ANY, limit=1, now=now)
    before = tasks_of(new)
    with pytest.raises(MoveRefusedError, match="in use"):
        a_move(old, new).abort()
    assert (moved_to(old), moved_to(new)) == (new.url, "")
    assert tasks_of(new) == before


def test_undoing_leaves_an_empty_queue_that_was_there_before(old: Store, new: Store) -> None:
    with new.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE, lease_seconds=7.0), now=new.clock.now())
    moved(old, new)
    a_move(old, new).abort()
    with new.read() as snapshot:
        assert (snapshot.queue(QUEUE).lease_seconds, snapshot.queue(QUEUE).moved_to) == (7.0, "")
    assert tasks_of(new) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_undoing_that_is_broken_off_is_gone_on_with(old: Store, new: Store, when: str) -> None:
    before = tasks_of(old)
    moved(old, new)
    for at in range(1, MAX_WRITES):
        try:
            a_move(old, interrupted(new, at=at, when=when)).abort()
            break
        except ProcessEndedError:
            assert not (gives_out(old) and gives_out(new))
        except MoveRefusedError:
            break  # the last write was the last of all
    assert (tasks_of(old), moved_to(old)) == (before, "")
    assert not _has_queue(new)


def test_nothing_is_undone_where_nothing_was_moved(old: Store, new: Store) -> None:
    with pytest.raises(MoveRefusedError, match="nothing to undo"):
        a_move(old, new).abort()


def test_a_move_is_undone_when_the_new_queue_was_dropped(old: Store, new: Store) -> None:
    moved(old, new)
    with new.begin() as transaction:
        transaction.delete_queue(QUEUE)
    assert a_move(old, new).abort() == 0
    assert moved_to(old) == ""


def test_what_a_move_left_behind_is_replaced_when_the_queue_comes_back(old: Store, new: Store) -> None:
    moved(old, new)
    assert add(new, NewTask(b"added there")) == ["added"]
    moved(new, old)
    assert tasks_of(old)[-1].payload == b"added there"
    assert tasks_of(old) == tasks_of(new)
    assert (moved_to(old), moved_to(new)) == ("", old.url)


def test_what_a_move_left_behind_is_not_replaced_by_another_queue_of_the_same_name(old: Store, new: Store) -> None:
    moved(old, new)
    with new.begin() as transaction:
        transaction.delete_queue(QUEUE)
        transaction.put_queue(QueueSpec(QUEUE), now=new.clock.now())
    with pytest.raises(MoveRefusedError, match="another queue"):
        moved(new, old)
    assert len(tasks_of(old)) == 49


def _has_queue(store: Store) -> bool:
    with store.read() as snapshot:
        return bool(snapshot.queues())
