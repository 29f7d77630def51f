"""Lifecycle events, newest first, filtered by kind, queue, task or worker."""

from collections.abc import Mapping
from typing import Final, cast

from queue_core.console.call import PageCall
from queue_core.console.pages.page import ConsolePage
from queue_core.http_api.values import Json

EVENTS_SHOWN: Final = 200
_FIELDS: Final = ("queue", "task", "tag", "worker", "event")


async def events(call: PageCall) -> Mapping[str, object]:
    """Return the recent events that fit the filter."""
    wanted = {name: call.one(name) for name in _FIELDS if call.one(name)}
    found = await call.get("/v1/events", query=[("limit", "1000")])
    every = cast("list[Json]", found["events"])
    fitting = [one for one in every if all(str(one.get(name, "")) == text for name, text in wanted.items())]
    kinds = sorted({str(one["event"]) for one in every})
    return {"events": fitting[-EVENTS_SHOWN:][::-1], "kinds": kinds, "wanted": wanted, "read": len(every)}


PAGES: Final = (ConsolePage("/events", "Events", "events", "events.html", events),)
