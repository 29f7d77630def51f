"""Queues: all of them, and one with its tasks, tags, leases, dead tasks and settings."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, cast

from queue_core.console.api import quoted, refused
from queue_core.console.call import PageCall, whole_task
from queue_core.console.command_examples import filter_examples
from queue_core.console.errors_by_class import ErrorGroup, error_groups
from queue_core.console.matching import (
    SCAN,
    FilterError,
    body_of,
    change_of,
    duration_of,
    filter_of,
    instant_in,
    is_search,
    matched,
    query_of,
    words_of,
)
from queue_core.console.pages.page import Act, ConsolePage, act_of
from queue_core.console.pages.trends import rates_of_queues, trends_of_queues
from queue_core.console.task_names import tasks_meant
from queue_core.process.wording import counted
from queue_core.unit.queue_verbs import Pause, Resume
from queue_core.verbs.matching import CHANGES, Action
from queue_core.verbs.wire import Json

QUEUES_ON_A_PAGE: Final = 100
TASKS_ON_A_PAGE: Final = 50
TAGS_ON_A_PAGE: Final = 100
DEAD_GROUPED: Final = 5_000
"""Dead tasks that are read to group them, at most; the page says when there are more."""
LEASES_SHOWN: Final = 100


def _path(queue: str, rest: str = "") -> str:
    return f"/v1/queues/{quoted(queue)}{rest}"


async def all_queues(call: PageCall) -> Mapping[str, object]:
    """Return the queues with their counts."""
    found, counts, trends = await asyncio.gather(call.get("/v1/queues"), call.get("/v1/stats"), trends_of_queues(call))
    specs = cast("list[Json]", found["queues"])
    stats = {str(one["queue"]): one for one in cast("list[Json]", counts["queues"])}
    text = call.one("q").strip()
    wanted = text.lower()
    moving = rates_of_queues(call, stats.values())
    rows = [
        (spec, stats[str(spec["name"])], moving.get(str(spec["name"]))) for spec in specs if str(spec["name"]) in stats
    ]
    found_rows = [row for row in rows if wanted in str(row[0]["name"]).lower()]
    if text and not found_rows:
        meant = await tasks_meant(call, [str(spec["name"]) for spec, *_ in rows], text)
        nothing: dict[str, object] = {"rows": (), "total": len(rows), "next": 0, "as_of": counts["as_of"]}
        return {**nothing, "trends": trends, "found_tasks": meant, "page": FOUND_PAGE}
    begin = _place(call.one("from"))
    shown = found_rows[begin : begin + QUEUES_ON_A_PAGE]
    more = begin + QUEUES_ON_A_PAGE if len(found_rows) > begin + QUEUES_ON_A_PAGE else 0
    shown_rows: dict[str, object] = {"rows": shown, "total": len(rows), "next": more, "as_of": counts["as_of"]}
    return {**shown_rows, "trends": trends, "found_tasks": ()}


def _place(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 0


async def _head(call: PageCall) -> dict[str, object]:
    queue = call.path["queue"]
    spec, stats = await asyncio.gather(call.get(_path(queue)), call.get(_path(queue, "/stats")))
    return {"queue": queue, "spec": spec, "stats": stats, "rates": rates_of_queues(call, [stats]).get(queue)}


async def tasks(call: PageCall) -> Mapping[str, object]:
    """Return a page of a queue's tasks: those of a state and tag, or what a search has found."""
    head, wanted = await _head(call), filter_of(dict(call.query))
    shown: dict[str, object] = {
        **head,
        "tab": "tasks",
        "wanted": wanted,
        "tasks": (),
        "next_query": "",
        "searched": None,
        "problem": "",
        "same": (),
        "matching_query": query_of(wanted),
    }
    after = call.count("after")
    try:
        body = body_of(wanted, now_seconds=call.now_seconds)
    except FilterError as error:
        return {**shown, "problem": str(error)}
    if problem := _hidden_criterion(call, wanted):
        return {**shown, "problem": problem}
    shown["same"] = filter_examples(call.path["queue"], wanted, body)
    if not is_search(wanted):
        found = await call.post(_path(call.path["queue"], "/peek"), {**body, "limit": TASKS_ON_A_PAGE, "after": after})
        next_query = query_of(wanted, after=found["next_after"]) if found["next_after"] else ""
        return {**shown, "tasks": found["tasks"], "next_query": next_query}
    asked: Json = {**body, "limit": TASKS_ON_A_PAGE, "after": after, "scan": SCAN}
    found = await call.post(_path(call.path["queue"], "/search"), asked)
    before = call.count("searched")
    scanned = before + cast("int", found["scanned"])
    goes_on = found["next_after"] is not None
    next_query = query_of(wanted, after=found["next_after"], searched=scanned) if goes_on else ""
    return {
        **shown,
        "page": SEARCH_PAGE,
        "tasks": found["tasks"],
        "searched": (scanned, max(scanned, cast("int", found["total"]))),
        "next_query": next_query,
    }


