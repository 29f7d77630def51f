"""What a registry makes of events and lists of Pods: lessons of other projects, each by the issue that taught it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import Monotonic
from orchestrator.fleet.exits import Cause, cause_of
from orchestrator.runtime import Exit, WorkerHandle
from orchestrator.runtimes.kubernetes.pods import PodState
from orchestrator.runtimes.kubernetes.registry import PodRegistry, PodWorker
from tests.support.fleet.pods import a_condition, a_pod_seen, running, terminated, waiting

NOW = Monotonic(1_000.0)
DOOMED = a_condition("DisruptionTarget", "True", "EvictionByEvictionAPI", "evicted")
TAINTED = a_condition("DisruptionTarget", "True", "DeletionByTaintManager", "deleting")


class Bench:
    """A registry whose removals and news are kept."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.news = 0
        self.registry = PodRegistry(handle_of=self.handle_of, on_news=self.on_news, remove=self.remove)
        self.now = NOW

    def handle_of(self, state: PodState) -> WorkerHandle:
        return WorkerHandle(state.worker, state.pool, f"kubernetes:c/fleet#{state.name}", state.spec_digest, self.now)

    def on_news(self) -> None:
        self.news += 1

    def remove(self, name: str, uid: str, is_allowed: bool) -> None:
        self.removed.append(f"{name}@{uid}")

    def see(self, *args: Any, deleted: bool = False, **fields: Any) -> None:
        self.registry.observe(a_pod_seen(*args, **fields), at=self.now, deleted="yes" if deleted else "no")

    def start(self, worker: str = "resize-7f3k2q", uid: str = "u1") -> None:
        """Have a start answered and claimed."""
        handle = WorkerHandle(worker, "resize", f"kubernetes:c/fleet#towline-{worker}", "d1", self.now)
        self.registry.begin(PodWorker(handle, f"towline-{worker}", "n1", tried_at=self.now))
        self.registry.made(worker, a_pod_seen(None, node=None, worker=worker, uid=uid), at=self.now)
        claimed = self.registry.claim("resize", "d1")
        assert claimed is not None
        assert claimed.worker == worker

    def exits(self) -> list[Exit]:
        return self.registry.collect(at=self.now)

    def cause(self, *, drained: bool = False) -> Cause:
        (ended,) = self.exits()
        return cause_of(ended, drained=drained, overdue=False)[0]

    def pass_seconds(self, seconds: float) -> None:
        self.now = Monotonic(self.now + seconds)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_an_exit_is_told_once_however_often_its_pod_is_seen(bench: Bench) -> None:
    """actions-runner-controller#4148, argo-workflows#12952: ended is ended, also while a finalizer keeps the object."""
    bench.start()
    for _ in range(3):
        bench.see(terminated(0))
    assert bench.removed == ["towline-resize-7f3k2q@u1"]
    bench.registry.review([a_pod_seen(terminated(0))], began_at=bench.now, at=bench.now)
    bench.see(terminated(0), deleted=True)
    assert [ended.code for ended in bench.exits()] == [0]
    assert bench.exits() == []
    assert bench.removed == ["towline-resize-7f3k2q@u1"] * 2  # the list had it still


def test_the_end_of_a_pod_that_was_collected_before_we_looked_is_read_from_its_deletion(bench: Bench) -> None:
    """argo-workflows#7994, #4565: terminated-pod-gc-threshold."""
    bench.start()
    bench.see(terminated(3), deleted=True)
    (ended,) = bench.exits()
    assert ended.code == 3
    assert bench.removed == []


def test_a_deletion_without_a_terminal_phase_is_an_end(bench: Bench) -> None:
    """airflow#17693: a node is removed."""
    bench.start()
    bench.see(running())
    bench.see(running(), deleted=True)
    assert bench.cause() is Cause.REMOVED


