"""The supervisor's API: its models and paths, served beside a queue server's or on their own listener."""

import socket
from pathlib import Path
from typing import Final

from prometheus_client.process_collector import ProcessCollector
from pydantic import Field

from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.http_api.answers import FleetAnswer, not_now, unknown_pool
from orchestrator.http_api.deaths import death_routes
from orchestrator.http_api.decisions import decision_routes
from orchestrator.http_api.fleet import fleet_route
from orchestrator.http_api.fleet_now import FleetNow, OwnQueues
from orchestrator.http_api.logs import output_route
from orchestrator.http_api.metrics import FleetMetrics
from orchestrator.http_api.operator_calls import OperatorCalls
from orchestrator.http_api.registry import SupervisorRegistry
from orchestrator.http_api.rights import FleetRights
from orchestrator.http_api.settings import EffectiveSettings, FileProblems, settings_route
from orchestrator.http_api.trends import trends_route
from orchestrator.http_api.what_if import what_if_route
from orchestrator.http_api.worker_requests import WorkerRequestCalls
from orchestrator.http_api.workers import worker_routes
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.view import LIVE_SECONDS, FleetView, Heartbeat, PoolView
from queue_core.server.extensions import ExtensionRoute, Extensions, NoQuery, ReadOnlyRoute, reads


class PoolStats(FleetAnswer):
    """One pool's figures without nesting, for KEDA's metrics-api scaler and scripts."""

    pool: str
    queue: str
    runtime: str
    ready: int = Field(description="Tasks leasable now.")
    delayed: int = Field(description="Tasks whose eta is ahead.")
    leased: int = Field(description="Tasks under a lease.")
    dead: int = Field(description="Tasks kept aside after their last lease.")
    suspects: int = Field(description="Suspected tasks (held at several deaths) that wait for a solo worker.")
    oldest_age_seconds: float = Field(description="How long the oldest ready task had waited when last sampled.")
    p99_over_slo: float = Field(description="99th percentile of the waits of the last hour's leases, over the slo.")
    worst_over_slo: float = Field(description="The longest of those waits, over the slo.")
    desired_workers: int = Field(description="How many workers the pool should have now.")
    unguarded_workers: int = Field(description="How many it should have without guards.")
    alive_workers: int = Field(description="Workers that are not asked to leave.")
    starting_workers: int
    idle_workers: int
    busy_workers: int
    draining_workers: int
    killed_workers: int
    min_workers: int = Field(description="The lower bound in force.")
    max_workers: int = Field(description="The upper bound in force.")
    slo_seconds: float = Field(description="The longest a task may wait.")
    paused: int = Field(ge=0, le=1, description="1 while the queue grants no lease.")
    sample_age_seconds: float = Field(description="Seconds since the queue was last sampled.")
    decision_age_seconds: float = Field(description="Seconds since the last decision.")
    rule: str = Field(description="The rule that set the number of workers.")
    why: str = Field(description="The reason in words.")
    guards: str = Field(description="The guards that hold the decision back, joined by commas.")
    concerns: str = Field(
        description="The concerns about it (late, at_max, held_back, no_starts, misconfigured), joined by commas."
    )
    concerns_why: str = Field(description="The causes of that in words.")
    states: str = Field(description="Pauses and overrides in force, and tasks that run alone: sentences, one a line.")


class UnservedStats(FleetAnswer):
    """A tag of waiting tasks that no pool works on; null: tasks without one."""

    queue: str
    tag: str | None
    tasks: int = Field(description="Tasks that are ready or delayed.")
    sentence: str = Field(description="The same in words, with the tag that may be meant.")


class Pools(FleetAnswer):
    """All pools that have been decided on."""

    phase: str
    pools: tuple[PoolStats, ...]
    unserved: tuple[UnservedStats, ...] = Field((), description="Tags of waiting tasks that no pool works on.")


class SupervisorHealth(FleetAnswer):
    """The health of the supervisor."""

    status: str
    phase: str
    pools: int
    turn_age_seconds: float = Field(description="Seconds since the last turn finished.")


SETTLING_SECONDS: Final = 20.0
"""Time after a start before external pools are reported: their existing workers must be seen first."""

_ANSWERS_FOR: Final = frozenset({"leading"})


def pool_stats(heartbeat: Heartbeat, name: str, *, now: Monotonic) -> PoolStats:
    """Return one pool. Raises `Problem`: 404 for an unknown pool, 503 while no number may be acted on."""
    view = _leading(heartbeat, now=now)
    pool = view.pools.get(name)
    if pool is None:
        raise unknown_pool(name, view.pools)
    found = _stats(name, pool, view, now=now)
    if found is None:
        raise not_now(f"pool {name} has not been decided on yet")
    return found


def all_pools(heartbeat: Heartbeat, *, now: Monotonic) -> Pools:
    """Return all pools that were decided on. Raises `Problem`: 503 while no number may be acted on."""
    view = _leading(heartbeat, now=now)
    found = [_stats(name, pool, view, now=now) for name, pool in view.pools.items()]
    unserved = tuple(
        UnservedStats(queue=one.queue, tag=one.tag, tasks=one.tasks, sentence=one.sentence) for one in view.unserved
    )
    return Pools(phase=view.phase, pools=tuple(stats for stats in found if stats is not None), unserved=unserved)


