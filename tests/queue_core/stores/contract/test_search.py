"""Searches on every store, and over HTTP: what a task went through, in bounded steps; and changes of all that match."""

from collections.abc import Iterator

import pytest

from queue_core.attempts.failures import failure_of
from queue_core.client.local_calls import LocalQueues
from queue_core.client.queue import Queue
from queue_core.clock import START, ManualClock
from queue_core.errors import InvalidRequestError
from queue_core.store import Store
from queue_core.task import NewTask, TagFilter, TaskState
from queue_core.unit.service import QueueService
from queue_core.verbs import criteria
from queue_core.verbs.criteria import Search
from queue_core.verbs.matching import Action
from tests.support.stores.task_builders import QUEUE, a_queue, at

DEAD = frozenset({TaskState.DEAD})


class SearchedQueue:
    """A queue whose tasks have gone through something: two dead, one leased, one delayed, two ready."""

    def __init__(self, store: Store) -> None:
        self.clock = ManualClock(START)
        a_queue(store, max_leases=2)
        self.queues = LocalQueues(QueueService(store, clock=self.clock))
        self.queue: Queue = self.queues.queue(QUEUE)
        self.queue.add([NewTask(b"a cat", name="dead-1", tag="t"), NewTask(b"a dog", name="dead-2", tag="u")])
        for name, error in (("w1", ValueError("no")), ("w2", KeyError("k"))):
            for lease in self.queue.lease(2, worker=name):
                self.queue.release(lease, delay_seconds=0, error=failure_of(error))
        self.clock.advance(10)
        self.queue.add([NewTask(b"held", name="held")])
        self.queue.lease(worker="w3")
        self.queue.add([NewTask(b"late", name="late", delay_seconds=600)])
        self.queue.add([NewTask(b"a cat", name="ready-1", tag="t"), NewTask(b"", name="ready-2")])

    def found(self, search: Search) -> list[str]:
        return [task.shown_name for task in self.queue.search(search).tasks]


@pytest.fixture
def searched(store: Store) -> Iterator[SearchedQueue]:
    yield SearchedQueue(store)


@pytest.mark.parametrize(
    ("search", "names"),
    [
        pytest.param(Search(), ["dead-1", "dead-2", "held", "late", "ready-1", "ready-2"], id="all"),
        pytest.param(Search(states=DEAD), ["dead-1", "dead-2"], id="state"),
        pytest.param(Search(tags=TagFilter.of("t")), ["dead-1", "ready-1"], id="tag"),
        pytest.param(Search(min_leases=1), ["dead-1", "dead-2", "held"], id="leases"),
        pytest.param(Search(min_leases=2), ["dead-1", "dead-2"], id="more leases"),
        pytest.param(Search(added_before=at(10)), ["dead-1", "dead-2"], id="added before"),
        pytest.param(Search(added_after=at(10)), ["held", "late", "ready-1", "ready-2"], id="added after"),
        pytest.param(Search(worker="w1"), ["dead-1", "dead-2"], id="an earlier worker"),
        pytest.param(Search(worker="w3"), ["held"], id="its worker"),
        pytest.param(Search(error="KeyError"), ["dead-1", "dead-2"], id="the last error"),
        pytest.param(Search(error="ValueError"), [], id="an earlier error"),
        pytest.param(Search(error="raised"), ["dead-1", "dead-2"], id="the last outcome"),
        pytest.param(Search(contains="cat"), ["dead-1", "ready-1"], id="payload"),
        pytest.param(Search(states=DEAD, contains="cat"), ["dead-1"], id="several"),
        pytest.param(Search(states=frozenset()), [], id="no state"),
    ],
)
def test_a_task_is_found_by_what_it_went_through(searched: SearchedQueue, search: Search, names: list[str]) -> None:
    assert searched.found(search) == names


