"""Meets a server: connects, looks at what it is and how it is set, and refuses one that can't keep a queue."""

from collections.abc import Mapping
from threading import Lock
from typing import Literal

import structlog
from redis.exceptions import NoPermissionError, ReadOnlyError, ResponseError

from queue_core.stores.redis import events
from queue_core.stores.redis.line import Answer, Wire, wire_to
from queue_core.stores.redis.safety import SETTINGS, Server, check_kind, check_settings
from queue_core.stores.redis.url import Address, RedisUrl

log = structlog.get_logger()


class Greeter:
    """Makes every connection of a link, so that a server that took over or was set anew is looked at like the first."""

    def __init__(self, target: RedisUrl, *, durability: Literal["strict", "relaxed"]) -> None:
        self._target = target
        self._durability: Literal["strict", "relaxed"] = durability
        self.meetings = 0
        self._is_down = False
        self._told: set[tuple[Address, str]] = set()
        self._lock = Lock()

    def renew_after_fork(self) -> None:
        """In the child of a fork."""
        self._lock = Lock()

    def meet(self, address: Address, seconds: float | None) -> Wire:
        """A connection to a server that may be written to.

        Raises what redis-py raises (`ReadOnlyError` for a replica), and `StoreUnsafeError`.
        """
        wire = wire_to(address, self._target, seconds=seconds, database=self._target.database)
        try:
            wire.connect()
            warning = self._check(_looked_at(wire), str(address))
        except BaseException:
            wire.disconnect()
            raise
        self._note_restored(address, warning)
        return wire

    def note_lost(self, reason: str, *, since: int) -> None:
        """A call is tried again and again; logged once until a connection is made, unless `since` then one was.

        Args:
            since: `meetings` as it was when the last try began.
        """
        with self._lock:
            if self._is_down or self.meetings != since:
                return
            self._is_down = True
        log.warning(events.LINK_LOST, url=self._target.shown, error=reason)

    def _check(self, server: Server, place: str) -> str:
        check_kind(server, place, cluster=self._target.kind == "cluster")
        if server.is_replica:
            raise ReadOnlyError(f"{place} is a replica of {server.info.get('master_host', 'another')}")
        return check_settings(server, place, durability=self._durability, assumes_durable=self._target.assumes_durable)

    def _note_restored(self, address: Address, warning: str) -> None:
        with self._lock:
            self.meetings += 1
            was_down, self._is_down = self._is_down, False
            is_news = bool(warning) and (address, warning) not in self._told
            self._told.add((address, warning))
        if was_down:
            log.info(events.LINK_RESTORED, url=self._target.shown)
        if is_news:
            log.warning(events.STORE_EXPOSED, url=self._target.shown, server=str(address), loss=warning)


def _looked_at(wire: Wire) -> Server:
    """What the server says; one round trip, and one more where CONFIG is refused."""
    wire.send_packed_command(wire.pack_commands((("INFO",), ("CONFIG", "GET", *SETTINGS))))
    try:
        info = wire.read_response()
    except ResponseError:
        wire.disconnect()
        raise
    try:
        settings: Mapping[str, str] | None = _pairs(wire.read_response())
    except NoPermissionError:
        settings = None
    except ResponseError:
        settings = None  # renamed, or a server that has none
    fields = info.decode(errors="replace").splitlines() if isinstance(info, bytes) else []
    return Server(dict(line.split(":", 1) for line in fields if ":" in line), settings)


def _pairs(answer: Answer) -> dict[str, str]:
    words = [word.decode(errors="replace") if isinstance(word, bytes) else "" for word in _listed(answer)]
    return dict(zip(words[::2], words[1::2], strict=False))


def _listed(answer: Answer) -> list[Answer]:
    return answer if isinstance(answer, list) else []
