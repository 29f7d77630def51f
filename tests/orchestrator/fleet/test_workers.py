"""Workers from spawn to exit: what samples tell of them, and what their ends mean."""

import signal

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import EXIT_FINISHED, EXIT_MISCONFIGURED, EXIT_QUEUE_LOST, Cause
from orchestrator.fleet.observation import observe
from orchestrator.fleet.workers import (
    CrashLoop,
    Fleet,
    Started,
    Worker,
    adopted,
    draining,
    exited,
    finishing,
    joined,
    killed,
    least_recently_used,
    measured,
    outdated,
    spawn_failed,
)
from tests.support.fleet.fleet_builders import (
    NOW,
    AnExit,
    a_finished_lease,
    a_fleet,
    a_lease,
    a_pool,
    a_sample,
    a_worker,
)

DIGEST = a_pool().digest()


def a_command(**settings: object) -> PoolSpec:
    return a_pool(app=None, command=["work"], **settings)


def later(seconds: float) -> Monotonic:
    return Monotonic(NOW + seconds)


def a_new_worker(spawned_ago: float = 2.0) -> Fleet:
    return joined(Fleet("resize"), worker="w1", ref="r", spec_digest=DIGEST, spawned_at=later(-spawned_ago))


def seen(fleet: Fleet, worker: str = "w1", **sample: object) -> Worker:
    return observe(fleet, a_sample(**sample)).workers[worker]  # type: ignore[arg-type]


def test_a_forked_worker_stays_one_whatever_is_seen_of_it() -> None:
    spawned_at = later(-2.0)
    first = joined(Fleet("resize"), worker="w1", ref="r", spec_digest=DIGEST, spawned_at=spawned_at, is_forked=True)
    found = adopted(first, worker="w2", ref="r", spec_digest=DIGEST, spawned_at=spawned_at, now=NOW, is_forked=True)
    fleet = observe(found, a_sample(first_seen_seconds_ago={"w1": 0.5, "w2": 0.5}))
    assert {worker.worker: (worker.state, worker.is_forked) for worker in fleet.workers.values()} == {
        "w1": ("idle", True),
        "w2": ("idle", True),
    }


def test_a_worker_starts_when_it_first_asks_for_a_lease() -> None:
    fleet = observe(a_new_worker(), a_sample())
    assert fleet.workers["w1"].state == "starting"
    fleet = observe(fleet, a_sample(first_seen_seconds_ago={"w1": 0.5}))
    assert (fleet.workers["w1"].state, fleet.workers["w1"].since) == ("idle", NOW - 0.5)
    assert fleet.started == (Started("w1", 1.5),)


def test_a_start_is_told_once() -> None:
    fleet = observe(a_new_worker(), a_sample(first_seen_seconds_ago={"w1": 0.5}))
    assert observe(fleet, a_sample(at=NOW + 1, first_seen_seconds_ago={"w1": 1.5})).started == ()


def test_a_lease_shows_a_start_where_nobody_saw_the_first_call() -> None:
    worker = seen(a_new_worker(), running=[a_lease(held=0.75)])
    assert (worker.state, worker.started_at, worker.leases) == ("busy", NOW - 0.75, 1)


def test_a_worker_is_busy_while_it_holds_a_lease() -> None:
    worker = seen(a_fleet(a_worker()), running=[a_lease(held=2.0), a_lease(held=3.0)])
    assert (worker.state, worker.leases, worker.since) == ("busy", 2, NOW - 3.0)


def test_a_busy_worker_idles_since_the_end_of_its_last_lease() -> None:
    worker = seen(
        a_fleet(a_worker("w1", "busy")), finished=[a_finished_lease(ended_ago=0.9), a_finished_lease(ended_ago=0.2)]
    )
    assert (worker.state, worker.since, worker.finished, worker.leases) == ("idle", NOW - 0.2, 2, 0)


def test_a_lease_between_two_samples_counts_as_use() -> None:
    assert seen(a_fleet(a_worker(since=NOW - 50)), finished=[a_finished_lease(ended_ago=0.2)]).since == NOW - 0.2


def test_an_idle_worker_stays_idle_since_then() -> None:
    fleet = a_fleet(a_worker(since=NOW - 50))
    assert seen(fleet, at=NOW + 1).since == NOW - 50
    assert observe(fleet, a_sample(at=NOW + 1)) is fleet, "a turn in which nothing happened costs nothing"


def test_the_longest_idle_goes_first() -> None:
    workers = (a_worker("b", since=5), a_worker("a", since=9), a_worker("c", since=1), a_worker("d", "busy"))
    assert [w.worker for w in least_recently_used(workers)] == ["c", "b", "a"]


