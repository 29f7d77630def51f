"""Meets a server: connects, looks at what it is and how it is set, and refuses one that can't keep a queue."""

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Literal

import structlog
from redis.exceptions import NoPermissionError, ReadOnlyError, ResponseError

from queue_core.config.redis_url import RedisAddress, RedisUrl
from queue_core.errors import StoreUnsafeError
from queue_core.stores.redis.client.connection import Answer, RedisDriver, new_driver

CONNECTION_LOST = "connection.lost"
CONNECTION_RESTORED = "connection.restored"
STORE_EXPOSED = "store.exposed"
"""The server is set so that what was acknowledged can be lost; the event says how much."""


MIN_VERSION = (7, 0)
SETTINGS = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy")
"""What CONFIG GET is asked for."""


@dataclass(frozen=True, slots=True)
class RedisServerInfo:
    """What a server says of itself.

    Args:
        info: the fields of INFO.
        settings: the answer to CONFIG GET of `SETTINGS`; None where that is refused.
    """

    info: Mapping[str, str]
    settings: Mapping[str, str] | None

    @property
    def is_replica(self) -> bool:
        """Whether it follows a primary, and so can't be written to."""
        return self.info.get("role") == "slave"


def check_kind(server: RedisServerInfo, place: str, *, cluster: bool) -> None:
    """Raise `StoreUnsafeError` for a server without functions, or one that the URL's form is not meant for."""
    version = server.info.get("redis_version", "?")
    if _numbers(version) < MIN_VERSION:
        raise StoreUnsafeError(
            f"Redis {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer (or Valkey) is needed, for its functions: "
            f"{place} is version {version}; upgrade it"
        )
    mode = server.info.get("redis_mode", "standalone")
    if mode == "sentinel":
        raise StoreUnsafeError(f"{place} is a Sentinel: write redis+sentinel://{place}/NAME-OF-THE-PRIMARY")
    if mode == "cluster" and not cluster:
        raise StoreUnsafeError(f"{place} is a node of a Redis Cluster: write redis+cluster://{place}")
    if mode != "cluster" and cluster:
        raise StoreUnsafeError(f"{place} is not a node of a Redis Cluster: write redis://{place}")


def check_settings(
    server: RedisServerInfo, place: str, *, durability: Literal["strict", "relaxed"], assumes_durable: bool
) -> str:
    """Raise `StoreUnsafeError` unless the settings can keep what is asked; else a warning, or "".

    `strict`: an acknowledged write survives power loss, so every write is synced before it is answered.
    Either: no key is ever evicted, because a queue that forgets tasks is none.
    """
    _check_eviction(server, place)
    loss, mend = _exposure(server, assumes_durable=assumes_durable)
    if loss and durability == "strict":
        raise StoreUnsafeError(
            f"Redis at {place} can lose what it acknowledged: {loss}. To mend it, {mend}; "
            "or accept the loss: durability relaxed"
        )
    return f"{loss}; to lose nothing, {mend}" if loss else ""


def _check_eviction(server: RedisServerInfo, place: str) -> None:
    settings = server.settings or {}
    policy = settings.get("maxmemory-policy") or server.info.get("maxmemory_policy", "noeviction")
    limit = settings.get("maxmemory") or server.info.get("maxmemory", "0")
    if policy != "noeviction" and limit != "0":
        raise StoreUnsafeError(
            f"Redis at {place} drops keys, and tasks with them, when it reaches its maxmemory of {limit} bytes "
            f"(maxmemory-policy {policy}). To mend it, {_set('maxmemory-policy noeviction')}"
        )


