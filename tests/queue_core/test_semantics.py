"""The meaning of the verbs for one task: each boundary one microsecond before, at, and after it."""

from dataclasses import replace

import pytest

from queue_core import semantics
from queue_core.attempts.attempt import WORDS
from queue_core.clock import Instant, after
from queue_core.errors import InvalidEtaError
from queue_core.limits import FARTHEST_ETA_SECONDS
from queue_core.semantics import LeaseEnd
from queue_core.task import NewTask, QueueSpec, StoredTask, TaskState

NOW = Instant(1_700_000_000_000_000)
SPEC = QueueSpec("thumbs", max_leases=3)


def a_task(**changes: object) -> StoredTask:
    return replace(semantics.add(NewTask(b"x", tag="resize"), task_id=7, queue="thumbs", now=NOW), **changes)


def a_leased_task(*, seconds: float = 30.0, now: Instant = NOW, **changes: object) -> StoredTask:
    return semantics.lease(a_task(**changes), worker="w-1", seconds=seconds, now=now)


@pytest.mark.parametrize(
    ("new", "eta", "state"),
    [
        pytest.param(NewTask(), NOW, TaskState.READY, id="no eta is now"),
        pytest.param(NewTask(eta=Instant(NOW - 5)), NOW, TaskState.READY, id="a past eta is raised to now"),
        pytest.param(NewTask(eta=NOW), NOW, TaskState.READY, id="an eta of now is ready"),
        pytest.param(NewTask(eta=Instant(NOW + 1)), NOW + 1, TaskState.DELAYED, id="a microsecond ahead is delayed"),
        pytest.param(NewTask(delay_seconds=0.0), NOW, TaskState.READY, id="no delay"),
        pytest.param(NewTask(delay_seconds=1.5), NOW + 1_500_000, TaskState.DELAYED, id="a delay in seconds"),
    ],
)
def test_a_new_task_waits_for_its_eta(new: NewTask, eta: Instant, state: TaskState) -> None:
    task = semantics.add(new, task_id=1, queue="thumbs", now=NOW)
    assert (task.eta, task.state) == (eta, state)


@pytest.mark.parametrize(
    "eta", [Instant(-1), Instant(NOW + int(FARTHEST_ETA_SECONDS) * 1_000_000 + 1)], ids=["before 1970", "past 10 years"]
)
def test_an_eta_out_of_bounds_is_refused(eta: Instant) -> None:
    with pytest.raises(InvalidEtaError):
        semantics.add(NewTask(eta=eta), task_id=1, queue="thumbs", now=NOW)


def test_an_eta_of_exactly_ten_years_is_taken() -> None:
    eta = Instant(NOW + int(FARTHEST_ETA_SECONDS) * 1_000_000)
    assert semantics.add(NewTask(eta=eta), task_id=1, queue="thumbs", now=NOW).eta == eta


@pytest.mark.parametrize(("offset", "live"), [(-1, True), (0, False), (1, False)])
def test_a_lease_is_live_until_the_microsecond_of_its_end(*, offset: int, live: bool) -> None:
    leased = a_leased_task()
    at = Instant(leased.eta + offset)
    assert semantics.is_current(leased, leased.leased_at, now=at) is live
    assert semantics.is_due(leased, now=at) is not live


@pytest.mark.parametrize(("offset", "due"), [(-1, False), (0, True), (1, True)])
def test_a_delayed_task_is_due_at_its_eta(*, offset: int, due: bool) -> None:
    delayed = semantics.add(NewTask(delay_seconds=5), task_id=1, queue="thumbs", now=NOW)
    expired = semantics.expire(delayed, SPEC, now=Instant(delayed.eta + offset))
    assert isinstance(expired, StoredTask)
    assert (expired.state is TaskState.READY) is due


def test_a_lease_is_charged_and_moves_the_eta_to_its_end() -> None:
    leased = a_leased_task(seconds=30)
    assert (leased.leases, leased.eta, leased.ready_at, leased.worker) == (1, after(NOW, 30), NOW, "w-1")


def test_another_leases_token_is_never_current() -> None:
    leased = a_leased_task()
    assert not semantics.is_current(leased, Instant(leased.leased_at - 1), now=NOW)


def test_a_token_never_repeats_though_the_clock_is_stepped_back() -> None:
    first = a_leased_task(seconds=1)
    released = semantics.release(first, SPEC, delay_seconds=0, now=NOW)
    assert released.task is not None
    second = semantics.lease(released.task, worker="w-2", seconds=1, now=Instant(NOW - 60_000_000))
    assert second.leased_at > first.leased_at


def test_no_two_leases_of_a_task_end_at_the_same_microsecond() -> None:
    task, ends, now = a_task(), set(), NOW
    spec = QueueSpec("thumbs")
    for seconds in (30, 5, 30, 20, 29, 20, 1):
        leased = semantics.lease(task, worker="w", seconds=seconds, now=now)
        assert leased.eta not in ends
        ends.add(leased.eta)
        given_back = semantics.release(leased, spec, delay_seconds=0, now=now).task
        assert given_back is not None
        task = given_back


