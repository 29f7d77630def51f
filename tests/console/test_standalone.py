"""The console apart from its server: over another server's API, over a store, and on a supervisor's own listener."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.demo.runner import free_address, serve_console
from orchestrator.demo.script import settings_text
from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from orchestrator.state.directory import StateDir
from queue_core.cli.standalone_console import Announced, ApiSource, OfServer, OfStore, StandaloneConsole
from queue_core.console.api import ApiReply, Query, SplitApi
from queue_core.console.app import PersonFinder
from queue_core.console.logins import CODE_SECONDS, OneTimeLogins
from queue_core.errors import InvalidSettingError
from queue_core.server.base.options import AccessToken, ProxyLogin, ServeOptions
from queue_core.server.console.proxy import role_login
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs.roles import Role
from queue_core.verbs.wire import Json
from tests.console.visits import Visitor
from tests.support.commands import run_program
from tests.support.fleet.fleet_views import a_heartbeat
from tests.support.servers import QUEUE, a_server

VIEWER = AccessToken(Role.VIEWER, "viewer-secret-0123456789")
OPERATOR = AccessToken(Role.OPERATOR, "operator-secret-0123456789", "ops@example.com")


@contextmanager
def alone(
    source: ApiSource, *, writes: bool = True, token: str | None = None, proxy: PersonFinder | None = None
) -> Iterator[tuple[Visitor, Announced]]:
    """Run a console in a thread; yield a visitor and what was announced."""
    console = StandaloneConsole(source, ServeOptions(port=0), writes=writes, token=token, proxy=proxy)
    announced: list[Announced] = []
    is_ready = threading.Event()

    def ready(found: Announced) -> None:
        announced.append(found)
        is_ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(console.run(ready, handles_signals=False)))
    thread.start()
    assert is_ready.wait(20)
    try:
        yield Visitor(int(console.url.rpartition(":")[2])), announced[0]
    finally:
        console.stop()
        thread.join()


def test_over_a_server_with_tokens_people_log_in_with_theirs_and_have_their_role() -> None:
    with a_server(options=ServeOptions(tokens=(VIEWER, OPERATOR))) as server:
        server.queue(token=None)
        with alone(OfServer(server.url)) as (visitor, announced):
            assert announced.login_address is None
            assert visitor.get("queues").path == "/console/login"
            assert "Unknown token" in visitor.post("login", {"token": "guessed-0123456789"}).text
            assert QUEUE in visitor.post("login", {"token": VIEWER.secret, "back": "queues"}).text
            refused = visitor.post(f"queues/{QUEUE}/pause")
            assert (refused.status, "needs a token of one of these roles" in refused.text) == (403, True)
            other = Visitor(visitor.port)
            other.post("login", {"token": OPERATOR.secret})
            assert "is paused" in other.post(f"queues/{QUEUE}/pause", {"back": f"queues/{QUEUE}"}).text
            assert "paused" in visitor.get(f"queues/{QUEUE}").text


PROXY = ProxyLogin("x-forwarded-user", ("127.0.0.1",), Role.VIEWER, {"ops": Role.OPERATOR, "boss": Role.ADMIN})


def person(visitor: Visitor, name: str) -> Visitor:
    """Return somebody whom the proxy names."""
    return Visitor(visitor.port, headers={"x-forwarded-user": name})


def test_people_whom_a_proxy_names_get_the_token_of_their_role() -> None:
    with (
        a_server(options=ServeOptions(tokens=(VIEWER, OPERATOR))) as server,
        alone(OfServer(server.url), proxy=role_login(PROXY, (VIEWER, OPERATOR))) as (visitor, _),
    ):
        assert QUEUE in person(visitor, "anybody").get("queues").text
        assert person(visitor, "anybody").post(f"queues/{QUEUE}/pause").status == 403
        assert "is paused" in person(visitor, "ops").post(f"queues/{QUEUE}/pause", {"back": f"queues/{QUEUE}"}).text
        assert person(visitor, "boss").get("queues").path == "/console/login", "no token is known of that role"
        assert visitor.get("queues").path == "/console/login"


def test_a_supervisor_s_own_listener_knows_people_whom_a_proxy_names(tmp_path: Path) -> None:
    heartbeat, clock = a_heartbeat()
    files = StateDir(tmp_path)
    with a_server(options=ServeOptions(tokens=(VIEWER, OPERATOR))) as server, files.locked():
        options = ServeOptions(port=0, tokens=(VIEWER, OPERATOR), proxy=PROXY, console_writes=True)
        listener = FleetListener(options, fleet_paths(heartbeat, clock, files=files), queues=server.url)
        listener.start()
        try:
            visitor = Visitor(int(listener.url.rpartition(":")[2]))
            assert QUEUE in person(visitor, "anybody").get("queues").text
            refused = person(visitor, "anybody").post("drain")
            assert (refused.status, "of role viewer" in refused.text) == (403, True)
            with capture_logs() as logged:
                assert person(visitor, "ops").post("drain", {"back": "queues"}).status == 200
            assert [one["by"] for one in logged if one["event"] == "operator.acted"] == ["ops"]
            assert person(visitor, "ops").post(f"queues/{QUEUE}/pause", {"back": "queues"}).status == 200
            assert "Resume" in person(visitor, "ops").get(f"queues/{QUEUE}").text
            assert person(visitor, "boss").get("queues").path == "/console/login"
            assert visitor.get("queues").path == "/console/login"
        finally:
            listener.stop()


def test_a_link_logs_one_person_in_once() -> None:
    with (
        a_server(options=ServeOptions(tokens=(VIEWER,))) as server,
        alone(OfServer(server.url), token=VIEWER.secret) as (visitor, announced),
    ):
        assert announced.login_address is not None
        below = announced.login_address.removeprefix(announced.address)
        assert VIEWER.secret not in below
        assert "viewer" in visitor.get(below).text
        late = Visitor(visitor.port).get(below)
        assert (late.status, "was already used" in late.text) == (401, True)


def test_a_link_ends_after_five_minutes() -> None:
    links = OneTimeLogins()
    code = links.new("token", now_seconds=1000.0)
    assert links.take(code, now_seconds=1000.0 + CODE_SECONDS) is None
    code = links.new("token", now_seconds=1000.0)
    assert links.take(code, now_seconds=999.0 + CODE_SECONDS) == "token"
    assert links.take(code, now_seconds=1001.0) is None


def test_over_a_server_without_tokens_nobody_logs_in_and_a_token_makes_no_link() -> None:
    with (
        a_server() as server,
        alone(OfServer(server.url), writes=False, token="unused-0123456789") as (visitor, announced),
    ):
        assert announced.login_address is None
        assert "read-only" in visitor.get("queues").text
        refused = visitor.post(f"queues/{QUEUE}/pause")
        assert (refused.status, "read-only. Set" in refused.text) == (403, True)


def test_over_a_store_its_queues_are_shown_and_changed() -> None:
    store = MemoryStore()
    QueueService(store).run(lambda work: work.put_queue(QueueSpec(QUEUE)))
    QueueService(store).run(lambda work: work.add(QUEUE, [NewTask(b'{"cat": 1}', name="one")]))
    with alone(OfStore(store)) as (visitor, announced):
        assert announced.login_address is None
        assert "This server hosts the queues only. No supervisor is running" in visitor.get("").text
        assert '"cat": 1' in visitor.get(f"queues/{QUEUE}/tasks/one").text
        assert "deleted." in visitor.post(f"queues/{QUEUE}/tasks/one/delete", {"back": f"queues/{QUEUE}"}).text
        missing = visitor.get(f"queues/{QUEUE}/tasks/one")
        assert missing.status == 404


def test_a_console_for_the_network_over_a_server_without_tokens_is_refused() -> None:
    with a_server() as server:
        console = StandaloneConsole(OfServer(server.url), ServeOptions("0.0.0.0", 0), writes=False)
        with pytest.raises(InvalidSettingError, match="opens the console to the network"):
            asyncio.run(console.run(lambda _found: None, handles_signals=False))


def test_a_foreign_name_of_the_host_is_refused() -> None:
    with a_server() as server, alone(OfServer(server.url)) as (visitor, _):
        visitor.host = "evil.example"
        assert visitor.get("").status == 421


def test_a_server_that_does_not_answer_is_told() -> None:
    with alone(OfServer("http://127.0.0.1:9")) as (visitor, _):
        shown = visitor.get("queues")
        assert (shown.status, "can't reach http://127.0.0.1:9" in shown.text) == (503, True)


@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_supervisors_listener_has_the_pages_of_its_pools_and_of_the_servers_queues(has_tokens: bool) -> None:
    tokens = (VIEWER, OPERATOR)
    with a_server(options=ServeOptions(tokens=tokens)) as server:
        extensions = fleet_paths(*a_heartbeat(), is_alone=True)
        own = ServeOptions(port=0, tokens=tokens if has_tokens else (), console_writes=True)
        listener = FleetListener(own, extensions, queues=server.url)
        listener.start()
        try:
            visitor = Visitor(int(listener.url.rpartition(":")[2]))
            assert visitor.get("").path == "/console/login"
            assert "viewer" in visitor.post("login", {"token": VIEWER.secret}).text
            assert QUEUE in visitor.get("queues").text
            assert visitor.post(f"queues/{QUEUE}/pause").status == 403
            assert visitor.once("GET", "/", headers={"accept": "text/html"}).headers["location"] == "console/"
        finally:
            listener.stop()


class Named:
    """An API that answers with its own name."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def call(
        self, method: str, path: str, body: Json | None = None, *, query: Query = (), token: str | None = None
    ) -> ApiReply:
        return ApiReply(200, {"of": self._name, "paths": {"/v1/queues": {}}})


