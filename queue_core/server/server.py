"""A server on a socket: bound, announced, and stopped within a second, on the main thread or in a thread of its own."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from queue_core.client.http.transport import enable_keepalive
from queue_core.clock import Clock
from queue_core.errors import InvalidSettingError, ListenError
from queue_core.events import EventLog
from queue_core.log import get_logger
from queue_core.process.descriptors import (
    FILES_PER_GRPC_CONNECTION,
    file_limit,
    max_connections_for,
    max_grpc_connections_for,
)
from queue_core.process.own_terminal import OwnTerminal
from queue_core.process.sd_notify import ServiceManager
from queue_core.server.app import ServerApp
from queue_core.server.base import events
from queue_core.server.base.options import ServeOptions, check_options, with_credentials
from queue_core.server.extensions import NO_EXTENSIONS, Extensions
from queue_core.server.http.connections import ACCEPTED_AT_ONCE, AcceptErrors, Connections
from queue_core.server.http.fast_protocol import fast_protocol_class
from queue_core.server.http.guesses import SlowedRefusals
from queue_core.server.http.http_connection import HttpConnection
from queue_core.server.http.in_flight import budget_bytes
from queue_core.server.http.tls import ServedCertificate, TlsConnection
from queue_core.server.state import ServerState
from queue_core.server.watches.spare_memory import SpareMemory, keep_apart
from queue_core.server.wings import GrpcService
from queue_core.store import Store

TICK_SECONDS: Final = 1.0
"""Seconds between wake-ups of an idle server, for the date of its answers and the timeouts of its connections."""
_ACCEPT_ROUNDS: Final = 3
"""Rounds of asyncio's loop from accepting a connection to calling its protocol."""
BACKLOG = 2048
"""Connections that the kernel queues until they are accepted."""
FIRST_INHERITED: Final = 3
"""The first descriptor of an inherited socket: the protocol is systemd's socket activation, sd_listen_fds(3)."""
MAX_INHERITED_SOCKETS: Final = 64
"""Inherited sockets that are looked at."""
COLLECTED_OBJECTS: Final = (10_000, 5, 40)
"""New objects after which the youngest are collected, and so on: see `gc.set_threshold`. With its own 700, 10, 10 a
body of 65,000 values is looked through for 90 ms, more than it takes to read."""
_ACTIVATION_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")

log = get_logger()


