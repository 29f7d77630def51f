"""A migration moves all of a queue once, and the old store grants no more leases."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.clock import ManualClock, SystemClock, after
from queue_core.errors import MoveRefusedError, QueueMovedError, UnknownQueueError
from queue_core.store import Store
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ANY, NewTask, QueueSpec, TaskState
from queue_core.transfer.migration import queues_to_move, queues_to_undo
from queue_core.transfer.progress import holding_lead
from queue_core.verbs import HeldName, LeaseRequest
from queue_core.verbs.validation import FILLED_FROM
from tests.support.stores.stores import STORES, opened
from tests.support.stores.transfers import (
    MAX_WRITES,
    QUEUE,
    ProcessEndedError,
    a_move,
    fill,
    gives_out,
    interrupted,
    moved,
    moved_to,
    names_of,
    service,
    tasks_of,
)


@pytest.fixture(params=STORES)
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store in turn, as one that queues come from."""
    (tmp_path / "other").mkdir()
    with opened(request.param, tmp_path / "other") as store:
        yield store


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


# -- all of it, once --------------------------------------------------------------------------------------------------


def test_a_moved_queue_is_at_the_new_store_as_it_was_at_the_old(old: Store, new: Store) -> None:
    result = moved(old, new)
    assert tasks_of(new) == tasks_of(old)
    assert names_of(new) == names_of(old) != []
    assert (result.tasks, result.names, result.in_flight, result.refused) == (49, 3, 2, 0)
    with old.read() as there, new.read() as here:
        assert there.queue(QUEUE) == here.queue(QUEUE)


def test_a_queue_goes_from_every_store_to_the_next_and_back(other: Store, old: Store) -> None:
    fill(other, queue="travels", tasks=20)
    before = tasks_of(other, queue="travels")
    moved(other, old, queue="travels")
    moved(old, other, queue="travels")
    assert tasks_of(other, queue="travels") == before
    assert (moved_to(other, queue="travels"), moved_to(old, queue="travels")) == ("", other.url)


def test_thousands_of_tasks_and_names_are_moved(tmp_path: Path, new: Store) -> None:
    with opened("sqlite", tmp_path) as old:
        fill(old, tasks=2600)
        with old.begin() as transaction:
            now = old.clock.now()
            held_names = [HeldName(f"done-{number}", after(now, 900)) for number in range(2100)]
            transaction.hold_names(QUEUE, held_names, now=now)
        result = moved(old, new)
        assert (result.tasks, result.names) == (2609, 2103)
        assert tasks_of(new) == tasks_of(old)
        assert names_of(new) == names_of(old)


def test_the_old_queue_is_closed_and_says_where_to_go(old: Store, new: Store) -> None:
    moved(old, new)
    with pytest.raises(QueueMovedError, match=new.url):
        lease_all(old)
    with pytest.raises(QueueMovedError, match=new.url):
        add(old, NewTask())
    assert moved_to(new) == ""


def test_names_refuse_a_second_add_after_the_move_as_before_it(old: Store, new: Store) -> None:
    moved(old, new)
    assert add(new, NewTask(name="special-0"), NewTask(name="name-0"), NewTask(name="new")) == [
        "tombstoned",
        "exists",
        "added",
    ]


def test_a_task_in_flight_is_hidden_at_the_new_store_until_its_lease_would_have_ended(old: Store, new: Store) -> None:
    ends = {task.eta for task in tasks_of(old) if task.state is TaskState.LEASED}
    moved(old, new)
    assert {task.eta for task in tasks_of(new) if task.state is TaskState.LEASED} == ends
    assert not {"special-10", "special-11"} & set(lease_all(new))
    with new.begin() as transaction:
        granted = transaction.lease(QUEUE, LeaseRequest(1000, 60, ANY, "new-1"), now=max(ends))
    assert {"special-10", "special-11"} <= {lease.name for lease in granted.leases}


