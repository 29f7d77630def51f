"""Turns over a fake source and a fake runtime: what is done, in which order, and what is told."""

import signal
from collections.abc import Callable
from typing import Any, cast

from orchestrator.base import events
from orchestrator.base.samples import QueueSample
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet
from orchestrator.supervisor.pool import AT_ONCE
from orchestrator.supervisor.snapshot import WallTime, snapshot_of
from tests.support.fleet.fakes import FakeSource
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.reconciler_stage import ReconcilerStage


def test_a_pool_with_nothing_to_do_stays_empty_and_silent(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool())
    for _ in range(5):
        stage.turn()
    assert stage.runtime.calls == []
    assert stage.logs == []


def test_work_for_an_empty_pool_starts_a_worker_and_says_why(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool())
    stage.source.ready = 1
    stage.turn()
    assert stage.runtime.calls == [("spawn", "resize-1")]
    (told,) = stage.logged(events.POOL_DECIDED)
    assert (told["current"], told["target"], told["ready"]) == (0, 1, 1)
    assert stage.files.read_decisions(limit=10)[0]["why"] == told["why"]


def test_a_plan_of_forks_ends_where_a_worker_had_to_be_executed(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool(least=40, most=40))
    stage.runtime.forks_left["resize"] = 6  # then its template is lost
    stage.turn()
    assert len(stage.runtime.live) == 7
    assert [handle.is_forked for handle in stage.runtime.live.values()] == [True] * 6 + [False]
    (told,) = stage.logged(events.POOL_DECIDED)
    assert (told["forks"], told["target"]) == (True, 40)
    stage.turn()
    told = stage.logged(events.POOL_DECIDED)[-1]
    assert (told["forks"], told["current"]) == (False, 7)


def test_a_supervisor_whose_lead_ended_while_it_looked_does_not_act(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool())
    stage.source.ready, stage.source.age_seconds = 1, 40.0
    stage.leads = False
    stage.turn()
    assert stage.runtime.calls == []
    stage.leads = True
    stage.turn()
    assert [verb for verb, _ in stage.runtime.calls] == ["spawn"]


def test_a_worker_is_told_all_it_needs(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool(least=1, tags=["a", "b"], recycle={"tasks": 100}))
    stage.turn()
    told = stage.runtime.requests["resize-1"].environment
    assert told["TOWLINE_WORKER"] == "resize-1"
    assert told["TOWLINE_TAGS"] == '["a", "b"]'
    assert told["TOWLINE_APP"] == "tasks:app"
    assert told["TOWLINE_RECYCLE"] == '{"tasks": 100}'
    assert told["TOWLINE_STATE_DIR"] == str(stage.files.path)


def test_a_worker_that_came_and_went_between_two_looks_is_judged_by_its_work(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool(least=1))
    stage.turn()
    stage.source.worked_unseen.add("resize-1")
    for worker, failures in (("resize-1", 0), ("resize-2", 1)):
        stage.runtime.end(worker, now=stage.clock.monotonic(), code=0)
        stage.reconciler.reap()
        assert stage.reconciler.pools["resize"].fleet.crash.failures == failures
        stage.reconciler.turns()


def test_an_idle_worker_is_fenced_before_it_is_asked_to_finish(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1)
    stage.set_pools(a_pool(least=0, churn=0, grace=3600))
    for _ in range(10):
        stage.turn()
    assert stage.source.retired == {worker}
    assert stage.runtime.calls == [("drain", worker)]
    assert stage.logged(events.WORKER_RETIRED)[0]["worker"] == worker


def test_a_worker_that_turns_out_to_hold_a_lease_is_not_touched(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1)
    stage.set_pools(a_pool(least=0, churn=0))
    for _ in range(10):
        stage.clock.advance(5)
        # It leases between the sample and the fence.
        sample = stage.source.sample
        stage.source.sample = lambda pool, *, sample=sample, **asked: _then(  # type: ignore[method-assign]
            sample(pool, **asked), lambda: stage.source.held.update({worker: ["t1"]})
        )
        stage.reconciler.turns()
        stage.source.sample = sample  # type: ignore[method-assign]
        stage.source.held.clear()
    assert stage.runtime.calls == []
    assert stage.state_of(worker) == "idle"


def _then(value: QueueSample, act: Callable[[], None]) -> QueueSample:
    act()
    return value


