"""Workers that die of their work: suspects run alone, innocents go on, certificates tell; over fakes."""

import signal
from pathlib import Path
from typing import cast

import pytest

from orchestrator.base import events
from orchestrator.fleet.quarantine import HOLD_SECONDS, is_solo_worker
from orchestrator.runtime import WorkerHandle
from orchestrator.state.directory import StateDir
from orchestrator.state.journal import Journal, amended, read_journal
from orchestrator.supervisor.snapshot import WallTime, snapshot_of
from orchestrator.supervisor.view import view_of
from tests.support.fleet.reconciler_stage import ReconcilerStage


def die(stage: ReconcilerStage, worker: str, *tasks: str, after: float = 0.0, number: int = signal.SIGSEGV) -> None:
    """A worker holds these tasks and dies of one of them."""
    stage.source.held[worker] = list(tasks)
    stage.runtime.end(worker, now=stage.clock.monotonic(), signal=number)
    stage.turn(after=after)


def alone(stage: ReconcilerStage) -> list[str]:
    return [worker for worker in stage.runtime.live if is_solo_worker(worker)]


def a_suspected(stage: ReconcilerStage, **settings: object) -> str:
    """A task that was there at two deaths; the worker that was started for it."""
    first, second = stage.with_workers(2, **settings)
    die(stage, first, "poison", "other")
    die(stage, second, "poison", "another")
    (worker,) = alone(stage)
    return worker


def test_a_task_that_was_there_at_two_deaths_runs_alone_in_a_worker_of_its_own(stage: ReconcilerStage) -> None:
    worker = a_suspected(stage, concurrency=8)
    assert stage.source.settled == [("poison", "held back")]
    assert worker.endswith(".alone.7.99")
    assert stage.runtime.requests[worker].environment["TOWLINE_CONCURRENCY"] == "1"
    assert stage.runtime.requests[worker].environment["TOWLINE_WORKER"] == worker
    (suspected,) = stage.logged(events.TASK_SUSPECTED)
    assert (suspected["task"], suspected["deaths"], suspected["log_level"]) == ("poison", 2, "warning")
    (isolated,) = stage.logged(events.TASK_ISOLATED)
    assert (isolated["task"], isolated["worker"]) == ("poison", worker)


def test_it_has_the_place_of_the_one_that_died_and_the_pool_stays_within_its_bounds(stage: ReconcilerStage) -> None:
    a_suspected(stage, most=2)
    assert len(stage.runtime.live) == 2
    stage.turn()
    assert len(stage.runtime.live) == 2


def test_a_pool_of_one_runs_its_suspect_and_then_has_its_worker_back(stage: ReconcilerStage) -> None:
    (first,) = stage.with_workers(1, most=1)
    die(stage, first, "poison", "other")
    (second,) = stage.runtime.live
    die(stage, second, "poison", "another")
    (worker,) = stage.runtime.live
    assert is_solo_worker(worker)
    stage.turn()
    assert list(stage.runtime.live) == [worker]
    stage.runtime.end(worker, now=stage.clock.monotonic(), code=0)
    stage.turn()
    (after,) = stage.runtime.live
    assert not is_solo_worker(after)


def test_while_a_suspect_pauses_its_place_is_left_free(stage: ReconcilerStage) -> None:
    (first,) = stage.with_workers(1, most=1)
    stage.source.max_leases = 100
    for worker in (first, *[None] * 3):
        die(stage, worker or next(iter(stage.runtime.live)), "poison")
    assert list(stage.runtime.live) == []
    stage.turn(after=1.0)
    assert list(stage.runtime.live) == []
    stage.turn(after=60.0)
    assert [is_solo_worker(worker) for worker in stage.runtime.live] == [True]


def test_those_who_wait_for_a_worker_are_counted_for_whoever_looks(stage: ReconcilerStage) -> None:
    first, second = stage.with_workers(2)
    for worker in (first, second):
        die(stage, worker, "poison", "venom", "bane")
    assert len(alone(stage)) == 1
    pools = stage.reconciler.pools.values()
    view = view_of(pools, phase="leading", started_at=stage.clock.monotonic())
    assert view.pools["resize"].suspected == 2
    wall = WallTime(wall_seconds=stage.clock.wall_seconds(), monotonic=stage.clock.monotonic())
    shown = cast("dict[str, dict[str, dict[str, object]]]", snapshot_of(pools, wall=wall))
    assert shown["pools"]["resize"]["suspects"] == 2


