"""A pool's counters, its problem, and the view of it for other threads."""

from dataclasses import replace

import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import LeaseSample
from orchestrator.fleet.exits import Cause
from orchestrator.fleet.quarantine import IsolatedTask, SuspectedTask
from orchestrator.fleet.workers import spawn_failed
from orchestrator.scaling.decision import Decision, Limit
from orchestrator.scaling.lease_waits import Recent, Waits
from orchestrator.supervisor.pool import Concern, Outage, Pool, PoolCounters, WorkerFailure, concern_of, states_of
from orchestrator.supervisor.view import DURATION_BUCKETS, Heartbeat, TurnDurations, view_of
from tests.support.fleet.fleet_builders import (
    INPUTS,
    NOW,
    a_decision,
    a_finished_lease,
    a_fleet,
    a_lease,
    a_pool,
    a_sample,
    a_worker,
)
from tests.support.fleet.fleet_views import a_running_pool

DECISION = Decision("resize", NOW, 2, 2, "hold", "", INPUTS, 2)


def test_decisions_are_counted_by_rule_and_direction() -> None:
    counters = PoolCounters()
    for target, rule in ((2, "hold"), (5, "deadline"), (6, "deadline"), (1, "idle")):
        counters.count_decision(replace(DECISION, target=target, rule=rule))
    assert counters.decisions == {("hold", "hold"): 1, ("deadline", "up"): 2, ("idle", "down"): 1}


def test_a_first_lease_is_late_when_its_task_waited_longer_than_the_slo() -> None:
    counters = PoolCounters()
    leases = [
        LeaseSample("w", 1.0, waited, "deleted", number, 0.0) for waited, number in ((30.0, 1), (30.001, 1), (99.0, 2))
    ]
    counters.count_sample(a_sample(finished=leases), since=None, slo_seconds=30.0)
    assert (counters.late_leases, counters.leases) == (1, {"deleted": 3})


def test_a_wait_counts_when_its_lease_begins_and_no_second_time_when_it_ends() -> None:
    counters = PoolCounters()
    begun = [a_lease(held=0.5, waited=15.0), a_lease(held=7.0, waited=300.0)]
    short = a_finished_lease(held=0.2, waited=60.0, ended_ago=0.3)
    counters.count_sample(a_sample(at=NOW, running=begun, finished=[short]), since=Monotonic(NOW - 2), slo_seconds=30.0)
    ended = [a_finished_lease(held=1.5, waited=15.0, ended_ago=1.0)]
    counters.count_sample(a_sample(at=NOW + 2, finished=ended), since=NOW, slo_seconds=30.0)
    assert counters.waits.recent(NOW) == Recent(2, 2.0, 2.0)
    assert counters.waits.total == 2.5


def test_leases_that_were_there_at_the_first_look_are_history() -> None:
    counters = PoolCounters()
    counters.count_sample(a_sample(running=[a_lease(held=0.5, waited=15.0)]), since=None, slo_seconds=30.0)
    assert counters.waits == Waits()


def test_a_start_that_failed_is_a_death_and_a_failed_start() -> None:
    counters = PoolCounters()
    counters.count_death(Cause.CRASHED, failed_start=True)
    counters.count_death(Cause.CRASHED, failed_start=False)
    assert (counters.deaths, counters.failed_starts) == ({Cause.CRASHED: 2}, 1)


def test_what_was_shown_does_not_change_when_the_count_goes_on() -> None:
    pool = a_running_pool()
    view = view_of([pool], phase="leading", started_at=NOW)
    pool.counters.count_death(Cause.CRASHED, failed_start=True)
    pool.counters.starts += 1
    shown = view.pools["resize"].counters
    assert (shown.starts, shown.failed_starts, Cause.CRASHED in shown.deaths) == (3, 0, False)


def test_a_pool_that_is_no_longer_in_the_settings_is_not_shown() -> None:
    gone = a_running_pool()
    gone.spec = None
    there = a_running_pool(a_pool("render"))
    assert set(view_of([gone, there], phase="leading", started_at=NOW).pools) == {"render"}


def test_a_round_of_turns_falls_into_the_bucket_that_ends_at_or_after_it() -> None:
    heartbeat = Heartbeat(now=NOW)
    for seconds in (DURATION_BUCKETS[0], DURATION_BUCKETS[0] + 1e-9, 1_000.0):
        heartbeat.record_round(seconds, is_well=seconds < 1)
    assert heartbeat.rounds.counts[:2] == (1, 1)
    assert heartbeat.rounds.counts[-1] == 1
    assert sum(heartbeat.rounds.counts) == 3
    assert heartbeat.rounds.failed == 1
    assert TurnDurations() == Heartbeat(now=NOW).rounds


MAX_8 = Limit("max", "max is 8")
HELD = Limit("budget", "the budget of 2h/day is spent: 1 is the Erlang C estimate")


