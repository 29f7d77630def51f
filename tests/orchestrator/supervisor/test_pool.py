"""What is counted of a pool, and what others are shown of it."""

from dataclasses import replace

from orchestrator.clock import Monotonic
from orchestrator.fleet.exits import Cause
from orchestrator.samples import LeaseSample
from orchestrator.scaling.decision import Decision
from orchestrator.scaling.lease_waits import Recent, Waits
from orchestrator.supervisor.pool import PoolCounters
from orchestrator.supervisor.view import DURATION_BUCKETS, Heartbeat, TurnDurations, view_of
from tests.support.fleet.fleet_builders import INPUTS, NOW, a_finished_lease, a_lease, a_pool, a_sample
from tests.support.fleet.fleet_views import a_running_pool

DECISION = Decision("resize", NOW, 2, 2, "hold", "", INPUTS, 2)


def test_decisions_are_counted_by_rule_and_direction() -> None:
    tally = PoolCounters()
    for target, rule in ((2, "hold"), (5, "deadline"), (6, "deadline"), (1, "idle")):
        tally.decided(replace(DECISION, target=target, rule=rule))
    assert tally.decisions == {("hold", "hold"): 1, ("deadline", "up"): 2, ("idle", "down"): 1}


def test_a_first_lease_is_late_when_its_task_waited_longer_than_the_slo() -> None:
    tally = PoolCounters()
    leases = [
        LeaseSample("w", 1.0, waited, "deleted", number, 0.0) for waited, number in ((30.0, 1), (30.001, 1), (99.0, 2))
    ]
    tally.sampled(a_sample(finished=leases), since=None, slo_seconds=30.0)
    assert (tally.late_leases, tally.leases) == (1, {"deleted": 3})


def test_a_wait_counts_when_its_lease_begins_and_no_second_time_when_it_ends() -> None:
    tally = PoolCounters()
    begun = [a_lease(held=0.5, waited=15.0), a_lease(held=7.0, waited=300.0)]
    short = a_finished_lease(held=0.2, waited=60.0, ended_ago=0.3)
    tally.sampled(a_sample(at=NOW, running=begun, finished=[short]), since=Monotonic(NOW - 2), slo_seconds=30.0)
    ended = [a_finished_lease(held=1.5, waited=15.0, ended_ago=1.0)]
    tally.sampled(a_sample(at=NOW + 2, finished=ended), since=NOW, slo_seconds=30.0)
    assert tally.waits.recent(NOW) == Recent(2, 2.0, 2.0)
    assert tally.waits.total == 2.5


def test_leases_that_were_there_at_the_first_look_are_history() -> None:
    tally = PoolCounters()
    tally.sampled(a_sample(running=[a_lease(held=0.5, waited=15.0)]), since=None, slo_seconds=30.0)
    assert tally.waits == Waits()


def test_a_start_that_failed_is_a_death_and_a_failed_start() -> None:
    tally = PoolCounters()
    tally.died(Cause.CRASHED, failed_start=True)
    tally.died(Cause.CRASHED, failed_start=False)
    assert (tally.deaths, tally.failed_starts) == ({Cause.CRASHED: 2}, 1)


def test_what_was_shown_does_not_change_when_the_count_goes_on() -> None:
    pool = a_running_pool()
    view = view_of([pool], phase="leading", started_at=NOW)
    pool.tally.died(Cause.CRASHED, failed_start=True)
    pool.tally.starts += 1
    shown = view.pools["resize"].tally
    assert (shown.starts, shown.failed_starts, Cause.CRASHED in shown.deaths) == (3, 0, False)


def test_a_pool_that_is_no_longer_in_the_settings_is_not_shown() -> None:
    gone = a_running_pool()
    gone.spec = None
    there = a_running_pool(a_pool("render"))
    assert set(view_of([gone, there], phase="leading", started_at=NOW).pools) == {"render"}


def test_a_round_of_turns_falls_into_the_bucket_that_ends_at_or_after_it() -> None:
    pulse = Heartbeat(now=NOW)
    for seconds in (DURATION_BUCKETS[0], DURATION_BUCKETS[0] + 1e-9, 1_000.0):
        pulse.took(seconds, is_well=seconds < 1)
    assert pulse.rounds.counts[:2] == (1, 1)
    assert pulse.rounds.counts[-1] == 1
    assert sum(pulse.rounds.counts) == 3
    assert pulse.rounds.failed == 1
    assert TurnDurations() == Heartbeat(now=NOW).rounds
