"""The fleet: what needs a look first, then a row for each pool, and the supervisor."""

import asyncio
from collections.abc import Mapping
from typing import Final, cast

from queue_core.client.http.fleet_paths import FLEET, PRESENT_WORKERS
from queue_core.console.api import ApiProblemError
from queue_core.console.call import PageCall
from queue_core.console.fleet_figures import figures_of_pools, figures_of_queues
from queue_core.console.pages.attention import (
    Alert,
    alerts_of_deaths,
    alerts_of_fleet,
    alerts_of_pools,
    alerts_of_queues,
)
from queue_core.console.pages.hosts import console_of
from queue_core.console.pages.page import Act, ConsolePage
from queue_core.console.pages.trends import rates_of_queues, ready_in, trends_of_pools
from queue_core.console.sparkline import sparkline
from queue_core.process.wording import counted
from queue_core.verbs.wire import Json


async def overview(call: PageCall) -> Mapping[str, object]:
    """Return figures, alerts and pools; where no supervisor can be asked, the queues and the workers that they know."""
    stats = await call.get("/v1/stats") if "/v1/stats" in call.paths else {"queues": []}
    queues = cast("list[Json]", stats["queues"])
    nothing: Mapping[str, object] = {
        "fleet": None,
        "pools": [],
        "alerts": await alerts_of_queues(call, queues),
        "figures": figures_of_queues(queues, rates_of_queues(call, queues).values()),
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
        *alerts_of_fleet(fleet),
        *await alerts_of_deaths(call),
        *alerts_of_pools(rows),
        *cast("list[Alert]", nothing["alerts"]),
    ]
    lines = {str(one["pool"]): sparkline(ready_in(one)) for one in trends}
    others = cast("Json", fleet["snapshot"]).get("unsupervised", [])
    shown = {"fleet": fleet, "pools": rows, "alerts": alerts, "unsupervised": others, "trends": lines}
    return {**nothing, **shown, "figures": figures_of_pools(rows, trends)}


async def present_workers(call: PageCall) -> list[Json]:
    """Return the workers that lease from the queues, supervised or not; none of an older server."""
    if PRESENT_WORKERS not in call.paths:
        return []
    return cast("list[Json]", (await call.get(PRESENT_WORKERS))["workers"])


async def drain(call: PageCall, form: Mapping[str, str]) -> str:
    """Drain a host, or end its drain."""
    verb = "undrain" if form.get("end") else "drain"
    await call.post(f"/v1/hosts/this/{verb}")
    if verb == "drain":
        return "Host drained: its workers finish their tasks, and no worker is started."
    return "Host drain ended."


async def reload(call: PageCall, _form: Mapping[str, str]) -> str:
    """Read the settings file again."""
    answer = await call.post("/v1/supervisor/reload")
    if answer["mistakes"]:
        return f"Settings unchanged: {cast('list[object]', answer['mistakes'])[0]}"
    if not answer["answered"]:
        return "The supervisor has not answered yet; see Settings in a few seconds."
    changes = cast("list[object]", answer["changes"])
    return f"Settings reloaded: {counted(len(changes), 'change')}." if changes else "Settings reloaded: no changes."


PAGES: Final = (ConsolePage("/", "Fleet", "fleet", "fleet.html", overview),)
ACTIONS: Final[dict[str, Act]] = {"/drain": drain, "/reload": reload}
