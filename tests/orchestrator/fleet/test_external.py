"""Who is there of a pool whose workers others start, from what the queue heard and what is leased."""

from collections.abc import Sequence

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample, PresentWorker, QueueSample, RunningLease
from orchestrator.fleet.external import (
    HUNG_UP_SECONDS,
    LATE_SECONDS,
    POLLS_SECONDS,
    WAITS_SECONDS,
    ExternalWorkers,
    expected_ref,
    is_expected,
    observe_external,
    released,
    wanted_again,
    without_external,
)
from orchestrator.fleet.observation import observe
from orchestrator.fleet.workers import Fleet, Worker, joined
from tests.support.fleet.fleet_builders import NOW, a_fleet, a_pool, a_sample, a_worker

POOL = a_pool(runtime="external")
A, B, C = "resize/a", "resize/b", "resize/c"


def asking(*names: str) -> list[PresentWorker]:
    return [PresentWorker(name, 0.0, waits=True) for name in names]


def seen(fleet: Fleet, present: Sequence[PresentWorker] = (), *, sample: QueueSample | None = None) -> ExternalWorkers:
    return observe_external(fleet, present, sample or a_sample(), spec=POOL, now=NOW)


def expecting(*spawned_at: float) -> Fleet:
    fleet = Fleet("resize")
    for number, at in enumerate(spawned_at):
        worker = f"resize-{number}"
        ref, digest = expected_ref(worker), POOL.digest()
        fleet = joined(fleet, worker=worker, ref=ref, spec_digest=digest, spawned_at=Monotonic(at))
    return fleet


def external(name: str, state: str = "idle", **more: object) -> Worker:
    worker = a_worker(name, state, spec=POOL, **more)  # type: ignore[arg-type]
    worker.ref = f"external:{name}"  # type: ignore[misc]
    return worker


@pytest.mark.parametrize(
    ("present", "is_there"),
    [
        pytest.param(PresentWorker(A, 0.0, waits=True), True, id="it asks now"),
        pytest.param(PresentWorker(A, WAITS_SECONDS, waits=True), True, id="it waits, and was silent for a moment"),
        pytest.param(
            PresentWorker(A, WAITS_SECONDS + 0.001, waits=True), False, id="it waits, and is silent for too long"
        ),
        pytest.param(PresentWorker(A, POLLS_SECONDS), True, id="it asks now and then"),
        pytest.param(PresentWorker(A, POLLS_SECONDS + 0.001), False, id="it asked now and then, long ago"),
        pytest.param(PresentWorker(A, HUNG_UP_SECONDS, waits=True, hung_up=True), True, id="it hung up a moment ago"),
        pytest.param(
            PresentWorker(A, HUNG_UP_SECONDS + 0.001, waits=True, hung_up=True), False, id="it hung up and left"
        ),
        pytest.param(PresentWorker("resize-2/a", 0.0), False, id="it is another pool's"),
        pytest.param(PresentWorker("resize", 0.0), False, id="it has the pool's name and no more"),
    ],
)
def test_a_worker_is_there_while_it_is_heard_of(present: PresentWorker, is_there: bool) -> None:
    assert (set(seen(a_fleet(), [present]).fleet.workers) == {A}) is is_there


def test_who_holds_a_lease_is_there_however_silent() -> None:
    sample = a_sample(running=[RunningLease(A, 500.0, 0.1, 1), RunningLease("somebody", 3.0, 0.1, 1)])
    called = seen(a_fleet(), [PresentWorker(A, 500.0, waits=True)], sample=sample)
    assert set(called.fleet.workers) == {A}
    assert observe(called.fleet, sample).workers[A].state == "busy"


@pytest.mark.parametrize(("ago", "is_there"), [(POLLS_SECONDS, True), (POLLS_SECONDS + 0.001, False)])
def test_where_no_server_hears_of_them_workers_are_known_by_their_leases(ago: float, is_there: bool) -> None:
    sample = a_sample(finished=[LeaseSample(A, 1.0, 0.1, "deleted", 1, ago)])
    assert (A in seen(a_fleet(), sample=sample).fleet.workers) is is_there


def test_a_worker_that_comes_after_it_was_wanted_tells_how_long_a_start_takes() -> None:
    sample = a_sample(first_seen_seconds_ago={A: 3.0})
    called = seen(expecting(NOW - 15), asking(A), sample=sample)
    fleet = observe(called.fleet, sample)
    assert (called.came, called.answers) == ((A,), 1)
    assert [(one.worker, one.seconds) for one in fleet.started] == [(A, 12.0)]
    assert fleet.workers[A].state == "idle"


