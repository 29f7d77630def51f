"""Tasks that match a filter, as the address of a page has it: found, counted, and changed in batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlencode

from queue_core.config.units import parse_seconds
from queue_core.console.api import quoted
from queue_core.console.call import PageCall
from queue_core.verbs.matching import CHANGES, Action, permission_of
from queue_core.verbs.wire import STATE_NAMES, Json

FIELDS: Final = ("state", "tag", "leases", "younger", "older", "worker", "error", "contains")
"""The fields of a filter in an address; `younger` and `older` are durations before now, such as 2h."""
STATES: Final = ("ready", "held", "delayed", "in_flight", "dead")
SCAN: Final = 100_000
MAX_CALLS: Final = 200
"""Calls of one count or change, at most: each of them looks at 100,000 tasks, or changes 1,000."""


class FilterError(ValueError):
    """A field of a filter is no such value; the message names it."""


def filter_of(given: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a filter that say something."""
    return {name: given[name].strip() for name in FIELDS if given.get(name, "").strip()}


def is_search(wanted: Mapping[str, str]) -> bool:
    """Return whether a filter needs a search, rather than a look at tasks of a state and tag."""
    return any(name not in ("state", "tag") for name in wanted)


def body_of(wanted: Mapping[str, str], *, now_seconds: float) -> Json:
    """Return a filter as the API has it. Raises `FilterError`."""
    body: Json = {}
    if state := wanted.get("state", ""):
        if state not in STATES:
            raise FilterError(f"state: there is none called {state[:40]!r}")
        body["states"] = [state]
    if tag := wanted.get("tag", ""):
        body["tags"] = [tag]
    if leases := wanted.get("leases", ""):
        if not (leases.isascii() and leases.isdigit() and len(leases) < 10):
            raise FilterError(f"leases: write a whole number, not {leases[:40]!r}")
        body["min_leases"] = int(leases)
    for name, field in (("younger", "added_after"), ("older", "added_before")):
        if name in wanted:
            body[field] = max(0, round((now_seconds - duration_of(name, wanted[name])) * 1e6))
    for name in ("worker", "error", "contains"):
        if name in wanted:
            body[name] = wanted[name]
    return body


def duration_of(name: str, text: str) -> float:
    """Return a duration in seconds. Raises `FilterError`."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise FilterError(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True)
class Matched:
    """The outcome of a count or of a change: tasks that matched and that were changed, and what was looked at.

    `is_whole`: whether there is nothing left to look at. `as_of`: the instant of it, in microseconds.
    """

    matched: int
    changed: int
    scanned: int
    total: int
    is_whole: bool
    as_of: int


async def matched(call: PageCall, queue: str, change: Action, body: Json, *, dry_run: bool) -> Matched:
    """Count what matches, or change it, in batches of up to 1,000. Raises `ApiProblemError`.

    `as_of` in a body: that of the count before; a count is of the instant when it began.
    """
    path = f"/v1/queues/{quoted(queue)}/{permission_of(change)}"
    after: object = 0
    found = changed = scanned = total = 0
    as_of = body.get("as_of")
    for _ in range(MAX_CALLS):
        step = await call.post(path, {**body, "dry_run": dry_run, "after": after, "scan": SCAN})
        found += cast("int", step["matched"])
        changed += cast("int", step["changed"])
        scanned += cast("int", step["scanned"])
        total = max(total, cast("int", step["total"]))
        after = step["next_after"]
        as_of = step["as_of"] if as_of is None else as_of
        if dry_run:
            body = {**body, "as_of": as_of}
        if after is None:
            break
    return Matched(found, changed, scanned, total, after is None, cast("int", as_of))


def change_of(name: str) -> Action | None:
    """Return the change of that name; None: there is none."""
    return next((one for one in CHANGES if one == name), None)


def state_of(change: Action) -> str:
    """Return the state, as filters have it, that tasks must have for a change; "": any."""
    state = CHANGES[change].state
    return "" if state is None else STATE_NAMES[state]


def words_of(change: Action) -> tuple[str, str, str]:
    """Return the name of a change, what its tasks are afterwards, and the state that they must have; "": any."""
    return change.capitalize(), CHANGES[change].done, state_of(change)


def instant_in(form: Mapping[str, str], name: str) -> int:
    """Return an instant of the count that a form is about, in microseconds. Raises `FilterError` if it has none."""
    text = form.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise FilterError(f"{name}: the instant of the count is missing: load the page again")
    return int(text)


def query_of(wanted: Mapping[str, str], **more: object) -> str:
    """Return a filter as the query of an address."""
    return urlencode([*wanted.items(), *((name, str(value)) for name, value in more.items() if value is not None)])
