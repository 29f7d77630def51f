"""Commands and servers: one that never answers, and addresses as people write them."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.client.http.transport import ResponseLostError, Transport, parse_address
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.server.base.options import options_of
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from tests.support.commands import Commands

SETTINGS = "queues: {thumbs: {max_leases: 5}}\n"
COMMANDS = (
    ("queues",),
    ("stats", "thumbs"),
    ("peek", "thumbs"),
    ("add", "thumbs", "x"),
    ("lease", "thumbs"),
    ("renew", "thumbs", "1.1"),
    ("release", "thumbs", "1.1"),
    ("delete", "thumbs", "1.1"),
    ("delete", "thumbs", "--named", "x"),
    ("purge", "thumbs", "--yes"),
    ("redrive", "thumbs"),
    ("pause", "thumbs"),
    ("resume", "thumbs"),
    ("events",),
    ("events", "--follow"),
    ("health",),
    ("health", "--part", "supervisor"),
    ("queues", "storage"),
    ("queues", "apply", "queue.yaml", "--dry-run"),
)
Handler = Callable[[socket.socket], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Handler], str]]:
    """Starts a listener that hands each connection to a function; its URL."""
    opened: list[socket.socket] = []

    def start(handler: Handler) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        opened.append(listening)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    opened.append(connection)
                    threading.Thread(target=handler, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for one in opened:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def never_answers(connection: socket.socket) -> None:
    """Reads all, says nothing."""
    with suppress(OSError):
        while connection.recv(65536):
            pass


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_command_tells_that_a_server_does_not_answer_and_for_how_long_it_waited(
    towline: Commands, serve: Callable[[Handler], str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    _shorten(monkeypatch, seconds=0.2)
    (towline.folder / "queue.yaml").write_text("queue: [{name: thumbs, mode: pull}]")
    url = serve(never_answers)
    told = towline(*arguments, "--url", url)
    assert told.code == 69
    assert url in told.err
    assert "0.2 s" in told.err


def _shorten(monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> None:
    """Calls of commands wait for so long instead of five seconds to thirty."""
    ask = Transport.request

    def asked(self: Transport, request: bytes, *, timeout_seconds: float, watches: bool = False) -> object:
        assert timeout_seconds <= 30.0
        return ask(self, request, timeout_seconds=seconds, watches=watches)

    monkeypatch.setattr(Transport, "request", asked)


@pytest.mark.parametrize(("repeat", "method"), [("safe", "GET"), ("safe", "POST"), ("keyed", "POST"), ("once", "POST")])
def test_a_silent_server_is_asked_as_often_as_the_caller_takes(
    serve: Callable[[Handler], str], repeat: str, method: str
) -> None:
    calls: list[int] = []

    def count(connection: socket.socket) -> None:
        calls.append(1)
        never_answers(connection)

    url = serve(count)
    retries = Retries(tries=5, first_pause_seconds=0.0, timeouts=2)
    with closing(HttpCaller(url, token=None, retries=retries, timeout_seconds=0.1)) as caller:
        with pytest.raises(StoreUnavailableError) as raised:
            caller.call(method, "/v1/x", None if method == "GET" else {}, repeat=repeat)  # type: ignore[arg-type]
        assert (type(raised.value) is OutcomeUnknownError) is (method != "GET")
    assert len(calls) == (1 if repeat == "once" else 2)
    assert url in str(raised.value)


def test_an_answer_that_comes_byte_by_byte_has_no_more_time_than_another(serve: Callable[[Handler], str]) -> None:
    def slow(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        pause = threading.Event()
        with suppress(OSError):
            while True:
                connection.sendall(b"x")
                pause.wait(0.05)

    transport = Transport(parse_address(serve(slow)))
    try:
        with pytest.raises(ResponseLostError, match=r"no response within 0\.3 s") as raised:
            transport.request(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", timeout_seconds=0.3)
        assert raised.value.is_timeout
    finally:
        transport.close()


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "told"),
    [
        ("http://127.0.0.1:7878", "has no http:// before it: write 127.0.0.1:7878"),
        ("https://127.0.0.1:443/", "has no https:// before it: write 127.0.0.1:443"),
        ("http://localhost", "write localhost:7878"),
        ("tcp://[::1]:80", "write [::1]:80"),
        ("unix:", "write the path of the socket"),
        ("unix://", "write the path of the socket"),
        ("127.0.0.1:7878/", "write host:port"),
        ("a b:1", "write host:port"),
        ("user@127.0.0.1:1", "write host:port"),
    ],
)
@pytest.mark.parametrize("place", ["server", "supervisor", "flag"])
def test_an_address_to_listen_on_is_refused_with_what_is_meant(
    towline: Commands, listen: str, told: str, place: str
) -> None:
    settings = SETTINGS if place == "flag" else f"{SETTINGS}{place}: {{listen: {listen!r}}}\n"
    (towline.folder / "towline.yaml").write_text(settings)
    arguments = ("up", "--listen", listen) if place == "flag" else ("check",)
    answer = towline(*arguments)
    assert answer.code == 78
    assert told in answer.err
    assert "other machines" not in answer.err
    if place != "flag":
        assert "towline.yaml:2:" in answer.err


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:7878", "[::1]:7878", "unix:q.sock", "unix:///run/q.sock"])
def test_an_address_as_it_should_be_is_right(towline: Commands, listen: str) -> None:
    (towline.folder / "towline.yaml").write_text(f"{SETTINGS}server: {{listen: {listen!r}}}\n")
    assert towline("check").code == 0


@pytest.mark.parametrize("form", ["unix:{path}", "unix://{path}"])
def test_a_sockets_url_is_taken_in_both_forms(towline: Commands, tmp_path: Path, form: str) -> None:
    path = tmp_path / "q.sock"
    thread = ServerThread(MemoryStore(), options_of(f"unix:{path}"))
    thread.start()
    try:
        url = form.format(path=path)
        assert towline("queues", "--url", url, "--json").json == []
        assert towline("health", "--url", url).code == 0
    finally:
        thread.stop()


def test_a_socket_that_is_not_there_is_told_by_its_path(towline: Commands) -> None:
    told = towline("queues", "--url", "unix:/nowhere/q.sock")
    assert told.code == 69
    assert "/nowhere/q.sock" in told.err
    assert "URL of a store" not in told.err


def test_health_asks_the_server_of_the_folder_also_where_a_variable_names_its_store(
    towline: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    (towline.folder / "towline.yaml").write_text(f"{SETTINGS}server: {{listen: 'unix:q.sock'}}\n")
    monkeypatch.setenv("TOWLINE_STORE", "sqlite:///other.db")
    assert "no server answers" in towline("health").err
    thread = ServerThread(MemoryStore(), options_of(f"unix:{towline.folder}/q.sock"))
    thread.start()
    try:
        assert towline("health").code == 0
        told = towline("health", "--store", "sqlite:///other.db")
        assert (told.code, "no server answers" in told.err) == (69, True)
    finally:
        thread.stop()
