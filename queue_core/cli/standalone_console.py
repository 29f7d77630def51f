"""The console alone: its pages on a listener, over the API of another server or over a store that it opens."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from queue_core.console.api import ConsoleApi, OtherServer, OwnServer
from queue_core.console.app import Console, ConsoleOptions, PersonFinder
from queue_core.console.call import PayloadRules
from queue_core.console.logins import RemoteTokens
from queue_core.errors import InvalidSettingError
from queue_core.server.app import ServerApp, route_error
from queue_core.server.base.options import ServeOptions
from queue_core.server.callers.auth import Authorizer
from queue_core.server.console.mount import ENTRY, ConsoleMount
from queue_core.server.http.connections import AcceptErrors, Connections
from queue_core.server.http.http_connection import HttpConnection
from queue_core.server.server import BACKLOG, HttpServer, bind, http_config, served_certificate, url_of
from queue_core.server.state import ServerState
from queue_core.store import Store

STOP_SECONDS: Final = 1


class ApiSource(Protocol):
    """The server whose API the console calls. Entered in the listener's loop."""

    def start(self, connections: Connections) -> ConsoleApi:
        """Return the API."""

    def end(self) -> None:
        """End what `start` has begun."""


class OfServer:
    """The API of a server that runs elsewhere."""

    def __init__(self, url: str) -> None:
        """Raises `InvalidSettingError`."""
        self._api = OtherServer(url)

    def start(self, connections: Connections) -> ConsoleApi:  # noqa: ARG002 - see `ApiSource`
        """See `ApiSource.start`."""
        return self._api

    def end(self) -> None:
        """See `ApiSource.end`."""
        self._api.close()


class OfStore:
    """The API of a server in this process that nobody else can call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state: ServerState | None = None

    def start(self, connections: Connections) -> ConsoleApi:
        """See `ApiSource.start`."""
        self._state = ServerState(self._store, ServeOptions())
        self._state.start()
        app = ServerApp(self._state, connections)
        return OwnServer(app, host="localhost", paths=app.paths)

    def end(self) -> None:
        """See `ApiSource.end`."""
        if self._state is not None:
            self._state.stop()
            self._state.close()


@dataclass(frozen=True, slots=True)
class Announced:
    """A console that is reached: its address, and a link that logs in once, where a token is at hand."""

    address: str
    login_address: str | None


class StandaloneConsole:
    """One listener with the console and nothing else."""

    def __init__(
        self,
        source: ApiSource,
        options: ServeOptions,
        *,
        writes: bool,
        token: str | None = None,
        payloads: PayloadRules = PayloadRules(),  # noqa: B008 - a frozen value
        proxy: PersonFinder | None = None,
    ) -> None:
        """Bind at once. Raises `ListenError`.

        Args:
            payloads: which payloads are shown.
            options: the address. Its tokens are those of people; a source that knows its own is asked instead.
            token: the token that a one-time link logs in with.
            proxy: finds people whom a proxy has logged in; None: nobody is.
        """
        self._proxy = proxy
        self._source = source
        self._options = options
        self._writes = writes
        self._token = token
        self._payloads = payloads
        self._certificate = served_certificate(options)
        self._listening = bind(options)
        self.url = url_of(options, self._listening)
        self._server: HttpServer | None = None

    async def run(self, announce: Callable[[Announced], None], *, handles_signals: bool = True) -> None:
        """Serve until SIGTERM or SIGINT, or until `stop`. Raises `InvalidSettingError` where all could look."""
        loop = asyncio.get_running_loop()
        AcceptErrors(loop)

        class PageConnection(HttpConnection):
            shared = Connections(loop.time)

        api = self._source.start(PageConnection.shared)
        made = ConsoleOptions(writes=self._writes, payloads=self._payloads, proxy=self._proxy)
        console = Console(api, made, logins=RemoteTokens(api))
        mount = ConsoleMount(Authorizer(replace(self._options, tokens=())), lambda: console)
        app = Starlette(routes=mount.routes(), exception_handlers={HTTPException: route_error})
        is_open = await RemoteTokens(api).is_open()
        if is_open and not self._options.is_local:
            self._close()
            raise InvalidSettingError(
                f"listening on {self._options.host} opens the console to the network, and what it shows has no tokens: "
                "give that server tokens, or listen on 127.0.0.1 or a Unix socket"
            )
        link = None
        if self._token is not None and not is_open and await console.knows(self._token):
            link = console.login_address(self._token)

        def started() -> None:
            self._listening.listen(BACKLOG)
            address = f"{self.url}/{ENTRY}"
            announce(Announced(address, f"{address}{link}" if link else None))

        config = http_config(app, protocol=PageConnection, certificate=self._certificate, stop_seconds=STOP_SECONDS)
        server = self._server = HttpServer(config, started=started, stopping=mount.stop)
        if handles_signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, server.stop)
        try:
            await server.serve(sockets=[self._listening])
        finally:
            self._close()

    def stop(self) -> None:
        """Begin to stop; any thread may call this once it serves."""
        if self._server is not None:
            self._server.stop()

    def _close(self) -> None:
        self._source.end()
        self._listening.close()
        if self._options.socket_path is not None:
            self._options.socket_path.unlink(missing_ok=True)
