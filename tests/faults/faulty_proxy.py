"""A TCP proxy before a server that resets, stalls, splits and swallows by a seeded plan.

What a client sends after its last answer counts as a request, and what comes back next as its answer. A held request
reaches the server late, even after its client has given up: as on a network that delivers a call after its repeat.
"""

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Final, Literal

Kind = Literal[
    "pass",
    "refuse",
    "cut request",
    "reset sent",
    "reset answered",
    "swallow",
    "swallow stalled",
    "stall request",
    "stall answer",
    "split",
]
"""The fates of a request and its answer:

refuse: the request is dropped, its client reset.
cut request: half of it arrives, then both ends are reset.
reset sent: it arrives, its client is reset at once.
reset answered: the client has the whole answer, then both ends are reset, before the server's machine is told of it.
swallow: it arrives, its answer is dropped and the connection closed.
swallow stalled: it arrives, its answer is dropped, and nothing more happens: the client has to give up.
stall request, stall answer: held for a while, then passed on.
split: both in pieces.
"""
RESETS: tuple[Kind, ...] = ("refuse", "cut request", "reset sent", "reset answered")
SWALLOWS: tuple[Kind, ...] = ("swallow", "swallow stalled")
STALLS: tuple[Kind, ...] = ("stall request", "stall answer")

USUAL_SHARES: Mapping[Kind, float] = {
    "refuse": 0.003,
    "cut request": 0.003,
    "reset sent": 0.003,
    "reset answered": 0.004,
    "swallow": 0.004,
    "swallow stalled": 0.002,
    "stall request": 0.004,
    "stall answer": 0.003,
    "split": 0.004,
}
"""About three of a hundred requests get a fault; a stall costs its client seconds."""
LONGEST_STALL_SECONDS = 3.0
PIECES = 5
PIECE_PAUSE_SECONDS = 0.002
BACKLOG = 256
LOOP_ROUNDS = 8
"""Rounds of the event loop, at most, from an accepted connection to one closed at both ends."""
LINGER_NOT: Final = struct.pack("ii", 1, 0)
END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Fate:
    """The fault of one request; `seconds` of a stall."""

    kind: Kind
    seconds: float = 0.0


PASS = Fate("pass")


class FatePlan:
    """Draws faults: each kind has its share of all requests; the rest pass."""

    def __init__(self, shares: Mapping[Kind, float], random: Random) -> None:
        self._kinds = list(shares)
        self._bounds = list(accumulate(shares.values()))
        self._random = random

    def __call__(self) -> Fate:
        """Return the next request's fault."""
        drawn = self._random.random()
        for kind, bound in zip(self._kinds, self._bounds, strict=True):
            if drawn < bound:
                return Fate(kind, self._random.uniform(0.05, LONGEST_STALL_SECONDS) if kind in STALLS else 0.0)
        return PASS


class FaultyProxy:
    """Listens on loopback before the server at `port`; every request gets the next fault of `draw`.

    Attributes:
        met: the number of requests by fault.
        late: requests that reached the server after their client had gone.
        severed: connections reset by `sever`.
    """

    def __init__(self, port: int, draw: Callable[[], Fate]) -> None:
        self.target = port
        self.draw = draw
        self.met: Counter[str] = Counter()
        self.links: set[_ProxiedConnection] = set()
        self.loop = asyncio.new_event_loop()
        self._listening: asyncio.Server | None = None
        self.port = 0
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._run(self._listen())

    def sever(self) -> None:
        """Reset every open connection; new ones are accepted."""
        self.loop.call_soon_threadsafe(self._sever)

    def refuse(self) -> None:
        """Stop listening until `accept`, so that no client can connect."""
        self._run(self._shut())

    def accept(self) -> None:
        """Listen again."""
        self._run(self._listen())

    def close(self) -> None:
        """Reset everything, deliver nothing more and end the thread; do nothing the second time."""
        if self.loop.is_closed():
            return
        self._run(self._finish())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self, work: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _listen(self) -> None:
        if self._listening is None:
            self._listening = await self.loop.create_server(
                lambda: _ClientEnd(_ProxiedConnection(self)), "127.0.0.1", self.port, backlog=BACKLOG
            )
            self.port = self._listening.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        if self._listening is not None:
            for listening in self._listening.sockets:
                self.loop.remove_reader(listening.fileno())
            for _ in range(LOOP_ROUNDS):  # a server closed meanwhile abandons a just accepted connection
                await asyncio.sleep(0)
            self._listening.close()
            self._listening = None

    async def _finish(self) -> None:
        await self._shut()
        for _ in range(LOOP_ROUNDS):
            await asyncio.sleep(0)
            for link in list(self.links):
                link.reset()
            connecting = asyncio.all_tasks() - {asyncio.current_task()}
            for task in connecting:
                task.cancel()
            await asyncio.gather(*connecting, return_exceptions=True)

    def _sever(self) -> None:
        for link in list(self.links):
            self.met["severed"] += 1
            link.reset()


