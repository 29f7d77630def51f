"""Whether a Redis server, as it is set, can keep what a queue puts into it. Pure: judges what the server said."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from queue_core.errors import StoreUnsafeError

MIN_VERSION = (7, 0)
SETTINGS = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy")
"""What CONFIG GET is asked for."""


@dataclass(frozen=True, slots=True)
class Server:
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


def check_kind(server: Server, place: str, *, cluster: bool) -> None:
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
    server: Server, place: str, *, durability: Literal["strict", "relaxed"], assumes_durable: bool
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


def _check_eviction(server: Server, place: str) -> None:
    settings = server.settings or {}
    policy = settings.get("maxmemory-policy") or server.info.get("maxmemory_policy", "noeviction")
    limit = settings.get("maxmemory") or server.info.get("maxmemory", "0")
    if policy != "noeviction" and limit != "0":
        raise StoreUnsafeError(
            f"Redis at {place} drops keys, and tasks with them, when it reaches its maxmemory of {limit} bytes "
            f"(maxmemory-policy {policy}). To mend it, {_set('maxmemory-policy noeviction')}"
        )


def _exposure(server: Server, *, assumes_durable: bool) -> tuple[str, str]:
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
