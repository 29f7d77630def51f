"""Which tasks a worker that hung let expire."""

from orchestrator.sources.lapses import MAX_WORKERS, Lapses
from queue_core.clock import Instant
from queue_core.stats import OVERRAN, FinishedLease, LeaseOutcome


def a_lease(
    name: str, outcome: LeaseOutcome = "expired", *, at: int, worker: str = "w1", reason: str = ""
) -> FinishedLease:
    return FinishedLease("jobs", name, None, worker, 1, outcome, 0.0, 2.0, Instant(at), reason=reason)


def names(lapses: Lapses, *finished: FinishedLease, named: tuple[str, ...] = (), worker: str = "w1") -> list[str]:
    return [task.task for task in lapses.take(worker, finished, named=named)]


def test_those_since_it_last_ended_a_lease_itself_and_those_not_seen_yet() -> None:
    lapses = Lapses()
    lapses.add(
        [
            a_lease("old", at=1),
            a_lease("done", "deleted", at=2),
            a_lease("a", at=3),
            a_lease("of w2", at=3, worker="w2"),
        ]
    )
    assert names(lapses, a_lease("b", at=4)) == ["a", "b"]
    assert names(lapses) == [], "it is forgotten"
    assert names(lapses, worker="w2") == ["of w2"]


def test_the_named_ones_where_it_said_which_hang() -> None:
    lapses = Lapses()
    lapses.add([a_lease("stuck", at=1), a_lease("cancelled", at=2), a_lease("done", "deleted", at=3)])
    assert names(lapses, named=("stuck",)) == ["stuck"]


def test_a_lease_that_its_worker_gave_back_for_a_handler_that_ran_on_is_a_lapse() -> None:
    lapses = Lapses()
    lapses.add([a_lease("overran", "released", at=1, reason=f"{OVERRAN}: its handler ran on")])
    lapses.add([a_lease("failed", "released", at=1, reason="ValueError: no")])
    assert names(lapses) == ["overran"]


def test_no_more_workers_are_remembered_than_the_bound() -> None:
    lapses = Lapses()
    for number in range(MAX_WORKERS + 1):
        lapses.add([a_lease("a", at=1, worker=f"w{number}")])
    assert names(lapses, worker="w0") == []
    assert names(lapses, worker=f"w{MAX_WORKERS}") == ["a"]
