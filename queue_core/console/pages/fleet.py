"""The fleet: what needs a look first, then a row for each pool, and the supervisor."""

import asyncio
from collections.abc import Mapping
from typing import Final, cast

from queue_core.client.http.fleet_paths import FLEET, PRESENT_WORKERS
from queue_core.client.http.recent_deaths import MAX_DEATHS_COUNTED, describe_deaths
from queue_core.console.api import ApiProblemError, quoted
from queue_core.console.call import PageCall
from queue_core.console.pages.hosts import console_of
from queue_core.console.pages.page import Act, ConsolePage
from queue_core.console.pages.trends import ready_in, trends_of_pools
from queue_core.console.sparkline import sparkline
from queue_core.process.wording import counted
from queue_core.verbs.wire import Json


async def overview(call: PageCall) -> Mapping[str, object]:
    """Return the alerts and pools; where no supervisor can be asked, the queues and the workers that they know."""
    stats = await call.get("/v1/stats") if "/v1/stats" in call.paths else {"queues": []}
    queues = cast("list[Json]", stats["queues"])
    dead = [one for one in queues if one["dead"]]
    nothing: Mapping[str, object] = {
        "fleet": None,
        "pools": [],
        "alerts": _alerts_of_queues(dead),
        "queues": queues,
        "problem": "",
        "console": "",
        "trends": {},
    }
    if FLEET not in call.paths:
        return {**nothing, "unsupervised": []}
    try:
        fleet, pools, trends = await asyncio.gather(call.get(FLEET), call.get("/v1/pools"), trends_of_pools(call))
    except ApiProblemError as problem:
        if problem.status not in (404, 503):
            raise
        text = "" if problem.kind == "no-supervisor" else problem.detail
        console = console_of({"url": problem.url})
        return {**nothing, "unsupervised": await present_workers(call), "problem": text, "console": console}
    rows = cast("list[Json]", pools["pools"])
    alerts = [
        *_alerts_of_fleet(fleet),
        *await _alerts_of_deaths(call),
        *_alerts_of_pools(rows),
        *_alerts_of_queues(dead),
    ]
    lines = {str(one["pool"]): sparkline(ready_in(one)) for one in trends}
    others = cast("Json", fleet["snapshot"]).get("unsupervised", [])
    shown = {"fleet": fleet, "pools": rows, "alerts": alerts, "unsupervised": others, "trends": lines}
    return {**nothing, **shown}


async def present_workers(call: PageCall) -> list[Json]:
    """Return the workers that lease from the queues, supervised or not; none of an older server."""
    if PRESENT_WORKERS not in call.paths:
        return []
    return cast("list[Json]", (await call.get(PRESENT_WORKERS))["workers"])


Alert = tuple[str, str, str]
"""How bad (`bad`, `warn`), a sentence, and the address of the page that tells more."""


def _alerts_of_fleet(fleet: Json) -> list[Alert]:
    alerts: list[Alert] = []
    if not fleet["alive"]:
        alerts.append(("bad", "The supervisor is gone: no worker is started or stopped.", ""))
    if fleet["drained"]:
        alerts.append(("warn", "This host is drained: no worker is started on it.", ""))
    unserved = cast("list[Json]", cast("Json", fleet["snapshot"]).get("unserved", []))
    alerts += [("warn", str(one["sentence"]), f"queues/{quoted(str(one['queue']))}/tags") for one in unserved]
    return alerts


async def _alerts_of_deaths(call: PageCall) -> list[Alert]:
    """Return one alert of the workers that failed lately, with how the last of them ended."""
    if "/v1/deaths" not in call.paths:
        return []
    found = await call.get("/v1/deaths", query=[("failures", "true"), ("limit", str(MAX_DEATHS_COUNTED))])
    told = describe_deaths(cast("list[Json]", found["deaths"]), now_seconds=call.now_seconds)
    return [("bad", told, "deaths")] if told else []


def _alerts_of_pools(pools: list[Json]) -> list[Alert]:
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


def _alerts_of_queues(queues: list[Json]) -> list[Alert]:
    return [
        (
            "bad",
            f"{one['queue']}: {counted(int(str(one['dead'])), 'dead task')}",
            f"queues/{quoted(str(one['queue']))}/dead",
        )
        for one in queues
    ]


async def drain(call: PageCall, form: Mapping[str, str]) -> str:
    """Drain a host, or end its drain."""
    verb = "undrain" if form.get("end") else "drain"
    await call.post(f"/v1/hosts/this/{verb}")
    if verb == "drain":
        return "The host is drained: its workers finish their tasks, and none is started."
    return "The host is no longer drained."


async def reload(call: PageCall, _form: Mapping[str, str]) -> str:
    """Read the settings file again."""
    answer = await call.post("/v1/supervisor/reload")
    if answer["mistakes"]:
        return f"The settings were left as they are: {cast('list[object]', answer['mistakes'])[0]}"
    if not answer["answered"]:
        return "The supervisor has not answered yet."
    changes = cast("list[object]", answer["changes"])
    return (
        f"The settings file was read again: {counted(len(changes), 'change')}."
        if changes
        else "Nothing in the file has changed."
    )


PAGES: Final = (ConsolePage("/", "Fleet", "fleet", "fleet.html", overview),)
ACTIONS: Final[dict[str, Act]] = {"/drain": drain, "/reload": reload}
