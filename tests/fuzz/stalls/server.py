"""A server with a supervisor, a token for each role, and a probe in its loop; and requests to it, byte by byte."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from tests.fuzz.stalls.probe import WITH_MEMORY
from tests.support.servers import read_reply, request

ROLES = ("viewer", "producer", "worker", "operator", "admin")
TOKENS = {role: f"{role}-0123456789abcdef" for role in ROLES}
POOL = "pool"
MIB = 1 << 20
SETTINGS = """
store: sqlite:///towline.db
server: {{listen: "127.0.0.1:{port}", grpc: "127.0.0.1:{grpc_port}", tokens: [{tokens}]}}
console: {{writes: on}}
queues: {{work: {{}}}}
pools:
  pool: {{queue: work, command: [sleep, "1000"], slo: 60s, workers: {{min: 0, max: 1}}}}
"""
REPLY_SECONDS = 20.0
STREAM_SECONDS = 0.3
"""An answer that goes on is left after so long."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The longest pause since the question before, where the loop was then, and the memory of the process.

    Args:
        own_seconds: processor time of the loop's thread, of which `collecting_seconds` were the garbage collector's.
        lock_seconds: other threads of Python's ran meanwhile, most of all `beside`.
        unlocked_seconds: threads that know no Python ran meanwhile.
        waited_seconds: nobody of this process ran: the loop waited for the kernel.
        late_seconds: all in all, with what a busy machine took away.
    """

    own_seconds: float = 0.0
    lock_seconds: float = 0.0
    waited_seconds: float = 0.0
    late_seconds: float = 0.0
    collecting_seconds: float = 0.0
    where: str = ""
    beside: str = ""
    unlocked_seconds: float = 0.0
    resident_bytes: int = 0
    malloc_bytes: int = 0
    free_bytes: int = 0
    blocks: int = 0

    @property
    def held_seconds(self) -> float:
        """The time for which the loop worked, or another thread may have kept the interpreter from it."""
        return self.own_seconds + self.lock_seconds

    @property
    def memory(self) -> str:
        """The memory in words."""
        return (
            f"{self.resident_bytes / MIB:.0f} MiB resident; malloc {self.malloc_bytes / MIB:.0f} MiB in use, "
            f"{self.free_bytes / MIB:.0f} free; {self.blocks:,} blocks of Python's"
        )


@dataclass(frozen=True, slots=True)
class ProbedServer:
    """A server in a process of its own."""

    port: int
    grpc_port: int
    process: subprocess.Popen[bytes]
    asked: int
    told: int
    log: Path

    def sized(self) -> Pause:
        """Ask the probe for the memory, too."""
        return self.pause(WITH_MEMORY)

    def pause(self, question: bytes = b"?") -> Pause:
        """Ask the probe; the loop's next tick is waited for, so that a pause that still goes on counts."""
        time.sleep(0.005)
        os.write(self.asked, question)
        data = b""
        while not data.endswith(b"\n"):
            more = os.read(self.told, 65_536)
            assert more, f"the server ended: {self.process.wait(30)} {self.log.read_text()[-2_000:]}"
            data += more
        found = json.loads(data)
        return Pause(**found, resident_bytes=psutil.Process(self.process.pid).memory_info().rss)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Sequence[tuple[str, str]] = (),
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request, and return status, headers and body of its answer; status 0: it was cut, or went on as a
        stream."""
        whole = request(method, path, body, headers=headers)
        with socket.create_connection(("127.0.0.1", self.port), timeout=REPLY_SECONDS) as connection:
            with suppress(ConnectionError):
                connection.sendall(whole)
            if "live" in path or "follow" in path:
                connection.settimeout(STREAM_SECONDS)
            try:
                reply = read_reply(connection)
            except (TimeoutError, ConnectionError, AssertionError, ValueError, IndexError):
                return 0, {}, b""
        return reply.status, reply.headers, reply.body

    def send(self, data: bytes, *, port: int) -> None:
        """Send bytes to a port, and read until it has no more to say."""
        with socket.create_connection(("127.0.0.1", port), timeout=REPLY_SECONDS) as connection:
            reader = threading.Thread(target=_read_all, args=(connection,))
            reader.start()
            with suppress(OSError):
                connection.sendall(data)
            reader.join(STREAM_SECONDS)
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            reader.join()

    def call(self, path: str, message: bytes, metadata: Sequence[tuple[str, str]]) -> None:
        """Call a method over gRPC; its answer may be any."""
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel, suppress(grpc.RpcError):
            channel.unary_unary(path)(message, metadata=metadata, timeout=REPLY_SECONDS)

    def session(self, role: str) -> str:
        """Log in at the console; returns the cookie."""
        form = f"token={TOKENS[role]}".encode()
        kind = ("content-type", "application/x-www-form-urlencoded")
        _, headers, _ = self.ask("POST", "/console/login", form, headers=[kind, ("sec-fetch-site", "same-origin")])
        return headers["set-cookie"].partition(";")[0]


def _read_all(connection: socket.socket) -> None:
    with suppress(OSError):
        while connection.recv(65_536):
            pass


@contextmanager
def a_probed_server() -> Iterator[ProbedServer]:
    """Run `towline up` with a probe."""
    with tempfile.TemporaryDirectory() as name, socket.socket() as free, socket.socket() as other:
        folder = Path(name)
        for one in (free, other):
            one.bind(("127.0.0.1", 0))
        port, grpc_port = free.getsockname()[1], other.getsockname()[1]
        free.close()
        other.close()
        for role, secret in TOKENS.items():
            (folder / f"{role}.tok").write_text(secret)
        tokens = ", ".join(f"{{role: {role}, token_file: {role}.tok}}" for role in ROLES)
        (folder / "towline.yaml").write_text(SETTINGS.format(port=port, grpc_port=grpc_port, tokens=tokens))
        asked, write_asked = os.pipe()
        read_told, told = os.pipe()
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.stalls.probe", str(asked), str(told), "up", "--log-level", "error"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
                pass_fds=(asked, told),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        os.close(asked)
        os.close(told)
        server = ProbedServer(port, grpc_port, process, write_asked, read_told, log)
        try:
            _await_start(server)
            yield server
        finally:
            process.terminate()
            process.wait(60)
            os.close(write_asked)
            os.close(read_told)


def _await_start(server: ProbedServer) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        assert server.process.poll() is None, server.log.read_text()
        with suppress(OSError):
            if server.ask("GET", "/readyz")[0] == 200:
                return
        time.sleep(0.1)
    raise AssertionError(server.log.read_text())
