"""A server that handlers in Pods record their work with, and ask how long to hold a task."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast


@dataclass(frozen=True, slots=True)
class Note:
    """A handler's record: `what` is "begin" or "end", `at` in seconds since the epoch."""

    what: str
    task: str
    worker: str
    at: float
    lease: int


@dataclass
class Recorder:
    """What handlers did, and what the test lets go of."""

    url: str
    _notes: list[Note] = field(default_factory=list)
    _let_go: set[str] = field(default_factory=set)

    def notes(self, what: str = "begin") -> list[Note]:
        """Return the records of one kind in order."""
        return [note for note in list(self._notes) if note.what == what]

    def let_go(self, name: str) -> None:
        """End the tasks that hold this name."""
        self._let_go.add(name)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    recorder: Recorder


class _Handler(BaseHTTPRequestHandler):
    @property
    def recorder(self) -> Recorder:
        return cast("_Server", self.server).recorder

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.recorder._notes.append(Note(**body))
        self._answer(204)

    def do_GET(self) -> None:
        self._answer(204 if self.path.rpartition("/")[2] in self.recorder._let_go else 404)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()


@contextmanager
def a_recorder(address: str) -> Iterator[Recorder]:
    """Run a recorder at an address that Pods reach."""
    server = _Server((address, 0), _Handler)
    server.recorder = Recorder(f"http://{address}:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.recorder
    finally:
        server.shutdown()
        server.server_close()
