"""Lifecycle events, newest first, filtered by kind, queue, task or worker."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from queue_core.console.call import PageCall
from queue_core.console.pages.page import ConsolePage
from queue_core.console.task_names import tasks_meant
from queue_core.task import CELERY_ID_FORM
from queue_core.verbs.wire import Json

EVENTS_SHOWN: Final = 200
EVENTS_READ: Final = 1_000
"""Events among which the filter looks: those that a server keeps."""
_FIELDS: Final = ("queue", "task", "tag", "worker", "event")


async def events(call: PageCall) -> Mapping[str, object]:
    """Return the recent events that fit the filter."""
    wanted = {name: call.one(name) for name in _FIELDS if call.one(name)}
    every = await _recent(call)
    shown: dict[str, object] = {"kinds": sorted({str(one["event"]) for one in every}), "wanted": wanted}
    fitting = _fitting(every, wanted)
    task = wanted.get("task", "")
    if not fitting and CELERY_ID_FORM.fullmatch(task) and not any(one.get("task") == task for one in every):
        known = sorted({str(one["queue"]) for one in every if "queue" in one})
        meant = await tasks_meant(call, [wanted["queue"]] if "queue" in wanted else known, task)
        others = {name: text for name, text in wanted.items() if name != "task"}
        fitting = [one for one in _fitting(every, others) if (one.get("queue"), one.get("task")) in meant]
        shown["page"] = FOUND_PAGE
    return {**shown, "events": fitting[-EVENTS_SHOWN:][::-1], "read": len(every)}


def _fitting(every: Sequence[Json], wanted: Mapping[str, str]) -> list[Json]:
    return [one for one in every if all(str(one.get(name, "")) == text for name, text in wanted.items())]


async def _recent(call: PageCall) -> Sequence[Json]:
    """Return the events that the server keeps, oldest first; only those after the last look are asked for."""
    key, limit = ("events", call.rights), ("limit", str(EVENTS_READ))
    cursor, known = cast("tuple[int, tuple[Json, ...]]", call.memory.get(key) or (0, ()))
    found = await call.get("/v1/events", query=[limit, *([("after", str(cursor))] if cursor else [])])
    if cursor and (found["missed"] or int(str(found["cursor"])) < cursor):  # too many since, or the server is another
        known, found = (), await call.get("/v1/events", query=[limit])
    every = (*known, *cast("list[Json]", found["events"]))[-EVENTS_READ:]
    call.memory.put(key, (found["cursor"], every))
    return every


FOUND_PAGE: Final = ConsolePage("/events", "Events", "events", "events.html", events, is_live=False)
"""Tasks of an id of Celery's are looked up in the queues, once."""
PAGES: Final = (ConsolePage("/events", "Events", "events", "events.html", events),)
