"""Queues: all of them, and one with its tasks, tags, leases, dead tasks and settings."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, cast

from queue_core.console.api import quoted
from queue_core.console.call import PageCall, whole_task
from queue_core.console.errors_by_class import error_groups
from queue_core.console.pages.page import Act, ConsolePage
from queue_core.http_api.values import Json

TASKS_ON_A_PAGE: Final = 50
TAGS_ON_A_PAGE: Final = 100
DEAD_GROUPED: Final = 5_000
"""Dead tasks that are read to group them, at most; the page says when there are more."""
LEASES_SHOWN: Final = 100


def _path(queue: str, rest: str = "") -> str:
    return f"/v1/queues/{quoted(queue)}{rest}"


async def all_queues(call: PageCall) -> Mapping[str, object]:
    """Return the queues with their counts."""
    found, counts = await asyncio.gather(call.get("/v1/queues"), call.get("/v1/stats"))
    specs = cast("list[Json]", found["queues"])
    stats = {str(one["queue"]): one for one in cast("list[Json]", counts["queues"])}
    wanted = call.one("q").strip().lower()
    rows = [(spec, stats[str(spec["name"])]) for spec in specs if str(spec["name"]) in stats]
    shown = [row for row in rows if wanted in str(row[0]["name"]).lower()]
    return {"rows": shown, "total": len(rows), "as_of": counts["as_of"]}


async def _head(call: PageCall) -> dict[str, object]:
    queue = call.path["queue"]
    spec, stats = await asyncio.gather(call.get(_path(queue)), call.get(_path(queue, "/stats")))
    return {"queue": queue, "spec": spec, "stats": stats}


async def tasks(call: PageCall) -> Mapping[str, object]:
    """Return a page of a queue's tasks, filtered by state and tag."""
    head, state, tag = await _head(call), call.one("state"), call.one("tag")
    body: Json = {"limit": TASKS_ON_A_PAGE, "after": call.count("after")}
    if state:
        body["states"] = [state]
    if tag:
        body["tags"] = [tag]
    found = await call.post(_path(call.path["queue"], "/peek"), body)
    return {
        **head,
        "tab": "tasks",
        "tasks": found["tasks"],
        "next_after": found["next_after"],
        "state": state,
        "tag": tag,
    }


async def tags(call: PageCall) -> Mapping[str, object]:
    """Return the counts of a queue's tags."""
    after = call.one("after")
    query = [("limit", str(TAGS_ON_A_PAGE)), *([("after", after)] if after else [])]
    head, found = await asyncio.gather(_head(call), call.get(_path(call.path["queue"], "/tags"), query=query))
    rows = cast("list[Json]", found["tags"])
    return {**head, "tab": "tags", "tags": rows, "more": len(rows) == TAGS_ON_A_PAGE}


async def leases(call: PageCall) -> Mapping[str, object]:
    """Return the leases that are held, and those that ended last."""
    queue = call.path["queue"]
    head, held, ended = await asyncio.gather(
        _head(call),
        call.post(_path(queue, "/peek"), {"limit": LEASES_SHOWN, "states": ["in_flight"]}),
        call.post(_path(queue, "/history"), {"limit": LEASES_SHOWN}),
    )
    return {
        **head,
        "tab": "leases",
        "held": [whole_task(one) for one in cast("list[Json]", held["tasks"])],
        "ended": ended["leases"],
    }


async def dead(call: PageCall) -> Mapping[str, object]:
    """Return a queue's dead tasks, grouped by the class of their error."""
    head, found = await asyncio.gather(_head(call), dead_tasks(call, call.path["queue"]))
    wanted = call.one("error")
    groups = error_groups(found)
    chosen = next((group for group in groups if group.error == wanted), None)
    return {**head, "tab": "dead", "groups": groups, "chosen": chosen, "read": len(found)}


async def dead_tasks(call: PageCall, queue: str) -> Sequence[Json]:
    """Return dead tasks of a queue, without their payloads, as many as are grouped."""
    tasks: list[Json] = []
    after: object = 0
    while after is not None and len(tasks) < DEAD_GROUPED:
        body: Json = {"limit": 1000, "states": ["dead"], "after": after}
        found = await call.post(_path(queue, "/peek"), body)
        tasks += cast("list[Json]", found["tasks"])
        after = found["next_after"]
    return tasks


async def settings(call: PageCall) -> Mapping[str, object]:
    """Return the settings of a queue."""
    return {**await _head(call), "tab": "settings"}


async def pause(call: PageCall, _form: Mapping[str, str]) -> str:
    """Grant no more leases of a queue."""
    queue = call.path["queue"]
    await call.post(_path(queue, "/pause"))
    return f"Queue {queue} is paused: it grants no lease until it is resumed."


async def resume(call: PageCall, _form: Mapping[str, str]) -> str:
    """Grant leases of a queue again."""
    queue = call.path["queue"]
    await call.post(_path(queue, "/resume"))
    return f"Queue {queue} grants leases again."


async def redrive(call: PageCall, _form: Mapping[str, str]) -> str:
    """Make the dead tasks of one class of errors ready again, in batches.

    The class is in the address: a field of a form would have its control characters as they are shown.
    """
    queue, error = call.path["queue"], call.one("error")
    groups = error_groups(await dead_tasks(call, queue))
    names = [name for group in groups if group.error == error for name in group.names]
    count = 0
    for begin in range(0, len(names), 1000):
        done = await call.post(_path(queue, "/redrive"), {"names": names[begin : begin + 1000]})
        count += cast("int", done["count"])
    return f"{count:,} of {len(names):,} dead tasks of {error} in {queue} are ready again."


_OF_QUEUE: Final = "/queues/{queue}"
PAGES: Final = (
    ConsolePage("/queues", "Queues", "queues", "queues.html", all_queues),
    ConsolePage(_OF_QUEUE, "Tasks", "queues", "queue_tasks.html", tasks),
    ConsolePage(f"{_OF_QUEUE}/tags", "Tags", "queues", "queue_tags.html", tags),
    ConsolePage(f"{_OF_QUEUE}/leases", "Leases", "queues", "queue_leases.html", leases),
    ConsolePage(f"{_OF_QUEUE}/dead", "Dead tasks", "queues", "queue_dead.html", dead),
    ConsolePage(f"{_OF_QUEUE}/settings", "Settings", "queues", "queue_settings.html", settings, is_live=False),
)
ACTIONS: Final[dict[str, Act]] = {
    f"{_OF_QUEUE}/pause": pause,
    f"{_OF_QUEUE}/resume": resume,
    f"{_OF_QUEUE}/dead/redrive": redrive,
}