def test_a_worker_that_was_there_before_it_was_wanted_teaches_nothing() -> None:
    sample = a_sample(first_seen_seconds_ago={A: 60.0})
    called = seen(expecting(NOW - 15), asking(A), sample=sample)
    fleet = observe(called.fleet, sample)
    assert set(fleet.workers) == {A}
    assert fleet.started == ()
    assert called.answers == 1


def test_workers_that_nobody_wanted_are_taken_as_they_are() -> None:
    sample = a_sample(first_seen_seconds_ago={A: 60.0, B: 1.0})
    called = seen(a_fleet(), asking(A, B), sample=sample)
    fleet = observe(called.fleet, sample)
    assert {w.state for w in fleet.alive} == {"idle"}
    assert (fleet.started, called.answers) == ((), 0)
    assert fleet.workers[A].spawned_at == NOW - 60


def test_of_several_that_were_wanted_the_first_is_met_first() -> None:
    sample = a_sample(first_seen_seconds_ago={A: 1.0, B: 4.0})
    called = seen(expecting(NOW - 9, NOW - 20, NOW - 5), asking(A, B), sample=sample)
    assert {name: w.spawned_at for name, w in called.fleet.workers.items()} == {
        B: NOW - 20,
        A: NOW - 9,
        "resize-2": NOW - 5,
    }


def test_a_worker_that_leaves_by_itself_is_missed_at_once() -> None:
    called = seen(a_fleet(external(A), external(B)), asking(A))
    assert [(gone.worker, gone.released) for gone in called.gone] == [(B, False)]
    assert len(called.fleet.alive) == 1


def test_when_one_too_many_leaves_all_is_as_wanted_whichever_it_is() -> None:
    fleet = released(a_fleet(external(A), external(B), external(C)), A, now=NOW)
    assert len(fleet.alive) == 2
    right = seen(fleet, asking(B, C))
    assert [(gone.worker, gone.released) for gone in right.gone] == [(A, True)]
    assert {w.worker for w in right.fleet.alive} == {B, C}
    other = seen(fleet, asking(A, C))
    assert {w.worker for w in other.fleet.alive} == {A, C}
    assert other.fleet.leaving == ()


def test_what_is_wanted_again_was_never_asked_to_leave() -> None:
    fleet = a_fleet(external(A), external(B, "busy"), external(C))
    fleet = released(released(fleet, A, now=NOW), B, now=Monotonic(NOW + 1))
    once = wanted_again(fleet, 1, now=Monotonic(NOW + 2))
    assert (once.workers[B].state, once.workers[A].state) == ("busy", "draining")
    assert len(wanted_again(once, 5, now=Monotonic(NOW + 3)).alive) == 3
    assert wanted_again(once, 0, now=NOW) is once


def test_one_that_is_only_expected_need_not_come_any_more() -> None:
    assert released(expecting(NOW), "resize-0", now=NOW).workers == {}
    assert released(a_fleet(), "nobody", now=NOW) == a_fleet()


@pytest.mark.parametrize(
    ("age", "ready", "state"),
    [
        pytest.param(LATE_SECONDS, 0, "starting", id="it may still be under way"),
        pytest.param(LATE_SECONDS + 0.001, 0, "idle", id="late, and nothing waits: it can be done without"),
        pytest.param(900.0, 1, "starting", id="late, and something waits: it is still wanted"),
    ],
)
def test_a_worker_that_does_not_come_is_waited_for_while_there_is_work(age: float, ready: int, state: str) -> None:
    called = seen(expecting(NOW - age), sample=a_sample(ready=ready))
    (worker,) = called.fleet.workers.values()
    assert worker.state == state
    assert is_expected(worker.ref)


def test_a_supervisor_that_starts_believes_its_predecessor_for_a_while() -> None:
    hoped = external(A, "starting", adopted=True, since=NOW - POLLS_SECONDS + 0.001)
    assert set(seen(a_fleet(hoped)).fleet.workers) == {A}
    given_up = external(A, "starting", adopted=True, since=NOW - POLLS_SECONDS)
    assert seen(a_fleet(given_up)).fleet.workers == {}


def test_workers_of_our_own_are_no_business_of_a_roll_call() -> None:
    ours = a_worker("resize-abc", "busy")
    called = seen(a_fleet(ours, external(A)))
    assert set(called.fleet.workers) == {"resize-abc"}
    assert without_external(called.fleet) is called.fleet
    assert without_external(a_fleet(ours, external(A))).workers == {"resize-abc": ours}


def test_who_was_to_replace_a_worker_of_ours_keeps_that_place() -> None:
    fleet = a_fleet(a_worker("resize-abc", "busy"))
    digest = POOL.digest()
    fleet = joined(
        fleet,
        worker="resize-new",
        ref=expected_ref("resize-new"),
        spec_digest=digest,
        spawned_at=NOW,
        replaces="resize-abc",
    )
    assert seen(fleet, asking(A)).fleet.workers["resize-abc"].replaced_by == A
