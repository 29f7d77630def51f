"""The ASGI application: the fast path for the verbs of workers and producers, Starlette routes for all others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from queue_core.client.http.fleet_paths import FLEET
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.events import QueueEvent
from queue_core.server import schemas
from queue_core.server.base import events
from queue_core.server.base.event_stream import event_json
from queue_core.server.base.problems import refusal
from queue_core.server.callers.auth import Principal, check_role
from queue_core.server.callers.open_calls import OpenStream
from queue_core.server.console.fleet_gateway import FleetGateway
from queue_core.server.console.mount import ConsoleMount
from queue_core.server.console.proxy import proxy_login
from queue_core.server.extensions import NO_EXTENSIONS, Extensions
from queue_core.server.extensions import response_of as _response
from queue_core.server.fast_path import (
    IDEMPOTENCY_HEADER,
    FastEndpoint,
    FastRequest,
    FastVerbs,
    Reply,
    check_json,
    read_model,
    reply_of,
)
from queue_core.server.http.connections import Connections
from queue_core.server.http.request_body import body_length, read_body
from queue_core.server.metrics import MEDIA_TYPE, QueueMetrics, exposition, read_all_stats
from queue_core.server.state import ServerState
from queue_core.server.v1.endpoint import Endpoint
from queue_core.server.v1.endpoints import ENDPOINTS
from queue_core.server.v1.handlers import EndpointCall, visible_events
from queue_core.server.v1.openapi import document
from queue_core.server.wings import wing_classes

if TYPE_CHECKING:
    from queue_core.console.app import Console

View = Callable[[HttpRequest], Awaitable[Response]]

_PREFIX = "/v1/queues/"


class ServerApp:
    """The ASGI application of one server."""

    def __init__(self, core: ServerState, connections: Connections, *, extensions: Extensions = NO_EXTENSIONS) -> None:
        self.core = core
        self._connections = connections
        self.paths = [
            endpoint.path for endpoint in (*served_endpoints(), *(route.endpoint for route in extensions.routes))
        ]
        """The paths of the API."""
        self._fleet: FleetGateway | None = None
        fleet_routes: Sequence[BaseRoute] = ()
        if FLEET not in self.paths:
            self._fleet = FleetGateway(core)
            self.paths += self._fleet.paths
            fleet_routes = self._fleet.routes()
        self._pages = ConsoleMount(core.authorizer, self._console)
        routes = [*_routes(core, extensions), *fleet_routes, *self._pages.routes()]
        self._router = Starlette(routes=routes, exception_handlers={HTTPException: route_error})

    def end_sessions(self) -> None:
        """End the streams of callers whose tokens were removed."""
        self.core.ring.wake()
        self._pages.end_sessions()

    def stop(self) -> None:
        """End the console's streams, so that the server's stop is quick, and the connections to a supervisor."""
        self._pages.stop()
        if self._fleet is not None:
            self._fleet.close()

    def _console(self) -> "Console":
        from queue_core.console.api import OwnServer
        from queue_core.console.app import Console, ConsoleOptions
        from queue_core.console.call import PayloadRules

        options = self.core.options
        proxy = None if options.proxy is None else proxy_login(options.proxy, self.core.authorizer)
        rules = PayloadRules(options.console_payloads, options.console_redact)
        made = ConsoleOptions(self.core.authorizer.secrets, writes=options.console_writes, payloads=rules, proxy=proxy)
        return Console(OwnServer(self, host="localhost", paths=self.paths), made)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        has_begun = False

        async def send_noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._serve(scope, receive, send_noting)
        except ClientDisconnect:
            self._connections.warn(events.REQUEST_ABANDONED, method=scope["method"], path=scope["path"][:200])
        except asyncio.CancelledError:
            if has_begun or scope["type"] != "http":
                raise
            await _send(reply_of(_cut_off(scope["method"])), send)  # the server stops, and waits for it no longer

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            path: str = scope["path"]
            queue, _, verb = path[len(_PREFIX) :].partition("/") if path.startswith(_PREFIX) else ("", "", "")
            if verb in FastVerbs.VERBS:
                await _serve_fast(self.core, self.core.fast_verbs, verb, queue, scope, receive, send)
                return
            if (endpoint := self.core.fast_endpoints.get(path)) is not None:
                await _serve_fast(self.core, endpoint, "", "", scope, receive, send)
                return
        await self._router(scope, receive, send)


def _cut_off(method: str) -> StoreUnavailableError:
    """Return the error of a request that the server's stop cut off."""
    if method in ("GET", "HEAD"):
        return StoreUnavailableError("the server stops, and its store has not answered: try again")
    return OutcomeUnknownError(
        "the server stops, and its store has not answered: it may have taken effect; check before repeating"
    )