def test_a_lease_ends_no_earlier_where_the_new_stores_clock_is_ahead(old: Store) -> None:
    ahead = MemoryStore()
    ahead.clock = ManualClock(after(SystemClock().now(), 1800))
    (end, _) = [task.eta for task in tasks_of(old) if task.state is TaskState.LEASED]
    moved(old, ahead)
    assert all(after(end, 1790) < task.eta for task in tasks_of(ahead) if task.state is TaskState.LEASED)
    later = [t.eta for t in tasks_of(old) if t.state is TaskState.DELAYED and t.eta > ahead.clock.now()]
    assert [t.eta for t in tasks_of(ahead) if t.state is TaskState.DELAYED] == later != []


def test_moving_again_does_nothing(old: Store, new: Store) -> None:
    moved(old, new)
    lease_all(new)
    before = tasks_of(new)
    again = moved(old, new)
    assert (again.was_done, again.tasks) == (True, 49)
    assert tasks_of(new) == before


def test_settings_are_taken_along_with_the_pause(old: Store, new: Store) -> None:
    with old.begin() as transaction:
        transaction.set_paused(QUEUE, "paused")
    assert moved(old, new).settings == "taken along"
    with new.read() as snapshot:
        spec = snapshot.queue(QUEUE)
    assert (spec.max_leases, spec.paused) == (5, True)
    assert (spec.lease_calls_per_second, spec.user_emails) == (10, ("a@example.org", "ü@example.org"))


def test_an_empty_queue_that_is_there_keeps_its_settings(old: Store, new: Store) -> None:
    with new.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE, lease_seconds=7.0), now=new.clock.now())
    assert moved(old, new).settings == "kept"
    with new.read() as snapshot:
        assert snapshot.queue(QUEUE).lease_seconds == 7.0
    assert tasks_of(new) == tasks_of(old)


def test_an_empty_queue_is_moved_too(new: Store, tmp_path: Path) -> None:
    with opened("sqlite", tmp_path) as old:
        fill(old, queue="empty", tasks=0)
        with old.begin() as transaction:
            transaction.delete_queue("empty")
            transaction.put_queue(QueueSpec("empty"), now=old.clock.now())
        assert moved(old, new, queue="empty").tasks == 0
        assert moved_to(old, queue="empty") == new.url


def test_who_waits_at_the_new_store_is_woken_when_the_queue_opens(old: Store, new: Store) -> None:
    with new.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE), now=new.clock.now())
    waiting = new.signals.subscribe(QUEUE, ANY)
    try:
        moved(old, new)
        assert waiting.wait(timeout_seconds=10)
    finally:
        waiting.close()


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_queue_with_tasks_of_its_own_is_not_moved_over(old: Store, new: Store) -> None:
    with new.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE), now=new.clock.now())
    add(new, NewTask(b"its own"))
    with pytest.raises(MoveRefusedError, match="1 task of its own"):
        moved(old, new)
    assert (moved_to(old), moved_to(new)) == ("", "")
    assert [task.payload for task in tasks_of(new)] == [b"its own"]


def test_a_queue_that_still_holds_names_is_not_moved_over(old: Store, new: Store) -> None:
    now = new.clock.now()
    with new.begin() as transaction:
        transaction.put_queue(QueueSpec(QUEUE), now=now)
        transaction.hold_names(QUEUE, [HeldName("name-0", after(now, 60))], now=now)
    with pytest.raises(MoveRefusedError, match="name-0"):
        moved(old, new)
    assert (moved_to(old), moved_to(new)) == ("", "")


def test_a_queue_is_not_moved_to_where_it_is(old: Store) -> None:
    with pytest.raises(MoveRefusedError, match="same store"):
        moved(old, old)


def test_a_queue_that_was_moved_is_not_moved_elsewhere(old: Store, new: Store) -> None:
    moved(old, new)
    third = MemoryStore()
    third.url = "memory:third"
    with pytest.raises(MoveRefusedError, match=new.url):
        moved(old, third)


def test_a_queue_that_is_being_filled_is_not_moved_on(old: Store, new: Store) -> None:
    with pytest.raises(ProcessEndedError):
        moved(old, interrupted(new, at=4, when="after"))
    third = MemoryStore()
    third.url = "memory:third"
    with pytest.raises(MoveRefusedError, match="itself being filled"):
        moved(new, third)


