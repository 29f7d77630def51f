"""A token goes to this machine, or to an address that its owner typed; a folder's settings file is nobody's word."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from queue_core.cli.failure import CommandError
from queue_core.cli.target import check_token_stays
from queue_core.process.own_addresses import is_of_this_machine
from tests.support.commands import run_program

TOKEN = "admin-0123456789abcdef"
AWAY = "192.0.2.7:7878"
ALIAS = "127.1"
"""A name that leads here, and that is not known to: the resolver takes it for 127.0.0.1."""


@pytest.mark.parametrize(
    ("url", "is_own"),
    [
        ("unix:///run/towline.sock", True),
        ("http://127.0.0.1:7878", True),
        ("https://localhost:7878", True),
        ("http://[::1]:7878", True),
        ("http://127.8.9.1:7878", True),
        (f"http://{AWAY}", False),
        ("http://192.0.2.7", False),
        ("http://[2001:db8::7]:7878", False),
        ("http://queue.example:7878", False),
        ("http://127.0.0.1.evil.example:7878", False),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1@evil.example:7878", False),
        ("http://evil.example#@127.0.0.1", False),
        ("http://224.0.0.1:7878", False),
        ("http://[:7878", False),
        ("http://", False),
    ],
)
def test_an_address_is_of_this_machine_or_not(url: str, is_own: bool) -> None:
    assert is_of_this_machine(url) is is_own


def test_a_token_that_would_leave_is_refused_with_what_to_do_about_it() -> None:
    check_token_stays(f"http://{AWAY}", origin="towline.yaml", token=None)
    check_token_stays("http://127.0.0.1:7878", origin="towline.yaml", token=TOKEN)
    with pytest.raises(CommandError) as refused:
        check_token_stays(f"http://{AWAY}", origin="towline.yaml", token=TOKEN)
    assert f"--url http://{AWAY}" in refused.value.fix
    assert TOKEN not in str(refused.value)


@contextmanager
def a_thief() -> Iterator[tuple[str, list[str]]]:
    """Serve at an address that is not known as this machine's own; yield it and the tokens that came there."""
    seen: list[str] = []

    class Thief(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("authorization", ""))
            self.send_response(404)
            self.end_headers()

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Thief)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{ALIAS}:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


COMMANDS = [
    pytest.param(("queues",), id="queues"),
    pytest.param(("add", "q", "x"), id="add"),
    pytest.param(("work", "tasks:app"), id="work"),
    pytest.param(("supervise",), id="supervise"),
    pytest.param(("console",), id="console"),
    pytest.param(("doctor",), id="doctor"),
    pytest.param(("top",), id="top"),
    pytest.param(("-f", "towline.yaml", "queues"), id="a file that was typed"),
]


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_sends_its_token_to_an_address_of_the_folder(words: tuple[str, ...], tmp_path: Path) -> None:
    if words[0] == "-f":
        words = (*words[2:], *words[:2])
    with a_thief() as (address, seen):
        tokens = "[{role: admin, token_file: admin.tok}]"
        text = f'store: sqlite:///q.db\nserver: {{listen: "{address}", tokens: {tokens}}}\nqueues: {{q: {{}}}}\n'
        (tmp_path / "admin.tok").write_text(TOKEN)
        (tmp_path / "towline.yaml").write_text(text)
        (tmp_path / "tasks.py").write_text("from queue_core import App\napp = App()\n")
        told = run_program(*words, folder=tmp_path, environment={"TOWLINE_TOKEN": TOKEN})
        assert told.code != 0
        assert f"Bearer {TOKEN}" not in seen
        named = run_program(
            "queues", "--url", f"http://{address}", folder=tmp_path, environment={"TOWLINE_TOKEN": TOKEN}
        )
        assert named.code != 0
        assert f"Bearer {TOKEN}" in seen, "it goes where its owner says"
