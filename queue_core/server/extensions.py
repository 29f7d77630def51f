"""Routes that another part of the program serves beside the queues: at the same listener, with the same tokens."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from queue_core.process.places import Places
from queue_core.server.base.bodies.value_count import MAX_VALUES
from queue_core.server.base.problems import invalid, refusal
from queue_core.server.callers.access import check_whole_store
from queue_core.server.callers.auth import Authorizer, Principal, check_role
from queue_core.server.callers.open_calls import OpenStream
from queue_core.server.fast_path import Reply, check_json, read_model, reply_of
from queue_core.server.http.request_body import read_body
from queue_core.server.schemas import EmptyBody, RequestBody, response
from queue_core.server.v1.endpoint import Endpoint, Parameter
from queue_core.verbs.wire import Json

MAX_FOLLOWERS: Final = 100
"""Connections that follow something of an extension, at most."""
MAX_CALLS: Final = 100
"""Calls of an extension's routes that are under way, at most: each takes a thread."""
MAX_EXTENSION_BODY_BYTES: Final = 64 * 1024
"""Size of a request's body, at most: orders are short."""
HEARTBEAT_SECONDS: Final = 15.0
"""Seconds of silence after which a stream is written to, so that a dead connection is noticed."""

Q = TypeVar("Q", bound=BaseModel)
B = TypeVar("B", bound=RequestBody)


class NoQuery(BaseModel):
    """The query of a route that takes none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Followers:
    """The open connections and calls of extensions: bounded, and ended when the server stops. Lives in its loop."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self.places = Places(MAX_FOLLOWERS)
        self.calls = 0

    @property
    def is_stopped(self) -> bool:
        """Return whether the server stops."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End all streams: a server waits for the requests under way."""
        self._stopped.set()

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until the server stops."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return

    async def in_thread(self, call: Callable[[], "Answer"]) -> "Answer":
        """Make a call in a thread. Raises `Problem` when too many are under way."""
        if self.calls >= MAX_CALLS:
            raise refusal(503, "too-many-calls", f"{MAX_CALLS} calls are under way, which is the limit; try again")
        self.calls += 1
        try:
            return await asyncio.to_thread(call)
        finally:
            self.calls -= 1


class ExtensionRoute(Protocol):
    """One method of one path, or of several."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint in the OpenAPI document."""

    def starlette_routes(self, authorizer: Authorizer, followers: Followers, rights: "Rights") -> list[Route]:
        """Return its paths as Starlette routes."""


class Rights(Protocol):
    """The rights of a caller beyond its role: what it may see and do. Its methods are called in threads."""

    def is_unbounded(self, caller: Principal) -> bool:
        """Return whether the caller may see everything. At hand: it never waits."""

    def check(self, caller: Principal, endpoint: Endpoint, names: Mapping[str, str]) -> None:
        """Raise `PermissionDeniedError` for what the caller may not call with these names in the path."""

    def shown(self, caller: Principal, endpoint: Endpoint, answer: BaseModel) -> BaseModel:
        """Return what the caller may see of an answer."""

    def collector(self, caller: Principal, collector: Collector) -> Collector:
        """Return what the caller may see of the metrics."""


class WholeRights:
    """The rights of routes that know no queues: for tokens of all queues only."""

    def is_unbounded(self, caller: Principal) -> bool:
        """See `Rights.is_unbounded`."""
        return caller.queues is None

    def check(self, caller: Principal, endpoint: Endpoint, names: Mapping[str, str]) -> None:  # noqa: ARG002
        """See `Rights.check`."""
        check_whole_store(caller, endpoint.name)

    def shown(self, caller: Principal, endpoint: Endpoint, answer: BaseModel) -> BaseModel:  # noqa: ARG002
        """See `Rights.shown`."""
        return answer

    def collector(self, caller: Principal, collector: Collector) -> Collector:  # noqa: ARG002
        """See `Rights.collector`."""
        return collector


