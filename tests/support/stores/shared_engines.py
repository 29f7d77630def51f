"""The engines shared by all tests of a process: started on demand, with a new database for every use.

A test that kills or freezes an engine starts its own (`tests.support.stores.engines`).
"""

import atexit
import itertools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from tests.support.stores import engines
from tests.support.stores.engines import REDIS_DATABASES, Engine, EngineUnavailableError

EngineName = Literal["postgresql", "redis"]

_SMALL: Final = {"max_wal_size": "128MB"}
FIRST_WITH_STRATEGIES: Final = 15_00_00
"""From this version on PostgreSQL copies a database through its log, unless told not to: twice the time."""


class SharedEngines:
    """PostgreSQL, and Redis that syncs its log at every write; closing ends them and removes their data."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._started: dict[str, Engine | EngineUnavailableError] = {}
        self._numbers = itertools.count(1)
        self._directory: Path | None = None
        self._template = ""
        self._in_use: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End them and remove their data; do nothing the second time."""
        self._stack.close()

    def postgresql(self) -> Engine:
        """Return the shared PostgreSQL. Raises `EngineUnavailableError`."""
        return self._engine("postgresql", lambda: engines.postgresql(self._home(), settings=_SMALL))

    def redis(self) -> Engine:
        """Return the shared durable Redis. Raises `EngineUnavailableError`."""
        return self._engine("redis", lambda: engines.redis(self._home(), durable=True))

    def new_url(self, name: EngineName) -> str:
        """Return the URL of an unused database. Raises `EngineUnavailableError`."""
        number = next(self._numbers)
        if name == "postgresql":
            self._in_use.append(number)
        return new_database(self.engine(name), number)

    def new_store_url(self, name: EngineName) -> str:
        """Return the URL of an unused database with the schema made.

        The schema is made once and copied, which takes a third of the time. Raises `EngineUnavailableError`.
        """
        if name == "redis":
            return self.new_url(name)
        if not self._template:
            self._template = _with_schema(new_database(self.engine(name), next(self._numbers)))
        number = next(self._numbers)
        self._in_use.append(number)
        return new_database(self.engine(name), number, template=self._template)

    def drop_databases(self) -> None:
        """Drop the PostgreSQL databases used so far: there are thousands, of 8 MB each."""
        numbers, self._in_use = self._in_use, []
        if numbers:
            drop_databases(self.postgresql(), numbers)

    def engine(self, name: EngineName) -> Engine:
        """Return one of the two. Raises `EngineUnavailableError`."""
        return self.postgresql() if name == "postgresql" else self.redis()

    def _engine(self, name: str, start: Callable[[], AbstractContextManager[Engine]]) -> Engine:
        """Start it at the first call; don't retry one that could not be started."""
        if name not in self._started:
            try:
                self._started[name] = self._stack.enter_context(start())
            except EngineUnavailableError as error:
                self._started[name] = error
        found = self._started[name]
        if isinstance(found, EngineUnavailableError):
            raise found
        return found

    def _home(self) -> Path:
        """Return a directory in memory where there is room, so that syncs cost nothing."""
        if self._directory is None:
            self._directory = self._stack.enter_context(engines.memory_home("towline-"))
        return self._directory


@lru_cache(maxsize=1)
def engines_of_process() -> SharedEngines:
    """Return the engines of this process, ended with it."""
    shared = SharedEngines()
    atexit.register(shared.close)
    return shared


def new_database(engine: Engine, number: int, *, template: str = "template1") -> str:
    """Return the URL of an empty database with an unused number, or a copy of `template`.

    Redis has no templates, and 1,023 databases beside the first; beyond that the oldest is emptied and reused.
    """
    if engine.name == "postgresql":
        import psycopg

        with psycopg.connect(engine.tcp_url, autocommit=True) as connection:
            by = " STRATEGY file_copy" if connection.info.server_version >= FIRST_WITH_STRATEGIES else ""
            connection.execute(f"CREATE DATABASE towline_{number} TEMPLATE {template}{by}")
        return f"{engine.tcp_url.rpartition('/')[0]}/towline_{number}"
    import redis

    number = 1 + (number - 1) % (REDIS_DATABASES - 1)
    url = f"{engine.tcp_url.rpartition('/')[0]}/{number}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


def drop_databases(engine: Engine, numbers: Iterable[int]) -> None:
    """Drop PostgreSQL databases made by `new_database`, even with clients connected."""
    import psycopg

    with psycopg.connect(engine.tcp_url, autocommit=True) as connection:
        for number in numbers:
            connection.execute(f"DROP DATABASE IF EXISTS towline_{number} WITH (FORCE)")


def _with_schema(url: str) -> str:
    """Make the store's schema and return the database's name; no client stays connected."""
    import psycopg

    from queue_core.clock import SystemClock
    from queue_core.stores.postgres.client.address import SCHEMA
    from queue_core.stores.postgres.schema import prepare

    with psycopg.connect(url, autocommit=True) as connection:
        prepare(connection, SCHEMA, url, monotonic=SystemClock().monotonic)
    return url.rpartition("/")[2]