async def matching(call: PageCall) -> Mapping[str, object]:
    """Count what a filter matches, before anything of it is changed."""
    head, wanted, asked = await _head(call), filter_of(dict(call.query)), call.one("change")
    shown: dict[str, object] = {
        **head,
        "tab": "tasks",
        "wanted": wanted,
        "changes": {name: words_of(name) for name in CHANGES},
        "change": asked,
        "found": None,
        "problem": "",
        "postpone": call.one("postpone"),
        "new_tag": call.one("new_tag"),
        "counted_at": round(call.now_seconds * 1e6),
        "matching_query": query_of(wanted),
    }
    if (change := change_of(asked)) is None:
        return shown
    if problem := _hidden_criterion(call, wanted):
        return {**shown, "problem": problem}
    try:
        body = body_of(wanted, now_seconds=call.now_seconds)
        body |= _values_of(call, change, postpone=call.one("postpone"), new_tag=call.one("new_tag"))
    except FilterError as error:
        return {**shown, "problem": str(error)}
    return {**shown, "found": await matched(call, call.path["queue"], change, body, dry_run=True)}


def _hidden_criterion(call: PageCall, wanted: Mapping[str, str]) -> str:
    """Return why a filter is refused that could find out what this console hides; "" for any other."""
    if "contains" in wanted and not call.keeps_payloads:
        return "contains: payloads are hidden or masked for your role, and can't be searched"
    return ""


def _values_of(call: PageCall, change: Action, *, postpone: str, new_tag: str) -> Json:
    """Return what a change gives to tasks. Raises `FilterError`."""
    gives = CHANGES[change].gives
    if gives == "eta":
        return {"eta": round((call.now_seconds + duration_of("postpone", postpone)) * 1e6)}
    return {"new_tag": new_tag or None} if gives == "tag" else {}


async def change_matching(call: PageCall, form: Mapping[str, str]) -> str:
    """Change all that a filter matched when they were counted.

    Ages in the filter are those of that instant too, by the clock of this console.
    """
    queue, asked, wanted = call.path["queue"], form.get("change", ""), filter_of(form)
    if (change := change_of(asked)) is None:
        raise refused(f"there is no change called {asked[:40]!r}")
    if problem := _hidden_criterion(call, wanted):
        raise refused(problem, status=403)
    try:
        body = body_of(wanted, now_seconds=instant_in(form, "counted_at") / 1e6)
        body |= _values_of(call, change, postpone=form.get("postpone", ""), new_tag=form.get("new_tag", ""))
        body["as_of"] = instant_in(form, "as_of")
    except FilterError as error:
        raise refused(str(error)) from None
    found = await matched(call, queue, change, body, dry_run=False)
    said = (
        f"{counted(found.changed, 'task')} of {queue} {'is' if found.changed == 1 else 'are'} {CHANGES[change].done}."
    )
    return said if found.is_whole else f"{said} More match: do it again for the rest."


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
    head, queue = await _head(call), call.path["queue"]
    stats = cast("Json", head["stats"])

    async def grouped() -> tuple[Sequence[ErrorGroup], int]:
        found = await dead_tasks(call, queue)
        return await asyncio.to_thread(error_groups, found), len(found)

    # Thousands of tasks are read again when there are more or fewer of them, or others.
    mark = (stats["dead"], stats["died_total"])
    groups, read = await call.memory.value(("dead", call.rights, queue), mark, grouped)
    wanted = call.one("error")
    chosen = next((group for group in groups if group.error == wanted), None)
    return {**head, "tab": "dead", "groups": groups, "chosen": chosen, "read": read}


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