def test_a_search_goes_on_where_it_stopped_and_says_how_far_it_is(searched: SearchedQueue) -> None:
    search, after, steps = Search(contains="cat"), 0, []
    while True:
        page = searched.queue.search(search, after=after, scan=2, payload_bytes=1)
        steps.append(([(task.shown_name, task.payload) for task in page.tasks], page.scanned, page.total))
        if page.next_after is None:
            break
        after = page.next_after
    found = [task for tasks, _, _ in steps for task in tasks]
    assert found == [("dead-1", b"a"), ("ready-1", b"a")]
    assert sum(scanned for _, scanned, _ in steps) == 6
    assert {(scanned <= 2, total) for _, scanned, total in steps} == {(True, 6)}
    first = searched.queue.search(Search(), limit=2)
    assert [task.shown_name for task in first.tasks] == ["dead-1", "dead-2"]
    assert first.next_after is not None
    assert len(searched.queue.search(Search(), after=first.next_after).tasks) == 4


@pytest.mark.parametrize(
    ("action", "search", "names"),
    [
        pytest.param("redrive", Search(error="KeyError"), ["dead-1", "dead-2"], id="redrive"),
        pytest.param("delete", Search(contains="cat"), ["dead-1", "ready-1"], id="delete"),
        pytest.param("release", Search(worker="w3"), ["held"], id="release"),
        pytest.param("postpone", Search(), ["late"], id="postpone"),
        pytest.param("retag", Search(states=DEAD), ["dead-1", "dead-2"], id="retag"),
    ],
)
def test_all_that_match_are_counted_first_and_then_changed(
    searched: SearchedQueue, action: Action, search: Search, names: list[str]
) -> None:
    eta, tag = at(1200) if action == "postpone" else None, "new" if action == "retag" else None
    before = searched.found(Search())
    counted = searched.queue.change_matching(action, search, dry_run=True, eta=eta, tag=tag)
    assert (counted.matched, counted.changed, counted.next_after) == (len(names), 0, None)
    assert searched.found(Search()) == before
    done = searched.queue.change_matching(action, search, dry_run=False, eta=eta, tag=tag)
    assert (done.matched, done.changed) == (len(names), len(names))
    by_name = {task.shown_name: task for task in searched.queue.search(Search()).tasks}
    match action:
        case "redrive":
            assert {by_name[name].state for name in names} == {TaskState.READY}
        case "delete":
            assert by_name.keys() == set(before) - set(names)
        case "release":
            assert by_name["held"].state is TaskState.READY
        case "postpone":
            assert by_name["late"].eta == at(1200)
        case "retag":
            assert {name for name, task in by_name.items() if task.tag == "new"} == set(names)
    again = searched.queue.change_matching(action, search, dry_run=False, eta=eta, tag=tag)
    assert again.changed == (1 if action == "postpone" else 0)


def test_leased_tasks_match_a_retag_and_are_left_as_they_are(searched: SearchedQueue) -> None:
    done = searched.queue.change_matching("retag", Search(), dry_run=False, tag="new")
    assert (done.matched, done.changed) == (6, 5)
    tags = {task.shown_name: task.tag for task in searched.queue.search(Search()).tasks}
    assert {name for name, tag in tags.items() if tag != "new"} == {"held"}
    done = searched.queue.change_matching("retag", Search(tags=TagFilter.of("new")), dry_run=False)
    assert done.changed == 5
    assert searched.queue.search(Search(tags=TagFilter.of("new"))).tasks == ()


