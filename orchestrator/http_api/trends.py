"""The last hour of all pools over HTTP, a point a minute."""

from typing import Final

from pydantic import Field

from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.fleet.trend import by_minute
from orchestrator.http_api.answers import FleetAnswer
from orchestrator.supervisor.view import Heartbeat
from queue_core.server.extensions import ExtensionRoute, NoQuery, reads

PATH: Final = "/v1/trends"


class PoolTrend(FleetAnswer):
    """The last 60 minutes of a pool, oldest first; null for a minute without a sample."""

    pool: str
    queue: str
    ready: list[int | None] = Field(description="The most tasks that were ready at a sample of the minute.")
    workers: list[int | None] = Field(description="Workers at the last sample of the minute.")


class PoolTrends(FleetAnswer):
    """The last hour of all pools, as far as this supervisor has led since."""

    pools: list[PoolTrend]


def trends_route(heartbeat: Heartbeat, clock: MonotonicClock) -> ExtensionRoute:
    """Return the route of the trends."""
    return reads(
        PATH,
        "list_trends",
        "The last hour of all pools, a point a minute.",
        "stats",
        lambda _call: pool_trends(heartbeat, now=clock.monotonic()),
        PoolTrends,
        NoQuery,
    )


def pool_trends(heartbeat: Heartbeat, *, now: Monotonic) -> PoolTrends:
    """Return the trends of all pools."""
    found = []
    for name, pool in heartbeat.view.pools.items():
        points = by_minute(pool.trend, now=now)
        ready = [None if one is None else one.ready for one in points]
        workers = [None if one is None else one.workers for one in points]
        found.append(PoolTrend(pool=name, queue=pool.spec.queue, ready=ready, workers=workers))
    return PoolTrends(pools=found)
