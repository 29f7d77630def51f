"""What counts as a worker that was cut: tables of both logs."""

import pytest

from tests.support.kubernetes.cluster import Json
from tests.support.kubernetes.judge import Deletion, cuts, deletions_of, done_twice, leases_of, told_by_others

USER = "system:serviceaccount:fleet:supervisor"


def a_change(event: str, at: float, *, worker: str = "w1", task: str = "t1", number: int = 1) -> dict[str, object]:
    return {"event": event, "at": int(at * 1e6), "worker": worker, "task": task, "lease_number": number}


def a_record(verb: str, at: str, *, name: str = "pod-1", user: str = USER, code: int = 200, **body: object) -> Json:
    return {
        "verb": verb,
        "user": {"username": user},
        "objectRef": {"resource": "pods", "name": name},
        "requestReceivedTimestamp": at,
        "responseStatus": {"code": code},
        "requestObject": body,
    }


def a_deletion(at: float, *, worker: str = "w1") -> Deletion:
    return Deletion("pod-1", worker, USER, at, 1)


@pytest.mark.parametrize(
    ("at", "count"),
    [
        pytest.param(9.9, 0, id="before its lease"),
        pytest.param(10.0, 1, id="as it begins"),
        pytest.param(15.0, 1, id="while it holds it"),
        pytest.param(20.0, 0, id="as it ends"),
        pytest.param(20.1, 0, id="after it"),
    ],
)
def test_a_worker_is_cut_while_it_holds_a_lease(at: float, count: int) -> None:
    leases = leases_of([a_change("task.leased", 10), a_change("task.deleted", 20)])
    assert len(cuts(leases, [a_deletion(at)], user="supervisor", told={})) == count


def test_a_lease_that_never_ends_is_held() -> None:
    leases = leases_of([a_change("task.leased", 10), a_change("task.deleted", 20, number=2)])
    assert [cut.tasks for cut in cuts(leases, [a_deletion(30)], user="supervisor", told={})] == [("t1",)]


@pytest.mark.parametrize(("told_at", "count"), [(14.0, 0), (15.0, 0), (16.0, 1)])
def test_a_worker_that_a_person_told_to_stop_before_is_not_cut(told_at: float, count: int) -> None:
    leases = leases_of([a_change("task.leased", 10)])
    assert len(cuts(leases, [a_deletion(15)], user="supervisor", told={"w1": told_at})) == count


def test_another_worker_and_another_user_are_none_of_it() -> None:
    leases = leases_of([a_change("task.leased", 10)])
    assert cuts(leases, [a_deletion(15, worker="w2")], user="supervisor", told={}) == []
    assert cuts(leases, [a_deletion(15)], user="admin", told={}) == []


def test_the_audit_log_says_which_worker_a_pod_was_and_how_it_was_deleted() -> None:
    metadata = {"labels": {"towline.worker": "w1"}}
    audit = [
        a_record("create", "2026-11-29T12:00:00.000000Z", metadata=metadata),
        a_record("delete", "2026-11-29T12:00:10.500000Z", gracePeriodSeconds=1),
        a_record("delete", "2026-11-29T12:00:11.000000Z", code=404),
        a_record("get", "2026-11-29T12:00:12.000000Z"),
    ]
    (found,) = deletions_of(audit)
    assert (found.pod, found.worker, found.user, found.grace_seconds) == ("pod-1", "w1", USER, 1)
    assert found.at % 60 == 10.5


def test_the_audit_log_says_who_was_told_to_stop_by_somebody_else() -> None:
    first, second = ({"labels": {"towline.worker": worker}} for worker in ("w1", "w2"))
    evicted = a_record("create", "2026-11-29T12:00:10.000000Z", name="pod-2", user="admin")
    evicted["objectRef"]["subresource"] = "eviction"
    audit = [
        a_record("create", "2026-11-29T12:00:00.000000Z", metadata=first),
        a_record("create", "2026-11-29T12:00:00.000000Z", name="pod-2", metadata=second),
        evicted,
        a_record("delete", "2026-11-29T12:00:11.000000Z"),
    ]
    assert list(told_by_others(audit, user="supervisor")) == ["w2"]
    assert list(told_by_others(audit, user="admin")) == ["w1"]


def test_a_task_is_done_twice_when_two_leases_finish_it() -> None:
    first = [a_change("task.leased", 1), a_change("task.deleted", 2)]
    again = [a_change("task.leased", 3, number=2), a_change("task.deleted", 4, number=2)]
    other = [a_change("task.leased", 3, task="t2"), a_change("task.deleted", 4, task="t2")]
    assert done_twice(leases_of([*first, *again, *other])) == {"t1"}
    assert done_twice(leases_of([*first, *other])) == set()
