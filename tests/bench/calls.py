"""Count the function calls, of Python and of C, of an add, an exchange and a lease: of the library, and of a server.

`python3 -m tests.bench.calls` prints them for the library, whose folder has just changed and has not, and for a server
without tokens and with, over HTTP; `--names` also each function. Counted, and not timed: no other program changes the
figures. The server runs in a thread of this process over SQLite, and one client on one connection sends plain tasks.
"""

import argparse
import base64
import gc
import http.client
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from pydantic_core import from_json, to_json

from queue_core.client.connect import open_queues
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService
from queue_core.verbs import Deletion
from queue_core.verbs.roles import Role

QUEUE = "work"
TOKEN = "the-token-of-a-worker-that-is-counted"
WARM_UP = 50
COUNTED = 400
PAYLOAD = base64.b64encode(b"x" * 100).decode()


@dataclass(slots=True)
class CallCounts:
    """The calls of the profiled threads while `is_on`, by kind and name."""

    is_on: bool = False
    python: Counter[str] = field(default_factory=Counter)
    native: Counter[str] = field(default_factory=Counter)

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count one event of `threading.setprofile`."""
        if not self.is_on:
            return
        if event == "call":
            folders = Path(frame.f_code.co_filename).parts[-2:]
            self.python[f"{'/'.join(folders)} {frame.f_code.co_qualname}"] += 1
        elif event == "c_call":
            self.native[getattr(argument, "__qualname__", str(argument))] += 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is called in this block, from 0 on."""
        self.python.clear()
        self.native.clear()
        gc.collect()
        gc.disable()  # what a collection calls is no part of a request
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False
            gc.enable()


@dataclass(frozen=True, slots=True)
class RequestCalls:
    """The calls of one request, on average."""

    python: float
    native: float
    names: dict[str, float] = field(repr=False)


class CountedClient:
    """A client with one connection, whose requests have all one head but for their keys."""

    def __init__(self, url: str, *, token: str | None) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"))
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._numbers = count(1)
        self._lease = ""

    def post(self, verb: str, body: dict[str, object]) -> dict[str, Any]:
        """Call a verb of the queue."""
        headers = {**self._headers, "idempotency-key": f"counted/{next(self._numbers)}/0"}
        self._connection.request("POST", f"/v1/queues/{QUEUE}/{verb}", to_json(body), headers)
        response = self._connection.getresponse()
        answer: dict[str, Any] = from_json(response.read())
        assert response.status == 200, answer
        return answer

    def add(self, tasks: int = 1) -> None:
        """Add plain tasks."""
        self.post("add", {"tasks": [{"payload": PAYLOAD, "tag": "t"}] * tasks})

    def lease(self) -> None:
        """Lease the first task."""
        self._lease = self.post("lease", {"count": 1, "worker": "w", "seconds": 600})["leases"][0]["token"]

    def exchange(self) -> None:
        """Delete the leased task and lease the next."""
        body = {"deletions": [{"token": self._lease}], "count": 1, "worker": "w", "seconds": 600, "wait_seconds": 10}
        self._lease = self.post("exchange", body)["leases"][0]["token"]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def count_requests(*, with_tokens: bool, counted: int = COUNTED) -> dict[str, RequestCalls]:
    """Return the calls that a server makes for one add, one exchange and one lease."""
    counts = CallCounts()
    tokens = (AccessToken(Role.WORKER, TOKEN), AccessToken(Role.ADMIN, f"{TOKEN}-not")) if with_tokens else ()
    with tempfile.TemporaryDirectory() as folder, closing(SqliteStore(Path(folder, "q.db"))) as store:
        QueueService(store).run(lambda work: work.put_queue(QueueSpec(QUEUE)))
        threading.setprofile(counts.profile)
        server = ServerThread(store, ServeOptions(port=0, tokens=tokens))
        url = server.start()
        threading.setprofile(None)
        try:
            with closing(CountedClient(url, token=TOKEN if with_tokens else None)) as client:
                client.add(1000)
                client.lease()
                os.utime(folder, (0, 0))  # a folder that changed a moment ago costs some calls more
                return {
                    "add": _counted(counts, client.add, counted),
                    "exchange": _counted(counts, client.exchange, counted),
                    "lease": _counted(counts, client.lease, counted),
                }
        finally:
            server.stop()


def count_library(*, folder: Literal["changed", "unchanged"], counted: int = COUNTED) -> dict[str, RequestCalls]:
    """Return the calls of one add, one exchange and one lease in a program that opened the store itself.

    Args:
        folder: `changed`: the store's has just changed, so that its files are compared with each commit.
    """
    counts = CallCounts()
    with tempfile.TemporaryDirectory() as path, closing(open_queues(f"sqlite:///{path}/q.db")) as queues:
        queues.put_queue(QueueSpec(QUEUE))
        queue = queues.queue(QUEUE)
        queue.add([NewTask(b"x" * 100, tag="t")] * 1000)
        held = queue.lease(worker="w", seconds=600)

        def add() -> None:
            queue.add(NewTask(b"x" * 100, tag="t"))

        def lease() -> None:
            queue.lease(worker="w", seconds=600)

        def exchange() -> None:
            held[:], _ = queue.exchange([Deletion(held[0].token)], worker="w", seconds=600, wait_seconds=10)

        changed_at = 1 << 32 if folder == "changed" else 0  # far ahead it stays young
        os.utime(path, (changed_at, changed_at))
        sys.setprofile(counts.profile)
        try:
            return {
                "add": _counted(counts, add, counted),
                "exchange": _counted(counts, exchange, counted),
                "lease": _counted(counts, lease, counted),
            }
        finally:
            sys.setprofile(None)


def _counted(counts: CallCounts, call: Callable[[], None], number: int) -> RequestCalls:
    for _ in range(WARM_UP):
        call()
    with counts.counting():
        for _ in range(number):
            call()
    names = {name: calls / number for name, calls in (counts.python + counts.native).items()}
    return RequestCalls(counts.python.total() / number, counts.native.total() / number, names)


def main() -> None:
    """Print the calls of each verb."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.calls", description=__doc__)
    parser.add_argument("--names", action="store_true", help="also how often each function is called")
    shows_names = parser.parse_args().names
    counted = {
        "library, changed folder": count_library(folder="changed"),
        "library": count_library(folder="unchanged"),
        "server without tokens": count_requests(with_tokens=False),
        "server with tokens": count_requests(with_tokens=True),
    }
    for where, verbs in counted.items():
        for verb, calls in verbs.items():
            print(f"{verb:8}  {where:23}  {calls.python:6.1f} Python  {calls.native:6.1f} C")
            if shows_names:
                for name, times in sorted(calls.names.items()):
                    print(f"    {times:6.2f}  {name}")


if __name__ == "__main__":
    main()