def test_a_draining_worker_keeps_its_deadline_and_its_state() -> None:
    fleet = draining(a_fleet(a_worker("w1", "busy")), "w1", grace_seconds=30, now=NOW)
    again = draining(fleet, "w1", grace_seconds=30, now=later(20))
    assert again == fleet
    assert fleet.workers["w1"].deadline_at == NOW + 32
    assert seen(fleet, at=NOW + 1).state == "draining"
    assert fleet.alive == ()


def test_an_unknown_worker_changes_nothing() -> None:
    fleet = a_fleet(a_worker())
    assert draining(fleet, "nobody", grace_seconds=1, now=NOW) is fleet
    assert killed(fleet, "nobody", now=NOW) is fleet
    left, death = exited(fleet, AnExit("nobody", code=1), now=NOW)
    assert left.workers == fleet.workers
    assert (death.cause, death.failed_start) == (Cause.CRASHED, False)


@pytest.mark.parametrize(
    ("state", "ended", "cause"),
    [
        pytest.param("idle", AnExit("w1", code=EXIT_FINISHED), Cause.FINISHED, id="recycled"),
        pytest.param("draining", AnExit("w1", code=EXIT_FINISHED), Cause.DRAINED, id="drained"),
        pytest.param("draining", AnExit("w1", signal=signal.SIGTERM), Cause.DRAINED, id="drained-untrapped"),
        pytest.param("draining", AnExit("w1", code=143), Cause.DRAINED, id="drained-by-a-shell"),
        pytest.param("draining", AnExit("w1"), Cause.DRAINED, id="drained-adopted"),
        pytest.param("busy", AnExit("w1"), Cause.UNKNOWN, id="adopted"),
        pytest.param("busy", AnExit("w1", code=1), Cause.CRASHED, id="crashed"),
        pytest.param("draining", AnExit("w1", code=1), Cause.CRASHED, id="crashed-while-draining"),
        pytest.param("busy", AnExit("w1", code=EXIT_MISCONFIGURED), Cause.MISCONFIGURED, id="misconfigured"),
        pytest.param("busy", AnExit("w1", code=EXIT_QUEUE_LOST), Cause.QUEUE_LOST, id="queue-lost"),
        pytest.param("busy", AnExit("w1", signal=signal.SIGKILL), Cause.SIGNALLED, id="killed-by-a-stranger"),
        pytest.param("busy", AnExit("w1", code=137), Cause.SIGNALLED, id="killed-behind-a-shell"),
        pytest.param("busy", AnExit("w1", signal=64), Cause.SIGNALLED, id="a-nameless-signal"),
        pytest.param("killed", AnExit("w1", signal=signal.SIGKILL), Cause.OVERDUE, id="overdue"),
        pytest.param("busy", AnExit("w1", signal=signal.SIGKILL, out_of_memory=True), Cause.OUT_OF_MEMORY, id="memory"),
    ],
)
def test_an_exit_has_a_cause(state: str, ended: AnExit, cause: Cause) -> None:
    left, death = exited(a_fleet(a_worker("w1", state)), ended, now=NOW)  # type: ignore[arg-type]
    assert death.cause is cause
    assert death.lived_seconds == 100
    assert not left.workers


@pytest.mark.parametrize(
    ("ended", "held", "cause"),
    [
        pytest.param(AnExit("w1", code=EXIT_FINISHED), 1, Cause.CRASHED, id="in the middle of its work"),
        pytest.param(AnExit("w1"), 0, Cause.DRAINED, id="adopted"),
        pytest.param(AnExit("w1", signal=signal.SIGSEGV), 1, Cause.SIGNALLED, id="a fault"),
    ],
)
def test_a_worker_that_ends_amid_its_tasks_was_not_asked_to_end(ended: AnExit, held: int, cause: Cause) -> None:
    fleet = finishing(a_fleet(a_worker("w1", "busy")), "w1", now=NOW)
    left, death = exited(fleet, ended, now=NOW, held=held)
    assert (death.cause, death.failed_start, left.workers) == (cause, False, {})
    assert ("in the middle of its work" in death.detail) == (held > 0 and cause is Cause.CRASHED)


@pytest.mark.parametrize("reason", ["", "retired by its supervisor"])
def test_a_worker_that_ends_once_its_tasks_are_done_says_for_what_it_was_asked_to_finish(reason: str) -> None:
    lines = [f'{{"event":"worker.drained","reason":"{reason}","code":0}}'] if reason else []
    fleet = finishing(a_fleet(a_worker("w1", "busy")), "w1", now=NOW, why="its settings changed")
    _, death = exited(fleet, AnExit("w1", code=EXIT_FINISHED, last_lines=lines), now=NOW, held=0)
    assert (death.cause, death.detail) == (Cause.DRAINED, "asked to finish: its settings changed")