def test_it_is_no_part_of_the_pools_size(stage: ReconcilerStage) -> None:
    worker = a_suspected(stage)
    (pool,) = stage.reconciler.pools.values()
    assert stage.state_of(worker) == "alone"
    assert worker not in [one.worker for one in pool.fleet.alive]
    stage.source.seen.add(worker)
    stage.source.held[worker] = ["poison"]
    stage.turn()
    assert stage.state_of(worker) == "alone"


def test_deaths_by_poison_are_no_failed_starts(stage: ReconcilerStage) -> None:
    stage.with_workers(2)
    for number in range(6):
        stage.turn()
        worker = next(iter(stage.runtime.live))
        stage.source.seen.add(worker)
        stage.source.held[worker] = [f"task-{number}"]
        stage.runtime.end(worker, now=stage.clock.monotonic(), code=1)
        stage.turn(after=0)
    (pool,) = stage.reconciler.pools.values()
    assert pool.fleet.crash.failures == 0
    assert len(stage.runtime.live) == 2


def test_when_it_has_done_no_harm_nothing_more_is_made_of_it(stage: ReconcilerStage) -> None:
    worker = a_suspected(stage)
    stage.source.seen.add(worker)
    stage.runtime.end(worker, now=stage.clock.monotonic(), code=0)
    stage.turn()
    assert alone(stage) == []
    (pool,) = stage.reconciler.pools.values()
    assert (pool.suspected, pool.solo_workers, pool.fleet.crash.failures) == ((), {}, 0)


def test_it_dies_alone_until_no_lease_is_left_and_then_is_dead_and_told_why(stage: ReconcilerStage) -> None:
    stage.source.max_leases = 3
    worker = a_suspected(stage)
    stage.source.leases["poison"] = 3
    die(stage, worker, "poison")
    assert stage.source.settled[-1] == ("poison", "dead")
    (condemned,) = stage.logged(events.TASK_CONDEMNED)
    assert condemned["why"] == f"its worker died 3 times while it ran, last: ended by SIGSEGV (worker {worker})"
    death = stage.files.read_deaths(limit=1)[0]
    assert (death["worker"], death["held_total"]) == (worker, 1)
    assert alone(stage) == []


def test_who_was_suspected_with_it_goes_free_when_one_has_died_of_it_alone(stage: ReconcilerStage) -> None:
    first, second = stage.with_workers(2)
    die(stage, first, "poison", "innocent", "other")
    die(stage, second, "poison", "innocent", "another")
    (worker,) = alone(stage)
    (pool,) = stage.reconciler.pools.values()
    assert [one.task.task for one in pool.suspected] == ["innocent"]
    die(stage, worker, "poison")
    assert stage.source.recalled == ["innocent"]
    (cleared,) = stage.logged(events.TASK_CLEARED)
    assert cleared["tasks"] == ["innocent"]
    assert [one.task.task for one in (*pool.suspected, *pool.solo_workers.values())] == ["poison"]


def test_a_worker_that_broke_before_it_had_its_suspect_is_followed_by_another(stage: ReconcilerStage) -> None:
    worker = a_suspected(stage)
    stage.source.seen.add(worker)
    stage.turn()
    stage.runtime.end(worker, now=stage.clock.monotonic(), signal=signal.SIGKILL)
    stage.turn(after=1)
    (another,) = alone(stage)
    assert another != worker


def test_a_suspect_that_finds_no_place_in_time_is_anybodys_again(stage: ReconcilerStage) -> None:
    first, second = stage.with_workers(2)
    stage.runtime.refuses = "no more processes"
    die(stage, first, "poison", "other")
    die(stage, second, "poison", "another")
    (pool,) = stage.reconciler.pools.values()
    assert len(pool.suspected) == 1
    stage.turn(after=HOLD_SECONDS)
    assert pool.suspected == ()
    stage.runtime.refuses = ""
    stage.turn(after=600)
    assert alone(stage) == []


def test_nobody_is_started_for_a_suspect_while_another_supervisor_leads_or_in_a_dry_run(stage: ReconcilerStage) -> None:
    first, second = stage.with_workers(2)
    die(stage, first, "poison", "other")
    stage.leads = False
    die(stage, second, "poison", "another")
    assert alone(stage) == []
    stage.leads = True
    stage.turn()
    assert len(alone(stage)) == 1