def test_the_leases_of_a_dead_worker_are_given_back_before_anything_else(stage: ReconcilerStage) -> None:
    dead, _ = stage.with_workers(2)
    stage.source.held[dead] = ["t1", "t2"]
    stage.turn()
    stage.runtime.end(dead, now=stage.clock.monotonic(), signal=signal.SIGKILL, last_lines=["bye"])
    stage.reconciler.reap()
    assert stage.source.released == [dead]
    assert stage.logged(events.LEASES_RELEASED)[0]["tasks"] == ["t1", "t2"]
    (death,) = stage.files.read_deaths(limit=10)
    assert (death["worker"], death["cause"], death["signal"]) == (dead, "signalled", 9)
    assert [task["task"] for task in death["held"]] == ["t1", "t2"]  # type: ignore[attr-defined,index]
    assert death["last_lines"] == ["bye"]


def test_a_worker_that_ended_is_replaced_at_once(stage: ReconcilerStage) -> None:
    dead, _ = stage.with_workers(2)
    stage.runtime.end(dead, now=stage.clock.monotonic(), signal=signal.SIGKILL)
    stage.turn(after=0)
    assert stage.runtime.calls == [("spawn", "resize-3")]


def test_leases_that_could_not_be_given_back_are_given_back_later(stage: ReconcilerStage) -> None:
    dead, _ = stage.with_workers(2)
    stage.source.held[dead] = ["t1"]
    stage.source.is_down = True
    stage.runtime.end(dead, now=stage.clock.monotonic(), signal=signal.SIGKILL)
    stage.turn()
    assert stage.source.released == []
    stage.source.is_down = False
    stage.turn()
    assert stage.source.released == [dead]


def test_a_pool_whose_last_worker_is_leaving_watches_for_arrivals(stage: ReconcilerStage) -> None:
    [worker] = stage.with_workers(1)
    assert stage.reconciler.waiting_pools() == []
    [pool] = stage.reconciler.pools.values()
    stage.reconciler.drain_all(why="a test")
    assert stage.state_of(worker) == "draining"
    assert [spec.name for spec in stage.reconciler.waiting_pools()] == [pool.name]


def test_a_source_that_is_down_is_told_once_and_nothing_is_let_go(stage: ReconcilerStage) -> None:
    stage.with_workers(3)
    stage.set_pools(a_pool(least=0, churn=0))
    stage.source.is_down = True
    for _ in range(20):
        stage.turn()
    assert stage.runtime.calls == []
    assert len(stage.logged(events.SOURCE_UNAVAILABLE)) == 1
    stage.source.is_down = False
    stage.turn()
    assert len(stage.logged(events.SOURCE_RECOVERED)) == 1


def test_a_worker_that_does_not_finish_in_time_is_ended_after_its_grace(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1, grace=10)
    stage.source.held[worker] = ["t1"]
    stage.turn()
    stage.reconciler.drain_all(why="a test")
    assert stage.runtime.calls == [("drain", worker)]
    for seconds in (9, 4):
        stage.clock.advance(seconds)
        stage.reconciler.end_overdue()
    assert stage.runtime.calls == [("drain", worker), ("kill", worker)]


def two_busy_one_too_many(stage: ReconcilerStage) -> list[str]:
    """A pool of two workers that are at work, and a max of one from now on; how they are called."""
    workers = stage.with_workers(2)
    for worker in workers:
        stage.source.held[worker] = [f"a task of {worker}"]
    stage.turn()
    stage.set_pools(a_pool(least=1, most=1))
    stage.turn()
    return workers


def test_a_busy_worker_too_many_gets_no_more_leases_and_is_asked_to_end_when_it_holds_none(
    stage: ReconcilerStage,
) -> None:
    two_busy_one_too_many(stage)
    (leaving,) = stage.source.retired
    for _ in range(100):
        stage.turn()
    assert (stage.runtime.calls, stage.state_of(leaving)) == ([], "draining")
    del stage.source.held[leaving]
    stage.turn()
    assert stage.runtime.calls == [("drain", leaving)]
    (told,) = stage.logged(events.WORKER_FINISHING)
    assert (told["worker"], told["held"], told["why"]) == (leaving, 1, "the pool is above its max of 1")


