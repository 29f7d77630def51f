"""Complete views of a fleet, as a supervisor publishes them."""

from orchestrator.base.clock import ManualMonotonicClock, Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import Cause
from orchestrator.supervisor.pool import Pool
from orchestrator.supervisor.view import FleetView, Heartbeat, Phase, view_of
from tests.support.fleet.fleet_builders import NOW, a_fleet, a_pool, a_sample, a_worker, learn_and_decide


def a_running_pool(spec: PoolSpec | None = None) -> Pool:
    """Return a pool with a busy and an idle worker, a task that has waited for 4 s, and a decision."""
    spec = spec or a_pool()
    pool = Pool(spec.name, spec, a_fleet(a_worker("w1", "busy"), a_worker("w2", "idle"), pool=spec.name))
    pool.sample = a_sample(ages=[4.0, 1.5])
    pool.decision, pool.state = learn_and_decide(pool.sample, fleet=pool.fleet, spec=spec, state=pool.state, now=NOW)
    pool.counters.count_decision(pool.decision)
    pool.counters.starts = 3
    pool.counters.count_death(Cause.OUT_OF_MEMORY, failed_start=False)
    return pool


def a_view(*pools: Pool, phase: Phase = "leading", started_at: float = NOW - 3600) -> FleetView:
    """Return a view of these pools."""
    return view_of(pools or [a_running_pool()], phase=phase, started_at=Monotonic(started_at))


def a_heartbeat(view: FleetView | None = None) -> tuple[Heartbeat, ManualMonotonicClock]:
    """Return the heartbeat of a healthy supervisor with this view, and its clock."""
    clock = ManualMonotonicClock(monotonic=NOW)
    heartbeat = Heartbeat(now=NOW)
    heartbeat.show(view or a_view())
    heartbeat.record_round(0.02, is_well=True)
    return heartbeat, clock
