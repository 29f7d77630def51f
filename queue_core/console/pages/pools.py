"""A pool: why it has its size, how that came about, its workers, and orders."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from queue_core.client.http.folded_decisions import folded
from queue_core.console.api import ApiProblemError, quoted, refused
from queue_core.console.call import MAX_DIGITS, PageCall
from queue_core.console.command_examples import curl, towline
from queue_core.console.pages.page import Act, ConsolePage
from queue_core.console.pages.trends import trends_of_pools
from queue_core.console.pool_chart import chart_rows
from queue_core.process.wording import counted
from queue_core.verbs.wire import Json

DECISIONS_SHOWN: Final = 200
DEATHS_SHOWN: Final = 100
_SECONDS: Final = re.compile(r"\d{1,11}(\.\d{0,9})?")
_INPUTS: Final = (
    ("arrival_rate", "tasks per second arriving"),
    ("service_seconds", "seconds per task"),
    ("startup_seconds", "seconds to start a worker"),
    ("usable_slo_seconds", "seconds of the SLO left for waiting"),
    ("busy", "busy workers"),
    ("idle", "idle workers"),
    ("starting", "starting workers"),
    ("draining", "draining workers"),
    ("ready", "tasks waiting"),
    ("in_flight", "tasks running"),
    ("delayed", "tasks delayed"),
)


async def pool(call: PageCall) -> Mapping[str, object]:
    """Return a pool now, or as it was at `?at=`, in seconds since the epoch."""
    path, at = f"/v1/pools/{quoted(call.path['pool'])}", _time(call.one("at"))
    query = [("at", at)] if at else []
    why, decided, workers, overridden, trends, deaths = await asyncio.gather(
        call.get(f"{path}/why", query=query),
        call.get(f"{path}/decisions", query=[("limit", str(DECISIONS_SHOWN))]),
        call.get("/v1/workers", query=[("pool", call.path["pool"])]),
        _overrides(call, path),
        trends_of_pools(call),
        _deaths(call),
    )
    decision = cast("Json | None", why["now"])
    decisions = cast("list[Json]", decided["decisions"])
    trend = next((one for one in trends if one["pool"] == call.path["pool"]), None)
    return {
        "pool": call.path["pool"],
        "why": why,
        "at": at,
        "decision": decision,
        "inputs": [(words, decision[name]) for name, words in _INPUTS if decision and name in decision],
        "decisions": folded(decisions),
        "points": chart_rows(decisions, decision, trend, deaths, now=call.now_seconds),
        "workers": workers["workers"],
        "held": _held(cast("list[Json]", workers["workers"])),
        "orders": overridden,
        "age_seconds": None if decision is None or at else max(0.0, call.now_seconds - _seconds(decision["at"])),
        "same": (
            ("command line", towline("why", call.path["pool"])),
            ("curl", curl("GET", f"{path}/why")),
            ("scale", towline("scale", call.path["pool"], "4", "--for", "1h")),
            ("scale with curl", curl("POST", f"{path}/scale", {"workers": 4, "seconds": 3600})),
        ),
    }


def _time(text: str) -> str:
    """Return a time of the address, in seconds since the epoch; "" for now. Raises `ApiProblemError`."""
    if text and not (_SECONDS.fullmatch(text) and text.isascii()):
        raise refused(f"at must be in seconds since the epoch: {text[:40]!r}")
    return text


async def _overrides(call: PageCall, path: str) -> list[str]:
    """Return the orders in force, in words; none where they can't be had, as while the supervisor starts."""
    try:
        found = await call.get(f"{path}/overrides")
    except ApiProblemError:
        return []
    return [str(one) for one in cast("list[object]", found["sentences"])]


async def _deaths(call: PageCall) -> list[Json]:
    """Return the pool's workers that failed, newest first."""
    if "/v1/deaths" not in call.paths:
        return []
    query = [("pool", call.path["pool"]), ("failures", "true"), ("limit", str(DEATHS_SHOWN))]
    return cast("list[Json]", (await call.get("/v1/deaths", query=query))["deaths"])


def _held(workers: Sequence[Json]) -> str:
    """Return how many tasks the workers hold, as a sentence."""
    count = sum(cast("int", one.get("holding") or 0) for one in workers)
    return f"{'They hold' if len(workers) > 1 else 'It holds'} {counted(count, 'task')} now." if count else ""


def _seconds(at: object) -> float:
    return at if isinstance(at, float) else float(str(at))


async def scale(call: PageCall, form: Mapping[str, str]) -> str:
    """Give the pool a size for a while."""
    asked, minutes = form.get("workers", "").strip(), form.get("minutes", "").strip() or "60"
    body: Json = {"workers": _integer("workers", asked) if asked else None}
    if asked:
        body["seconds"] = _integer("minutes", minutes) * 60
    return await _order(call, "scale", body)


def _integer(name: str, text: str) -> int:
    """Return a field's whole number. Raises `ApiProblemError`."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise refused(f"{name} must be a whole number: {text[:40]!r}")
    return int(text)


async def unscale(call: PageCall, _form: Mapping[str, str]) -> str:
    """End a size by hand."""
    return await _order(call, "scale", {"workers": None})


async def pause(call: PageCall, _form: Mapping[str, str]) -> str:
    """Leave the pool at its size."""
    return await _order(call, "pause", {})


async def resume(call: PageCall, _form: Mapping[str, str]) -> str:
    """Let the pool change its size again."""
    return await _order(call, "resume", {})


async def replace(call: PageCall, _form: Mapping[str, str]) -> str:
    """Replace all workers that the pool has now."""
    done = await call.post(f"/v1/pools/{quoted(call.path['pool'])}/replace")
    return f"Pool {call.path['pool']}: {done['sentence']}."


async def _order(call: PageCall, order: str, body: Json) -> str:
    name = call.path["pool"]
    done = await call.post(f"/v1/pools/{quoted(name)}/{order}", body)
    sentences = "; ".join(str(one) for one in cast("list[object]", done["sentences"]))
    return f"Pool {name}: {sentences or 'sized by its settings and load'}."


_OF_POOL: Final = "/pools/{pool}"
PAGES: Final = (ConsolePage(_OF_POOL, "Pool", "fleet", "pool.html", pool),)
ACTIONS: Final[dict[str, Act]] = {
    f"{_OF_POOL}/scale": scale,
    f"{_OF_POOL}/unscale": unscale,
    f"{_OF_POOL}/pause": pause,
    f"{_OF_POOL}/resume": resume,
    f"{_OF_POOL}/replace": replace,
}