def test_a_pod_that_a_list_lacks_has_vanished_if_the_list_began_after_it_was_made(bench: Bench) -> None:
    bench.start()
    bench.registry.review([], began_at=Monotonic(bench.now - 1), at=bench.now)
    assert bench.exits() == []
    bench.pass_seconds(1)
    bench.registry.review([], began_at=bench.now, at=bench.now)
    (ended,) = bench.exits()
    assert (ended.fate, ended.reason) == ("removed", "it has vanished: nobody saw its end")


def test_a_start_without_an_answer_may_exist_until_a_later_list_lacks_it(bench: Bench) -> None:
    handle = WorkerHandle("resize-7f3k2q", "resize", "kubernetes:c/fleet#towline-resize-7f3k2q", "d1", NOW)
    bench.registry.begin(PodWorker(handle, "towline-resize-7f3k2q", "n1", tried_at=NOW))
    bench.registry.unknown("resize-7f3k2q", at=bench.now)
    bench.registry.review([], began_at=Monotonic(bench.now - 1), at=bench.now)
    assert bench.registry.unanswered("resize", "d1") is not None
    bench.pass_seconds(1)
    bench.registry.review([], began_at=bench.now, at=bench.now)
    assert bench.registry.unanswered("resize", "d1") is None


def test_a_start_whose_answer_was_lost_is_given_to_the_next_start_once_it_is_seen(bench: Bench) -> None:
    """Exactly one Pod: it is not made a second time."""
    handle = WorkerHandle("resize-7f3k2q", "resize", "kubernetes:c/fleet#towline-resize-7f3k2q", "d1", NOW)
    bench.registry.begin(PodWorker(handle, "towline-resize-7f3k2q", "n1", tried_at=NOW))
    bench.registry.unknown("resize-7f3k2q", at=bench.now)
    bench.see(None)
    claimed = bench.registry.claim("resize", "d1")
    assert claimed is not None
    assert claimed.worker == "resize-7f3k2q"
    assert bench.registry.claim("resize", "d1") is None
    assert bench.registry.unanswered("resize", "d1") is None


def test_an_evicted_worker_is_leaving_from_the_first_sight_and_then_disrupted(bench: Bench) -> None:
    """dagster#3705, #13096: evicted is no `started` for ever; its successor starts at once."""
    bench.start()
    bench.see(running())
    news = bench.news
    bench.see(running(), leaving=True, conditions=[DOOMED])
    assert bench.registry.placements()["resize-7f3k2q"].is_leaving
    assert bench.news == news + 1
    bench.see(terminated(0), leaving=True, conditions=[DOOMED])
    assert bench.cause(drained=True) is Cause.DISRUPTED


def test_a_worker_that_somebody_deletes_is_removed_and_one_that_we_delete_is_drained(bench: Bench) -> None:
    bench.start()
    bench.see(running())
    bench.see(running(), leaving=True)
    bench.see(terminated(0), leaving=True)
    assert bench.cause() is Cause.REMOVED
    bench.start("resize-222222", "u2")
    bench.registry.request("resize-222222", "drain")
    bench.see(running(), worker="resize-222222", uid="u2", leaving=True)
    assert not bench.registry.placements()["resize-222222"].is_leaving
    bench.see(terminated(0), worker="resize-222222", uid="u2", leaving=True, deleted=True)
    assert bench.cause(drained=True) is Cause.DRAINED


def test_a_pod_of_a_dead_node_is_given_up_after_a_bound_and_its_object_left_alone(bench: Bench) -> None:
    """kubernetes#55713, #125217: Terminating for ever."""
    bench.start()
    bench.see(running())
    bench.registry.request("resize-7f3k2q", "drain")
    bench.see(running(), leaving=True)
    bench.pass_seconds(35 + 29)
    assert bench.registry.lost(now=bench.now) == []
    bench.pass_seconds(1)
    (lost,) = bench.registry.lost(now=bench.now)
    bench.registry.give_up(lost.handle.worker)
    assert bench.cause(drained=True) is Cause.NODE_LOST
    bench.see(running(), leaving=True)  # it stays, and is nobody's
    assert bench.registry.members() == []
    assert bench.removed == []


