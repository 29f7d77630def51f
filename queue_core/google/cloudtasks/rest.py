"""Bind a path, a query and a body to a method and its fields by the service's HTTP rules. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import from_json

from queue_core.google.cloudtasks.call import Values
from queue_core.google.cloudtasks.failures import CloudTasksError, RpcStatus, invalid
from queue_core.google.cloudtasks.json_codec import from_text, unknown_name, values_of
from queue_core.google.cloudtasks.masks import FieldTree, parse_fields
from queue_core.google.cloudtasks.messages import MESSAGES, camel, snake
from queue_core.google.cloudtasks.methods import METHODS, CloudTasksMethod
from queue_core.server.base.bodies.value_count import check_values

PREFIX = "/v2beta2/"
UPLOAD = "/api/queue/update"
PUSH_VERSIONS = ("v2", "v2beta3")
"""Versions of the API that have push queues only."""
WITH_PAYLOAD = frozenset({"CreateTask", "BufferTask", "BatchCreateTasks"})
"""Methods whose requests have the payload of a task."""
_LOCATION = r"projects/[^/]+/locations/[^/]+"
_QUEUE = rf"{_LOCATION}/queues/[^/:]+"
_TASK = rf"{_QUEUE}/tasks/[^/:]+"


@dataclass(frozen=True, slots=True)
class RestRoute:
    """The HTTP rule of a method: the group of `path` is bound to `field`, and the body to `body` ("": no body)."""

    verb: str
    path: re.Pattern[str]
    method: str
    field: str
    body: str = ""


def _rule(verb: str, path: str, method: str, field: str, body: str = "") -> RestRoute:
    return RestRoute(verb, re.compile(path), method, field, body)


RULES = (
    _rule("POST", rf"({_QUEUE})/tasks", "CreateTask", "parent", "*"),
    _rule("POST", rf"({_QUEUE})/tasks:lease", "LeaseTasks", "parent", "*"),
    _rule("POST", rf"({_TASK}):acknowledge", "AcknowledgeTask", "name", "*"),
    _rule("POST", rf"({_TASK}):renewLease", "RenewLease", "name", "*"),
    _rule("POST", rf"({_TASK}):cancelLease", "CancelLease", "name", "*"),
    _rule("GET", rf"({_TASK})", "GetTask", "name"),
    _rule("GET", rf"({_QUEUE})/tasks", "ListTasks", "parent"),
    _rule("DELETE", rf"({_TASK})", "DeleteTask", "name"),
    _rule("POST", rf"({_TASK}):run", "RunTask", "name", "*"),
    _rule("POST", rf"({_QUEUE})/tasks(?:/[^/:]+)?:buffer", "BufferTask", "queue", "*"),
    _rule("POST", rf"({_QUEUE})/tasks:batchCreate", "BatchCreateTasks", "parent", "*"),
    _rule("POST", rf"({_QUEUE})/tasks:batchDelete", "BatchDeleteTasks", "parent", "*"),
    _rule("GET", rf"({_QUEUE})", "GetQueue", "name"),
    _rule("GET", rf"({_LOCATION})/queues", "ListQueues", "parent"),
    _rule("POST", rf"({_LOCATION})/queues", "CreateQueue", "parent", "queue"),
    _rule("PATCH", rf"({_QUEUE})", "UpdateQueue", "name", "queue"),
    _rule("DELETE", rf"({_QUEUE})", "DeleteQueue", "name"),
    _rule("POST", rf"({_QUEUE}):pause", "PauseQueue", "name", "*"),
    _rule("POST", rf"({_QUEUE}):resume", "ResumeQueue", "name", "*"),
    _rule("POST", rf"({_QUEUE}):purge", "PurgeQueue", "name", "*"),
    _rule("POST", rf"({_QUEUE}):getIamPolicy", "GetIamPolicy", "resource", "*"),
    _rule("POST", rf"({_QUEUE}):setIamPolicy", "SetIamPolicy", "resource", "*"),
    _rule("POST", rf"({_QUEUE}):testIamPermissions", "TestIamPermissions", "resource", "*"),
    _rule("GET", rf"({_LOCATION})", "GetLocation", "name"),
    _rule("GET", r"(projects/[^/]+)/locations", "ListLocations", "name"),
    _rule("GET", rf"({_LOCATION})/cmekConfig", "GetCmekConfig", "name"),
    _rule("PATCH", rf"({_LOCATION})/cmekConfig", "UpdateCmekConfig", "name", "cmekConfig"),
)

_SYSTEM = frozenset(
    {"key", "quotaUser", "userProject", "access_token", "oauth_token", "callback"}
    | {".xgafv", "uploadType", "upload_protocol", "apiVersion"}
)
"""Parameters for the service's front end, ignored here."""


