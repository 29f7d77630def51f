"""Replies that all live pages have in common for a moment, and what pages remember between two looks.

Twenty people at twenty pages ask for the counts of all queues once, not twenty times.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, TypeVar, cast

from pydantic_core import to_json

from queue_core.console.api import ApiReply, ConsoleApi, Query
from queue_core.verbs.wire import Json

FRESH_SECONDS: Final = 0.9
"""For so long a reply answers everybody."""
DEAR: Final = 40.0
"""A reply that took long is used for so many times its duration, so that asking for it takes a fortieth of the time."""
LONGEST_SECONDS: Final = 10.0
"""A reply is used for at most so long."""
MAX_REPLIES: Final = 500
MAX_REMEMBERED: Final = 2_000
KEPT_SECONDS: Final = 10.0
"""For so long a value is kept whose mark has not changed."""
_READING: Final = ("/peek", "/history", "/search")
"""The ends of paths whose POST only reads."""

T = TypeVar("T")


def fresh_seconds(cost_seconds: float) -> float:
    """Return how long a reply is used that took so long."""
    return min(max(FRESH_SECONDS, cost_seconds * DEAR), LONGEST_SECONDS)


class SharedApi:
    """An API whose replies to reading calls are shared by callers of the same rights. Lives in the server's loop."""

    def __init__(self, api: ConsoleApi, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._monotonic = monotonic
        self._rights: dict[str | None, str] = {}
        self._replies: OrderedDict[Hashable, _SharedReply] = OrderedDict()

    def know_rights(self, token: str | None, rights: str) -> None:
        """Say which rights a token has: tokens of the same rights see the same."""
        self._rights[token] = rights

    def forget(self) -> None:
        """Share no reply of before: something was changed."""
        self._replies.clear()

    async def call(
        self, method: str, path: str, body: Json | None = None, *, query: Query = (), token: str | None = None
    ) -> ApiReply:
        """See `ConsoleApi.call`."""
        if method != "GET" and not path.endswith(_READING):
            self.forget()
            return await self._api.call(method, path, body, query=query, token=token)
        caller = self._rights.get(token) or ("token", token)
        key = (caller, method, path, tuple(query), None if body is None else to_json(body))
        now = self._monotonic()
        known = self._replies.get(key)
        if known is None or known.is_over(now):
            known = _SharedReply(asyncio.ensure_future(self._called(key, method, path, body, query, token)))
            self._replies[key] = known
            self._replies.move_to_end(key)
            while len(self._replies) > MAX_REPLIES:
                self._replies.popitem(last=False)
        return await asyncio.shield(known.reply)

    async def _called(
        self, key: Hashable, method: str, path: str, body: Json | None, query: Query, token: str | None
    ) -> ApiReply:
        began = self._monotonic()
        try:
            reply = await self._api.call(method, path, body, query=query, token=token)
        except BaseException:
            self._replies.pop(key, None)
            raise
        ended = self._monotonic()
        known = self._replies.get(key)
        if known is not None:
            known.until = ended + fresh_seconds(ended - began) if reply.is_done else ended
        return reply


class _SharedReply:
    """A reply, or the call that is under way for it."""

    def __init__(self, reply: "asyncio.Future[ApiReply]") -> None:
        self.reply = reply
        self.until = float("inf")

    def is_over(self, now: float) -> bool:
        return now >= self.until


class PageMemory:
    """Values that pages keep between two looks, the least recently used forgotten first. Lives in the server's loop."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._kept: OrderedDict[Hashable, tuple[object, float, object]] = OrderedDict()

    async def value(self, key: Hashable, mark: object, make: Callable[[], Awaitable[T]]) -> T:
        """Return the value kept under a key, or a new one if its mark has changed or it is old."""
        known, now = self._kept.get(key), self._monotonic()
        if known is not None and known[0] == mark and now - known[1] < KEPT_SECONDS:
            self._kept.move_to_end(key)
            return cast("T", known[2])
        made = await make()
        self.put(key, made, mark=mark)
        return made

    def put(self, key: Hashable, value: object, *, mark: object = None) -> None:
        """Keep a value."""
        self._kept[key] = (mark, self._monotonic(), value)
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_REMEMBERED:
            self._kept.popitem(last=False)

    def get(self, key: Hashable) -> object:
        """Return what was kept last under a key; None: nothing."""
        known = self._kept.get(key)
        return None if known is None else known[2]
