"""Huey over its SQLite storage: one insert a task; one consumer with two worker processes, which poll.

Run as a program it is that consumer: `python -m tests.bench.drivers.huey FILE`.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from huey import SqliteHuey

from tests.bench.driver import WORKERS, Loads, NotOfferedError, Producer
from tests.bench.record import record
from tests.bench.site import BenchSite


class HueyDriver:
    """Defaults: SQLite syncs every commit; results are kept only when a task returns something."""

    name = "Huey, SQLite"
    durable = "yes"
    loads = Loads(add=4_000, drain=4_000)

    def __init__(self) -> None:
        self._directory: Path | None = None

    def start(self, site: BenchSite) -> None:
        self._directory = site.new_directory("huey")

    def producer(self) -> Producer:
        return HueyProducer(self._file)

    def workers(self) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", __name__, self._file]]

    def stop(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory)

    @property
    def _file(self) -> str:
        assert self._directory is not None, "start comes first"
        return str(self._directory / "huey.db")


class HueyProducer:
    """One connection."""

    def __init__(self, file: str) -> None:
        self._huey = SqliteHuey("bench", filename=file)
        self._task = self._huey.task()(record)

    def add(self, payload: bytes) -> None:
        self._task(payload)

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        raise NotOfferedError

    def close(self) -> None:
        self._huey.storage.close()


def main() -> None:
    """The consumer."""
    huey = SqliteHuey("bench", filename=sys.argv[1])
    huey.task()(record)
    huey.create_consumer(workers=WORKERS, worker_type="process", periodic=False).run()


if __name__ == "__main__":
    main()
