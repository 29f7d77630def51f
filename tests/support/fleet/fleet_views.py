"""Views of a fleet as a supervisor shows them, with everything filled in."""

from orchestrator.clock import ManualMonotonicClock, Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.exits import Cause
from orchestrator.supervisor.pool import Pool
from orchestrator.supervisor.view import FleetView, Heartbeat, Phase, view_of
from tests.support.fleet.decisions import learn_and_decide
from tests.support.fleet.fleet_builders import NOW, a_fleet, a_pool, a_sample, a_worker


def a_managed_pool(spec: PoolSpec | None = None) -> Pool:
    """A pool with a busy and an idle worker, of which a task has waited for 4 s; decided on."""
    spec = spec or a_pool()
    pool = Pool(spec.name, spec, a_fleet(a_worker("w1", "busy"), a_worker("w2", "idle"), pool=spec.name))
    pool.sample = a_sample(ages=[4.0, 1.5])
    pool.decision, pool.state = learn_and_decide(pool.sample, fleet=pool.fleet, spec=spec, state=pool.state, now=NOW)
    pool.counters.count_decision(pool.decision)
    pool.counters.starts = 3
    pool.counters.count_death(Cause.OUT_OF_MEMORY, failed_start=False)
    return pool


def a_view(*pools: Pool, phase: Phase = "leading", started_at: float = NOW - 3600) -> FleetView:
    """A view of these pools."""
    return view_of(pools or [a_managed_pool()], phase=phase, started_at=Monotonic(started_at))


def a_pulse(view: FleetView | None = None) -> tuple[Heartbeat, ManualMonotonicClock]:
    """A supervisor that is well and shows a view, and its clock."""
    clock = ManualMonotonicClock(monotonic=NOW)
    pulse = Heartbeat(now=NOW)
    pulse.show(view or a_view())
    pulse.record_round(0.02, is_well=True)
    return pulse, clock
