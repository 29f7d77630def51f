"""The paths of the supervisor's API, for the server whose listener they share or for one of their own."""

from typing import Final

from prometheus_client.process_collector import ProcessCollector

from orchestrator.clock import Clock
from orchestrator.fleet_view import Pulse
from orchestrator.http_api import stats
from orchestrator.http_api.answers import Pools, PoolStats, SupervisorHealth
from orchestrator.http_api.metrics import FleetMetrics
from queue_core.server.also import Also, LookUp

PROBES: Final = {"/v1/supervisor/livez": ("/livez", "/healthz"), "/v1/supervisor/readyz": ("/readyz",)}
"""What probes ask of a listener that is the supervisor's alone."""


def fleet_paths(pulse: Pulse, clock: Clock, *, is_alone: bool = False) -> Also:
    """Everything, told from `pulse`; `is_alone` where no queue server shares the listener."""

    def probes_at(path: str) -> tuple[str, ...]:
        return PROBES[path] if is_alone else ()

    return Also(
        look_ups=(
            LookUp(
                "/v1/pools",
                "list_pools",
                "All pools: work, workers, and how many there should be.",
                "stats",
                lambda _path: stats.all_pools(pulse, now=clock.monotonic()),
                Pools,
            ),
            LookUp(
                "/v1/pools/{pool}/stats",
                "pool_stats",
                "One pool in flat numbers.",
                "stats",
                lambda path: stats.pool_stats(pulse, path["pool"], now=clock.monotonic()),
                PoolStats,
            ),
            LookUp(
                "/v1/supervisor/livez",
                "supervisor_live",
                "Whether the supervisor's turns finish.",
                None,
                lambda _path: stats.live(pulse, now=clock.monotonic()),
                SupervisorHealth,
                probes_at("/v1/supervisor/livez"),
            ),
            LookUp(
                "/v1/supervisor/readyz",
                "supervisor_ready",
                "Whether the supervisor leads, or stands by for one that does.",
                None,
                lambda _path: stats.ready(pulse, now=clock.monotonic()),
                SupervisorHealth,
                probes_at("/v1/supervisor/readyz"),
            ),
            LookUp(
                "/v1/supervisor/leader",
                "supervisor_leader",
                "Whether this supervisor is the one that leads.",
                None,
                lambda _path: stats.leader(pulse, now=clock.monotonic()),
                SupervisorHealth,
            ),
        ),
        collectors=(FleetMetrics(pulse, clock), ProcessCollector(registry=None)),
    )