@dataclass(frozen=True, slots=True)
class ReadOnlyRoute:
    """One path whose answers are made in the server's loop: they must be at hand, and never wait.

    Args:
        name: the operation's id in the OpenAPI document.
        permission: a verb of `auth.REQUIRED_ROLES`, or None for everybody.
        read: returns the answer, from the names in the path. Raises `Problem`.
        answers: the answer's model.
        aliases: further paths of the same, which the document leaves out.
    """

    path: str
    name: str
    summary: str
    permission: str | None
    read: Callable[[Mapping[str, str]], BaseModel]
    answers: type[BaseModel]
    aliases: tuple[str, ...] = ()

    @property
    def endpoint(self) -> Endpoint:
        """See `ExtensionRoute.endpoint`."""
        answers = response(self.answers)
        return Endpoint("GET", self.path, self.summary, self.permission, None, None, answers, operation=self.name)

    def starlette_routes(self, authorizer: Authorizer, _followers: Followers, rights: Rights) -> list[Route]:
        """See `ExtensionRoute.starlette_routes`."""

        async def view(request: Request) -> Response:
            try:
                if self.permission is None:
                    authorizer.check_host_and_origin(request.headers.raw)
                else:
                    caller = authorizer.caller(request.headers.raw)
                    check_role(caller, self.permission)
                    if not rights.is_unbounded(caller):
                        await asyncio.to_thread(rights.check, caller, self.endpoint, _names_in(request))
                return response_of(Reply(200, self.read(_names_in(request)).model_dump_json().encode()))
            except Exception as error:  # noqa: BLE001 - the top of a request
                return response_of(reply_of(error))

        return [Route(path, view, methods=["GET"]) for path in (self.path, *self.aliases)]