def test_a_worker_that_finishes_is_asked_when_the_queue_shows_no_lease_but_only_if_there_is_none(
    stage: ReconcilerStage,
) -> None:
    two_busy_one_too_many(stage)
    (leaving,) = stage.source.retired
    del stage.source.held[leaving]
    stage.source.leased_unseen.add(leaving)
    stage.turn()
    assert stage.runtime.calls == []


def test_a_stop_gives_a_worker_that_finishes_its_grace(stage: ReconcilerStage) -> None:
    workers = two_busy_one_too_many(stage)
    stage.reconciler.drain_all(why="a stop")
    assert sorted(stage.runtime.calls) == [("drain", worker) for worker in workers]
    stage.clock.advance(40)
    stage.reconciler.end_overdue()
    assert sorted(stage.runtime.calls)[2:] == [("kill", worker) for worker in workers]


def test_while_the_queue_is_away_a_busy_worker_too_many_goes_on(stage: ReconcilerStage) -> None:
    workers = stage.with_workers(1)
    stage.source.held[workers[0]] = ["a task"]
    stage.turn()
    stage.source.is_down = True
    stage.set_pools()
    assert (stage.runtime.calls, stage.state_of(workers[0])) == ([], "busy")
    stage.source.is_down = False
    stage.turn()
    assert (stage.runtime.calls, stage.state_of(workers[0])) == ([], "draining")


def test_settings_that_change_again_and_again_cut_no_worker_short(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1, most=1)
    stage.source.held[worker] = ["a long task"]
    stage.turn()
    for colour in range(20):
        stage.set_pools(a_pool(least=1, most=1, env={"COLOUR": str(colour)}))
        stage.turn(after=6)
    assert (stage.runtime.calls, list(stage.source.retired)) == ([], [worker])
    del stage.source.held[worker]
    stage.turn()
    stage.runtime.end(worker, now=stage.clock.monotonic(), code=0)
    stage.turn()
    assert stage.runtime.calls == [("drain", worker), ("spawn", "resize-2")]
    assert stage.runtime.requests["resize-2"].pool.env == {"COLOUR": "19"}


def test_a_start_that_fails_holds_the_next_one_back(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool(least=3))
    stage.runtime.refuses = "no such command: x"
    for _ in range(30):
        stage.turn(after=1)
    failures = stage.logged(events.WORKER_SPAWN_FAILED)
    assert 2 <= len(failures) <= 5
    assert failures[0]["error"] == "no such command: x"
    assert shown(stage)["concern"]["kinds"] == ["no_starts"]
    assert shown(stage)["concern"]["why"].endswith(": no such command: x")
    assert "; last failure, " in shown(stage)["concern"]["why"]
    told = shown(stage)["last_failure"]
    assert told["why"] == "no such command: x"
    assert -30.0 < told["at"] <= 0.0  # the stage shows times from its last turn on


def test_a_worker_that_ends_while_it_starts_backs_off(stage: ReconcilerStage) -> None:
    stage.set_pools(a_pool(least=1))
    spawned = 0
    for _ in range(60):
        stage.turn(after=1)
        for worker in list(stage.runtime.live):
            spawned += 1
            stage.runtime.end(worker, now=stage.clock.monotonic(), code=1)
    assert 3 <= spawned <= 7
    stage.turn()
    assert shown(stage)["concern"]["kinds"] == ["no_starts"]
    assert shown(stage)["concern"]["why"].endswith(f" ago: resize-{spawned} crashed: exit code 1")
    assert shown(stage)["last_failure"]["why"] == f"resize-{spawned} crashed: exit code 1"


def test_a_worker_that_was_requested_to_finish_is_no_cause_of_lateness_and_one_that_was_killed_is(
    stage: ReconcilerStage,
) -> None:
    asked, killed = stage.with_workers(2)
    stage.reconciler.drain_all(why="a test")
    stage.source.ready, stage.source.age_seconds = 1, 40.0
    stage.runtime.end(asked, now=stage.clock.monotonic(), code=0)
    stage.turn()
    assert shown(stage)["concern"]["kinds"] == ["late"]
    assert "last failure" not in shown(stage)["concern"]["why"]
    stage.runtime.end(killed, now=stage.clock.monotonic(), signal=signal.SIGSEGV)
    stage.turn()
    assert shown(stage)["concern"]["why"].endswith(f"last failure, 0 s ago: {killed} signalled: ended by SIGSEGV")


