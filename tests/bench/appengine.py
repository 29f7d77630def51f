"""Compare the App Engine endpoint's cost with the native API's, on one server: `python3 -m tests.bench.appengine`.

Calls run one after another on one connection, as prepared bytes, so that no client's work counts. Rounds alternate; the
figures are medians over all calls of a side. It measures and reports; it never fails.
"""

import argparse
import json
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from queue_core.client.http_calls import HttpQueues
from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import decode, encode
from queue_core.google.appengine.schema import ProtoRecord
from queue_core.task import QueueSpec
from tests.bench.alone.served import serving
from tests.bench.places import new_place
from tests.bench.site import BenchSite

QUEUE = "bench"
ROUNDS = 20
CALLS_PER_ROUND = 100
PAYLOAD = b"x" * 100
BATCH = 100
LEASE_SECONDS = 600.0

Answered = Callable[[bytes], int]
"""Returns the number of tasks in an answer's body, to check that both sides did the same."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way to make a call: its bytes, and how to check its answer."""

    request: bytes
    tasks: Answered


@dataclass(frozen=True, slots=True)
class EndpointComparison:
    """The same call through both endpoints."""

    name: str
    native: Side
    appengine: Side
    tasks: int


def _native(verb: str, body: object, tasks: Answered) -> Side:
    return Side(_http(f"/v1/queues/{QUEUE}/{verb}", "application/json", json.dumps(body).encode()), tasks)


def _appengine(method: str, payload: bytes, tasks: Answered) -> Side:
    call = ProtoRecord(service_name="taskqueue", method=method, request=payload, request_id="bench")
    return Side(_http("/rpc_http", "application/octet-stream", encode(messages.REMOTE_REQUEST, call)), tasks)


def _http(path: str, kind: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _answer(body: bytes) -> bytes:
    return decode(messages.REMOTE_RESPONSE, body).octets("response")


def comparisons() -> Sequence[EndpointComparison]:
    """Return the comparisons: one task and a hundred, added and leased."""
    found = []
    for count in (1, BATCH):
        name = "" if count == 1 else f" {count}"
        task = {"text": PAYLOAD.decode(), "tag": "t"}
        add = encode(
            messages.ADD_REQUEST,
            ProtoRecord(
                queue_name=QUEUE.encode(),
                task_name=b"",
                eta_usec=time.time_ns() // 1000,
                body=PAYLOAD,
                mode=1,
                tag=b"t",
            ),
        )
        lease = ProtoRecord(queue_name=QUEUE.encode(), lease_seconds=LEASE_SECONDS, max_tasks=count)
        found += [
            EndpointComparison(
                f"add{name}",
                _native("add", {"tasks": [task] * count}, lambda body: len(json.loads(body)["added"])),
                _appengine(
                    "BulkAdd",
                    encode(messages.BULK_ADD_REQUEST, {"add_request": [add] * count}),
                    lambda body: len(decode(messages.BULK_ADD_RESPONSE, _answer(body)).all_records("taskresult")),
                ),
                count,
            ),
            EndpointComparison(
                f"lease{name}",
                _native(
                    "lease", {"count": count, "seconds": LEASE_SECONDS}, lambda body: len(json.loads(body)["leases"])
                ),
                _appengine(
                    "QueryAndOwnTasks",
                    encode(messages.LEASE_REQUEST, lease),
                    lambda body: len(decode(messages.LEASE_RESPONSE, _answer(body)).all_records("task")),
                ),
                count,
            ),
        ]
    return found


class Connection:
    """A kept-alive connection; a call's time runs from the first byte sent to the last one read."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def seconds(self, side: Side, *, tasks: int) -> float:
        """Return the seconds of one call. Raises `AssertionError` when its answer is wrong."""
        began = time.perf_counter()
        self._socket.sendall(side.request)
        data = bytearray(self._socket.recv(1 << 20))
        head = data.index(b"\r\n\r\n") + 4
        size = int(data[:head].lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(data) < head + size:
            data += self._socket.recv(1 << 20)
        seconds = time.perf_counter() - began
        assert side.tasks(bytes(data[head:])) == tasks, bytes(data[:500])
        return seconds

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def measure(address: tuple[str, int], *, rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """Return both sides' medians in seconds, and their ratio, for every comparison."""
    connection = Connection(address)
    sample: dict[tuple[str, str], list[float]] = {}
    pairs = comparisons()
    for number in range(rounds):
        for pair in pairs:  # an add of both sides comes before the lease that takes its tasks
            count = calls if pair.tasks == 1 else max(1, calls // 10)
            sides = (("native", pair.native), ("appengine", pair.appengine))
            for side, how in sides if number % 2 else sides[::-1]:
                times = [connection.seconds(how, tasks=pair.tasks) for _ in range(count)]
                sample.setdefault((pair.name, side), []).extend(times)
    connection.close()
    return {pair.name: _figures(sample, pair.name) for pair in pairs}


def _figures(sample: dict[tuple[str, str], list[float]], name: str) -> dict[str, float]:
    native, appengine = (statistics.median(sample[name, side]) for side in ("native", "appengine"))
    return {"native": native, "appengine": appengine, "ratio": appengine / native}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--calls", type=int, default=CALLS_PER_ROUND, help="a round, a side")
    parser.add_argument("--durability", choices=("strict", "relaxed"), default="strict")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="towline-bench-") as folder:
        site = BenchSite(Path(folder))
        with new_place(site, "sqlite", durability=options.durability) as place, serving(site, place) as served:
            queues = HttpQueues(served.url)
            queues.put_queue(QueueSpec(QUEUE, lease_seconds=LEASE_SECONDS))
            queues.close()
            found = measure(served.address, rounds=options.rounds, calls=options.calls)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'':12}{'native':>12}{'rpc_http':>12}{'ratio':>8}")
    for name, figures in found.items():
        native, appengine = (f"{figures[side] * 1e6:.0f} us" for side in ("native", "appengine"))
        print(f"{name:12}{native:>12}{appengine:>12}{figures['ratio']:>8.2f}")


if __name__ == "__main__":
    main()
