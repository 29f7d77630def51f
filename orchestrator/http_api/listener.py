"""A listener for a supervisor without a queue server: the same paths, tokens and host check."""

import asyncio
import socket
import threading
from functools import cache
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from queue_core.server.app import release, route_error
from queue_core.server.base.options import ProxyLogin, ServeOptions, check_options, with_credentials
from queue_core.server.callers.auth import Authorizer, Headers, check_role
from queue_core.server.console.mount import ConsoleMount
from queue_core.server.console.proxy import proxy_login, token_elsewhere, tokens_by_role
from queue_core.server.extensions import Extensions, response_of
from queue_core.server.fast_path import reply_of
from queue_core.server.http.connections import AcceptErrors, Connections
from queue_core.server.http.http_connection import HttpConnection
from queue_core.server.metrics import MEDIA_TYPE, exposition
from queue_core.server.server import HttpServer, bind, http_config, renew_certificate, served_certificate, url_of
from queue_core.server.v1.openapi import document

if TYPE_CHECKING:
    from queue_core.console.api import OtherServer
    from queue_core.console.app import Console, PersonFinder

STOP_SECONDS = 2


class FleetListener:
    """Serves the supervisor's API in its own thread."""

    def __init__(self, options: ServeOptions, extensions: Extensions, *, queues: str | None = None) -> None:
        """Bind at once. Raises `InvalidSettingError`, `ListenError`.

        `queues`: the URL of the queue server, for the console's pages of queues; None: there is no console.
        """
        check_options(options)
        self.options = options
        self._certificate = served_certificate(options)
        self._listening: socket.socket = bind(options)
        self.url = url_of(options, self._listening)
        authorizer = self._authorizer = Authorizer(options)
        routes: list[BaseRoute] = [*_routes(authorizer, extensions)]
        self._pages: ConsoleMount | None = None
        self._queues: OtherServer | None = None
        if queues is not None:
            self._pages = ConsoleMount(authorizer, lambda: self._console(queues, extensions, authorizer))
            routes += self._pages.routes()
        self._app = Starlette(routes=routes, exception_handlers={HTTPException: route_error})
        self._extensions = extensions
        self._server: HttpServer | None = None
        self._should_stop = False
        self._thread = threading.Thread(target=self._work, name="towline-fleet-http", daemon=True)

    def start(self) -> str:
        """Start serving and return the URL. Earlier connections wait in the socket's backlog."""
        self._thread.start()
        return self.url

    def _console(self, queues: str, extensions: Extensions, authorizer: Authorizer) -> "Console":
        """Return the console: fleet pages call this listener, all others the queue server, with the viewer's token.

        For a person whom a proxy has named, the queue server is called with the token of their role.
        """
        from queue_core.console.api import OtherServer, OwnServer, SplitApi
        from queue_core.console.app import Console, ConsoleOptions
        from queue_core.console.call import PayloadRules
        from queue_core.console.logins import RemoteTokens

        paths = [extension.endpoint.path for extension in extensions.routes]
        self._queues = OtherServer(queues)
        own = OwnServer(self._app, host="localhost", paths=paths)
        api = SplitApi(own, paths, self._queues, token_there=token_elsewhere(authorizer))
        proxy = None if self.options.proxy is None else self._proxy(self.options.proxy, authorizer)
        rules = PayloadRules(self.options.console_payloads, self.options.console_redact)
        options = ConsoleOptions(authorizer.secrets, writes=self.options.console_writes, payloads=rules, proxy=proxy)
        return Console(api, options, logins=None if authorizer.tokens else RemoteTokens(api))

    def _proxy(self, proxy: ProxyLogin, authorizer: Authorizer) -> "PersonFinder":
        """Return how people are found whom a proxy names: those of a role for which there is a token to call with."""
        person = proxy_login(proxy, authorizer)

        def found(address: str, headers: Headers) -> str | None:
            token = person(address, headers)
            return (
                token
                if token is not None and authorizer.granted_role(token) in tokens_by_role(authorizer.tokens)
                else None
            )

        return found

    def renew(self, options: ServeOptions) -> None:
        """See `QueueServer.renew`."""
        renewed = with_credentials(self.options, options)
        check_options(renewed)
        renew_certificate(self._certificate, renewed)
        self.options = renewed
        self._authorizer.renew(renewed.tokens)
        if self._server is not None:
            self._server.forget_callers()

    def stop(self) -> None:
        """Stop within a few seconds, and remove the socket."""
        self._should_stop = True
        if self._server is not None:
            self._server.stop()
        self._thread.join()
        if self._queues is not None:
            self._queues.close()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        AcceptErrors(loop)

        class FleetConnection(HttpConnection):
            shared = Connections(loop.time)

        config = http_config(
            self._app, protocol=FleetConnection, certificate=self._certificate, stop_seconds=STOP_SECONDS
        )
        server = self._server = HttpServer(
            config, started=lambda: None, stopping=self._end_streams, renewed=self._end_sessions
        )
        if self._should_stop:
            server.stop()
        await server.serve(sockets=[self._listening])

    def _end_streams(self) -> None:
        self._extensions.stop()
        if self._pages is not None:
            self._pages.stop()

    def _end_sessions(self) -> None:
        if self._pages is not None:
            self._pages.end_sessions()

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._listening.close()
            if self.options.socket_path is not None:
                self.options.socket_path.unlink(missing_ok=True)


def _routes(authorizer: Authorizer, extensions: Extensions) -> list[Route]:
    routes = extensions.starlette_routes(authorizer)

    @cache
    def described() -> JSONResponse:
        return JSONResponse(document([extension.endpoint for extension in extensions.routes], version=release()))

    async def openapi(request: Request) -> Response:
        try:
            authorizer.check_host_and_origin(request.headers.raw)
        except Exception as error:  # noqa: BLE001 - the top of a request
            return response_of(reply_of(error))
        return await asyncio.to_thread(described)

    async def metrics(request: Request) -> Response:
        try:
            caller = authorizer.caller(request.headers.raw)
            check_role(caller, "stats")
            collectors = await asyncio.to_thread(extensions.collectors_for, caller)
            return Response(exposition(*collectors), media_type=MEDIA_TYPE)
        except Exception as error:  # noqa: BLE001 - the top of a request
            return response_of(reply_of(error))

    routes.append(Route("/openapi.json", openapi, methods=["GET"]))
    routes.append(Route("/metrics", metrics, methods=["GET"]))
    return routes