@dataclass(frozen=True, slots=True)
class ReloadedOptions:
    """The options of settings that were read again.

    Args:
        next_start: names of changed settings that take effect only at the next start.
    """

    options: ServeOptions
    next_start: tuple[str, ...] = ()


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handlers; it ends waiting calls before it stops. Made in its loop."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        started: Callable[[], None],
        stopping: Callable[[], None] = lambda: None,
        renewed: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        started: called when it listens.
        stopping: called before it waits for the requests under way: ends calls that wait for tasks.
        renewed: called when tokens have changed: ends streams of callers that are not admitted any more.
        """
        super().__init__(config)
        self._renewed = renewed
        self._end_waiting = stopping
        self._started = started
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call `started`."""
        await super().startup(sockets)
        self._started()

    async def main_loop(self) -> None:
        """Wait until stopped. Unlike uvicorn's, this does not poll ten times a second."""
        while not await self.on_tick(counter=0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._stopped.wait()

    async def on_tick(self, counter: int) -> bool:
        """Count the second for every connection."""
        open_ones = [one for one in self.server_state.connections if isinstance(one, HttpConnection)]
        for connection in open_ones:
            connection.tick()
        if open_ones and (shared := open_ones[0].shared).is_full:
            idle = sorted((one for one in open_ones if one.is_idle), key=lambda one: one.ticks)
            shared.have_idle([one.make_room for one in idle])
        return await super().on_tick(counter)

    def forget_callers(self) -> None:
        """Have the token of each connection looked at again; any thread may call this."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
            self._loop.call_soon_threadsafe(self._forget_callers)

    def _forget_callers(self) -> None:
        for connection in self.server_state.connections:
            if isinstance(connection, HttpConnection):
                connection.forget_caller()
        self._renewed()

    def stop(self) -> None:
        """Leave the main loop; any thread, or a signal handler, may call this."""
        self.should_exit = True
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the waiting calls, then wait for the requests under way."""
        self._end_waiting()
        for listening in sockets or []:
            self._loop.remove_reader(listening)
        for _ in range(_ACCEPT_ROUNDS):  # else connections just accepted are left open
            await asyncio.sleep(0)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing: signals are the caller's."""
        yield


def bind(options: ServeOptions) -> socket.socket:
    """Return the listening socket, or the inherited one. Raises `ListenError`."""
    if (found := inherited_socket(options)) is not None:
        return found
    if options.socket_path is not None:
        return _bind_unix(options.socket_path)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is named; without it an answer in two segments takes 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        enable_keepalive(listening)
        listening.bind((options.host, options.port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ListenError(
            f"can't listen on {options.host}:{options.port}: {error.strerror or error}; "
            "is another server running there? Choose another port, or 0 for a free one"
        ) from error
    return listening


def _bind_unix(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_abandoned(path):
            path.unlink()
        before = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ListenError(
            f"can't listen on {path}: {error.strerror or error}; is another server running there?"
        ) from error
    return listening


def _is_abandoned(path: Path) -> bool:
    """Return whether a socket file has no server any more, as after a kill."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(path))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def url_of(options: ServeOptions, listening: socket.socket) -> str:
    """Return the URL of a bound socket."""
    if options.socket_path is not None:
        return f"unix://{options.socket_path.absolute()}"
    port = listening.getsockname()[1]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)  # noqa: S104 - compared, not bound
    scheme = "https" if options.tls is not None else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def served_certificate(options: ServeOptions) -> ServedCertificate | None:
    """Return the certificate of a listener; None for one that speaks plaintext. Raises `InvalidSettingError`."""
    if options.tls is None:
        return None
    try:
        return ServedCertificate(options.tls)
    except OSError as error:
        raise InvalidSettingError(f"{options.tls.cert} and {options.tls.key}: {error.strerror or error}") from error


def renew_certificate(served: ServedCertificate | None, options: ServeOptions) -> None:
    """Serve the certificate of these options from now on. Raises `InvalidSettingError`: then the old one stays."""
    if served is None or options.tls is None:
        return
    try:
        served.replace(options.tls)
    except OSError as error:
        raise InvalidSettingError(f"{options.tls.cert} and {options.tls.key}: {error.strerror or error}") from error


def http_config(
    app: ASGIApp, *, protocol: type[HttpConnection], certificate: ServedCertificate | None, stop_seconds: int
) -> uvicorn.Config:
    """Return uvicorn's settings of a listener, for an `HttpServer`.

    Args:
        protocol: the class of its connections.
        certificate: with it they speak TLS.
        stop_seconds: seconds that a stop waits for requests under way.
    """

    def tls_protocol(config: uvicorn.Config, **given: Any) -> asyncio.BaseProtocol:
        assert certificate is not None
        return TlsConnection(protocol(config, **given), certificate, asyncio.get_running_loop())

    return uvicorn.Config(
        SlowedRefusals(app, protocol.shared.guesses),
        loop="asyncio",
        http=protocol if certificate is None else tls_protocol,  # type: ignore[arg-type]  # any callable will do
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a peer is who the socket says: else X-Forwarded-For would pass for a trusted proxy
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=stop_seconds,
    )


def inherited_socket(options: ServeOptions) -> socket.socket | None:
    """Return the inherited socket that listens at the address of these options; None when there is none."""
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return None
    for descriptor in range(FIRST_INHERITED, FIRST_INHERITED + min(int(count), MAX_INHERITED_SOCKETS)):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=descriptor)
            if _listens_at(found, options):
                found.set_inheritable(False)
                for name in _ACTIVATION_VARIABLES:
                    os.environ.pop(name, None)
                return found
            found.detach()
    return None


def pass_on_socket(listening: int) -> None:
    """Let the program that is executed in place of this one inherit this socket."""
    os.dup2(listening, FIRST_INHERITED, inheritable=True)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="towline")


def _listens_at(found: socket.socket, options: ServeOptions) -> bool:
    if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    where = found.getsockname()
    if options.socket_path is not None:
        return found.family == socket.AF_UNIX and where == str(options.socket_path)
    is_there = found.family in {socket.AF_INET, socket.AF_INET6} and where[0] == options.host
    return is_there and options.port in {0, where[1]}


class QueueServer:
    """One server over a store that is the caller's: open it before, close it after."""

    def __init__(
        self,
        store: Store,
        options: ServeOptions,
        *,
        clock: Clock | None = None,
        log: EventLog | None = None,
        extensions: Extensions = NO_EXTENSIONS,
    ) -> None:
        """Bind at once. Raises `InvalidSettingError`, `ListenError`."""
        check_options(options)
        self._options = options
        self._certificate = served_certificate(options)
        self._extensions = extensions
        self._listening = bind(options)
        self.url = url_of(options, self._listening)
        self.core = ServerState(store, options, clock=clock, log=log)
        self._grpc = self._grpc_service()
        self._http: HttpServer | None = None
        self._should_stop = False
        self._kept: int | None = None

    @property
    def grpc_address(self) -> str | None:
        """`host:port` of the gRPC listener, where there is one."""
        return None if self._grpc is None else self._grpc.address

    def _grpc_service(self) -> GrpcService | None:
        try:
            return next((found for wing in self.core.wings if (found := wing.grpc_service()) is not None), None)
        except ImportError as error:
            self._abandon()
            raise InvalidSettingError(
                f"gRPC needs packages that are not installed ({error.name}): pip install 'towline[grpc]'"
            ) from error
        except ListenError:
            self._abandon()
            raise

    def _abandon(self) -> None:
        self.core.close()
        self._listening.close()

    async def run(self, *, started: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop`; returns when every answer is written and every thread has ended."""
        most = max_connections_for(file_limit())
        if self._grpc is not None:
            most -= FILES_PER_GRPC_CONNECTION * max_grpc_connections_for(file_limit())
        connections = Connections(asyncio.get_running_loop().time, most=most)
        connections.in_flight.most = budget_bytes(self._options.max_body_bytes)
        connections.caller_of = self.core.authorizer.known_caller
        app = ServerApp(self.core, connections, extensions=self._extensions)
        stop_seconds = max(1, round(self._options.stop_seconds))
        protocol = fast_protocol_class(self.core, connections)
        config = http_config(app, protocol=protocol, certificate=self._certificate, stop_seconds=stop_seconds)

        AcceptErrors(asyncio.get_running_loop())
        # What Starlette imports at its first stream: some 50 ms, in which the loop would stand still, and files that
        # could not be opened once strangers have taken all descriptors.
        import_module("anyio._backends._asyncio")

        def announce() -> None:
            self._listening.listen(BACKLOG)  # the loop has set it to `ACCEPTED_AT_ONCE`
            self.core.start()
            if self._grpc is not None:
                self._grpc.start()
            grpc = {} if self.grpc_address is None else {"grpc": self.grpc_address}
            log.info(events.SERVER_STARTED, url=self.url, max_connections=connections.most, **grpc)
            started()

        def end_waiting() -> None:
            self.core.stop()
            self._extensions.stop()
            app.stop()

        server = self._http = HttpServer(config, started=announce, stopping=end_waiting, renewed=app.end_sessions)
        if self._should_stop:
            server.stop()
        spare = asyncio.ensure_future(SpareMemory(connections.in_flight).run())
        try:
            await server.serve(sockets=[self._listening])
        finally:
            spare.cancel()
            if self._grpc is not None:
                await self._grpc.stop()
            self.core.close()
            self._listening.close()
            if self._options.socket_path is not None and self._kept is None:
                self._options.socket_path.unlink(missing_ok=True)
            log.info(events.SERVER_STOPPED, url=self.url)

    def renew(self, options: ServeOptions) -> None:
        """Take up the tokens and the certificates of these options; the rest stays. Any thread may call this.

        Raises `InvalidSettingError`: then nothing has changed.
        """
        renewed = with_credentials(self._options, options)
        check_options(renewed)
        renew_certificate(self._certificate, renewed)
        if self._grpc is not None and renewed.grpc is not None:
            self._grpc.renew(renewed.grpc)
        self._options = renewed
        self.core.renew_tokens(renewed.tokens)
        if self._http is not None:
            self._http.forget_callers()

    def keep_listening(self) -> int:
        """Return a descriptor that keeps the address bound after the server has stopped: callers wait meanwhile."""
        self._kept = os.dup(self._listening.fileno())
        return self._kept

    def stop(self) -> None:
        """Begin to stop; any thread, or a signal handler, may call this."""
        self._should_stop = True
        if self._http is not None:
            self._http.stop()


async def _feed_watchdog(manager: ServiceManager) -> None:
    """Feed systemd's watchdog from the server's loop, so that a loop that is stuck does not."""
    if manager.watchdog_seconds is None:
        return
    while True:
        manager.alive()
        await asyncio.sleep(manager.watchdog_seconds)


def freeze_loaded_objects() -> None:
    """Spare the garbage collector what a program has loaded: looking through it stops the loop for some 80 ms.

    For a program that does nothing but serve, as nothing that is there now is ever collected. What the largest body is
    read into is then looked through once or twice, not a hundred times: see `COLLECTED_OBJECTS`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_OBJECTS)


def serve(
    store: Store,
    options: ServeOptions,
    *,
    log: EventLog | None = None,
    started: Callable[[str], None] = lambda _url: None,
    reload: Callable[[], ReloadedOptions | None] = lambda: None,
) -> None:
    """Serve on the main thread until SIGTERM or SIGINT. Raises `InvalidSettingError`, `ListenError`.

    Args:
        started: called with the URL once the server answers.
        reload: reads the settings again, at SIGHUP; returns None where they can't be used, and has said so.
    """
    keep_apart()
    terminal = OwnTerminal()
    server = QueueServer(store, options, log=log)
    manager = ServiceManager(os.environ)

    def stop() -> None:
        manager.stopping()
        server.stop()

    def announce() -> None:
        freeze_loaded_objects()
        manager.ready(f"serving at {server.url}")
        started(server.url)

    def hang_up() -> None:
        if terminal.is_gone():
            stop()
            return
        found = reload()
        if found is not None:
            server.renew(found.options)
            get_logger().info(events.SERVER_RELOADED, next_start=list(found.next_start))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, hang_up)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        watchdog = asyncio.create_task(_feed_watchdog(manager))
        try:
            await server.run(started=announce)
        finally:
            watchdog.cancel()

    asyncio.run(main())


class ServerThread:
    """A server in a thread of its own, for programs that have another main loop."""

    def __init__(
        self,
        store: Store,
        options: ServeOptions,
        *,
        clock: Clock | None = None,
        log: EventLog | None = None,
        extensions: Extensions = NO_EXTENSIONS,
    ) -> None:
        """Bind at once. Raises `InvalidSettingError`, `ListenError`."""
        self._server = QueueServer(store, options, clock=clock, log=log, extensions=extensions)
        self._thread = threading.Thread(target=self._work, name="towline-server", daemon=True)
        self._started = threading.Event()
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._server.url

    @property
    def grpc_address(self) -> str | None:
        """`host:port` of the gRPC listener, where there is one."""
        return self._server.grpc_address

    @property
    def core(self) -> ServerState:
        """The state of the server; it belongs to the server's thread."""
        return self._server.core

    def start(self) -> str:
        """Serve; returns the URL once the server answers. Raises the error that kept it from starting."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self.url

    def renew(self, options: ServeOptions) -> None:
        """See `QueueServer.renew`."""
        self._server.renew(options)

    def hand_over(self) -> int:
        """Stop, but keep the address bound through the descriptor that is returned."""
        kept = self._server.keep_listening()
        self.stop()
        return kept

    def stop(self) -> None:
        """Answer the requests under way, then end; within a second or so."""
        self._server.stop()
        self._thread.join()

    def _work(self) -> None:
        try:
            asyncio.run(self._server.run(started=self._started.set))
        except BaseException as error:  # noqa: BLE001 - raised by `start`
            self._failure = error
        finally:
            self._started.set()
