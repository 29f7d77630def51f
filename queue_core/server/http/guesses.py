"""Refused tokens: they are logged, without the token, and a peer that goes on gets its answers later (ADR 94).

A right token is never slowed: behind a proxy all callers have one address, and a guess must not lock the others out.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

FREE_GUESSES: Final = 5
"""Refusals of a peer that are answered at once; a minute without any starts anew."""
FORGET_SECONDS: Final = 60.0
DELAY_SECONDS: Final = 1.0
"""How long each further refusal takes."""
MAX_PEERS: Final = 10_000
"""Peers that are remembered; beyond that the one that was silent for longest is forgotten."""
MAX_DELAYED: Final = 100
"""Answers that are delayed at a time: each has a connection. Further ones come at once, and end theirs."""
UNIX_PEER: Final = "unix"
"""The peers of a Unix socket, which have no address."""
_IPV6_NETWORK_BITS: Final = 64


class Guesses:
    """The refused tokens of a listener. Lives in its loop."""

    def __init__(self, now: Callable[[], float], log: Callable[..., None]) -> None:
        """Args:
        now: returns seconds that never go back.
        log: logs a refusal, folded: takes the peer and how often it was refused of late.
        """
        self._now = now
        self._log = log
        self._peers: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self.delayed = 0

    def refused(self, address: str) -> float | None:
        """Count a refused token; returns after how many seconds to answer. None: at once, and close the connection.

        Whoever waits calls `answered` at last.
        """
        now, peer = self._now(), peer_of(address)
        count, at = self._peers.pop(peer, (0, now))
        count = count + 1 if now - at < FORGET_SECONDS else 1
        self._peers[peer] = count, now
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        self._log(address=peer, refused=count)
        if count <= FREE_GUESSES:
            return 0.0
        if self.delayed >= MAX_DELAYED:
            return None
        self.delayed += 1
        return DELAY_SECONDS

    def answered(self) -> None:
        """Count a delayed answer no more."""
        self.delayed -= 1


def peer_of(address: str) -> str:
    """Return by what a peer is remembered: its address, or its network where a host has a whole one (IPv6)."""
    try:
        found = ip_address(address)
    except ValueError:
        return address or UNIX_PEER
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    network = int(found) >> (128 - _IPV6_NETWORK_BITS) << (128 - _IPV6_NETWORK_BITS)
    return f"{IPv6Address(network)}/{_IPV6_NETWORK_BITS}"


class SlowedRefusals:
    """An ASGI application whose refusals of a token are counted and slowed."""

    def __init__(self, app: ASGIApp, guesses: Guesses) -> None:
        self._app = app
        self._guesses = guesses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not _shows_token(scope):
            await self._app(scope, receive, send)
            return

        async def slowed(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                seconds = self._guesses.refused(scope["client"][0] if scope.get("client") else "")
                if seconds is None:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
                elif seconds:
                    try:
                        await asyncio.sleep(seconds)
                    finally:
                        self._guesses.answered()
            await send(message)

        await self._app(scope, receive, slowed)


def _shows_token(scope: Scope) -> bool:
    """Return whether a request shows a token: in its head, or at the console's login."""
    if str(scope["path"]).endswith("/login"):
        return True
    return any(name == b"authorization" for name, _ in scope["headers"])