def a_troubled_pool(
    *,
    oldest: float = 4.0,
    limits: tuple[Limit, ...] = (),
    wanted: int = 1,
    failures: int = 0,
    outage: str = "",
    failed_ago: float | None = None,
    paused: bool = False,
    trouble: str = "",
) -> Pool:
    """A pool of one worker whose oldest task has waited so long, and what else is wrong with it."""
    spec = a_pool()
    pool = Pool("resize", spec, a_fleet(a_worker("w1", "busy")))
    for nth in range(failures):
        at = Monotonic(NOW - 100 + nth)
        pool.fleet = spawn_failed(pool.fleet, spec_digest=spec.digest(), spawned_at=at, now=at)
    pool.sample = a_sample(ages=[oldest], paused=paused)
    pool.decision = replace(a_decision(current=1, target=1, limits=limits), unguarded=wanted, trouble=trouble)
    if outage:
        pool.outage = Outage(outage, 1, Monotonic(NOW + 2))
    if failed_ago is not None:
        pool.last_failure = WorkerFailure(Monotonic(NOW - failed_ago), "resize-x crashed: exit code 3")
    return pool


def test_a_pool_that_is_well_is_of_no_concern() -> None:
    assert concern_of(a_running_pool()) is None
    assert concern_of(a_troubled_pool(oldest=30.0, failed_ago=1.0)) is None
    unknown = a_running_pool()
    unknown.decision = None
    assert concern_of(unknown) is None


@pytest.mark.parametrize(
    ("pool", "concern"),
    [
        pytest.param(
            a_troubled_pool(oldest=30.001),
            Concern(
                ("late",),
                "a task has waited for 30 s, longer than its SLO of 30 s, with 1 worker",
            ),
            id="late, and nothing holds it",
        ),
        pytest.param(
            a_troubled_pool(oldest=95.0, limits=(HELD,), wanted=4, trouble=f"1 task is late: {HELD.why}"),
            Concern(("late", "held_back"), f"1 task is late: {HELD.why}"),
            id="late, and a guard holds it",
        ),
        pytest.param(
            a_troubled_pool(oldest=95.0, paused=True, limits=(Limit("queue_paused", "the queue is paused"),)),
            Concern(
                ("late",),
                "a task has waited for 95 s, longer than its SLO of 30 s, with 1 worker; the queue is paused",
            ),
            id="late, in a queue that is paused",
        ),
        pytest.param(
            a_troubled_pool(limits=(MAX_8,), wanted=12, trouble="12 workers are wanted and max is 8"),
            Concern(("at_max",), "12 workers are wanted and max is 8"),
            id="at its max, in time so far",
        ),
        pytest.param(
            a_troubled_pool(oldest=40.0, limits=(MAX_8,), wanted=12, failed_ago=599.0, trouble="1 task is late"),
            Concern(("late", "at_max"), "1 task is late; last failure, 10 min ago: resize-x crashed: exit code 3"),
            id="late, at its max, and a worker went wrong lately",
        ),
        pytest.param(
            a_troubled_pool(failures=1, failed_ago=4_000.0),
            Concern(
                ("no_starts",), "the last start failed; last failure, 1 h 7 min ago: resize-x crashed: exit code 3"
            ),
            id="its only start failed, long ago",
        ),
        pytest.param(
            a_troubled_pool(
                failures=3, failed_ago=1.0, wanted=2, limits=(Limit("crash_loop", "3 starts failed in a row: probing"),)
            ),
            Concern(
                ("no_starts",),
                "3 starts failed in a row: probing; last failure, 1 s ago: resize-x crashed: exit code 3",
            ),
            id="a crash loop",
        ),
        pytest.param(
            a_troubled_pool(outage="the engine does not answer", wanted=2),
            Concern(("no_starts",), "the engine does not answer"),
            id="an engine that is away",
        ),
    ],
)
def test_a_concern_says_what_is_wrong_and_the_cause(pool: Pool, concern: Concern) -> None:
    assert concern_of(pool) == concern


def test_an_engine_that_was_away_is_no_concern_of_a_pool_that_wants_nobody() -> None:
    assert concern_of(a_troubled_pool(outage="the engine does not answer", wanted=1)) is None


def test_a_failure_of_long_ago_is_no_cause_of_lateness() -> None:
    concern = concern_of(a_troubled_pool(oldest=40.0, failed_ago=601.0))
    assert concern is not None
    assert "failure" not in concern.why


def test_a_state_that_a_pool_was_put_into_is_a_sentence() -> None:
    pool = a_troubled_pool(paused=True)
    assert pool.decision is not None
    assert states_of(a_running_pool()) == ()
    silent = a_running_pool()
    silent.is_stale, silent.stale_why = True, "the broker is away"
    assert states_of(silent) == ("it can't be sampled, so its size holds: the broker is away",)
    pool.conditions = replace(pool.conditions, notes=("changes of size are paused",))
    pool.decision = replace(pool.decision, notes=("changes of size are paused", "counts 6 places of pool b"))
    pool.suspected = (IsolatedTask(SuspectedTask("thumbs", "p", None, 0.5, 2, 5), "7.99", NOW, Monotonic(NOW + 120)),)
    assert states_of(pool) == (
        "the queue thumbs is paused, so no task of it is leased: `towline resume thumbs`",
        "changes of size are paused",
        "1 task was held by workers that died, and now runs alone, in a worker of its own",
    )
