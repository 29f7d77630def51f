"""Searches over HTTP."""

from dataclasses import fields
from typing import cast

from queue_core.verbs import wire
from queue_core.verbs.criteria import (
    Action,
    ChangeTo,
    MatchedBatch,
    Search,
    SearchPage,
    check_action,
    check_scan,
    check_search,
)
from queue_core.verbs.wire import Json


def search_json(wanted: Search, *, after: int, scan: int) -> Json:
    """Return a search as the body of a request. Raises `InvalidRequestError` for one that is none."""
    check_search(wanted)
    check_scan(scan, after=after)
    return {
        **wire.tags_json(wanted.tags),
        "states": [wire.STATE_NAMES[state] for state in sorted(wanted.states)],
        "min_leases": wanted.min_leases,
        "added_after": wanted.added_after,
        "added_before": wanted.added_before,
        "worker": wanted.worker,
        "error": wanted.error,
        "contains": wanted.contains,
        **({"names": sorted(wanted.names)} if wanted.names else {}),
        **({"as_of": wanted.as_of} if wanted.as_of is not None else {}),
        "after": after,
        "scan": scan,
    }


def change_json(action: Action, wanted: Search, *, dry_run: bool, after: int, scan: int, to: ChangeTo) -> Json:
    """Return a step of a change as the body of a request."""
    check_action(action, to)
    plain = {**search_json(wanted, after=after, scan=scan), "dry_run": dry_run}
    values_of: dict[Action, Json] = {"postpone": {"eta": to.eta}, "retag": {"new_tag": to.tag}}
    return plain | values_of.get(action, {})


def search_page_of(json: Json) -> SearchPage:
    """Return the answer to a search."""
    page = wire.page_of(json)
    return SearchPage(page.tasks, page.next_after, cast("int", json["scanned"]), cast("int", json["total"]))


def matched_batch_of(json: Json) -> MatchedBatch:
    """Return the answer to a step of a change."""
    known = {field.name: json[field.name] for field in fields(MatchedBatch) if field.name in json}
    return MatchedBatch(**known)  # type: ignore[arg-type]