def live(heartbeat: Heartbeat, *, now: Monotonic) -> SupervisorHealth:
    """Return the supervisor's health. Raises `Problem`: 503 when its turns do not finish."""
    age_seconds = max(0.0, now - heartbeat.passed_at)
    if not heartbeat.is_live(now=now):
        why = (
            "has stopped"
            if heartbeat.view.phase == "stopped"
            else f"has not finished its turns for {age_seconds:.0f} s"
        )
        raise not_now(f"the supervisor {why} (at most {LIVE_SECONDS:.0f} s): look at its log, restart it")
    view = heartbeat.view
    return SupervisorHealth(
        status="ok", phase=view.phase, pools=len(view.pools), turn_age_seconds=round(age_seconds, 3)
    )


def ready(heartbeat: Heartbeat, *, now: Monotonic) -> SupervisorHealth:
    """Return the health of a supervisor that leads or stands by. Raises `Problem`: 503 during start and stop."""
    health = live(heartbeat, now=now)
    if health.phase in {"starting", "stopping"}:
        raise not_now(f"the supervisor is {health.phase}")
    return health


def leader(heartbeat: Heartbeat, *, now: Monotonic) -> SupervisorHealth:
    """Return the health of a supervisor that leads. Raises `Problem`: 503 for one that stands by."""
    _leading(heartbeat, now=now)
    return live(heartbeat, now=now)


def _leading(heartbeat: Heartbeat, *, now: Monotonic) -> FleetView:
    live(heartbeat, now=now)
    if heartbeat.view.phase not in _ANSWERS_FOR:
        raise not_now(f"this supervisor is {heartbeat.view.phase}, and has no numbers: query the leader")
    return heartbeat.view


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
        states="\n".join(pool.states_in_force),
    )


PROBES: Final = {"/v1/supervisor/livez": ("/livez", "/healthz"), "/v1/supervisor/readyz": ("/readyz",)}
"""The probes' usual paths, served on a listener of the supervisor's own."""


def fleet_paths(
    heartbeat: Heartbeat,
    clock: MonotonicClock,
    *,
    is_alone: bool = False,
    files: StateDir | None = None,
    queues: OwnQueues | None = None,
    registry: SupervisorRegistry | None = None,
    settings: EffectiveSettings | None = None,
    problems: FileProblems = tuple,
    file: Path | None = None,
) -> Extensions:
    """Return the supervisor's routes and metrics; `is_alone` when no queue server shares the listener.

    Args:
        files: the state directory whose fleet is shown, and in which orders are written.
        queues: where the figures of now come from.
        registry: lists the supervisors of the store.
        settings: reads the settings in force.
        problems: reads what is wrong with their file.
        file: the settings file, for simulations.
    """

    def probes_at(path: str) -> tuple[str, ...]:
        return PROBES[path] if is_alone else ()

    return Extensions(
        routes=(
            reads(
                "/v1/pools",
                "list_pools",
                "List all pools: tasks, workers, and how many there should be.",
                "stats",
                lambda _call: all_pools(heartbeat, now=clock.monotonic()),
                Pools,
                NoQuery,
            ),
            trends_route(heartbeat, clock),
            ReadOnlyRoute(
                "/v1/pools/{pool}/stats",
                "pool_stats",
                "Return one pool's figures without nesting.",
                "stats",
                lambda path: pool_stats(heartbeat, path["pool"], now=clock.monotonic()),
                PoolStats,
            ),
            ReadOnlyRoute(
                "/v1/supervisor/livez",
                "supervisor_live",
                "Whether the supervisor's turns finish.",
                None,
                lambda _path: live(heartbeat, now=clock.monotonic()),
                SupervisorHealth,
                probes_at("/v1/supervisor/livez"),
            ),
            ReadOnlyRoute(
                "/v1/supervisor/readyz",
                "supervisor_ready",
                "Whether the supervisor leads, or stands by for one that does.",
                None,
                lambda _path: ready(heartbeat, now=clock.monotonic()),
                SupervisorHealth,
                probes_at("/v1/supervisor/readyz"),
            ),
            ReadOnlyRoute(
                "/v1/supervisor/leader",
                "supervisor_leader",
                "Whether this supervisor is the one that leads.",
                None,
                lambda _path: leader(heartbeat, now=clock.monotonic()),
                SupervisorHealth,
            ),
            *(() if files is None or settings is None else [settings_route(files, settings, problems)]),
            *(() if files is None else _state_routes(files, heartbeat, clock, queues, registry)),
            *(() if file is None else (what_if_route(file),)),
        ),
        rights=FleetRights(heartbeat, clock, files, queues),
        collectors=(FleetMetrics(heartbeat, clock), ProcessCollector(registry=None)),
    )


def _state_routes(
    files: StateDir,
    heartbeat: Heartbeat,
    clock: MonotonicClock,
    queues: OwnQueues | None,
    registry: SupervisorRegistry | None,
) -> tuple[ExtensionRoute, ...]:
    fleet = FleetNow(files, clock, queues)
    operator = OperatorCalls(files, heartbeat, clock, host=socket.gethostname(), registry=registry)
    return (
        output_route(files),
        fleet_route(files, fleet, clock),
        *decision_routes(files, clock),
        *worker_routes(files, fleet, clock),
        *death_routes(files),
        *operator.routes(),
        *WorkerRequestCalls(files, fleet, operator).routes(),
        *(() if registry is None else [registry.route()]),
    )