def test_a_renewal_does_not_end_where_the_lease_ended_before() -> None:
    leased = a_leased_task(seconds=30)
    assert semantics.renew(leased, seconds=30, now=NOW).eta == leased.eta + 1


def test_a_renewal_keeps_the_token() -> None:
    leased = a_leased_task(seconds=30)
    renewed = semantics.renew(leased, seconds=30, now=after(NOW, 10))
    assert (renewed.token, renewed.eta, renewed.leases) == (leased.token, after(NOW, 40), 1)


def test_ends_that_have_passed_are_forgotten() -> None:
    leased = a_leased_task(seconds=30)
    renewed = semantics.renew(semantics.renew(leased, seconds=60, now=NOW), seconds=60, now=after(NOW, 31))
    assert renewed.spent == (after(NOW, 60),)


def test_an_expired_lease_is_ready_again_and_noted() -> None:
    leased = a_leased_task(seconds=30)
    ending = semantics.expire(leased, SPEC, now=leased.eta)
    assert isinstance(ending, LeaseEnd)
    assert ending.task is not None
    assert (ending.task.state, ending.task.leases) == (TaskState.READY, 1)
    assert (ending.finished.outcome, ending.finished.held_seconds, ending.finished.died) == ("expired", 30.0, False)


@pytest.mark.parametrize(
    ("leases_before", "dies"), [pytest.param(1, False, id="one left"), pytest.param(2, True, id="none left")]
)
def test_a_task_dies_when_its_last_lease_expires(*, leases_before: int, dies: bool) -> None:
    leased = a_leased_task(leases=leases_before)
    ending = semantics.expire(leased, SPEC, now=leased.eta)
    assert isinstance(ending, LeaseEnd)
    assert ending.task is not None
    assert (ending.task.state is TaskState.DEAD) is dies
    assert ending.finished.died is dies


def test_an_exhausted_task_is_deleted_where_the_queue_says_so() -> None:
    leased = a_leased_task(leases=2)
    ending = semantics.expire(leased, replace(SPEC, on_exhausted="delete"), now=leased.eta)
    assert isinstance(ending, LeaseEnd)
    assert ending.task is None
    assert ending.finished.died


@pytest.mark.parametrize(
    ("delay_seconds", "state"),
    [(0.0, TaskState.READY), (0.000001, TaskState.DELAYED), (10.0, TaskState.DELAYED)],
)
def test_a_released_task_waits_for_its_delay(delay_seconds: float, state: TaskState) -> None:
    ending = semantics.release(a_leased_task(), SPEC, delay_seconds=delay_seconds, now=NOW)
    assert ending.task is not None
    assert (ending.task.state, ending.task.eta) == (state, after(NOW, delay_seconds))


def test_a_task_that_is_given_back_without_a_delay_takes_its_old_place() -> None:
    leased = a_leased_task(now=after(NOW, 5))
    ending = semantics.release(leased, SPEC, delay_seconds=None, now=after(NOW, 9))
    assert ending.task is not None
    assert (ending.task.state, ending.task.eta) == (TaskState.READY, NOW)


def test_an_uncounted_release_takes_the_lease_off_the_count() -> None:
    ending = semantics.release(a_leased_task(leases=2), SPEC, delay_seconds=0, now=NOW, charge="uncounted")
    assert ending.task is not None
    assert (ending.task.leases, ending.task.state) == (2, TaskState.READY)


def test_a_release_on_the_last_lease_makes_the_task_dead() -> None:
    ending = semantics.release(a_leased_task(leases=2), SPEC, delay_seconds=0, now=NOW)
    assert ending.task is not None
    assert (ending.task.state, ending.task.reason) == (TaskState.DEAD, WORDS["given_back"])


def test_a_handler_may_make_its_task_dead_at_once() -> None:
    ending = semantics.release(a_leased_task(), SPEC, delay_seconds=0, now=NOW, dead_reason="no such image")
    assert ending.task is not None
    assert (ending.task.state, ending.task.reason) == (TaskState.DEAD, "no such image")


def test_a_redriven_task_has_all_its_leases_before_it_and_no_token_again() -> None:
    dead = semantics.release(a_leased_task(leases=2), SPEC, delay_seconds=0, now=NOW).task
    assert dead is not None
    redriven = semantics.redrive(dead, now=NOW)
    again = semantics.lease(redriven, worker="w", seconds=1, now=NOW)
    assert (redriven.state, redriven.leases) == (TaskState.READY, 0)
    assert again.leased_at > dead.leased_at


def test_seconds_are_never_negative_when_the_clock_was_stepped_back() -> None:
    leased = a_leased_task()
    finished = semantics.delete(leased, now=Instant(NOW - 10_000_000)).finished
    assert finished.held_seconds == 0.0