def test_a_pod_that_its_cluster_deletes_for_its_silent_node_is_lost_at_once(bench: Bench) -> None:
    bench.start()
    bench.see(running())
    bench.see(running(), leaving=True, conditions=[TAINTED, a_condition("Ready", "False")])
    assert [one.handle.worker for one in bench.registry.lost(now=bench.now)] == ["resize-7f3k2q"]


def test_a_pod_refused_by_its_node_is_removed_and_not_counted_unless_three_in_a_row(bench: Bench) -> None:
    """actions-runner-controller#4168: OutOfpods, OutOfcpu."""
    causes = []
    for number in range(3):
        bench.start(f"resize-{number}aaaaa", f"u{number}")
        bench.see(phase="Failed", reason="OutOfpods", worker=f"resize-{number}aaaaa", uid=f"u{number}")
        causes.append(bench.cause())
    assert causes == [Cause.DISRUPTED, Cause.DISRUPTED, Cause.CRASHED]
    assert len(bench.removed) == 3


def test_a_misspelt_image_is_a_failed_start_after_the_pools_patience_for_all_that_wait_for_it(bench: Bench) -> None:
    """kubernetes#122300, buildkite/agent-stack-k8s#143, #905: Pending for ever."""
    backoff = waiting("ImagePullBackOff", 'Back-off pulling image "thmubs:1"')
    bench.start()
    bench.see(waiting("ErrImagePull", "not found"))
    bench.start("resize-222222", "u2")
    bench.pass_seconds(29)
    bench.see(backoff)
    bench.see(backoff, worker="resize-222222", uid="u2")
    patience = {"resize": 30.0}
    assert bench.registry.failing(now=bench.now, patience=patience, default=30.0) == []
    bench.pass_seconds(1)
    failing = bench.registry.failing(now=bench.now, patience=patience, default=30.0)
    for one in failing:
        bench.registry.fail(one.handle.worker)
    exits = bench.exits()
    assert sorted(ended.worker for ended in exits) == ["resize-222222", "resize-7f3k2q"]
    assert {ended.code for ended in exits} == {125}
    assert "thmubs:1" in exits[0].reason
    assert len(bench.removed) == 2


def test_an_image_that_could_be_pulled_in_time_is_no_failure(bench: Bench) -> None:
    bench.start()
    bench.see(waiting("ErrImagePull", "timeout"))
    bench.see(running())
    bench.pass_seconds(60)
    assert bench.registry.failing(now=bench.now, patience={}, default=30.0) == []


def test_pods_that_nobody_knows_are_left_alone_before_an_adoption_and_for_a_minute_after(bench: Bench) -> None:
    bench.see(running())
    bench.pass_seconds(600)
    assert bench.registry.strangers(now=bench.now) == []
    assert [one.worker for one in bench.registry.adopt([])] == ["resize-7f3k2q"]
    bench.see(running(), worker="resize-222222", uid="u2")
    bench.pass_seconds(59)
    assert bench.registry.strangers(now=bench.now) == []
    bench.pass_seconds(1)
    assert [one.handle.worker for one in bench.registry.strangers(now=bench.now)] == ["resize-222222"]


def test_a_second_adoption_returns_only_what_was_not_known(bench: Bench) -> None:
    bench.see(running())
    assert len(bench.registry.adopt([])) == 1
    bench.see(running(), worker="resize-222222", uid="u2")
    assert [one.worker for one in bench.registry.adopt([])] == ["resize-222222"]


def test_of_ended_pods_an_adoption_reports_those_it_remembers_and_removes_all(bench: Bench) -> None:
    """kuberay#942: whoever made a Pod removes it."""
    bench.see(terminated(3))
    bench.see(terminated(0), worker="resize-222222", uid="u2")
    remembered = WorkerHandle("resize-7f3k2q", "resize", "kubernetes:c/fleet#towline-resize-7f3k2q", "d1", NOW)
    assert [one.worker for one in bench.registry.adopt([remembered])] == ["resize-7f3k2q"]
    assert [(ended.worker, ended.code) for ended in bench.exits()] == [("resize-7f3k2q", 3)]
    assert len(bench.removed) == 2