@dataclass(frozen=True, slots=True)
class ReplyShape:
    """The requested form of the response. `fields`: the fields to keep, {} for all."""

    enums: str
    fields: FieldTree
    is_pretty: bool


@dataclass(frozen=True, slots=True)
class BoundRoute:
    """A method and the resource in its path; the rest of the request is read after authentication."""

    rule: RestRoute
    method: CloudTasksMethod
    resource: str


def bind(verb: str, path: str) -> BoundRoute:
    """Return the method for an HTTP verb and path. Raises `CloudTasksError` when there is none."""
    for rule in RULES:
        match = rule.path.fullmatch(path) if rule.verb == verb else None
        if match is not None:
            return BoundRoute(rule, METHODS[rule.method], match[1])
    fitting = [rule.verb for rule in RULES if rule.path.fullmatch(path)]
    hint = f"use {' or '.join(fitting)}" if fitting else "see the API's reference for its paths"
    raise CloudTasksError(RpcStatus.NOT_FOUND, f"no method at {verb} {PREFIX}{path[:300]}: {hint}")


def request_of(bound: BoundRoute, query: Sequence[tuple[str, str]], body: bytes) -> Values:
    """Return the fields of a request. Raises `CloudTasksError`."""
    rule, takes = bound.rule, bound.method.takes
    values: Values = {}
    if rule.body == "*":
        values = values_of(takes, json_of_body(body))
    elif rule.body:
        field = MESSAGES[takes][rule.body]
        content = json_of_body(body)
        values = {rule.body: values_of(field.of, content, place=f"{rule.body}.") if field.of else {}}
    values.update(_from_query(takes, query, given=values))
    if values.get(rule.field, bound.resource) != bound.resource:
        raise invalid(f"{rule.field} in the body must be that of the path, {bound.resource}: {values[rule.field]!r}")
    values[rule.field] = bound.resource
    return values


def json_of_body(body: bytes) -> object:
    """Parse JSON; an empty body is an empty object. Raises `CloudTasksError`."""
    if not body or body.isspace():
        return {}
    check_values(body)
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from error


def _from_query(takes: str, query: Sequence[tuple[str, str]], *, given: Mapping[str, object]) -> Values:
    fields = MESSAGES[takes]
    values: Values = {}
    for name, text in query:
        if is_system(name):
            continue
        json_name = name if name in fields else camel(name)
        field = fields.get(json_name)
        if field is None or name not in (json_name, snake(json_name)):
            raise unknown_name(name)
        if field.kind == "message":
            raise invalid(f"{name} is a message: give it in the body")
        if json_name in given:
            raise invalid(f"{name} is given in the body and in the query")
        value = from_text(field, text, place=name)
        values[json_name] = (*_so_far(values, json_name), value) if field.is_repeated else value
    return values


def _so_far(values: Values, name: str) -> Iterable[object]:
    value = values.get(name, ())
    assert isinstance(value, tuple)
    return value


def is_system(name: str) -> bool:
    """Return whether a query parameter is not a field of the request."""
    return name.startswith("$") or name in _SYSTEM or name in ("alt", "fields", "prettyPrint")


def shape_of(query: Sequence[tuple[str, str]]) -> ReplyShape:
    """Parse `alt`, `fields` and `prettyPrint`, each with `$` or without. Raises `CloudTasksError`."""
    system = {name.removeprefix("$"): text for name, text in query if is_system(name)}
    media, *options = (part.strip() for part in system.get("alt", "json").split(";"))
    if media != "json" or any(option not in ("enum-encoding=int", "enum-encoding=string") for option in options):
        raise invalid(f"alt must be json, or json;enum-encoding=int: {system['alt'][:60]!r}")
    pretty = system.get("prettyPrint", "false")
    if pretty not in ("true", "false", ""):
        raise invalid(f"prettyPrint must be true or false: {pretty[:60]!r}")
    fields = parse_fields(system["fields"]) if system.get("fields") else {}
    return ReplyShape("numbers" if "enum-encoding=int" in options else "names", fields, pretty != "false")