class _ProxiedConnection:
    """A client's connection and its connection to the server. Used only on the loop."""

    def __init__(self, proxy: FaultyProxy) -> None:
        self.proxy = proxy
        self.loop = proxy.loop
        self.client: asyncio.Transport | None = None
        self.server: asyncio.Transport | None = None
        self._fate: Fate | None = None
        self._pending = bytearray()
        """Of a request, not sent yet: the server is not connected, or the request is held."""
        self._is_held = False
        self._held_answer: list[bytes] | None = None
        self._answer_left = 0
        self._is_resetting = False
        self.is_over = False

    # -- the client's side --

    async def connect(self) -> None:
        """Connect to the server; reset the client if that fails."""
        try:
            await self.loop.create_connection(lambda: _ServerEnd(self), "127.0.0.1", self.proxy.target)
        except OSError:
            self.reset()

    def client_sent(self, data: bytes) -> None:
        """Handle data from the client."""
        if self._fate is not None:
            if self._fate.kind not in ("refuse", "cut request"):
                self._send(data)
            return
        fate = self._fate = self.proxy.draw()
        if fate is PASS:
            self._send(data)
            return
        self.proxy.met[fate.kind] += 1
        if fate.kind == "refuse":
            self.reset()
        elif fate.kind == "cut request":
            self._send(data[: len(data) // 2])
            self.loop.call_later(PIECE_PAUSE_SECONDS, self.reset)
        elif fate.kind == "reset sent":
            self._send(data)
            self._reset_client()
        elif fate.kind == "stall request":
            self._is_held = True
            self._pending += data
            self.loop.call_later(fate.seconds, self._release)
        elif fate.kind == "split":
            self._is_held = True
            self._drip(data)
        else:
            self._send(data)

    def client_left(self) -> None:
        """Handle the client's close. A held request still goes to the server."""
        self.client = None
        is_delivering = self._is_held or (self._fate is not None and self._fate.kind == "reset sent")
        if not is_delivering and self.server is not None:
            self.server.close()
        if not is_delivering:
            self.end()

    def _send(self, data: bytes) -> None:
        if self._is_held or self.server is None:
            self._pending += data
        else:
            self.server.write(data)

    def _release(self) -> None:
        self._is_held = False
        if self.client is None and not self.is_over:
            self.proxy.met["late"] += 1
        self.flush()

    def flush(self) -> None:
        """Send what waited for the connection, or for its time."""
        if self.server is not None and self._pending and not self._is_held:
            self.server.write(bytes(self._pending))
            self._pending.clear()

    def _drip(self, data: bytes) -> None:
        """Send a request piece by piece; `_pending` is the rest."""
        size = max(1, len(data) // PIECES)
        piece, rest = data[:size], data[size:]
        if self.server is not None:
            self.server.write(piece)
        else:
            rest = data
        if rest and not self.is_over:
            self.loop.call_later(PIECE_PAUSE_SECONDS, self._drip, rest)
        else:
            self._release()

    # -- the server's side --

    def server_sent(self, data: bytes) -> None:
        """Handle data from the server."""
        fate = self._fate or PASS
        if fate.kind == "swallow":
            self.reset(client="close")
        elif fate.kind == "reset sent" or self.client is None:
            self.end()
        elif fate.kind == "swallow stalled":
            return
        elif fate.kind == "reset answered":
            self._deliver_whole(data)
        elif fate.kind == "stall answer":
            if self._held_answer is None:
                self._held_answer = []
                self.loop.call_later(fate.seconds, self._release_answer)
            self._held_answer.append(data)
        elif fate.kind == "split" and not self._is_held:
            self._held_answer = [data] if self._held_answer is None else [*self._held_answer, data]
            if len(self._held_answer) == 1:
                self.loop.call_later(PIECE_PAUSE_SECONDS, self._drip_answer)
        else:
            self.client.write(data)
            self._fate = None

    def server_left(self) -> None:
        """Handle the server's close or reset."""
        self.server = None
        if self._is_resetting:
            return
        if self._held_answer is None or self.client is None:
            self.end()

    def _deliver_whole(self, data: bytes) -> None:
        """Forward an answer; once it is complete, reset both ends."""
        assert self.client is not None
        if self._answer_left == 0:
            self._answer_left = answer_bytes(data)
        self._answer_left -= len(data)
        self.client.write(data)
        if self._answer_left <= 0:
            self._is_resetting = True
            self._reset_server()
            self.loop.call_later(PIECE_PAUSE_SECONDS, self.reset)

    def _release_answer(self) -> None:
        held, self._held_answer, self._fate = self._held_answer or [], None, None
        if self.client is not None:
            self.client.write(b"".join(held))
        if self.server is None:
            self.end()

    def _drip_answer(self) -> None:
        data = b"".join(self._held_answer or [])
        size = max(1, len(data) // PIECES)
        if self.client is not None:
            self.client.write(data[:size])
        if data[size:] and self.client is not None:
            self._held_answer = [data[size:]]
            self.loop.call_later(PIECE_PAUSE_SECONDS, self._drip_answer)
        else:
            self._release_answer_of_nothing()

    def _release_answer_of_nothing(self) -> None:
        self._held_answer = []
        self._release_answer()

    # -- the end --

    def reset(self, *, client: Literal["reset", "close"] = "reset") -> None:
        """End both connections by RST, or the client's gracefully; held data is dropped."""
        if client == "reset":
            self._reset_client()
        self._reset_server()
        self.end()

    def _reset_client(self) -> None:
        _reset(self.client)
        self.client = None

    def _reset_server(self) -> None:
        _reset(self.server)
        self.server = None

    def end(self) -> None:
        """Close what is open."""
        self.is_over = True
        self.proxy.links.discard(self)
        for end in (self.client, self.server):
            if end is not None:
                end.close()


class _ClientEnd(asyncio.Protocol):
    def __init__(self, link: _ProxiedConnection) -> None:
        self._link = link
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._link.client = transport
        self._link.proxy.links.add(self._link)
        self._connecting = self._link.loop.create_task(self._link.connect())

    def data_received(self, data: bytes) -> None:
        self._link.client_sent(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._link.client_left()


class _ServerEnd(asyncio.Protocol):
    def __init__(self, link: _ProxiedConnection) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._link.is_over:
            transport.close()
            return
        self._link.server = transport
        self._link.flush()

    def data_received(self, data: bytes) -> None:
        self._link.server_sent(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._link.server_left()


def answer_bytes(data: bytes) -> int:
    """Return the size of the HTTP answer that begins so; without a length, the size of `data`."""
    head, found, _ = data.partition(END_OF_HEAD)
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if found and name.lower() == b"content-length":
            return len(head) + len(END_OF_HEAD) + int(value)
    return len(data)


def _reset(transport: asyncio.Transport | None) -> None:
    """Close by RST, not by FIN."""
    if transport is not None and not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        transport.abort()


@contextmanager
def a_faulty_proxy(port: int, draw: Callable[[], Fate]) -> Iterator[FaultyProxy]:
    """Run a proxy before the server at `port`."""
    proxy = FaultyProxy(port, draw)
    try:
        yield proxy
    finally:
        proxy.close()