@pytest.mark.parametrize("code", [0, 75])
def test_a_worker_that_was_requested_to_end_or_lost_its_queue_casts_no_suspicion(
    stage: ReconcilerStage, code: int
) -> None:
    for worker in stage.with_workers(2):
        stage.source.held[worker] = ["slow"]
        if code == 0:
            stage.reconciler.drain_all(why="a test")
        stage.runtime.end(worker, now=stage.clock.monotonic(), code=code)
        stage.turn(after=0)
    assert stage.source.settled == []
    assert stage.logged(events.TASK_SUSPECTED) == []


def test_what_was_seen_of_a_task_outlives_the_supervisor(stage: ReconcilerStage, tmp_path: Path) -> None:
    (first,) = stage.with_workers(1)
    die(stage, first, "poison", "other")
    later = ReconcilerStage(StateDir(tmp_path), stage.logs)
    (second,) = later.with_workers(1)
    die(later, second, "poison", "another")
    assert later.source.settled == [("poison", "held back")]


def test_a_worker_that_is_adopted_is_known_to_be_alone_by_its_name(stage: ReconcilerStage) -> None:
    name = "resize-9.alone.7.99"
    stage.runtime.left_running = [WorkerHandle(name, "resize", "fake:9", "digest", stage.clock.monotonic())]
    stage.set_pools()
    stage.reconciler.adopt_own(stage.runtime.left_running)
    assert stage.state_of(name) in {"alone", "draining"}


def test_the_certificate_is_completed_when_the_queue_answers_again(stage: ReconcilerStage) -> None:
    (worker, _) = stage.with_workers(2)
    stage.source.held[worker] = ["t1", "t2"]
    stage.source.is_down = True
    stage.runtime.end(worker, now=stage.clock.monotonic(), signal=signal.SIGKILL)
    stage.turn()
    (early,) = stage.files.read_deaths(limit=10)
    assert (early["worker"], early["held"], early["held_unknown"]) == (worker, [], True)
    stage.source.is_down = False
    stage.turn()
    (death,) = stage.files.read_deaths(limit=10)
    assert (death["cause"], death["held_total"], death["held_unknown"]) == ("signalled", 2, False)
    assert [one["fate"] for one in death["held"]] == ["given back", "given back"]  # type: ignore[attr-defined]


def test_a_certificate_names_a_hundred_tasks_and_tells_how_many_there_were(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1)
    die(stage, worker, *[f"t{number}" for number in range(150)])
    (death,) = stage.files.read_deaths(limit=1)
    assert (len(death["held"]), death["held_total"]) == (100, 150)  # type: ignore[arg-type]


# -- the journal ------------------------------------------------------------------------------------------------------


def test_a_line_that_was_cut_by_a_crash_costs_no_other_line(tmp_path: Path) -> None:
    path = tmp_path / "deaths.jsonl"
    Journal(path).append({"worker": "w1"})
    with path.open("a") as file:
        file.write('{"worker": "w2", "cau')
    after = Journal(path)
    after.append({"worker": "w3"})
    after.append({"worker": "w4"})
    assert [one["worker"] for one in read_journal(path, limit=10)] == ["w4", "w3", "w1"]


def test_what_became_known_later_is_part_of_the_certificate() -> None:
    newest_first: list[dict[str, object]] = [
        {"at": 3.0, "worker": "w1", "amends": True, "held": ["t"], "held_unknown": False},
        {"at": 2.0, "worker": "w2", "cause": "crashed", "held": []},
        {"at": 1.0, "worker": "w1", "cause": "signalled", "held": [], "held_unknown": True},
        {"at": 0.5, "worker": "w1", "cause": "an earlier one of that name", "held": []},
    ]
    assert amended(newest_first) == [
        newest_first[1],
        {"at": 1.0, "worker": "w1", "cause": "signalled", "held": ["t"], "held_unknown": False},
        newest_first[3],
    ]


@pytest.mark.parametrize(
    ("seconds_ago", "held"),
    [pytest.param(9.0, 1, id="since it was asked to"), pytest.param(11.0, 0, id="before, as its handler failed")],
)
def test_what_a_worker_gave_back_as_it_was_requested_to_end_is_on_record(
    stage: ReconcilerStage, seconds_ago: float, held: int
) -> None:
    (worker,) = stage.with_workers(1, grace=9)
    stage.source.held[worker] = ["long"]
    stage.turn()
    stage.reconciler.drain_all(why="a stop")
    stage.clock.advance(10)
    del stage.source.held[worker]
    stage.source.given_back[worker] = [("long", seconds_ago)]
    stage.runtime.end(worker, now=stage.clock.monotonic(), code=0)
    stage.reconciler.reap()
    (reaped,) = stage.logged(events.WORKER_REAPED)
    assert (reaped["cause"], reaped["held"]) == ("drained", held)
    (death,) = stage.files.read_deaths(limit=1)
    told = cast("list[dict[str, object]]", death["held"])
    assert [(one["task"], one["fate"]) for one in told] == [("long", "given back")] * held