def test_a_lost_event_is_found_by_comparing_names(bench: Bench) -> None:
    bench.start()
    bench.pass_seconds(1)
    other = a_pod_seen(running(), worker="resize-222222", uid="u2")
    assert bench.registry.differs([a_pod_seen(None)], began_at=bench.now) == []
    assert bench.registry.differs([other], began_at=bench.now) == ["towline-resize-222222", "towline-resize-7f3k2q"]


def test_a_request_is_sent_once_and_a_kill_again_each_time_it_is_asked_for(bench: Bench) -> None:
    bench.start()
    bench.registry.request("resize-7f3k2q", "drain")
    assert bench.registry.undelivered(now=bench.now) == ["resize-7f3k2q"]
    assert bench.registry.undelivered(now=bench.now) == []
    bench.registry.mark_sent("resize-7f3k2q", "drain")
    bench.pass_seconds(10)
    assert bench.registry.undelivered(now=bench.now) == []
    bench.registry.request("resize-7f3k2q", "kill")
    assert bench.registry.undelivered(now=bench.now) == ["resize-7f3k2q"]
    bench.registry.request("resize-7f3k2q", "drain")
    member = bench.registry.get("resize-7f3k2q")
    assert member is not None
    assert member.requested == "kill"


def test_a_request_that_was_not_delivered_is_sent_again(bench: Bench) -> None:
    """Of a Pod that is evicted already nothing is asked again."""
    bench.start()
    bench.registry.request("resize-7f3k2q", "drain")
    assert bench.registry.undelivered(now=bench.now) == ["resize-7f3k2q"]
    bench.pass_seconds(2)
    assert bench.registry.undelivered(now=bench.now) == ["resize-7f3k2q"]
    bench.start("resize-222222", "u2")
    bench.see(running(), worker="resize-222222", uid="u2", leaving=True, conditions=[DOOMED])
    bench.registry.request("resize-222222", "drain")
    assert "resize-222222" not in bench.registry.undelivered(now=bench.now)


def test_a_pod_of_the_same_name_with_another_uid_is_not_the_worker(bench: Bench) -> None:
    bench.start()
    bench.see(terminated(0), uid="another")
    assert bench.exits() == []


def test_a_worker_that_waited_for_its_admission_says_so_for_good(bench: Bench) -> None:
    """kueue#1648, #6149: a gated Pod waits for its admission, and that is no start-up."""
    bench.start()
    gated = a_condition("PodScheduled", "False", "SchedulingGated")
    bench.see(None, node=None, conditions=[gated], gates=["kueue"])
    assert bench.registry.placements()["resize-7f3k2q"].waits_for == "admission"
    bench.see(running())
    assert bench.registry.placements()["resize-7f3k2q"].was_gated


def test_the_neighbours_of_a_worker_are_counted_from_what_is_there(bench: Bench) -> None:
    """buildkite/agent-stack-k8s#302: counts are derived, and no counter is kept beside them."""
    for number, node in enumerate(("node-1", "node-1", "node-2")):
        bench.start(f"resize-{number}aaaaa", f"u{number}")
        bench.see(running(), worker=f"resize-{number}aaaaa", uid=f"u{number}", node=node)
    counts = {name: place.neighbours for name, place in bench.registry.placements().items()}
    assert counts == {"resize-0aaaaa": 2, "resize-1aaaaa": 2, "resize-2aaaaa": 1}
    bench.see(terminated(0), worker="resize-0aaaaa", uid="u0")
    assert bench.registry.placements()["resize-1aaaaa"].neighbours == 1


WORKERS = ["resize-0aaaaa", "resize-1aaaaa"]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "running", "leaving", "ended", "deleted", "listed", "list lacks", "drain", "lost"]),
        st.sampled_from(WORKERS),
    ),
    max_size=14,
)


