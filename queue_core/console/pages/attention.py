"""Alerts of the first page, most urgent first: each a sentence with the page where it is fixed."""

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from queue_core.client.http.recent_deaths import MAX_DEATHS_COUNTED, describe_deaths
from queue_core.console.api import ApiProblemError, quoted
from queue_core.console.call import PageCall
from queue_core.console.errors_by_class import error_groups
from queue_core.process.wording import counted
from queue_core.verbs.wire import Json

Alert = tuple[str, str, str]
"""How bad (`bad`, `warn`), a sentence, and the address of the page where it is fixed."""
QUEUES_GROUPED: Final = 5
"""Queues whose dead tasks are named by class, at most: further ones are counted only."""
TASKS_GROUPED: Final = 200
"""Dead tasks of a queue that are read for that, at most."""
CLASSES_NAMED: Final = 3


def alerts_of_fleet(fleet: Json) -> list[Alert]:
    """Return what is wrong with the supervisor and its host, and tags that nobody serves."""
    alerts: list[Alert] = []
    if not fleet["alive"]:
        alerts.append(("bad", "The supervisor is not running: no worker is started or stopped.", ""))
    if fleet["drained"]:
        alerts.append(("warn", "This host is drained: no worker is started on it.", ""))
    unserved = cast("list[Json]", cast("Json", fleet["snapshot"]).get("unserved", []))
    alerts += [("warn", str(one["sentence"]), f"queues/{quoted(str(one['queue']))}/tags") for one in unserved]
    return alerts


async def alerts_of_deaths(call: PageCall) -> list[Alert]:
    """Return one alert of the workers that failed recently, with how the last of them ended."""
    if "/v1/deaths" not in call.paths:
        return []
    found = await call.get("/v1/deaths", query=[("failures", "true"), ("limit", str(MAX_DEATHS_COUNTED))])
    sentence = describe_deaths(cast("list[Json]", found["deaths"]), now_seconds=call.now_seconds)
    return [("bad", sentence, "deaths")] if sentence else []


def alerts_of_pools(pools: Sequence[Json]) -> list[Alert]:
    """Return pools that are late or limited, and the pauses and overrides in force."""
    alerts: list[Alert] = []
    for pool in pools:
        name = str(pool["pool"])
        address = f"pools/{quoted(name)}"
        if pool["concerns"]:
            alerts.append(("bad", f"{name}: {pool['concerns_why'] or pool['concerns']}", address))
        alerts += [
            ("warn", f"{name}: {sentence}", address) for sentence in str(pool["states"]).splitlines() if sentence
        ]
    return alerts


async def alerts_of_queues(call: PageCall, queues: Sequence[Json]) -> list[Alert]:
    """Return queues with dead tasks by class of error, paused ones, and those whose limits hold tasks."""
    alerts: list[Alert] = []
    dead = [one for one in queues if one["dead"]]
    classes = await asyncio.gather(*(_classes(call, one) for one in dead[:QUEUES_GROUPED]))
    counted_only = [""] * (len(dead) - len(classes))
    for one, named in zip(dead, [*classes, *counted_only], strict=True):
        name, count = str(one["queue"]), cast("int", one["dead"])
        sentence = f"{name}: {counted(count, 'dead task')}{named}"
        alerts.append(("bad", sentence, f"queues/{quoted(name)}/dead"))
    for one in queues:
        name = str(one["queue"])
        if one["paused"]:
            waiting = counted(cast("int", one["ready"]), "task waits", "tasks wait")
            alerts.append(("warn", f"{name}: paused, {waiting}", f"queues/{quoted(name)}"))
        elif held := cast("int", one.get("held") or 0):
            limits = counted(held, "task waits", "tasks wait")
            alerts.append(("warn", f"{name}: {limits} for its limits", f"queues/{quoted(name)}/tags"))
    return alerts


async def _classes(call: PageCall, stats: Json) -> str:
    """Return the classes of a queue's dead tasks in words: `: 300 ValueError, 12 TimeoutError`; "" if not known.

    They are read again only when there are more or fewer of them, or others.
    """
    queue, count = str(stats["queue"]), cast("int", stats["dead"])

    async def read() -> str:
        body: Json = {"limit": TASKS_GROUPED, "states": ["dead"]}
        try:
            found = await call.post(f"/v1/queues/{quoted(queue)}/peek", body)
        except ApiProblemError:
            return ""  # the viewer may not look into this queue
        groups = error_groups(cast("list[Json]", found["tasks"]))
        if count > TASKS_GROUPED:
            return f", mostly {groups[0].error}" if groups else ""
        named = [f"{len(group.names):,} {group.error}" for group in groups[:CLASSES_NAMED]]
        more = len(groups) - len(named)
        return f": {', '.join(named)}{f' and {more} more' if more else ''}" if named else ""

    return await call.memory.value(("dead classes", call.rights, queue), (count, stats["died_total"]), read)
