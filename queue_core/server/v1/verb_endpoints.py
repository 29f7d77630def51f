"""The endpoints of verbs: path, permission, request, response and handler of each follow from its value (ADR 133)."""

from collections.abc import Awaitable, Callable
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Generic, TypeVar, cast, get_type_hints

import pydantic

from queue_core.server.callers.access import check_whole_store
from queue_core.server.commit.group_commit import MANY_TASKS_BYTES
from queue_core.server.fast_path import MAX_PLAIN_BODY_BYTES
from queue_core.server.schemas import EmptyBody, RequestBody, Tagged, response
from queue_core.server.state import ServerState
from queue_core.server.v1.endpoint import Endpoint, Parameter
from queue_core.server.v1.handlers import EndpointCall, change, in_pieces, log_change
from queue_core.task import TagFilter
from queue_core.unit.locally import pieces_of
from queue_core.unit.verb import (
    Change,
    InPieces,
    Query,
    ReadStep,
    Stepwise,
    Verb,
    WriteStep,
    path_members,
    result_type,
)

V = TypeVar("V", bound=Verb[Any])
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Served(Generic[V]):
    """The parts of an endpoint that only the server knows.

    Args:
        takes: the form of its body, where its members don't tell.
        make: reads the verb from a call of that form.
        before: refuses a caller, where role and queue don't tell.
        then: what the server does once it took effect.
        answers: the form of its response, where that is none of the verb's own.
        out: makes such a response of the result.
        query: the parameters of a GET.
    """

    takes: type[RequestBody] | None = None
    make: Callable[[EndpointCall], V] | None = None
    before: Callable[[ServerState, EndpointCall, V], Awaitable[None]] | None = None
    then: Callable[[ServerState, EndpointCall, V, Any], None] | None = None
    answers: type | None = None
    out: Callable[[ServerState, V, Any], object] | None = None
    query: tuple[Parameter, ...] = ()
    max_body_bytes: int = MAX_PLAIN_BODY_BYTES


def endpoint_of(kind: type[V], served: Served[V]) -> Endpoint:
    """Return the endpoint of a verb."""
    takes = served.takes
    if takes is None and kind.method not in ("GET", "DELETE"):
        takes = request_of(kind)
    make = served.make or reader_of(kind)

    async def handler(core: ServerState, call: EndpointCall) -> object:
        if kind.whole_store:
            check_whole_store(call.principal, kind.whole_store)
        verb = make(call)
        if served.before is not None:
            await served.before(core, call, verb)
        result = await _carry_out(core, call, verb)
        if served.then is not None:
            served.then(core, call, verb, result)
        return kind.answer_of(result) if served.out is None else served.out(core, verb, result)

    return Endpoint(
        kind.method,
        kind.path,
        kind.summary,
        kind.permission,
        handler,
        takes,
        response(served.answers or kind.answers),
        served.query,
        operation=kind.operation,
        max_body_bytes=served.max_body_bytes,
    )


async def _carry_out(core: ServerState, call: EndpointCall, verb: Verb[Any]) -> object:
    if isinstance(verb, Query):
        return await core.read(verb.run)
    if isinstance(verb, Stepwise):
        return await _in_steps(core, call, verb)
    assert isinstance(verb, Change)
    result: object
    if verb.in_pieces:
        result = await in_pieces(core, call.client_call, pieces_of(verb, by=call.who))
    elif not verb.is_keyed:
        result = await core.committer.run(lambda work: verb.run(work, call.who))
    else:
        result = await change(
            core,
            call,
            result_type(type(verb)),
            lambda work: verb.run(work, call.who),
            size_bytes=MANY_TASKS_BYTES if verb.handles_payloads else 0,
        )
    if verb.audit and (facts := verb.audit_facts(result)) is not None:
        log_change(call, verb.audit, **facts)
    return result


async def _in_steps(core: ServerState, call: EndpointCall, verb: Stepwise[R]) -> R:
    client = call.client_call if verb.is_keyed else None
    steps, result = verb.steps(call.who, client), None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as over:
            return cast("R", over.value)
        match step:
            case ReadStep(operation):
                result = await core.read(operation)
            case WriteStep(operation):
                result = await core.committer.run(operation)
            case InPieces(run):
                result = await in_pieces(core, client, run)


def request_of(kind: type[Verb[Any]]) -> type[RequestBody]:
    """Return the form of a verb's body: a strict model of its members."""
    name, doc = kind.request
    if not name:
        return EmptyBody
    hints = get_type_hints(kind)
    base: type[RequestBody] = RequestBody
    members: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in path_members(kind):
            continue
        if hints[field.name] is TagFilter:
            base = Tagged
        else:
            default = ... if field.default is MISSING else field.default
            members[field.name] = (hints[field.name], pydantic.Field(default, **field.metadata))
    return pydantic.create_model(name, __base__=base, __doc__=doc, __module__=__name__, **members)


def reader_of(kind: type[V]) -> Callable[[EndpointCall], V]:
    """Return a function that reads a verb from a call."""
    hints = get_type_hints(kind)
    in_path = path_members(kind)
    read_member = _in_query if kind.method == "GET" else _in_body
    members = [(field, hints[field.name]) for field in fields(kind) if field.name not in in_path]

    def read(call: EndpointCall) -> V:
        given = {name: call.path[name] for name in in_path}
        return kind(**given, **{field.name: read_member(call, field, hint) for field, hint in members})

    return read


def _in_body(call: EndpointCall, field: Field[Any], hint: object) -> object:
    return call.read(Tagged).filter() if hint is TagFilter else getattr(call.body, field.name)


def _in_query(call: EndpointCall, field: Field[Any], hint: object) -> object:
    if hint is TagFilter:
        return call.tags()
    return call.number(field.name, cast("int", field.default)) if hint is int else call.one(field.name)
