"""Connect to a server and check its kind and its settings; refuse one that can't keep a queue."""

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Literal

from redis.exceptions import NoPermissionError, ReadOnlyError, ResponseError

from queue_core.config.redis_url import RedisAddress, RedisUrl
from queue_core.errors import StoreUnsafeError
from queue_core.log import get_logger
from queue_core.stores.redis.client.connection import Answer, RedisDriver, new_driver

CONNECTION_LOST = "connection.lost"
"""Redis does not answer."""
CONNECTION_RESTORED = "connection.restored"
"""Redis answers again."""
STORE_EXPOSED = "store.exposed"
"""The server's settings allow acknowledged writes to be lost; the event says which."""

MIN_VERSION = (7, 0)
SETTINGS = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy")
"""The settings that CONFIG GET reads."""


@dataclass(frozen=True, slots=True)
class RedisServerInfo:
    """The facts about a server.

    Args:
        info: the fields of INFO.
        settings: the values of `SETTINGS`; None where CONFIG GET is refused.
    """

    info: Mapping[str, str]
    settings: Mapping[str, str] | None

    @property
    def is_replica(self) -> bool:
        """Return whether the server is a replica, which can't be written to."""
        return self.info.get("role") == "slave"


def check_kind(server: RedisServerInfo, where: str, *, cluster: bool) -> None:
    """Raise `StoreUnsafeError` for a server without functions, or for another kind than the URL says."""
    version = server.info.get("redis_version", "?")
    if _numbers(version) < MIN_VERSION:
        raise StoreUnsafeError(
            f"Redis {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer (or Valkey) is needed, for its functions: "
            f"{where} is version {version}; upgrade it"
        )
    mode = server.info.get("redis_mode", "standalone")
    if mode == "sentinel":
        raise StoreUnsafeError(f"{where} is a Sentinel: write redis+sentinel://{where}/NAME-OF-THE-PRIMARY")
    if mode == "cluster" and not cluster:
        raise StoreUnsafeError(f"{where} is a node of a Redis Cluster: write redis+cluster://{where}")
    if mode != "cluster" and cluster:
        raise StoreUnsafeError(f"{where} is not a node of a Redis Cluster: write redis://{where}")


def check_settings(
    server: RedisServerInfo, where: str, *, durability: Literal["strict", "relaxed"], assumes_durable: bool
) -> str:
    """Raise `StoreUnsafeError` unless the settings allow `durability`; return a warning, or "".

    `strict`: an acknowledged write survives a power cut, so every write is synced before its answer.
    In both modes no key may be evicted, as that would lose tasks.
    """
    _check_eviction(server, where)
    loss, mend = _exposure(server, assumes_durable=assumes_durable)
    if loss and durability == "strict":
        raise StoreUnsafeError(
            f"Redis at {where} can lose acknowledged writes: {loss}. To fix this, {mend}; "
            "or accept the loss: durability relaxed"
        )
    return f"{loss}; to lose nothing, {mend}" if loss else ""


def _check_eviction(server: RedisServerInfo, where: str) -> None:
    settings = server.settings or {}
    policy = settings.get("maxmemory-policy") or server.info.get("maxmemory_policy", "noeviction")
    limit = settings.get("maxmemory") or server.info.get("maxmemory", "0")
    if policy != "noeviction" and limit != "0":
        raise StoreUnsafeError(
            f"Redis at {where} evicts keys, and loses tasks, when it reaches its maxmemory of {limit} bytes "
            f"(maxmemory-policy {policy}). To fix this, {_set('maxmemory-policy noeviction')}"
        )


def _exposure(server: RedisServerInfo, *, assumes_durable: bool) -> tuple[str, str]:
    """Return which writes can be lost and how to fix that; two empty texts: none can."""
    settings = server.settings
    if settings is None:
        if assumes_durable:
            return "", ""
        return "it refuses CONFIG GET, so it is not known whether appendfsync is always", (
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


log = get_logger()


class Handshake:
    """Open every connection of a client, so that a server after a failover or a restart is checked like the first."""

    def __init__(self, target: RedisUrl, *, durability: Literal["strict", "relaxed"]) -> None:
        self._target = target
        self._durability: Literal["strict", "relaxed"] = durability
        self.handshakes = 0
        self._is_down = False
        self._logged: set[tuple[RedisAddress, str]] = set()
        self._lock = Lock()

    def renew_after_fork(self) -> None:
        """See `forking.Renewable`."""
        self._lock = Lock()

    def connect(self, address: RedisAddress, seconds: float | None) -> RedisDriver:
        """Open a connection to a server that accepts writes.

        Raises the errors of redis-py (`ReadOnlyError` for a replica) and `StoreUnsafeError`.
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
        """Log that a call is being retried, once until the next connection.

        Args:
            since: the value of `handshakes` when the last try began; does nothing if a connection was made since.
        """
        with self._lock:
            if self._is_down or self.handshakes != since:
                return
            self._is_down = True
        log.warning(CONNECTION_LOST, url=self._target.shown, error=reason)

    def _check(self, server: RedisServerInfo, where: str) -> str:
        check_kind(server, where, cluster=self._target.kind == "cluster")
        if server.is_replica:
            raise ReadOnlyError(f"{where} is a replica of {server.info.get('master_host', 'another')}")
        return check_settings(server, where, durability=self._durability, assumes_durable=self._target.assumes_durable)

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
    """Read INFO and the settings in one round trip."""
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
        settings = None  # CONFIG was renamed, or the server has none
    fields = info.decode(errors="replace").splitlines() if isinstance(info, bytes) else []
    return RedisServerInfo(dict(line.split(":", 1) for line in fields if ":" in line), settings)


def _pairs(answer: Answer) -> dict[str, str]:
    words = [word.decode(errors="replace") if isinstance(word, bytes) else "" for word in _listed(answer)]
    return dict(zip(words[::2], words[1::2], strict=False))


def _listed(answer: Answer) -> list[Answer]:
    return answer if isinstance(answer, list) else []