def relisted(bench: Bench, *, without: str = "") -> None:
    """Show the registry a list of all Pods that it knows, but for one."""
    known = [one for one in WORKERS if one != without and bench.registry.get(one)]
    bench.pass_seconds(1)
    listed = [a_pod_seen(running(), worker=one, uid=f"{one}-1") for one in known]
    bench.registry.review(listed, began_at=bench.now, at=bench.now)


def happen(bench: Bench, what: str, worker: str) -> None:
    """Have one thing happen to a worker's Pod."""
    pod = {"worker": worker, "uid": f"{worker}-1"}
    match what:
        case "running":
            bench.see(running(), **pod)
        case "leaving":
            bench.see(running(), leaving=True, **pod)
        case "listed":
            relisted(bench)
        case "lost":
            bench.see(running(), phase="Unknown", **pod)
            for one in bench.registry.lost(now=bench.now):
                bench.registry.give_up(one.handle.worker)
        case "drain":
            bench.registry.request(worker, "drain")
        case "ended":
            bench.see(terminated(0), **pod)
        case "deleted":
            bench.see(running(), deleted=True, **pod)
        case "list lacks":
            relisted(bench, without=worker)


@given(story=EVENTS)
def test_in_any_order_of_events_each_worker_ends_once_and_none_is_missed(story: list[tuple[str, str]]) -> None:
    """airflow#21087, #12229: order odd, events repeated, relisted."""
    bench = Bench()
    started: set[str] = set()
    ended: list[str] = []
    for what, worker in story:
        if what == "start" and worker not in started:
            started.add(worker)
            bench.start(worker, f"{worker}-1")
        elif bench.registry.get(worker) is not None:
            happen(bench, what, worker)
        elif what in {"ended", "deleted"} and worker in started:
            happen(bench, what, worker)  # an event of what has ended already
        ended += [one.worker for one in bench.exits()]
    assert len(ended) == len(set(ended))
    assert {*ended, *(one.handle.worker for one in bench.registry.members())} == started


def test_the_answer_to_a_create_undoes_nothing_that_the_watch_has_shown(bench: Bench) -> None:
    handle = WorkerHandle("resize-7f3k2q", "resize", "kubernetes:c/fleet#towline-resize-7f3k2q", "d1", NOW)
    bench.registry.begin(PodWorker(handle, "towline-resize-7f3k2q", "n1", tried_at=NOW, is_asked=True))
    bench.see(running())
    bench.registry.made("resize-7f3k2q", a_pod_seen(None, node=None), at=bench.now)
    bench.registry.claim("resize", "d1")
    assert bench.registry.placements()["resize-7f3k2q"].node == "node-1"


def test_a_start_that_has_ended_before_its_create_was_answered_is_told_as_an_end(bench: Bench) -> None:
    handle = WorkerHandle("resize-7f3k2q", "resize", "kubernetes:c/fleet#towline-resize-7f3k2q", "d1", NOW)
    bench.registry.begin(PodWorker(handle, "towline-resize-7f3k2q", "n1", tried_at=NOW, is_asked=True))
    bench.see(terminated(128, "StartError", "no such file"))
    bench.registry.made("resize-7f3k2q", a_pod_seen(None, node=None), at=bench.now)
    assert bench.registry.claim("resize", "d1") == handle
    assert [ended.code for ended in bench.exits()] == [128]
    assert bench.registry.claim("resize", "d1") is None
    assert bench.removed == ["towline-resize-7f3k2q@u1"]


def test_a_pod_that_could_not_be_removed_is_removed_at_its_next_sight(bench: Bench) -> None:
    """dagster#3705, #16535: what was given up must also be deleted."""
    bench.start()
    bench.see(terminated(0))
    assert bench.registry.differs([a_pod_seen(terminated(0))], began_at=bench.now) == []
    bench.registry.not_removed("u1")
    assert bench.registry.differs([a_pod_seen(terminated(0))], began_at=bench.now) == ["towline-resize-7f3k2q"]
    bench.see(terminated(0))
    assert bench.removed == ["towline-resize-7f3k2q@u1"] * 2
    assert len(bench.exits()) == 1
