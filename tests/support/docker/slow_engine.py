"""An engine that answers each call late, as one behind a slow connection: a proxy in front of a private one."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from queue_core.stats import Samples
from queue_core.stores.memory.store import MemoryStore

CALL_SECONDS = 0.3
PIECE_BYTES = 64 << 10


class SlowEngine:
    """Hands each request on after `seconds`; answers and streams pass at once. `calls` counts the requests."""

    def __init__(self, target: Path, path: Path, *, seconds: float) -> None:
        self.url = f"unix://{path}"
        self.calls = 0
        self._target = target
        self._seconds = seconds
        self._over = threading.Event()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen(256)

    def start(self) -> None:
        """Accept connections."""
        threading.Thread(target=self._accept, name="slow-engine", daemon=True).start()

    def stop(self) -> None:
        """Accept no more, and let the open ones end."""
        self._over.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), name="slow-engine", daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as server, suppress(OSError):
            server.connect(str(self._target))
            is_new = True  # a client's first bytes since the last answer begin a request
            while not self._over.is_set():
                for end in select.select([client, server], [], [], 1.0)[0]:
                    data = end.recv(PIECE_BYTES)
                    if not data:
                        return
                    if end is client and is_new:
                        self.calls += 1
                        self._over.wait(self._seconds)
                    is_new = end is server
                    (server if end is client else client).sendall(data)


class ObservedStore(MemoryStore):
    """A store that notes each look that a supervisor takes at a queue: every decision is made on one."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[float] = []

    def samples(self, queue: str, *, after: int, limit: int) -> Samples:
        self.looks.append(self.clock.monotonic())
        return super().samples(queue, after=after, limit=limit)

    def longest_gap_seconds(self) -> float:
        """Return the longest time between two looks."""
        return max((later - look for look, later in pairwise(self.looks)), default=0.0)


@contextmanager
def slow_engine(target: Path, folder: Path, *, seconds: float = CALL_SECONDS) -> Iterator[SlowEngine]:
    """Run a slow engine in front of the engine of this socket; `folder` is short, and takes its own."""
    engine = SlowEngine(target, folder / "slow.sock", seconds=seconds)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
