"""A listener for a supervisor without a queue server: the same paths, tokens and host check."""

import asyncio
import socket
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from queue_core.server.app import release, route_error
from queue_core.server.auth import Authorizer
from queue_core.server.extensions import Extensions, response_of
from queue_core.server.fast_path import reply_of
from queue_core.server.http.connections import ACCEPTED_AT_ONCE, AcceptErrors, Connections
from queue_core.server.http.http_connection import HttpConnection
from queue_core.server.metrics import MEDIA_TYPE, exposition
from queue_core.server.openapi import document
from queue_core.server.options import ServeOptions, check_options
from queue_core.server.server import HttpServer, bind, url_of

STOP_SECONDS = 2


class FleetListener:
    """Serves the supervisor's API in its own thread."""

    def __init__(self, options: ServeOptions, extensions: Extensions) -> None:
        """Bind at once. Raises `InvalidSettingError`, `ListenError`."""
        check_options(options)
        self._options = options
        self._listening: socket.socket = bind(options)
        self.url = url_of(options, self._listening)
        self._app = Starlette(
            routes=_routes(Authorizer(options), extensions), exception_handlers={HTTPException: route_error}
        )
        self._stop_following = extensions.stop
        self._server: HttpServer | None = None
        self._should_stop = False
        self._thread = threading.Thread(target=self._work, name="towline-fleet-http", daemon=True)

    def start(self) -> str:
        """Start serving and return the URL. Earlier connections wait in the socket's backlog."""
        self._thread.start()
        return self.url

    def stop(self) -> None:
        """Stop within a few seconds, and remove the socket."""
        self._should_stop = True
        if self._server is not None:
            self._server.stop()
        self._thread.join()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        AcceptErrors(loop)

        class FleetConnection(HttpConnection):
            shared = Connections(loop.time)

        config = uvicorn.Config(
            self._app,
            loop="asyncio",
            http=FleetConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=ACCEPTED_AT_ONCE,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        server = self._server = HttpServer(config, started=lambda: None, stopping=self._stop_following)
        if self._should_stop:
            server.stop()
        await server.serve(sockets=[self._listening])

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._listening.close()
            if self._options.socket_path is not None:
                self._options.socket_path.unlink(missing_ok=True)


def _routes(authorizer: Authorizer, extensions: Extensions) -> list[Route]:
    routes = extensions.starlette_routes(authorizer)
    described = document([extension.endpoint for extension in extensions.routes], version=release())

    async def openapi(request: Request) -> Response:
        try:
            authorizer.check_host_and_origin(request.headers.raw)
        except Exception as error:  # noqa: BLE001 - the top of a request
            return response_of(reply_of(error))
        return JSONResponse(described)

    async def metrics(request: Request) -> Response:
        try:
            authorizer.check(request.headers.raw, "stats")
            return Response(exposition(*extensions.collectors), media_type=MEDIA_TYPE)
        except Exception as error:  # noqa: BLE001 - the top of a request
            return response_of(reply_of(error))

    routes.append(Route("/openapi.json", openapi, methods=["GET"]))
    routes.append(Route("/metrics", metrics, methods=["GET"]))
    return routes
