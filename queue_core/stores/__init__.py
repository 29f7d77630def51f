"""The stores, one package each; and `open_store`, which opens the store that a URL names."""

from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from queue_core.config.store_urls import masked, scheme_of, sqlite_flaw
from queue_core.errors import InvalidRequestError, InvalidSettingError
from queue_core.process.extras import needs_extra
from queue_core.store import Store

Durability = Literal["strict", "relaxed"]

_FORMS = (
    "sqlite:///relative.db, sqlite:////absolute/path.db, postgresql://user@host/database, "
    "redis://host:6379/0 or memory:"
)


def open_store(url: str, *, durability: Durability = "strict") -> Store:
    """Open the store that `url` names, creating its file when there is none. Imports only that store's driver.

    Args:
        url: `sqlite:///relative.db` (to the working directory), `sqlite:////absolute/path.db`,
            `postgresql://user@host/database`, `redis://host:6379/0` (and more forms, see `config/redis_url.py`) or
            `memory:`.
        durability: `strict`: a synced ticket survives a power cut; `relaxed`: only a crash of the process.

    Raises `InvalidSettingError` for another URL or an impossible path, `StoreCorruptError` for a file that is no queue,
    `StoreVersionError` for one made by a newer version, `StoreReadOnlyError` for one that can't be written.
    """
    if durability not in ("strict", "relaxed"):
        raise InvalidSettingError(f"durability must be strict or relaxed: {durability!r}")
    if url == "memory:":
        from queue_core.stores.memory.store import MemoryStore

        return MemoryStore()
    if url.startswith("sqlite:"):
        from queue_core.stores.sqlite.store import SqliteStore

        return SqliteStore(sqlite_path(url), durability=durability)
    if url.startswith(("postgresql:", "postgres:")):
        return _postgres_store(url, durability)
    if url.startswith("redis"):
        return _open_redis(url, durability)
    raise InvalidSettingError(f"not the URL of a store: {masked(url)!r}; give {_FORMS}")


def _postgres_store(url: str, durability: Durability) -> Store:
    with needs_extra("postgres", "a postgresql: store"):
        from queue_core.stores.postgres.store import PostgresStore
    return PostgresStore(url, durability=durability)


def _open_redis(url: str, durability: Durability) -> Store:
    with needs_extra("redis", "a redis: store"):
        from queue_core.stores.redis.store import RedisStore
    return RedisStore(url, durability=durability)


def sqlite_path(url: str) -> Path:
    """Return the path that an `sqlite:` URL names. Raises `InvalidSettingError`."""
    flaw = sqlite_flaw(url)
    if flaw:
        raise InvalidSettingError(f"not the URL of an SQLite store: {masked(url)!r}: {flaw}; give {_FORMS}")
    return Path(unquote(url.removeprefix("sqlite:///")))


def check_url(url: str) -> None:
    """Raise `InvalidSettingError` for a URL that no store can have, without opening it. Needs the store's driver."""
    if url.startswith("sqlite:"):
        sqlite_path(url)
    elif url.startswith(("postgresql:", "postgres:")):
        with suppress(ModuleNotFoundError):
            from queue_core.stores.postgres.client.address import parse_address

            parse_address(url)
    elif url.startswith("redis"):
        from queue_core.config.redis_url import parse_url

        parse_url(url)


def check_can_back_up(url: str) -> None:
    """Raise `InvalidRequestError` unless the store is a file that can be copied."""
    kind = scheme_of(url)
    if kind == "sqlite":
        return
    if kind.startswith("postgres"):
        fix = "use `pg_dump`, or your backup of the whole database"
    elif kind.startswith("redis"):
        fix = "use `redis-cli BGSAVE`, and copy its dump"
    else:
        fix = "use `towline export FILE`"
    raise InvalidRequestError(f"a {kind}: store is not a file that can be copied: {fix}")


def check_can_vacuum(url: str) -> None:
    """Raise `InvalidRequestError` unless the store is a file that can be shrunk."""
    kind = scheme_of(url)
    if kind == "sqlite":
        return
    reason = (
        "PostgreSQL does it automatically (autovacuum)" if kind.startswith("postgres") else "it has no file that grows"
    )
    raise InvalidRequestError(f"a {kind}: store is not to be vacuumed: {reason}")