def test_a_queue_that_does_not_exist_is_not_moved(old: Store, new: Store) -> None:
    with pytest.raises(UnknownQueueError):
        moved(old, new, queue="nowhere")


def test_a_queue_that_was_dropped_at_the_new_store_is_not_brought_there_again_unasked(old: Store, new: Store) -> None:
    moved(old, new)
    with new.begin() as transaction:
        transaction.delete_queue(QUEUE)
    with pytest.raises(MoveRefusedError, match="dropped there"):
        moved(old, new)
    a_move(old, new).abort()
    assert moved(old, new).tasks == 49


def test_two_moves_of_one_queue_do_not_run_at_once(old: Store, new: Store) -> None:
    move = a_move(old, new)
    with holding_lead(service(new), move._session, seconds=60), pytest.raises(MoveRefusedError, match="another"):
        move.run()
    assert moved_to(old) == ""


# -- broken off -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("side", ["old", "new"])
def test_a_move_that_is_broken_off_at_any_write_goes_on_and_doubles_nothing(
    tmp_path: Path, new: Store, side: str, when: str
) -> None:
    with opened("sqlite", tmp_path) as old:
        fill(old, tasks=1100)
        before = tasks_of(old)
        for at in range(1, MAX_WRITES):
            try:
                if side == "old":
                    moved(interrupted(old, at=at, when=when), new)
                else:
                    moved(old, interrupted(new, at=at, when=when))
                break
            except ProcessEndedError:
                assert not (gives_out(old) and gives_out(new))
        assert at > (1 if side == "old" else 5)
        assert moved(old, new).was_done
        assert tasks_of(new) == before == tasks_of(old)
        assert names_of(new) == names_of(old)
        assert (moved_to(old), moved_to(new)) == (new.url, "")


def test_while_it_is_filled_the_new_queue_refuses_everybody_else(old: Store, new: Store) -> None:
    with pytest.raises(ProcessEndedError):
        moved(old, interrupted(new, at=5, when="after"))
    assert moved_to(new) == f"{FILLED_FROM}{old.url}"
    with pytest.raises(QueueMovedError, match="being filled"):
        add(new, NewTask(name="name-0"))
    with pytest.raises(QueueMovedError, match="being filled"):
        lease_all(new)


def test_what_was_done_at_the_old_store_after_a_break_before_its_fence_is_moved_as_well(old: Store, new: Store) -> None:
    with pytest.raises(ProcessEndedError):
        moved(interrupted(old, at=1, when="before"), new)
    assert add(old, NewTask(b"came in between")) == ["added"]
    moved(old, new)
    assert tasks_of(new) == tasks_of(old)


def test_a_move_whose_progress_is_forgotten_is_not_gone_on_with(old: Store) -> None:
    new = MemoryStore()
    with pytest.raises(ProcessEndedError):
        moved(old, interrupted(new, at=8, when="after"))
    new._answers.clear()
    assert len(tasks_of(new)) == 49
    with pytest.raises(MoveRefusedError, match="has expired"):
        moved(old, new)
    a_move(old, new).abort()
    moved(old, new)
    assert tasks_of(new) == tasks_of(old)


# -- which queues -----------------------------------------------------------------------------------------------------


def test_without_names_all_queues_move_that_are_not_elsewhere(old: Store, new: Store) -> None:
    fill(old, queue="gone", tasks=3)
    fill(old, queue="more", tasks=3)
    with old.begin() as transaction:
        transaction.set_moved("gone", "sqlite:////srv/elsewhere.db")
    assert queues_to_move(old, new, ()) == ["more", QUEUE]
    assert queues_to_move(old, new, ["gone"]) == ["gone"]
    with pytest.raises(UnknownQueueError):
        queues_to_move(old, new, ["nowhere"])
    moved(old, new)
    assert queues_to_undo(old, new, ()) == [QUEUE]
    with pytest.raises(UnknownQueueError, match="nothing to undo"):
        queues_to_undo(new, old, ())