def test_a_task_that_no_longer_matches_is_left_alone(searched: SearchedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the search and the change one of the tasks is redriven by somebody else."""
    matches = Search.matches
    looked: list[str] = []

    def after_a_redrive(search: Search, task: object) -> bool:
        found = matches(search, task)  # type: ignore[arg-type]
        looked.append("")
        if len(looked) == 2:
            searched.queue.redrive("dead-2")
        return found

    monkeypatch.setattr(Search, "matches", after_a_redrive)
    done = searched.queue.change_matching("delete", Search(states=DEAD), dry_run=False)
    monkeypatch.undo()
    assert (done.matched, done.changed) == (2, 1)
    assert "dead-2" in searched.found(Search())


def test_what_is_beyond_the_bounds_is_refused(searched: SearchedQueue) -> None:
    queue = searched.queue
    for call in (
        lambda: queue.search(Search(min_leases=-1)),
        lambda: queue.search(Search(worker="\ud800")),
        lambda: queue.search(Search(), limit=0),
        lambda: queue.search(Search(), scan=criteria.MAX_SCANNED + 1),
        lambda: queue.change_matching("postpone", Search(), dry_run=True),
        lambda: queue.change_matching("delete", Search(), dry_run=True, eta=at(1)),
        lambda: queue.change_matching("delete", Search(), dry_run=True, tag="a"),
        lambda: queue.change_matching("retag", Search(), dry_run=True, tag="x" * 501),
    ):
        with pytest.raises(InvalidRequestError):
            call()


def test_more_than_a_chunk_is_changed_step_by_step(store: Store) -> None:
    a_queue(store)
    queue = LocalQueues(QueueService(store, clock=ManualClock(START))).queue(QUEUE)
    queue.add([NewTask(b"x", name=f"cat-{number}", tag="cat" if number % 2 else "dog") for number in range(250)])
    search, after, changed = Search(tags=TagFilter.of("cat")), 0, 0
    while True:
        batch = queue.change_matching("delete", search, dry_run=False, after=after, scan=110)
        changed += batch.changed
        assert (batch.scanned <= 110, batch.total <= 125) == (True, True)
        if batch.next_after is None:
            break
        after = batch.next_after
    assert changed == 125
    assert queue.stats().pending == 125


def test_a_change_leaves_what_came_since_it_was_counted(searched: SearchedQueue) -> None:
    counted = searched.queue.change_matching("delete", Search(), dry_run=True)
    assert (counted.matched, counted.as_of) == (6, searched.clock.now())
    searched.clock.advance(1)
    searched.queue.add([NewTask(b"", name="since"), NewTask(b"", name="since-later", delay_seconds=60)])
    searched.queue.lease(worker="w4")  # one that was counted, and is still there
    done = searched.queue.change_matching("delete", Search(as_of=counted.as_of), dry_run=False)
    assert (done.matched, done.changed) == (6, 6)
    assert searched.found(Search()) == ["since", "since-later"]


def test_a_redrive_of_the_dead_leaves_what_died_since(searched: SearchedQueue) -> None:
    as_of = searched.queue.change_matching("redrive", Search(), dry_run=True).as_of
    searched.clock.advance(1)
    (lease,) = searched.queue.lease(worker="w4")
    searched.queue.release(lease, dead_reason="KeyError: k", error=failure_of(KeyError("k")))
    searched.queue.redrive("dead-1")
    (again,) = searched.queue.lease(tags=TagFilter.of("t"), worker="w5")
    searched.queue.release(again, dead_reason="KeyError: k", error=failure_of(KeyError("k")))
    for search in (Search(as_of=as_of), Search(error="KeyError", as_of=as_of)):
        assert searched.queue.change_matching("redrive", search, dry_run=True).matched == 1
    assert searched.queue.change_matching("redrive", Search(as_of=as_of), dry_run=False).changed == 1
    assert {task.shown_name for task in searched.queue.peek(states=DEAD).tasks} == {lease.name, again.name}


def test_a_state_that_a_task_came_to_since_the_count_is_none_it_was_counted_in(searched: SearchedQueue) -> None:
    """Ready: what was given back, redriven, or whose eta came; leased: what was leased since."""
    as_of = searched.queue.change_matching("delete", Search(), dry_run=True).as_of
    searched.clock.advance(1)
    (held,) = searched.queue.peek(names=["held"]).tasks
    searched.queue.change_matching("release", Search(names=frozenset({held.shown_name})), dry_run=False)
    searched.queue.redrive("dead-1")
    searched.queue.change_matching("postpone", Search(), dry_run=False, eta=searched.clock.now())
    (lease,) = searched.queue.lease(tags=TagFilter.of("t"), worker="w6")
    for state, names in ((TaskState.READY, {"ready-1", "ready-2"} - {lease.name}), (TaskState.LEASED, set())):
        then = Search(states=frozenset({state}), as_of=as_of)
        assert set(searched.found(then)) == names
        assert searched.queue.change_matching("delete", then, dry_run=True).matched == len(names)
    living = criteria.ALL_STATES - DEAD
    assert "dead-1" not in searched.found(Search(states=living, as_of=as_of))
    assert set(searched.found(Search(states=living, as_of=as_of))) == {"held", "late", "ready-1", "ready-2"}
    assert "held" not in searched.found(Search(worker="w3", as_of=as_of)), "it was given back since"
