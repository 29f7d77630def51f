"""What a call of lease or exchange asks for, read from its body.

A worker sends an exchange for each task, of the same few members. Such a body is read without a model, for half of what
that costs; whatever is not quite like it, and all that is wrong, is left to the models of `wire.py`, which tell what.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pydantic_core import from_json

from queue_core.building import builder
from queue_core.http_api.values import Json
from queue_core.limits import MAX_LEASE_SECONDS, MAX_WAIT_SECONDS
from queue_core.server.json_keys import check_keys
from queue_core.server.wire import ExchangeRequest, LeaseRequest, tag_filter
from queue_core.store import Deletion
from queue_core.task import ANY, TagFilter


@dataclass(frozen=True, slots=True)
class Asked:
    """What to delete, what to lease, and how long to wait for it."""

    count: int
    seconds: float | None
    tags: TagFilter
    worker: str
    wait_seconds: float
    deletions: Sequence[Deletion] = ()


new_asked = builder(Asked)
new_deletion = builder(Deletion)

_MEMBERS = frozenset({"count", "seconds", "kind", "tags", "worker", "wait_seconds", "deletions"})
_KINDS = (None, "any", "tags", "untagged", "oldest")


def lease_of(body: bytes) -> Asked:
    """What a lease asks for. Raises `ValidationError`, `InvalidRequestError`, `Problem`."""
    model = LeaseRequest.model_validate_json(body)
    check_keys(body, len(model.model_fields_set), colons=model.worker.count(":"))
    return _asked(model, ())


def exchange_of(body: bytes) -> Asked:
    """What an exchange asks for. Raises `ValidationError`, `InvalidRequestError`, `Problem`."""
    usual = _usual(body)
    if usual is not None:
        return usual
    model = ExchangeRequest.model_validate_json(body)
    check_keys(body, model.keys(), colons=model.worker.count(":"))
    return _asked(model, [deletion.value() for deletion in model.deletions])


def _asked(model: LeaseRequest, deletions: Sequence[Deletion]) -> Asked:
    return Asked(model.count, model.seconds, model.filter(), model.worker, model.wait_seconds, deletions)


def _usual(body: bytes) -> Asked | None:
    """The same without a model: None unless each member is a known one, of its own type, and in its range."""
    try:
        members = from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return None
    if type(members) is not dict or not members.keys() <= _MEMBERS:
        return None
    get = cast("Json", members).get
    count, seconds, worker, wait_seconds = get("count", 1), get("seconds"), get("worker", ""), get("wait_seconds", 0.0)
    if type(count) is not int or type(worker) is not str:
        return None
    if type(wait_seconds) is not float or not 0.0 <= wait_seconds <= MAX_WAIT_SECONDS:
        return None
    if seconds is not None and (type(seconds) is not float or not 0.0 <= seconds <= MAX_LEASE_SECONDS):
        return None
    tags = ANY if "tags" not in members and "kind" not in members else _usual_tags(get("kind"), get("tags", []))
    deletions = _usual_deletions(get("deletions", []))
    if tags is None or deletions is None:
        return None
    check_keys(body, len(members) + len(deletions), colons=worker.count(":"))
    return new_asked(count, seconds, tags, worker, wait_seconds, deletions)


def _usual_tags(kind: object, tags: object) -> TagFilter | None:
    """Raises `InvalidRequestError` for a contradiction, as the model does."""
    if kind not in _KINDS or type(tags) is not list or not all(type(tag) is str for tag in tags):
        return None
    return tag_filter(kind, tuple(tags))


def _usual_deletions(deletions: object) -> list[Deletion] | None:
    """Deletions that hand nothing on."""
    if type(deletions) is not list:
        return None
    found: list[Deletion] = []
    for one in deletions:
        token = one.get("token") if type(one) is dict and len(one) == 1 else None
        if type(token) is not str:
            return None
        found.append(new_deletion(token))
    return found
