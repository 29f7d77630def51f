"""The paths of the supervisor's API, for the server whose listener they share or for one of their own."""

from typing import Final

from prometheus_client.process_collector import ProcessCollector

from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.http_api.answers import Pools, PoolStats, SupervisorHealth
from orchestrator.http_api.metrics import FleetMetrics
from orchestrator.supervisor.view import LIVE_SECONDS, FleetView, Heartbeat, PoolView
from queue_core.config.messages import did_you_mean
from queue_core.server.extensions import Extensions, ReadOnlyRoute
from queue_core.server.problems import Problem, refusal

SETTLING_SECONDS: Final = 20.0
"""How long a pool whose workers others start is not told of after a start: workers of before must be seen first."""
RETRY_SECONDS: Final = 5

_ANSWERS_FOR: Final = frozenset({"leading"})


def pool_stats(pulse: Heartbeat, name: str, *, now: Monotonic) -> PoolStats:
    """One pool. Raises `Problem`: 404 for one that is not in the settings, 503 where no number is to be acted on."""
    view = _leading(pulse, now=now)
    pool = view.pools.get(name)
    if pool is None:
        meant = did_you_mean(name[:100], view.pools)
        raise refusal(404, "unknown-pool", f"there is no pool '{name[:100]}'{meant}; GET /v1/pools lists them")
    found = _stats(name, pool, view, now=now)
    if found is None:
        raise _not_now(f"pool {name} has not been decided on yet")
    return found


def all_pools(pulse: Heartbeat, *, now: Monotonic) -> Pools:
    """All that can be told. Raises `Problem`: 503 where no number is to be acted on."""
    view = _leading(pulse, now=now)
    found = [_stats(name, pool, view, now=now) for name, pool in view.pools.items()]
    return Pools(phase=view.phase, pools=tuple(stats for stats in found if stats is not None))


def live(pulse: Heartbeat, *, now: Monotonic) -> SupervisorHealth:
    """Raises `Problem`: 503 when its turns do not finish."""
    age_seconds = max(0.0, now - pulse.passed_at)
    if not pulse.is_live(now=now):
        why = "has stopped" if pulse.view.phase == "stopped" else f"has not finished its turns for {age_seconds:.0f} s"
        raise _not_now(f"the supervisor {why} (at most {LIVE_SECONDS:.0f} s): look at its log, restart it")
    view = pulse.view
    return SupervisorHealth(
        status="ok", phase=view.phase, pools=len(view.pools), turn_age_seconds=round(age_seconds, 3)
    )


def ready(pulse: Heartbeat, *, now: Monotonic) -> SupervisorHealth:
    """Live, and past its start: it leads, or stands by for one that does. Raises `Problem`: 503."""
    health = live(pulse, now=now)
    if health.phase in {"starting", "stopping"}:
        raise _not_now(f"the supervisor is {health.phase}")
    return health


def leader(pulse: Heartbeat, *, now: Monotonic) -> SupervisorHealth:
    """Live, and the one that leads: of several behind one name, the one to ask. Raises `Problem`: 503."""
    _leading(pulse, now=now)
    return live(pulse, now=now)


def _leading(pulse: Heartbeat, *, now: Monotonic) -> FleetView:
    live(pulse, now=now)
    if pulse.view.phase not in _ANSWERS_FOR:
        raise _not_now(f"this supervisor is {pulse.view.phase}, and has no numbers: ask the one that leads")
    return pulse.view


def _not_now(detail: str) -> Problem:
    return refusal(503, "supervisor-not-ready", detail, headers=((b"retry-after", str(RETRY_SECONDS).encode()),))


def _stats(name: str, pool: PoolView, view: FleetView, *, now: Monotonic) -> PoolStats | None:
    sample, decision, desired, spec, concern = pool.sample, pool.decision, pool.desired, pool.spec, pool.concern
    if sample is None or decision is None or desired is None:
        return None
    if spec.runtime_kind == "external" and now - view.started_at < SETTLING_SECONDS:
        return None
    return PoolStats(
        pool=name,
        queue=spec.queue,
        runtime=spec.runtime_kind,
        ready=sample.ready,
        delayed=sample.delayed,
        leased=sample.in_flight,
        dead=sample.dead,
        suspects=pool.suspected,
        oldest_age_seconds=round(pool.oldest_seconds, 3),
        p99_over_slo=round(pool.waited.p99_over_slo, 3),
        worst_over_slo=round(pool.waited.worst_over_slo, 3),
        desired_workers=desired,
        unguarded_workers=decision.unguarded,
        alive_workers=pool.alive,
        starting_workers=pool.states["starting"],
        idle_workers=pool.states["idle"],
        busy_workers=pool.states["busy"],
        draining_workers=pool.states["draining"],
        killed_workers=pool.states["killed"],
        min_workers=spec.workers.min,
        max_workers=spec.workers.max,
        slo_seconds=spec.slo,
        paused=int(sample.paused),
        sample_age_seconds=round(max(0.0, now - sample.at), 3),
        decision_age_seconds=round(max(0.0, now - decision.at), 3),
        rule=decision.rule,
        why=decision.why,
        guards=",".join(decision.limited_by),
        concerns=",".join(concern.kinds) if concern else "",
        concerns_why=concern.why if concern else "",
    )


PROBES: Final = {"/v1/supervisor/livez": ("/livez", "/healthz"), "/v1/supervisor/readyz": ("/readyz",)}
"""What probes ask of a listener that is the supervisor's alone."""


def fleet_paths(pulse: Heartbeat, clock: MonotonicClock, *, is_alone: bool = False) -> Extensions:
    """Everything, told from `pulse`; `is_alone` where no queue server shares the listener."""

    def probes_at(path: str) -> tuple[str, ...]:
        return PROBES[path] if is_alone else ()

    return Extensions(
        routes=(
            ReadOnlyRoute(
                "/v1/pools",
                "list_pools",
                "All pools: work, workers, and how many there should be.",
                "stats",
                lambda _path: all_pools(pulse, now=clock.monotonic()),
                Pools,
            ),
            ReadOnlyRoute(
                "/v1/pools/{pool}/stats",
                "pool_stats",
                "One pool in flat numbers.",
                "stats",
                lambda path: pool_stats(pulse, path["pool"], now=clock.monotonic()),
                PoolStats,
            ),
            ReadOnlyRoute(
                "/v1/supervisor/livez",
                "supervisor_live",
                "Whether the supervisor's turns finish.",
                None,
                lambda _path: live(pulse, now=clock.monotonic()),
                SupervisorHealth,
                probes_at("/v1/supervisor/livez"),
            ),
            ReadOnlyRoute(
                "/v1/supervisor/readyz",
                "supervisor_ready",
                "Whether the supervisor leads, or stands by for one that does.",
                None,
                lambda _path: ready(pulse, now=clock.monotonic()),
                SupervisorHealth,
                probes_at("/v1/supervisor/readyz"),
            ),
            ReadOnlyRoute(
                "/v1/supervisor/leader",
                "supervisor_leader",
                "Whether this supervisor is the one that leads.",
                None,
                lambda _path: leader(pulse, now=clock.monotonic()),
                SupervisorHealth,
            ),
        ),
        collectors=(FleetMetrics(pulse, clock), ProcessCollector(registry=None)),
    )
