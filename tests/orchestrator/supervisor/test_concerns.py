"""What is said of pools that are late, at their max, or start nobody; and that nothing is said of others."""

from dataclasses import replace

import pytest

from orchestrator.clock import Monotonic
from orchestrator.fleet.workers import spawn_failed
from orchestrator.scaling.decision import Limit
from orchestrator.supervisor.concerns import Concern, concern_of
from orchestrator.supervisor.pool import Outage, Pool, WorkerFailure
from tests.support.fleet.fleet_builders import NOW, a_decision, a_fleet, a_pool, a_sample, a_worker
from tests.support.fleet.fleet_views import a_managed_pool

MAX_8 = Limit("max", "max 8")
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
) -> Pool:
    """A pool of one worker whose oldest task has waited so long, and what else is wrong with it."""
    spec = a_pool()
    pool = Pool("resize", spec, a_fleet(a_worker("w1", "busy")))
    for nth in range(failures):
        at = Monotonic(NOW - 100 + nth)
        pool.fleet = spawn_failed(pool.fleet, spec_digest=spec.digest(), spawned_at=at, now=at)
    pool.sample = a_sample(ages=[oldest], paused=paused)
    pool.decision = replace(a_decision(current=1, target=1, limits=limits), unguarded=wanted)
    if outage:
        pool.outage = Outage(outage, 1, Monotonic(NOW + 2))
    if failed_ago is not None:
        pool.last_failure = WorkerFailure(Monotonic(NOW - failed_ago), "resize-x crashed: exit code 3")
    return pool


def test_a_pool_that_is_well_is_of_no_concern() -> None:
    assert concern_of(a_managed_pool()) is None
    assert concern_of(a_troubled_pool(oldest=30.0, failed_ago=1.0)) is None
    unknown = a_managed_pool()
    unknown.decision = None
    assert concern_of(unknown) is None


@pytest.mark.parametrize(
    ("pool", "concern"),
    [
        pytest.param(
            a_troubled_pool(oldest=30.001),
            Concern(
                ("late",),
                "a task has waited for 30 s, the slo is 30 s; workers: 1, by rule hold: as the test wishes",
            ),
            id="late, and nothing holds it",
        ),
        pytest.param(
            a_troubled_pool(oldest=95.0, limits=(HELD,), wanted=4),
            Concern(
                ("late",),
                "a task has waited for 95 s, the slo is 30 s; "
                f"held back by budget: {HELD.why}; workers: 1 of 4 wanted",
            ),
            id="late, and a guard holds it",
        ),
        pytest.param(
            a_troubled_pool(oldest=95.0, paused=True, limits=(Limit("queue_paused", "the queue is paused"),)),
            Concern(
                ("late",),
                "a task has waited for 95 s, the slo is 30 s; held back by queue_paused: the queue is paused; "
                "workers: 1, by rule hold: as the test wishes",
            ),
            id="late, in a queue that is paused",
        ),
        pytest.param(
            a_troubled_pool(limits=(MAX_8,), wanted=12),
            Concern(("at_max",), "held back by max: max 8; workers: 1 of 12 wanted"),
            id="at its max, in time so far",
        ),
        pytest.param(
            a_troubled_pool(oldest=40.0, limits=(MAX_8,), wanted=12, failed_ago=599.0),
            Concern(
                ("late", "at_max"),
                "a task has waited for 40 s, the slo is 30 s; held back by max: max 8; workers: 1 of 12 wanted; "
                "last failure: resize-x crashed: exit code 3",
            ),
            id="late, at its max, and a worker went wrong lately",
        ),
        pytest.param(
            a_troubled_pool(failures=1, failed_ago=4_000.0),
            Concern(("no_starts",), "the last start failed; last failure: resize-x crashed: exit code 3"),
            id="its only start failed, long ago",
        ),
        pytest.param(
            a_troubled_pool(
                failures=3, failed_ago=1.0, wanted=2, limits=(Limit("crash_loop", "3 starts failed in a row: probing"),)
            ),
            Concern(
                ("no_starts",),
                "held back by crash_loop: 3 starts failed in a row: probing; workers: 1 of 2 wanted; "
                "last failure: resize-x crashed: exit code 3",
            ),
            id="a crash loop",
        ),
        pytest.param(
            a_troubled_pool(outage="the engine does not answer", wanted=2),
            Concern(("no_starts",), "workers: 1 of 2 wanted; the engine does not answer"),
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