@pytest.mark.parametrize(
    ("path", "of"),
    [
        ("/v1/pools/a%2Fb/why", "own"),
        ("/v1/pools", "own"),
        ("/v1/pools/a/b/why", "other"),
        ("/v1/queues", "other"),
        ("/v1/poolsx", "other"),
    ],
)
def test_a_call_goes_to_the_one_that_has_its_path(path: str, of: str) -> None:
    api = SplitApi(Named("own"), ["/v1/pools", "/v1/pools/{pool}/why"], Named("other"))
    assert asyncio.run(api.call("GET", path)).body["of"] == of
    document = asyncio.run(api.call("GET", "/openapi.json")).body["paths"]
    assert document == {"/v1/queues": {}, "/v1/pools": {}, "/v1/pools/{pool}/why": {}}


def test_the_command_names_what_is_wrong(tmp_path: Path) -> None:
    for arguments, said in (
        (("--listen", "7880"), "write host:port"),
        (("--store", "sqlite:///no.db"), "no such store"),
        (("--store", "memory:"), "would be empty"),
    ):
        told = run_program("console", *arguments, folder=tmp_path)
        assert told.code != 0
        assert said in told.err


def test_the_pages_of_a_demo_that_is_over_stay_open_until_it_is_ended(tmp_path: Path) -> None:
    listen, stop = free_address(), threading.Event()
    settings = settings_text(tmp_path, listen=listen, rest_seconds=0.1)
    (tmp_path / "towline.yaml").write_text(settings)
    seen: list[str] = []

    def look(address: str) -> None:
        visitor = Visitor(int(listen.rpartition(":")[2]))
        seen.extend((address, visitor.get("").text))
        stop.set()

    serve_console(tmp_path, listen, clock=SystemMonotonicClock(), stop=stop, announce=look)
    assert seen[0] == f"http://{listen}/console/"
    assert "Fleet" in seen[1]
    with pytest.raises(ConnectionRefusedError):
        Visitor(int(listen.rpartition(":")[2])).get("")