def _exposure(server: RedisServerInfo, *, assumes_durable: bool) -> tuple[str, str]:
    """What can be lost, and what mends it; two empty texts: nothing."""
    settings = server.settings
    if settings is None:
        if assumes_durable:
            return "", ""
        return "it refuses CONFIG GET, so nobody can tell whether appendfsync is always", (
            "allow its user +config|get; or, where the service keeps acknowledged writes by other means, "
            "add ?assume_durable=true to the URL"
        )
    if settings.get("appendonly") != "yes":
        snapshots = settings.get("save", "")
        lost = f"everything since the last snapshot (save {snapshots})" if snapshots else "everything"
        return f"appendonly is no, so {lost} is lost with its process", _set("appendonly yes", "appendfsync always")
    sync = settings.get("appendfsync", "?")
    if sync == "always":
        return "", ""
    lost = "about the last second" if sync == "everysec" else "about the last 30 seconds, as the kernel sees fit,"
    return f"appendfsync is {sync}, so {lost} is lost in a power cut", _set("appendfsync always")


def _set(*settings: str) -> str:
    return f"CONFIG SET {' '.join(settings)}, then CONFIG REWRITE (in redis.conf: {'; '.join(settings)})"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])


log = structlog.get_logger()


class Handshake:
    """Makes every connection of a link, so that a server that took over or was set anew is looked at like the first."""

    def __init__(self, target: RedisUrl, *, durability: Literal["strict", "relaxed"]) -> None:
        self._target = target
        self._durability: Literal["strict", "relaxed"] = durability
        self.handshakes = 0
        self._is_down = False
        self._logged: set[tuple[RedisAddress, str]] = set()
        self._lock = Lock()

    def renew_after_fork(self) -> None:
        """In the child of a fork."""
        self._lock = Lock()

    def connect(self, address: RedisAddress, seconds: float | None) -> RedisDriver:
        """A connection to a server that may be written to.

        Raises what redis-py raises (`ReadOnlyError` for a replica), and `StoreUnsafeError`.
        """
        driver = new_driver(address, self._target, seconds=seconds, database=self._target.database)
        try:
            driver.connect()
            warning = self._check(_read_info(driver), str(address))
        except BaseException:
            driver.disconnect()
            raise
        self._note_restored(address, warning)
        return driver

    def note_lost(self, reason: str, *, since: int) -> None:
        """A call is tried again and again; logged once until a connection is made, unless `since` then one was.

        Args:
            since: `meetings` as it was when the last try began.
        """
        with self._lock:
            if self._is_down or self.handshakes != since:
                return
            self._is_down = True
        log.warning(CONNECTION_LOST, url=self._target.shown, error=reason)

    def _check(self, server: RedisServerInfo, place: str) -> str:
        check_kind(server, place, cluster=self._target.kind == "cluster")
        if server.is_replica:
            raise ReadOnlyError(f"{place} is a replica of {server.info.get('master_host', 'another')}")
        return check_settings(server, place, durability=self._durability, assumes_durable=self._target.assumes_durable)

    def _note_restored(self, address: RedisAddress, warning: str) -> None:
        with self._lock:
            self.handshakes += 1
            was_down, self._is_down = self._is_down, False
            is_new = bool(warning) and (address, warning) not in self._logged
            self._logged.add((address, warning))
        if was_down:
            log.info(CONNECTION_RESTORED, url=self._target.shown)
        if is_new:
            log.warning(STORE_EXPOSED, url=self._target.shown, server=str(address), loss=warning)


def _read_info(driver: RedisDriver) -> RedisServerInfo:
    """What the server says; one round trip, and one more where CONFIG is refused."""
    driver.send_packed_command(driver.pack_commands((("INFO",), ("CONFIG", "GET", *SETTINGS))))
    try:
        info = driver.read_response()
    except ResponseError:
        driver.disconnect()
        raise
    try:
        settings: Mapping[str, str] | None = _pairs(driver.read_response())
    except NoPermissionError:
        settings = None
    except ResponseError:
        settings = None  # renamed, or a server that has none
    fields = info.decode(errors="replace").splitlines() if isinstance(info, bytes) else []
    return RedisServerInfo(dict(line.split(":", 1) for line in fields if ":" in line), settings)


def _pairs(answer: Answer) -> dict[str, str]:
    words = [word.decode(errors="replace") if isinstance(word, bytes) else "" for word in _listed(answer)]
    return dict(zip(words[::2], words[1::2], strict=False))


def _listed(answer: Answer) -> list[Answer]:
    return answer if isinstance(answer, list) else []
