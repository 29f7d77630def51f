"""The last hour of the pools, for the rows of pages: asked for now and then, as a minute is one point."""

from collections.abc import Iterable, Sequence
from typing import Final, cast

from queue_core.console.api import ApiProblemError
from queue_core.console.call import PageCall
from queue_core.console.rates import KEPT_SECONDS, QueueRates, QueueTotals, kept, rates, totals_of
from queue_core.console.sparkline import Sparkline, sparkline, total_of
from queue_core.verbs.wire import Json

PATH: Final = "/v1/trends"
FRESH_SECONDS: Final = 3
"""For so long the same trends answer all pages."""


async def trends_of_pools(call: PageCall) -> Sequence[Json]:
    """Return the trend of each pool; none where the API has none, or no supervisor can be asked."""
    if PATH not in call.paths:
        return ()

    async def read() -> Sequence[Json]:
        try:
            return cast("list[Json]", (await call.get(PATH))["pools"])
        except ApiProblemError as problem:
            if problem.status not in (404, 503):  # no supervisor can be asked
                raise
            return ()

    return await call.memory.value(("trends", call.rights), call.now_seconds // FRESH_SECONDS, read)


def ready_in(trend: Json) -> tuple[int | None, ...]:
    """Return the ready tasks of a trend, oldest first."""
    return tuple(cast("list[int | None]", trend["ready"]))


async def trends_of_queues(call: PageCall) -> dict[str, Sparkline | None]:
    """Return a line for each queue that pools work on: what waited for all of them together."""
    by_queue: dict[str, list[tuple[int | None, ...]]] = {}
    for one in await trends_of_pools(call):
        by_queue.setdefault(str(one["queue"]), []).append(ready_in(one))
    return {queue: sparkline(total_of(lines)) for queue, lines in by_queue.items()}


def rates_of_queues(call: PageCall, stats: Iterable[Json]) -> dict[str, QueueRates]:
    """Return what goes in and out of each queue per second, as far as this sample and recent ones say."""
    key = ("samples of queues", call.rights)
    looks = cast("dict[str, tuple[QueueTotals, ...]]", call.memory.get(key) or {})
    now = {str(one["queue"]): totals_of(one) for one in stats}
    both = {**looks, **{queue: kept(looks.get(queue, ()), look) for queue, look in now.items()}}
    newest = max((look.at for look in now.values()), default=0.0)
    call.memory.put(key, {queue: those for queue, those in both.items() if newest - those[-1].at <= KEPT_SECONDS})
    found = {queue: rates(looks.get(queue, ()), look) for queue, look in now.items()}
    return {queue: one for queue, one in found.items() if one is not None}