def test_a_worker_keeps_the_first_reason_for_which_it_was_asked_to_finish() -> None:
    fleet = finishing(a_fleet(a_worker("w1", "busy")), "w1", now=NOW, why="tasks.py changed after its start")
    fleet = observe(fleet, a_sample())
    fleet = draining(fleet, "w1", grace_seconds=30, now=NOW, why="its tasks are done")
    _, death = exited(fleet, AnExit("w1", code=EXIT_FINISHED), now=NOW)
    assert death.detail == "asked to finish: tasks.py changed after its start"


def test_a_worker_with_a_successor_is_said_to_be_replaced_and_for_what() -> None:
    fleet = joined(a_fleet(a_worker("w1")), worker="w2", ref="r", spec_digest=DIGEST, spawned_at=NOW, replaces="w1")
    fleet = draining(fleet, "w1", grace_seconds=30, now=NOW, why="its settings changed")
    _, death = exited(fleet, AnExit("w1", code=EXIT_FINISHED), now=NOW)
    assert (death.cause, death.detail) == (Cause.DRAINED, "replaced by w2: its settings changed")


@pytest.mark.parametrize(
    ("worker", "ended", "failed"),
    [
        pytest.param(a_worker("w1", "starting"), AnExit("w1", code=1), True, id="died-at-its-start"),
        pytest.param(a_worker("w1", "starting"), AnExit("w1", code=0), True, id="ended-before-it-asked"),
        pytest.param(a_worker("w1", "starting"), AnExit("w1", signal=9), True, id="killed-at-its-start"),
        pytest.param(a_worker("w1", "draining", started_at=None), AnExit("w1", code=0), False, id="asked-to"),
        pytest.param(a_worker("w1", "idle"), AnExit("w1", code=1), True, id="crashed-before-any-lease"),
        pytest.param(a_worker("w1", "idle"), AnExit("w1", signal=9), False, id="killed-while-idle"),
        pytest.param(a_worker("w1", "idle", finished=3), AnExit("w1", code=1), False, id="crashed-after-work"),
        pytest.param(a_worker("w1", "busy"), AnExit("w1", code=1), False, id="crashed-at-work"),
        pytest.param(a_worker("w1", "starting", adopted=True), AnExit("w1", code=1), False, id="adopted"),
        pytest.param(a_worker("w1", "idle", finished=3), AnExit("w1", code=0), False, id="ended-after-work"),
        pytest.param(a_worker("w1", "idle"), AnExit("w1", code=0), False, id="ended-without-work-after-a-while"),
        pytest.param(a_worker("w1", "idle", started_at=NOW - 4), AnExit("w1", code=0), True, id="ended-at-once"),
        pytest.param(
            a_worker("w1", "idle", lapsed_at=NOW - 9), AnExit("w1", code=1), False, id="held-one-that-expired"
        ),
        pytest.param(a_worker("w1", "starting"), AnExit("w1", code=80), False, id="hung-before-anybody-looked"),
    ],
)
def test_only_a_start_that_failed_counts_towards_a_crash_loop(worker: Worker, ended: AnExit, failed: bool) -> None:
    left, death = exited(a_fleet(worker), ended, now=NOW)
    assert death.failed_start is failed
    assert left.failed_starts(a_pool()) == int(failed)


def test_a_worker_that_came_worked_and_went_between_two_looks_is_no_failed_start() -> None:
    seen_never = a_worker("w2", "starting", spawned_at=NOW + 1)
    fleet = spawn_failed(a_fleet(seen_never), spec_digest=DIGEST, spawned_at=NOW, now=NOW)
    left, death = exited(fleet, AnExit("w2", code=0), now=later(2), worked="yes")
    assert not death.failed_start
    assert left.failed_starts(a_pool()) == 0, "it shows that starts succeed again"


def test_work_before_the_last_failure_ends_no_crash_loop() -> None:
    fleet = spawn_failed(a_fleet(a_worker("w1")), spec_digest=DIGEST, spawned_at=NOW, now=NOW)
    left, _ = exited(fleet, AnExit("w1", code=0), now=later(2), worked="yes")
    assert left.failed_starts(a_pool()) == 1


def test_the_back_off_doubles_up_to_a_minute() -> None:
    fleet, now, holds = Fleet("resize"), float(NOW), []
    for _ in range(8):
        fleet = spawn_failed(fleet, spec_digest=DIGEST, spawned_at=Monotonic(now), now=Monotonic(now))
        holds.append(fleet.crash.retry_at - now)
        now += 100
    assert holds == [2, 4, 8, 16, 32, 60, 60, 60]


