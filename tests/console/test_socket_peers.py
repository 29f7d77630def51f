"""A trusted proxy is known by the address of the socket's peer: no header says where a request comes from."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from queue_core.cli.standalone_console import Announced, OfServer, StandaloneConsole
from queue_core.server.base.options import AccessToken, ProxyLogin, ServeOptions
from queue_core.server.console.proxy import role_login
from queue_core.verbs.roles import Role
from tests.console.visits import Visitor
from tests.support.fleet.fleet_views import a_heartbeat
from tests.support.servers import QUEUE, a_server

ADMIN = AccessToken(Role.ADMIN, "admin-secret-0123456789")
ELSEWHERE = "192.0.2.7"
PROXY = ProxyLogin("x-forwarded-user", (ELSEWHERE, "unix"), Role.ADMIN)
OPTIONS = ServeOptions(port=0, tokens=(ADMIN,), proxy=PROXY, console_writes=True)


@contextmanager
def of_server() -> Iterator[int]:
    with a_server(options=OPTIONS) as server:
        yield server.port


@contextmanager
def of_supervisor() -> Iterator[int]:
    with a_server(options=ServeOptions(tokens=(ADMIN,))) as server:
        listener = FleetListener(OPTIONS, fleet_paths(*a_heartbeat(), is_alone=True), queues=server.url)
        url = listener.start()
        try:
            yield int(url.rpartition(":")[2])
        finally:
            listener.stop()


@contextmanager
def of_console() -> Iterator[int]:
    with a_server(options=ServeOptions(tokens=(ADMIN,))) as server:
        found = role_login(PROXY, (ADMIN,))
        console = StandaloneConsole(OfServer(server.url), ServeOptions(port=0), writes=True, proxy=found)
        is_ready = threading.Event()

        def ready(_announced: Announced) -> None:
            is_ready.set()

        thread = threading.Thread(target=lambda: asyncio.run(console.run(ready, handles_signals=False)))
        thread.start()
        assert is_ready.wait(20)
        try:
            yield int(console.url.rpartition(":")[2])
        finally:
            console.stop()
            thread.join()


@pytest.mark.parametrize("listener", [of_server, of_supervisor, of_console])
@pytest.mark.parametrize("allowed", [None, "*", "127.0.0.1"])
@pytest.mark.parametrize(
    "header",
    [
        ("x-forwarded-for", ELSEWHERE),
        ("x-forwarded-for", f"{ELSEWHERE}, 127.0.0.1"),
        ("x-forwarded-for", ""),
        ("forwarded", f"for={ELSEWHERE}"),
        ("x-real-ip", ELSEWHERE),
    ],
)
def test_nobody_is_the_trusted_proxy_because_a_header_says_so(
    listener: Callable[[], AbstractContextManager[int]],
    allowed: str | None,
    header: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if allowed is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", allowed)
    with listener() as port:
        stranger = Visitor(port, headers={"x-forwarded-user": "ann", header[0]: header[1]})
        assert stranger.get("queues").path == "/console/login"
        assert stranger.post(f"queues/{QUEUE}/pause", {"back": "queues"}).path == "/console/login"