async def _serve_fast(
    core: ServerState, endpoint: FastEndpoint, verb: str, queue: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve the fast path on any ASGI server; uvicorn with `http/fast_protocol.py` seldom comes here."""
    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    headers = scope["headers"]
    reserved_bytes = 0
    try:
        reserved_bytes = endpoint.admit(verb, headers, body_length(headers))
        core.body_limit.check(body_length(headers) or 0)
        body = await read_body(headers, receive, limit=core.body_limit.bytes)
    except ClientDisconnect:
        raise
    except Exception as error:  # noqa: BLE001 - the top of a request
        await _send(endpoint.refuse(error), send)
        return
    finally:
        endpoint.free(reserved_bytes)
    call = endpoint.start(
        FastRequest(verb, queue, scope["headers"], body, scope.get("client"), reply.set_result, lambda: False)
    )
    if call is not None and not reply.done():
        hung_up = asyncio.ensure_future(receive())
        waited: set[asyncio.Future[Any]] = {reply, hung_up}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            core.fast_verbs.cancel(call)
            return
        hung_up.cancel()
    await _send(await reply, send)


async def _send(reply: Reply, send: Send) -> None:
    headers = [
        (b"content-type", reply.media_type),
        (b"content-length", b"%d" % len(reply.body)),
        *reply.headers,
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def _routes(core: ServerState, extensions: Extensions) -> Sequence[BaseRoute]:
    routes: list[BaseRoute] = []
    endpoints = served_endpoints()
    for path in dict.fromkeys(endpoint.path for endpoint in endpoints):
        here = {endpoint.method: endpoint for endpoint in endpoints if endpoint.path == path}
        # The name of a worker may contain an unquoted "/"; what is given for a schedule's is looked for all the same.
        whole = path.replace("{worker}", "{worker:path}").replace("{schedule}", "{schedule:path}")
        routes.append(Route(whole, _view(core, here), methods=list(here)))
    routes.append(Route("/healthz", _view(core, {"GET": ENDPOINTS[-1]}), methods=["GET"]))
    routes.extend(extensions.starlette_routes(core.authorizer))
    routes.append(Route("/openapi.json", _openapi(core, extensions), methods=["GET"]))
    routes.append(Route("/metrics", _metrics(core, extensions), methods=["GET"]))
    for wing in core.wings:
        routes.extend(wing.routes())
    return routes


def _view(core: ServerState, here: dict[str, Endpoint]) -> View:
    async def view(request: HttpRequest) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        endpoint = here[method]
        try:
            call = await _read_call(core, endpoint, request)
            if call.one("follow") is not None and endpoint.path == "/v1/events":
                return _follow(core, call, last_event_id=request.headers.get("last-event-id", ""))
            assert endpoint.handler is not None
            return _response(Reply(200, endpoint.answers.json(await endpoint.handler(core, call))))
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - the top of a request
            return _response(reply_of(error))

    return view


async def _read_call(core: ServerState, endpoint: Endpoint, request: HttpRequest) -> EndpointCall:
    headers = request.headers.raw
    caller: Principal | None = None
    if endpoint.permission is None:
        core.authorizer.check_host_and_origin(headers)
    else:
        caller = core.authorizer.caller(headers)
        check_role(caller, endpoint.permission)
        if (queue := request.path_params.get("queue")) is not None:
            await core.check_queue(caller, queue, endpoint.permission)
    body: schemas.RequestBody = schemas.EmptyBody()
    data = b""
    if endpoint.takes is not None:
        check_json(headers)
        limit = min(core.options.max_body_bytes, endpoint.max_body_bytes)
        data = await read_body(headers, request.receive, limit=limit)
        body = await read_model(endpoint.takes, data)
    path = {key: str(value) for key, value in request.path_params.items()}
    key = _idempotency_key(request)
    kept = b"" if key is None else data
    return EndpointCall(endpoint.name, path, request.query_params.multi_items(), body, key, kept, caller)


def _idempotency_key(request: HttpRequest) -> bytes | None:
    return next((value for name, value in request.headers.raw if name == IDEMPOTENCY_HEADER), None)


async def route_error(request: HttpRequest, error: Exception) -> Response:
    """Answer a request whose path or method does not exist."""
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path[:200]}"
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        problem = refusal(405, "wrong-method", f"{detail}: use {allow}", headers=((b"allow", allow.encode()),))
    else:
        problem = refusal(error.status_code, "unknown-path", f"{detail}: see /openapi.json for all paths")
    return _response(reply_of(problem))


def _follow(core: ServerState, call: EndpointCall, *, last_event_id: str) -> Response:
    after = core.ring.resumed(last_event_id, default=call.number("after", core.ring.total))
    caller = call.principal

    async def stream() -> AsyncIterator[bytes]:
        yield b": towline\n\n"
        async for recent in core.ring.follow(after=after, is_over=lambda: not core.authorizer.is_current(caller)):
            if recent is None:
                yield b":\n\n"
            elif shown := _sse(await visible_events(core, caller, recent.events)):
                yield shown

    return OpenStream(stream(), core.ring.places, caller)


def _sse(recent: Sequence[tuple[int, QueueEvent]]) -> bytes:
    return b"".join(
        b"id: %d\nevent: %s\ndata: %s\n\n" % (number, event.event.encode(), to_json(event_json(event)))
        for number, event in recent
    )


def _metrics(core: ServerState, extensions: Extensions) -> View:
    def collector(caller: Principal) -> QueueMetrics:
        return QueueMetrics(
            lambda: core.service.read(lambda work: read_all_stats(work, core.access, caller)),
            lambda: len(core.waiting),
            lambda: core.ring.lost_total,
            core.clock_watch.steps,
            lambda: core.snapshots.held,
        )

    async def view(request: HttpRequest) -> Response:
        try:
            caller = core.authorizer.caller(request.headers.raw)
            check_role(caller, "stats")
            others = await asyncio.to_thread(extensions.collectors_for, caller)
            text = await core.in_thread(lambda: exposition(collector(caller), *others))
        except Exception as error:  # noqa: BLE001 - the top of a request
            return _response(reply_of(error))
        return Response(text, media_type=MEDIA_TYPE)

    return view


def _openapi(core: ServerState, extensions: Extensions) -> View:
    @cache
    def encoded() -> bytes:
        return openapi_json(*[route.endpoint for route in extensions.routes])

    async def view(request: HttpRequest) -> Response:
        try:
            core.authorizer.check_host_and_origin(request.headers.raw)
        except Exception as error:  # noqa: BLE001 - the top of a request
            return _response(reply_of(error))
        return Response(await asyncio.to_thread(encoded), media_type="application/json")

    return view


def openapi_json(*others: Endpoint) -> bytes:
    """Return the OpenAPI document of the queues' API, with `others` beside it."""
    return to_json(document((*served_endpoints(), *others), version=release()))


@cache
def served_endpoints() -> tuple[Endpoint, ...]:
    """Return the endpoints of `/v1`: the server's own, then those of its wings."""
    return (*ENDPOINTS, *(endpoint for wing in wing_classes() for endpoint in wing.endpoints))


def release() -> str:
    """Return the version of this program."""
    try:
        return version("towline")
    except PackageNotFoundError:  # run from a checkout
        return "0"
