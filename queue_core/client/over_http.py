"""Carry a verb out at a server."""

from typing import TypeVar
from urllib.parse import urlencode

from queue_core.client.http.caller import HttpCaller, Session, quoted
from queue_core.limits import check_text
from queue_core.task import TagFilter
from queue_core.unit.verb import Verb, body_members, path_members
from queue_core.verbs.wire import tags_json

R = TypeVar("R")


def carry_out(caller: HttpCaller, verb: Verb[R], *, session: Session | None = None) -> R:
    """Return the result of a verb. Raises its error, also one that is found before anything is sent.

    Args:
        session: numbers a change that may have been sent before.
    """
    verb.check()
    answer = caller.call(
        verb.method,
        url_of(verb),
        verb.body(),
        repeat="keyed" if verb.is_keyed else "safe",
        patience=verb.patience,
        session=session if verb.is_keyed else None,
    )
    return verb.result_of(answer)


def url_of(verb: Verb[R]) -> str:
    """Return the path of a verb, with the query of a GET."""
    path = verb.path.format_map({name: quoted(getattr(verb, name)) for name in path_members(type(verb))})
    if verb.method != "GET":
        return path
    query: dict[str, object] = {}
    for name in body_members(type(verb)):
        member = getattr(verb, name)
        if isinstance(member, TagFilter):
            json = tags_json(member)
            query |= {"kind": json.get("kind"), "tag": json.get("tags")}
        else:
            query[name] = member
    return f"{path}{query_text(**query)}"


def query_text(**members: object) -> str:
    """Return a query string of the members that are given, with its question mark; "" for none."""
    for name, value in members.items():
        if isinstance(value, str):
            check_text(name, value)
    given = {name: value for name, value in members.items() if value not in (None, ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""