async def redrive(call: PageCall, form: Mapping[str, str]) -> str:
    """Make the tasks of one class of errors that were dead when they were counted ready again, in batches.

    The class is in the address: a field of a form would have its control characters as they are shown.
    """
    queue, error = call.path["queue"], call.one("error")
    try:
        as_of = instant_in(form, "as_of")
    except FilterError as problem:
        raise refused(str(problem)) from None
    # The eta of a dead task is the instant of its death.
    counted_tasks = [task for task in await dead_tasks(call, queue) if cast("int", task["eta"]) <= as_of]
    group = next((one for one in error_groups(counted_tasks) if one.error == error), None)
    if group is None:
        raise refused(f"no dead task of {queue} is of {error[:100]}: look again")
    if group.is_matched:
        done = await matched(call, queue, "redrive", {"error": error, "as_of": as_of}, dry_run=False)
        more = "" if done.is_whole else " More match: do it again for the rest."
        return f"{_redriven(done.changed, done.matched, error, queue)}{more}"
    names, count = group.names, 0
    for begin in range(0, len(names), 1000):
        body: Json = {"names": names[begin : begin + 1000], "as_of": as_of}
        count += (await matched(call, queue, "redrive", body, dry_run=False)).changed
    return _redriven(count, len(names), error, queue)


def _redriven(count: int, total: int, error: str, queue: str) -> str:
    are = "is" if count == 1 else "are"
    return f"{count:,} of {counted(total, 'dead task')} of {error} in {queue} {are} ready again."


_OF_QUEUE: Final = "/queues/{queue}"
FOUND_PAGE: Final = ConsolePage("/queues", "Tasks found", "queues", "queues.html", all_queues, is_live=False)
"""A search for a task asks every queue, once."""
SEARCH_PAGE: Final = ConsolePage(_OF_QUEUE, "Tasks found", "queues", "queue_tasks.html", tasks, is_live=False)
"""A search is not repeated every second."""
PAGES: Final = (
    ConsolePage("/queues", "Queues", "queues", "queues.html", all_queues),
    ConsolePage(_OF_QUEUE, "Tasks", "queues", "queue_tasks.html", tasks),
    ConsolePage(f"{_OF_QUEUE}/tags", "Tags", "queues", "queue_tags.html", tags),
    ConsolePage(f"{_OF_QUEUE}/leases", "Leases", "queues", "queue_leases.html", leases),
    ConsolePage(f"{_OF_QUEUE}/dead", "Dead tasks", "queues", "queue_dead.html", dead),
    ConsolePage(
        f"{_OF_QUEUE}/matching", "Change all that match", "queues", "queue_matching.html", matching, is_live=False
    ),
    ConsolePage(f"{_OF_QUEUE}/settings", "Settings", "queues", "queue_settings.html", settings, is_live=False),
)
ACTIONS: Final[dict[str, Act]] = {
    f"{_OF_QUEUE}/pause": act_of(Pause),
    f"{_OF_QUEUE}/resume": act_of(Resume),
    f"{_OF_QUEUE}/dead/redrive": redrive,
    f"{_OF_QUEUE}/matching": change_matching,
}