def test_the_waits_of_leases_that_began_are_shown_over_the_slo(stage: ReconcilerStage) -> None:
    one, two = stage.with_workers(2)
    assert shown(stage)["waited"] == {"leases": 0, "p99_over_slo": 0.0, "worst_over_slo": 0.0}
    assert shown(stage)["concern"] is None
    stage.source.held = {one: ["t1"], two: ["t2", "t3"]}
    stage.turn()
    waited = shown(stage)["waited"]
    assert waited == {"leases": 3, "p99_over_slo": 0.003, "worst_over_slo": 0.003}


def shown(stage: ReconcilerStage) -> dict[str, Any]:
    """The only pool, as its supervisor shows it."""
    wall = WallTime(wall_seconds=0.0, monotonic=stage.clock.monotonic())
    (pool,) = cast(
        "dict[str, dict[str, Any]]", snapshot_of(stage.reconciler.pools.values(), wall=wall)["pools"]
    ).values()
    return pool


def test_a_turn_that_fails_is_told_and_the_other_pools_have_theirs(stage: ReconcilerStage) -> None:
    class Broken(FakeSource):
        def sample(self, pool: PoolSpec, **_: object) -> object:  # type: ignore[override]
            if pool.name == "broken":
                raise RuntimeError("a bug")
            return super().sample(pool, workers=(), now=stage.clock.monotonic())

    stage.source = Broken(ready=1)
    stage.__post_init__()
    stage.set_pools(a_pool("broken"), a_pool("sound"))
    assert stage.reconciler.turns() is False
    assert stage.runtime.calls == [("spawn", "sound-1")]
    assert stage.logged(events.TURN_FAILED)[0]["pool"] == "broken"


def test_lateness_is_logged_once_when_it_begins_and_once_when_it_is_over(stage: ReconcilerStage) -> None:
    stage.with_workers(2, most=2, slo="5s")
    stage.source.ready, stage.source.age_seconds = 1, 34.0
    for _ in range(3):
        stage.turn()
    (begun,) = stage.logged(events.POOL_TROUBLED)
    assert (begun["log_level"], begun["pool"]) == ("warning", "resize")
    assert begun["sentence"].startswith("1 task has waited 29 s past its SLO of 5 s: all 2 workers are ")
    assert shown(stage)["concern"]["kinds"][0] == "late"
    stage.source.ready = 0
    for _ in range(3):
        stage.turn()
    (ended,) = stage.logged(events.POOL_RELIEVED)
    assert ended["sentence"].startswith("no task waits longer than its SLO of 5 s: that lasted ")
    assert len(stage.logged(events.POOL_TROUBLED)) == 1


def test_a_pause_of_the_queue_is_among_a_pools_states(stage: ReconcilerStage) -> None:
    stage.with_workers(1)
    stage.source.paused = True
    stage.turn()
    (state,) = shown(stage)["states"]
    assert state == "the queue thumbs is paused, so no task of it is leased: `towline resume thumbs`"


def test_a_worker_of_celerys_is_told_to_give_its_tasks_back_before_it_is_killed(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1, grace=10, app=None, celery={"app": "proj", "queues": ["thumbs"]})
    stage.source.held[worker] = ["t1"]
    stage.turn()
    stage.reconciler.drain_all(why="a test")
    for seconds in (9, 4, 9, 2):
        stage.clock.advance(seconds)
        stage.reconciler.end_overdue()
    assert stage.runtime.calls == [("drain", worker), ("SIGQUIT", worker), ("kill", worker)]
    (told,) = stage.logged(events.WORKER_CUT_SHORT)
    assert (told["worker"], told["signal"]) == (worker, "SIGQUIT")


def test_the_same_decision_within_a_second_is_logged_once(stage: ReconcilerStage) -> None:
    stage.source.ready, stage.source.age_seconds = 1, 1.0
    stage.set_pools(a_pool("resize", workers={"max": 4}))
    pool = stage.reconciler.pools["resize"]
    for after in (5.0, 0.2, 0.2, 1.5):
        pool.fleet, pool.due_at = Fleet("resize"), AT_ONCE
        stage.turn(after=after)
    decided = [one["target"] for one in stage.logs if one["event"] == events.POOL_DECIDED]
    assert decided == [1, 1]