@dataclass(frozen=True, slots=True)
class RouteCall(Generic[Q, B]):
    """A request of a `CallRoute`.

    Args:
        path: the names in the path.
        caller: the caller, as its token names it; `address`: where it calls from, as far as that is known.
        last_event_id: the id of the last event that a stream's reader got; "" for none.
    """

    path: Mapping[str, str]
    query: Q
    body: B
    caller: Principal
    address: str = ""
    last_event_id: str = ""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event. `id` is what a reader that connects again gives as `Last-Event-ID`."""

    id: str
    data: Json
    event: str = "message"


@dataclass(frozen=True, slots=True)
class EventStream:
    """An answer that goes on until its reader leaves or the server stops.

    Args:
        new: returns what is new since its last call; called in a thread, every `pause_seconds`.
    """

    new: Callable[[], Sequence[StreamEvent]]
    pause_seconds: float = 1.0


Answer = BaseModel | EventStream


@dataclass(frozen=True, slots=True)
class CallRoute(Generic[Q, B]):
    """One method of one path whose answers are made in a thread: it may read files, write them, and take its time.

    Args:
        method: GET or POST; only a POST has a body.
        name: the operation's id in the OpenAPI document.
        permission: a verb of `auth.REQUIRED_ROLES`; the caller's role is checked before anything is read.
        call: makes the answer. Raises `Problem`.
        query, takes: the models of the query and of the body.
        max_body_bytes: size of a body.
        max_values: values in it, at most.
    """

    method: str
    path: str
    name: str
    summary: str
    permission: str
    call: Callable[[RouteCall[Q, B]], Answer]
    answers: type[BaseModel]
    query: type[Q]
    takes: type[B]
    max_body_bytes: int = MAX_EXTENSION_BODY_BYTES
    max_values: int = MAX_VALUES

    @property
    def endpoint(self) -> Endpoint:
        """See `ExtensionRoute.endpoint`."""
        takes = None if self.method == "GET" else self.takes
        return Endpoint(
            self.method,
            self.path,
            self.summary,
            self.permission,
            None,
            takes,
            response(self.answers),
            parameters_of(self.query),
            operation=self.name,
        )

    def starlette_routes(self, authorizer: Authorizer, followers: Followers, rights: Rights) -> list[Route]:
        """See `ExtensionRoute.starlette_routes`."""

        async def view(request: Request) -> Response:
            try:
                call = await self._read(authorizer, request, rights)
                answer = await followers.in_thread(lambda: self._answer(call, rights))
                if isinstance(answer, EventStream):
                    return stream_response(answer, followers, authorizer, call.caller)
                return response_of(Reply(200, answer.model_dump_json().encode()))
            except Exception as error:  # noqa: BLE001 - the top of a request
                return response_of(reply_of(error))

        whole = self.path.replace("{worker}", "{worker:path}")  # a worker's name may contain a "/"
        return [Route(whole, view, methods=[self.method])]

    def _answer(self, call: RouteCall[Q, B], rights: Rights) -> Answer:
        if rights.is_unbounded(call.caller):
            return self.call(call)
        answer = self.call(call)
        return answer if isinstance(answer, EventStream) else rights.shown(call.caller, self.endpoint, answer)

    async def _read(self, authorizer: Authorizer, request: Request, rights: Rights) -> RouteCall[Q, B]:
        headers = request.headers.raw
        caller = authorizer.caller(headers)
        check_role(caller, self.permission)
        if not rights.is_unbounded(caller):
            await asyncio.to_thread(rights.check, caller, self.endpoint, _names_in(request))
        body = b"{}"
        if self.method != "GET":
            check_json(headers)
            body = await read_body(headers, request.receive, limit=self.max_body_bytes)
        try:
            query = self.query.model_validate(dict(request.query_params))
            taken = await read_model(self.takes, body, most=self.max_values)
        except ValidationError as error:
            raise invalid(error) from None
        return RouteCall(
            _names_in(request),
            query,
            taken,
            caller,
            request.client.host if request.client is not None else "",
            request.headers.get("last-event-id", "")[:100_000],
        )


def reads(
    path: str,
    name: str,
    summary: str,
    permission: str,
    call: Callable[[RouteCall[Q, EmptyBody]], Answer],
    answers: type[BaseModel],
    query: type[Q],
) -> CallRoute[Q, EmptyBody]:
    """Return a route that only reads."""
    return CallRoute("GET", path, name, summary, permission, call, answers, query, EmptyBody)


def stream_response(stream: EventStream, followers: Followers, authorizer: Authorizer, caller: Principal) -> Response:
    """Return a stream as server-sent events. Raises `Problem` when too many connections follow."""

    async def events() -> AsyncIterator[bytes]:
        silent_seconds = 0.0
        yield b": towline\n\n"
        while not followers.is_stopped and authorizer.is_current(caller):
            found = await asyncio.to_thread(stream.new)
            if found:
                silent_seconds = 0.0
                yield b"".join(map(_event_bytes, found))
            elif silent_seconds >= HEARTBEAT_SECONDS:
                silent_seconds = 0.0
                yield b":\n\n"
            silent_seconds += stream.pause_seconds
            await followers.pause(stream.pause_seconds)

    return OpenStream(events(), followers.places, caller)


def parameters_of(query: type[BaseModel]) -> tuple[Parameter, ...]:
    """Return the parameters of a query's model, for the OpenAPI document."""
    described = query.model_json_schema().get("properties", {})
    found = []
    for name, schema in described.items():
        plain = {key: value for key, value in schema.items() if key not in {"title", "description"}}
        found.append(Parameter(name, plain, str(schema.get("description", ""))))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Extensions:
    """Routes beside the queues, and collectors for `/metrics`."""

    routes: tuple[ExtensionRoute, ...] = ()
    collectors: tuple[Collector, ...] = ()
    followers: Followers = field(default_factory=Followers)
    rights: Rights = field(default_factory=WholeRights)

    def collectors_for(self, caller: Principal) -> Sequence[Collector]:
        """Return the collectors with what the caller may see. Called in a thread."""
        if self.rights.is_unbounded(caller):
            return self.collectors
        return [self.rights.collector(caller, one) for one in self.collectors]

    def starlette_routes(self, authorizer: Authorizer) -> list[Route]:
        """Return all paths as Starlette routes."""
        return [one for route in self.routes for one in route.starlette_routes(authorizer, self.followers, self.rights)]

    def stop(self) -> None:
        """End what goes on for ever; called in the server's loop before it waits for the requests under way."""
        self.followers.stop()


NO_EXTENSIONS = Extensions()


def response_of(reply: Reply) -> Response:
    """Return a reply as a Starlette response."""
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    return Response(reply.body, reply.status, headers, media_type=reply.media_type.decode())


def _names_in(request: Request) -> dict[str, str]:
    return {key: str(value) for key, value in request.path_params.items()}


def _event_bytes(event: StreamEvent) -> bytes:
    data = json.dumps(event.data, separators=(",", ":"))
    head = f"id: {event.id}\n" if event.id else ""
    return f"{head}event: {event.event}\ndata: {data}\n\n".encode()
