"""Workers, and how they ended."""

import asyncio
from collections.abc import Mapping
from typing import Final, cast

from queue_core.console.api import ApiProblemError, quoted
from queue_core.console.call import PageCall
from queue_core.console.command_examples import curl, towline
from queue_core.console.pages.fleet import present_workers
from queue_core.console.pages.hosts import console_of
from queue_core.console.pages.page import Act, ConsolePage
from queue_core.process.wording import counted, shown_seconds
from queue_core.verbs.wire import Json

LINES_SHOWN: Final = 100
DEATHS_ON_A_PAGE: Final = 50
TASKS_NAMED: Final = 5
_EXTERNAL: Final = "external:"
"""The beginning of the `ref` of a worker that another system starts and ends."""


async def all_workers(call: PageCall) -> Mapping[str, object]:
    """Return the workers of all pools, or of one."""
    pool, state = call.one("pool"), call.one("state")
    chosen = {"pool": pool, "state": state, "problem": "", "console": ""}
    try:
        found = await call.get("/v1/workers", query=[("pool", pool)] if pool else [])
    except ApiProblemError as problem:
        if problem.status not in (404, 503):
            raise
        known = [one for one in await present_workers(call) if pool in ("", one["pool"])]
        others = [one for one in known if not state or one["state"] == state]
        about = {"problem": problem.detail, "console": console_of({"url": problem.url})}
        return {**chosen, **about, "fleet": None, "workers": [], "total": 0, "unsupervised": others}
    workers = cast("list[Json]", found["workers"])
    shown = [one for one in workers if not state or one.get("state") == state]
    beside = cast("list[Json]", found.get("unsupervised", []))
    others = [one for one in beside if not state or one["state"] == state]
    return {**chosen, "fleet": found, "workers": shown, "total": len(workers), "unsupervised": others}


async def worker(call: PageCall) -> Mapping[str, object]:
    """Return a worker with the end of its output; of one that has ended, its certificate."""
    name = call.path["worker"]
    path = f"/v1/workers/{quoted(name)}"
    log = asyncio.ensure_future(_log(call, path))
    try:
        found = await call.get(path)
    except ApiProblemError as problem:
        if problem.status not in (404, 503):
            raise
        of_none = {"name": name, "worker": None, "queue": "", "is_ours": False, "holds": ""}
        try:  # first: servers remember the calls of one that has ended for a while
            certificate = await call.get(f"/v1/deaths/{quoted(name)}")
        except ApiProblemError:
            present = next((one for one in await present_workers(call) if one["worker"] == name), None)
            if present is None:
                raise
            await log
            return {**of_none, "present": present, "death": None, "log": None}
        return {**of_none, "present": None, "death": certificate["death"], "log": await log}
    queues = cast("Json", found["settings"] or {}).get("queues")
    queue = queues[0] if isinstance(queues, list) and len(queues) == 1 else ""
    running = cast("Json", found["worker"])
    return {
        "name": name,
        "present": None,
        "worker": running,
        "death": None,
        "log": await log,
        "queue": queue,
        "is_ours": not str(running.get("ref")).startswith(_EXTERNAL),
        "holds": leases_text(running),
    }


def leases_text(worker: Json) -> str:
    """Return which tasks a worker holds, and for how long, as a sentence."""
    count, tasks = cast("int", worker.get("holding") or 0), cast("list[Json]", worker.get("tasks") or [])
    if not count:
        return "It is not running a task."
    named = [f"{one['task']}, for {shown_seconds(cast('float', one['held_seconds']))}" for one in tasks[:TASKS_NAMED]]
    more = count - len(named)
    beyond = [f"{more:,} more"] if named and more > 0 else []
    return f"It is running {counted(count, 'task')}{': ' if named else ''}{'; '.join([*named, *beyond])}."


async def drain(call: PageCall, _form: Mapping[str, str]) -> str:
    """Let the worker finish what it holds, and end."""
    return await _order(call, "drain")


async def kill(call: PageCall, _form: Mapping[str, str]) -> str:
    """End the worker now."""
    return await _order(call, "kill")


async def _order(call: PageCall, order: str) -> str:
    name = call.path["worker"]
    done = await call.post(f"/v1/workers/{quoted(name)}/{order}")
    return f"Worker {name}: {done['sentence']}."


async def _log(call: PageCall, path: str) -> Json | None:
    """Return the end of a worker's output; None where there is none, or where the viewer may not see it."""
    try:
        return await call.get(f"{path}/log", query=[("tail", str(LINES_SHOWN))])
    except ApiProblemError:
        return None


async def stack(call: PageCall) -> Mapping[str, object]:
    """Return where a worker's threads are now; each look asks the worker."""
    name = call.path["worker"]
    path = f"/v1/workers/{quoted(name)}/stack"
    same = (("command line", towline("workers", "--stack", name)), ("curl", curl("GET", path)))
    return {"name": name, "stack": await call.get(path), "same": same}


async def deaths(call: PageCall) -> Mapping[str, object]:
    """Return how workers failed, newest first; with `all` also those that ended well."""
    return await _ended(call, all_of_them=bool(call.one("all")))


async def ended(call: PageCall) -> Mapping[str, object]:
    """Return all workers that stopped, newest first, whatever the cause."""
    return await _ended(call, all_of_them=True)


async def _ended(call: PageCall, *, all_of_them: bool) -> Mapping[str, object]:
    pool, before = call.one("pool"), call.one("before")
    query = [("limit", str(DEATHS_ON_A_PAGE)), *([("pool", pool)] if pool else [])]
    query += [] if all_of_them else [("failures", "true")]
    found = await call.get("/v1/deaths", query=[*query, *([("before", before)] if before else [])])
    return {"deaths": found["deaths"], "before": found["before"], "pool": pool, "all": all_of_them}


PAGES: Final = (
    ConsolePage("/workers", "Workers", "workers", "workers.html", all_workers, needs="/v1/workers"),
    ConsolePage(
        "/workers/{worker:path}/stack", "Stack", "workers", "stack.html", stack, is_live=False, needs="/v1/workers"
    ),
    ConsolePage("/workers/{worker:path}", "Worker", "workers", "worker.html", worker, needs="/v1/workers"),
    ConsolePage("/ended", "Stopped workers", "workers", "deaths.html", ended, needs="/v1/deaths"),
    ConsolePage("/deaths", "Deaths", "deaths", "deaths.html", deaths, needs="/v1/deaths"),
)
ACTIONS: Final[dict[str, Act]] = {"/workers/{worker:path}/drain": drain, "/workers/{worker:path}/kill": kill}