def test_what_a_worker_gave_back_before_it_was_ended_is_on_record_too(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1, grace=9)
    stage.source.held[worker] = ["long", "stuck"]
    stage.turn()
    stage.reconciler.drain_all(why="a stop")
    stage.clock.advance(12)
    stage.reconciler.end_overdue()
    stage.source.held[worker] = ["stuck"]
    stage.source.given_back[worker] = [("long", 3.0)]
    stage.runtime.end(worker, now=stage.clock.monotonic(), signal=signal.SIGKILL)
    stage.reconciler.reap()
    (reaped,) = stage.logged(events.WORKER_REAPED)
    assert (reaped["cause"], reaped["held"]) == ("overdue", 2)


def test_a_worker_that_ended_by_itself_is_not_asked_what_its_handlers_gave_back(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1)
    stage.source.given_back[worker] = [("failed", 0.1)]
    stage.runtime.end(worker, now=stage.clock.monotonic(), code=0)
    stage.turn()
    assert [entry["held"] for entry in stage.logged(events.WORKER_REAPED)] == [0]


def test_tasks_are_told_how_their_worker_ended_before_its_certificate_is_written(stage: ReconcilerStage) -> None:
    (first,) = stage.with_workers(1)
    die(stage, first, "innocent", number=signal.SIGKILL)
    notice = stage.source.notices[first]
    assert (notice.error, notice.is_on_this_host) == ("SIGKILL", True)
    assert notice.message == f"ended by SIGKILL; see `towline why-died {first}`"
    assert [one["worker"] for one in stage.files.read_deaths(limit=1)] == [first]


def test_tasks_of_a_worker_that_ended_without_a_supervisor_are_told_so(stage: ReconcilerStage) -> None:
    stage.source.held["gone"] = ["t"]
    stage.reconciler.adopt_own([WorkerHandle("gone", "resize", "pid:1", "digest", stage.clock.monotonic())])
    notice = stage.source.notices["gone"]
    assert (notice.error, notice.message) == (
        "unknown",
        "ended while no supervisor was there; see `towline why-died gone`",
    )


LINES = ["declined: 4111-1111-2222", "password=hunter2", '  File "/srv/thumbs.py", line 7, in resize', "it ends"]


def test_a_certificate_shows_no_value_of_what_the_worker_held_and_no_secret(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1, env={"CDN_TOKEN": "tok-en-of-a-cdn"})
    stage.source.held[worker] = ["t1"]
    stage.source.payloads["t1"] = b'{"card": "4111-1111-2222", "step": "resize"}'
    lines = [*LINES, "asked with tok-en-of-a-cdn"]
    stage.runtime.end(worker, now=stage.clock.monotonic(), signal=signal.SIGSEGV, last_lines=lines)
    stage.turn()
    (death,) = stage.files.read_deaths(limit=10)
    assert death["last_lines"] == ["declined: <payload>", "password=***", LINES[2], "it ends", "asked with ***"]


def test_a_pool_whose_redaction_is_off_keeps_last_lines_whole(stage: ReconcilerStage) -> None:
    (worker,) = stage.with_workers(1, redact="off")
    assert stage.runtime.requests[worker].environment["TOWLINE_REDACT"] == "off"
    stage.source.held[worker] = ["t1"]
    stage.source.payloads["t1"] = b"4111-1111-2222"
    stage.runtime.end(worker, now=stage.clock.monotonic(), signal=signal.SIGSEGV, last_lines=LINES)
    stage.turn()
    (death,) = stage.files.read_deaths(limit=10)
    assert death["last_lines"] == LINES


def test_the_fleet_shows_a_command_without_its_secrets(stage: ReconcilerStage) -> None:
    command = ["work.sh", "--password", "hunter2", "--db=postgresql://u:hunter2@db/x", "--fast"]
    stage.with_workers(1, command=command, app=None)
    wall = WallTime(wall_seconds=stage.clock.wall_seconds(), monotonic=stage.clock.monotonic())
    shown = snapshot_of(list(stage.reconciler.pools.values()), wall=wall)
    assert "hunter2" not in repr(shown)
    assert "['work.sh', '--password', '***', '--db=postgresql://***@db/x', '--fast']" in repr(shown)
