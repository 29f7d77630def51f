"""Find the server that holds a key: the server of the URL, the primary of sentinels, or a node of a cluster."""

import contextlib
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Protocol

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from queue_core.config.redis_url import RedisAddress, RedisUrl
from queue_core.stores.redis.client.connection import Answer, Cell, RedisDriver, new_driver

Key = str | bytes


class Topology(Protocol):
    """The servers of a store by key. Its methods raise redis-py's errors, which the client classifies."""

    def address(self, key: Key) -> RedisAddress:
        """Return the server that holds the key; this may call servers."""

    def primaries(self) -> Sequence[RedisAddress]:
        """Return all servers that hold keys."""

    def forget(self) -> None:
        """Forget the known servers; the next call looks them up."""

    def follow(self, moved: str) -> RedisAddress:
        """Return the server that MOVED names as `slot host:port`."""

    def renew_after_fork(self) -> None:
        """See `forking.Renewable`: the parent's thread may hold the lock."""


def topology_of(url: RedisUrl) -> Topology:
    """Return the topology for the kind of a URL."""
    if url.kind == "sentinel":
        return _Sentinels(url)
    return _Cluster(url) if url.kind == "cluster" else _One(url.addresses[0])


class _One:
    """A single server."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address

    def address(self, key: Key) -> RedisAddress:  # noqa: ARG002 - it has all keys
        return self._address

    def primaries(self) -> Sequence[RedisAddress]:
        return (self._address,)

    def forget(self) -> None:
        return

    def follow(self, moved: str) -> RedisAddress:  # noqa: ARG002 - it never redirects
        return self._address

    def renew_after_fork(self) -> None:
        return


class _Sentinels:
    """The primary of a service, looked up again after every failure."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._primary: RedisAddress | None = None
        self._lock = Lock()

    def address(self, key: Key) -> RedisAddress:  # noqa: ARG002 - the primary has all keys
        primary = self._primary
        return primary if primary is not None else self._query()

    def primaries(self) -> Sequence[RedisAddress]:
        return (self.address(b""),)

    def forget(self) -> None:
        self._primary = None

    def follow(self, moved: str) -> RedisAddress:  # noqa: ARG002 - only clusters redirect
        return self.address(b"")

    def renew_after_fork(self) -> None:
        self._lock = Lock()

    def _query(self) -> RedisAddress:
        with self._lock:
            for sentinel in self._url.addresses:
                with contextlib.suppress(RedisError, OSError):
                    answer = _query(sentinel, self._url, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.service))
                    if isinstance(answer, list) and len(answer) == 2:
                        self._primary = RedisAddress(_text(answer[0]), int(_text(answer[1])))
                        return self._primary
        listed = ", ".join(map(str, self._url.addresses))
        raise RedisConnectionError(f"no sentinel of {listed} knows a primary called {self._url.service!r}")


class _Cluster:
    """The nodes of a cluster by slot, as read from any node."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._slots: list[RedisAddress | None] = []
        self._known: tuple[RedisAddress, ...] = url.addresses
        self._lock = Lock()

    def address(self, key: Key) -> RedisAddress:
        slots = self._slots or self._query()
        address = slots[key_slot(key.encode() if isinstance(key, str) else key)]
        if address is None:
            self._slots = []
            raise RedisConnectionError(f"no node of the cluster holds the slot of {_text(key)}")
        return address

    def primaries(self) -> Sequence[RedisAddress]:
        slots = self._slots or self._query()
        return tuple(dict.fromkeys(address for address in slots if address is not None))

    def forget(self) -> None:
        self._slots = []

    def follow(self, moved: str) -> RedisAddress:
        host, _, port = moved.partition(" ")[2].rpartition(":")
        if not port.isdigit():
            raise RedisConnectionError(f"a node of the cluster redirects to no address: {moved!r}")
        return RedisAddress(host or self._known[0].host, int(port))

    def renew_after_fork(self) -> None:
        self._lock = Lock()

    def _query(self) -> list[RedisAddress | None]:
        with self._lock:
            if self._slots:
                return self._slots
            for node in dict.fromkeys((*self._known, *self._url.addresses)):
                with contextlib.suppress(RedisError, OSError):
                    slots = _slots_of(_query(node, self._url, ("CLUSTER", "SLOTS"), login=True), node)
                    if any(slots):
                        self._slots = slots
                        self._known = tuple(dict.fromkeys(address for address in slots if address is not None))
                        return slots
        listed = ", ".join(map(str, self._url.addresses))
        raise RedisConnectionError(f"no node of the cluster at {listed} answers CLUSTER SLOTS")


def _query(address: RedisAddress, url: RedisUrl, command: Sequence[Cell], *, login: bool = False) -> Answer:
    """Run one command on a connection of its own."""
    driver: RedisDriver = new_driver(address, url, seconds=1.0, authenticated=login)
    try:
        driver.connect()
        driver.send_command(*command)
        return driver.read_response()
    finally:
        driver.disconnect()


def _slots_of(answer: Answer, node: RedisAddress) -> list[RedisAddress | None]:
    slots: list[RedisAddress | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
    for row in _rows(answer):
        if len(row) < 3:
            continue
        first, last, primary = row[0], row[1], row[2]
        if isinstance(first, int) and isinstance(last, int) and isinstance(primary, list):
            host, port = primary[0], primary[1]
            if isinstance(port, int):
                address = RedisAddress(_text(host) if host else node.host, port)
                slots[first : last + 1] = [address] * (last + 1 - first)
    return slots


def _rows(answer: Answer) -> Iterable[list[Answer]]:
    return [row for row in answer if isinstance(row, list)] if isinstance(answer, list) else []


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
