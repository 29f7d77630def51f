"""New, empty stores of ours on any engine, configured like their peers on that engine, removed at the end."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

import structlog

from queue_core.client.connect import open_queue
from queue_core.client.queue import Queue
from tests.bench.record import QUEUE
from tests.bench.site import BenchSite

Durability = Literal["strict", "relaxed"]
Engine = Literal["sqlite", "postgresql", "redis"]
ENGINES: Final[tuple[Engine, ...]] = ("sqlite", "postgresql", "redis")

_NUMBERS = count(1)
REDIS_DATABASES = 15  # beside 0, which is the peers', as a Redis has them that nobody configured


@dataclass(frozen=True, slots=True)
class BenchStore:
    """A store's URL and durability."""

    url: str
    durability: Durability
    engine: Engine


@contextmanager
def new_place(site: BenchSite, engine: Engine, *, durability: Durability = "strict") -> Iterator[BenchStore]:
    """Return a new store. On Redis, which syncs once a second for all sides, durability is relaxed."""
    if engine == "sqlite":
        directory = site.new_directory("towline")
        try:
            yield BenchStore(f"sqlite:///{directory}/bench.db", durability, engine)
        finally:
            shutil.rmtree(directory)
    elif engine == "postgresql":
        with new_database(site) as url:
            yield BenchStore(url, durability, engine)
    else:
        with _emptied(site) as url:
            yield BenchStore(url, "relaxed", engine)


def opened(place: BenchStore) -> Queue:
    """Open its queue, made if needed; the store's log is silent while a table is printed."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    return open_queue(place.url, QUEUE, durability=place.durability)


@contextmanager
def new_database(site: BenchSite) -> Iterator[str]:
    """Make a database in the shared PostgreSQL, without other systems' tables, statistics or bloat; return its URL."""
    import psycopg

    server = site.postgresql()
    name = f"bench_{next(_NUMBERS)}"
    with closing(psycopg.connect(server, autocommit=True)) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        connection.execute("CHECKPOINT")  # earlier measurements must not slow down this one
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        with closing(psycopg.connect(server, autocommit=True)) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def _emptied(site: BenchSite) -> Iterator[str]:
    """Return the URL of an empty database in the shared Redis."""
    import redis

    number = next(_NUMBERS) % REDIS_DATABASES + 1
    url = urlsplit(site.redis(logged=True))._replace(path=f"/{number}").geturl()
    with closing(redis.Redis.from_url(url)) as connection:
        connection.flushdb()
        try:
            yield url
        finally:
            connection.flushdb()


def sizes(place: BenchStore) -> dict[str, float]:
    """Return the bytes of all tables and indexes: of PostgreSQL; of Redis in memory; of SQLite its file and log."""
    if place.engine == "postgresql":
        import psycopg

        with closing(psycopg.connect(place.url, autocommit=True)) as connection:
            row = connection.execute(_TABLE_SIZES).fetchone()
            assert row is not None
            return {"table_bytes": float(row[0]), "index_bytes": float(row[1])}
    if place.engine == "redis":
        import redis

        with closing(redis.Redis.from_url(place.url)) as store:
            return {"table_bytes": float(store.info("memory")["used_memory"])}
    file, log = (Path(place.url.removeprefix("sqlite:///") + ending) for ending in ("", "-wal"))
    return {"table_bytes": float(file.stat().st_size), "log_bytes": float(log.stat().st_size)}


_TABLE_SIZES = """
SELECT sum(pg_table_size(c.oid)), sum(pg_indexes_size(c.oid))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')
"""