def test_starts_that_fail_together_count_once() -> None:
    fleet = a_fleet(*(a_worker(f"w{n}", "starting") for n in range(8)))
    for n in range(8):
        fleet, _ = exited(fleet, AnExit(f"w{n}", code=1), now=later(n / 10))
    assert fleet.failed_starts(a_pool()) == 1


def test_new_settings_begin_anew() -> None:
    fleet = spawn_failed(Fleet("resize"), spec_digest=DIGEST, spawned_at=NOW, now=NOW)
    assert fleet.failed_starts(a_pool()) == 1
    assert fleet.failed_starts(a_pool(cwd="/srv")) == 0


@pytest.mark.parametrize(
    ("sample", "ended"),
    [
        pytest.param(a_sample(at=NOW + 4, first_seen_seconds_ago={"w1": 1.0}), False, id="it-has-only-started"),
        pytest.param(a_sample(at=NOW + 9, first_seen_seconds_ago={"w1": 5.0}), True, id="it-has-stayed-up"),
        pytest.param(a_sample(at=NOW + 4, running=[a_lease()]), True, id="it-works"),
        pytest.param(a_sample(at=NOW + 4, finished=[a_finished_lease()]), True, id="it-has-worked"),
    ],
)
def test_a_crash_loop_ends_when_a_later_worker_proves_itself(sample: object, ended: bool) -> None:
    fleet = a_fleet(
        a_worker("old", spawned_at=NOW - 100),
        a_worker("w1", "starting", spawned_at=NOW + 2, since=NOW + 2),
        crash=CrashLoop(3, NOW, later(8), DIGEST),
    )
    assert (observe(fleet, sample).failed_starts(a_pool()) == 0) is ended  # type: ignore[arg-type]


def test_an_adopted_worker_teaches_no_start_up_time() -> None:
    fleet = adopted(Fleet("resize"), worker="w1", ref="r", spec_digest=DIGEST, spawned_at=later(-500), now=NOW)
    fleet = observe(fleet, a_sample(at=NOW + 1, first_seen_seconds_ago={"w1": 0.25}))
    assert (fleet.workers["w1"].state, fleet.started) == ("idle", ())


def test_a_worker_with_a_replacement_under_way_no_longer_counts() -> None:
    fleet = joined(a_fleet(a_worker("old")), worker="new", ref="r", spec_digest="d", spawned_at=NOW, replaces="old")
    assert [w.worker for w in fleet.alive] == ["new"]
    fleet, _ = exited(fleet, AnExit("new", code=1), now=NOW)
    assert [w.worker for w in fleet.alive] == ["old"]


@pytest.mark.parametrize(
    ("spec", "worker", "said"),
    [
        pytest.param(a_pool(), a_worker(finished=10**6), None, id="no-limits"),
        pytest.param(a_pool(cwd="/"), a_worker(), "its settings changed", id="settings"),
        pytest.param(a_pool(recycle={"tasks": 10}), {"finished": 20}, None, id="tasks-ours-count-themselves"),
        pytest.param(a_command(recycle={"tasks": 10}), {"finished": 9}, None, id="tasks-not-yet"),
        pytest.param(
            a_command(recycle={"tasks": 10}), {"finished": 10}, "it did 10 tasks (recycle.tasks 10)", id="tasks"
        ),
        pytest.param(
            a_pool(recycle={"memory": "100MiB"}),
            {"memory_bytes": 150 * 2**20},
            "it uses 150 MiB (recycle.memory 100 MiB)",
            id="memory",
        ),
        pytest.param(
            a_pool(recycle={"age": 100}), {"spawned_at": NOW - 100}, "it is 100 s old (recycle.age 100 s)", id="age"
        ),
        pytest.param(a_pool(recycle={"age": 100}), {"spawned_at": NOW - 99.9}, None, id="age-not-yet"),
    ],
)
def test_a_worker_is_outdated_by_new_settings_or_by_use(
    spec: PoolSpec, worker: Worker | dict[str, object], said: str | None
) -> None:
    known = worker if isinstance(worker, Worker) else a_worker(spec=spec, **worker)  # type: ignore[arg-type]
    assert outdated(known, spec, digest=spec.digest(), now=NOW) == said


def test_memory_is_noted_for_those_who_were_measured() -> None:
    fleet = measured(a_fleet(a_worker("a"), a_worker("b", memory_bytes=7)), {"a": 5})
    assert [w.memory_bytes for w in fleet.workers.values()] == [5, 7]
