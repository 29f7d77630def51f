"""The last hour of all pools over HTTP, a point a minute."""

from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import Field

from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.fleet.trend import TrendPoint, by_minute, rates_of
from orchestrator.http_api.answers import FleetAnswer
from orchestrator.supervisor.view import Heartbeat, PoolView
from queue_core.server.extensions import ExtensionRoute, NoQuery, reads

PATH: Final = "/v1/trends"
T = TypeVar("T")


class PoolTrend(FleetAnswer):
    """The last 60 minutes of a pool, oldest first; null for a minute without a sample."""

    pool: str
    queue: str
    ready: list[int | None] = Field(description="The most tasks that were ready at a sample of the minute.")
    workers: list[int | None] = Field(description="Workers at the last sample of the minute.")
    busy: list[int | None] = Field(description="Busy workers at the last sample of the minute.")
    arrivals: list[int | None] = Field(description="Tasks that became leasable in the minute.")
    completed: list[int | None] = Field(description="Tasks that workers completed in the minute.")
    failed: list[int | None] = Field(description="Attempts that ended in the minute without completing their task.")
    longest_wait_seconds: list[float | None] = Field(description="The longest wait of a task leased before.")
    arrivals_per_second: float = Field(description="Over the last minute, as are the next two.")
    completed_per_second: float
    failed_per_second: float


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
    return PoolTrends(pools=[_trend_of(name, pool, now=now) for name, pool in heartbeat.view.pools.items()])


def _trend_of(name: str, pool: PoolView, *, now: Monotonic) -> PoolTrend:
    points, rates = by_minute(pool.trend, now=now), rates_of(pool.trend, now=now)

    def line(field: Callable[[TrendPoint], T]) -> list[T | None]:
        return [None if one is None else field(one) for one in points]

    return PoolTrend(
        pool=name,
        queue=pool.spec.queue,
        ready=line(lambda one: one.ready),
        workers=line(lambda one: one.workers),
        busy=line(lambda one: one.busy),
        arrivals=line(lambda one: one.arrivals),
        completed=line(lambda one: one.completed),
        failed=line(lambda one: one.failed),
        longest_wait_seconds=line(lambda one: round(one.longest_wait_seconds, 3)),
        arrivals_per_second=round(rates.arrivals, 3),
        completed_per_second=round(rates.completed, 3),
        failed_per_second=round(rates.failed, 3),
    )
