"""A what-if: a pool with another slo or other bounds, over arrivals of the past."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Final, cast

from queue_core.console.api import ApiProblemError, quoted
from queue_core.console.arrivals import MAX_ARRIVALS, Arrivals, arrivals_of, read_arrivals
from queue_core.console.call import PageCall
from queue_core.console.pages.page import ConsolePage
from queue_core.verbs.wire import Json

MAX_CSV_BYTES: Final = 8 << 20
LEASES_A_CALL: Final = 1_000
WINDOWS: Final = (("900", "15 min"), ("3600", "1 h"), ("21600", "6 h"), ("86400", "24 h"))
"""The windows to choose from: seconds before now, and words."""
_FIELDS: Final = ("slo", "min", "max")
_ROWS: Final = (
    ("late", "Late tasks"),
    ("wait_p99", "p99 wait"),
    ("worker_hours", "Worker-hours"),
    ("starts", "Worker starts"),
    ("peak", "Peak workers"),
)


async def what_if(call: PageCall) -> Mapping[str, object]:
    """Return the form; of a form that was sent, what the simulation found."""
    pool = call.path["pool"]
    why = await call.get(f"/v1/pools/{quoted(pool)}/why")
    settings = cast("Json", why["settings"] or {})
    shown: dict[str, object] = {
        "pool": pool,
        "settings": settings,
        "windows": WINDOWS,
        "given": call.form,
        "problem": "",
        "rows": (),
        "found": None,
        "yaml": "",
    }
    if not call.form:
        return shown
    try:
        changes = _changes(call.form)
        arrivals = await _arrivals(call, settings)
        body: Json = {"arrivals": [list(one) for one in arrivals], **changes}
        found = await call.post(f"/v1/pools/{quoted(pool)}/what-if", body)
    except ValueError as error:
        return {**shown, "problem": str(error)}
    except ApiProblemError as error:
        return {**shown, "problem": error.detail}
    changed, unchanged = cast("Json", found["changed"]), cast("Json", found["unchanged"])
    rows = [(words, _figure(unchanged, name), _figure(changed, name)) for name, words in _ROWS]
    return {**shown, "found": found, "rows": rows, "yaml": yaml_of(pool, settings, call.form)}


def _changes(form: Mapping[str, str]) -> Json:
    """Return the settings to try. Raises `ValueError`."""
    given = {name: form.get(name, "").strip() for name in _FIELDS}
    changes: Json = {}
    for name, field in (("slo", "slo_seconds"), ("min", "min_workers"), ("max", "max_workers")):
        if not given[name]:
            continue
        try:
            changes[field] = float(given[name]) if name == "slo" else int(given[name])
        except ValueError:
            raise ValueError(f"{name}: write a number, not {given[name][:40]!r}") from None
    return changes


async def _arrivals(call: PageCall, settings: Json) -> Arrivals:
    """Return the arrivals that the form names. Raises `ValueError`."""
    text = call.form.get("file", "").strip() or call.form.get("csv", "").strip()
    if text:
        return await asyncio.to_thread(read_arrivals, text)
    window = call.form.get("window", "")
    seconds = float(window) if window in dict(WINDOWS) else 3600.0
    since = call.now_seconds - seconds
    queues = cast("list[object]", settings.get("queues") or [settings.get("queue")])
    leases: list[Json] = []
    for queue in queues:
        leases += await _history(call, str(queue), since_seconds=since)
    found = arrivals_of(leases, tags=settings.get("tags"), since_seconds=since, until_seconds=call.now_seconds)
    if not found:
        raise ValueError("the history of its queue has no lease of that time: choose a longer window, or give a CSV")
    return found[-MAX_ARRIVALS:]


async def _history(call: PageCall, queue: str, *, since_seconds: float) -> Sequence[Json]:
    """Return the ended leases of a queue back to an instant, as far as its history goes."""
    found: list[Json] = []
    before: object = None
    for _ in range(MAX_ARRIVALS // LEASES_A_CALL):
        body: Json = {"limit": LEASES_A_CALL, "before": before}
        page = await call.post(f"/v1/queues/{quoted(queue)}/history", body)
        leases = cast("list[Json]", page["leases"])
        found += leases
        before = page["next_before"]
        if before is None or not leases or int(str(leases[-1]["ended_at"])) / 1e6 < since_seconds:
            break
    return found


def _figure(row: Json, name: str) -> str:
    number = {"late": "late_share", "worker_hours": "worker_seconds"}.get(name, name)
    value = float(str(row[number]))
    match name:
        case "late":
            return f"{value * 100:.1f} %"
        case "worker_hours":
            return f"{value / 3600:,.2f}"
        case "wait_p99":
            return f"{value:,.1f} s"
    return f"{value:,.0f}"


def yaml_of(pool: str, settings: Json, form: Mapping[str, str]) -> str:
    """Return the settings that were tried, as lines for the settings file."""
    given = {name: form.get(name, "").strip() for name in _FIELDS}
    least = given["min"] or settings.get("settings_min", 0)
    most = given["max"] or settings.get("settings_max", 1)
    slo = given["slo"] or settings.get("slo_seconds", "")
    # JSON is YAML too: a name of a pool can't become anything else.
    return f"pools:\n  {json.dumps(pool)}:\n    slo: {_plain(slo)}s\n    workers: {{min: {least}, max: {most}}}\n"


def _plain(seconds: object) -> str:
    return f"{float(str(seconds)):g}"


PAGES: Final = (
    ConsolePage(
        "/pools/{pool}/what-if",
        "Simulate",
        "fleet",
        "what_if.html",
        what_if,
        is_live=False,
        needs="/v1/pools/{pool}/what-if",
        max_form_bytes=MAX_CSV_BYTES,
    ),
)
