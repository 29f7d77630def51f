"""A benchmark's site: one directory on one disk, and private servers started on demand."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.stores import engines
from tests.support.stores.engines import Engine, EngineUnavailableError

FSYNC_SAMPLES = 50


class BenchSite:
    """The directory, the servers, and the user's pgmq file; closing it ends every server."""

    def __init__(
        self,
        directory: Path,
        *,
        pgmq_sql: Path | None = None,
        divide_loads_by: int = 1,
        churn_minutes: int = 10,
    ) -> None:
        self.directory = directory
        self.churn_minutes = churn_minutes
        self.pgmq_sql = pgmq_sql
        self.divide_loads_by = divide_loads_by
        self._stack = ExitStack()
        self._running: dict[str, Engine | EngineUnavailableError] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def redis(self, *, logged: bool = False) -> str:
        """Return its URL; nothing is saved, as Celery's users commonly run it, or `logged`: synced every second."""
        if not logged:
            return self._url("redis", lambda: engines.redis(self.directory))
        everysec = {"appendfsync": "everysec"}
        return self._url("redis logged", lambda: engines.redis(self.directory, durable=True, settings=everysec))

    def postgresql(self) -> str:
        """Return its URL, over a Unix socket; every commit is synced, the default."""
        return self._url("postgresql", lambda: engines.postgresql(self.directory))

    def beanstalkd(self, *, synced: bool) -> str:
        """Return its URL; in memory, or with a log that is synced at every write."""
        name = "beanstalkd synced" if synced else "beanstalkd"
        return self._url(name, lambda: engines.beanstalkd(self.directory, synced=synced))

    def new_directory(self, name: str) -> Path:
        """Return a new, empty directory."""
        number = sum(1 for _ in self.directory.glob(f"{name}-*"))
        path = self.directory / f"{name}-{number}"
        path.mkdir()
        return path

    def fsync_seconds(self) -> float:
        """Return the median time to append 4 KiB and sync: the least cost of a durable change."""
        taken = []
        path = self.directory / "fsync-probe"
        with path.open("wb", buffering=0) as file:
            for _ in range(FSYNC_SAMPLES):
                began = time.perf_counter()
                file.write(bytes(4096))
                os.fdatasync(file.fileno())
                taken.append(time.perf_counter() - began)
        path.unlink()
        return sorted(taken)[FSYNC_SAMPLES // 2]

    def _url(self, name: str, start: Callable[[], AbstractContextManager[Engine]]) -> str:
        """Start it at the first call; don't retry a server that could not be started."""
        if name not in self._running:
            try:
                self._running[name] = self._stack.enter_context(start())
            except EngineUnavailableError as error:
                self._running[name] = error
        found = self._running[name]
        if isinstance(found, EngineUnavailableError):
            raise found
        return found.url
