"""Procrastinate over PostgreSQL: `defer` and `batch_defer`; two worker processes, woken by NOTIFY as it ships.

Run as a program it is one worker: `python -m tests.bench.drivers.procrastinate URL`.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from tests.bench.driver import WORKERS, Loads, Producer
from tests.bench.places import new_database
from tests.bench.record import record
from tests.bench.site import BenchSite

TASK = "bench.record"


class ProcrastinateDriver:
    """Defaults: finished jobs stay in the table."""

    name = "Procrastinate"
    durable = "yes"
    loads = Loads(add=2_000, drain=1_500, add_batch=20_000)

    def __init__(self) -> None:
        self._url = ""
        self._stack = ExitStack()

    def start(self, site: BenchSite) -> None:
        self._url = self._stack.enter_context(new_database(site))
        app = App(connector=SyncPsycopgConnector(conninfo=self._url))
        with app.open():
            app.schema_manager.apply_schema()

    def producer(self) -> Producer:
        return ProcrastinateProducer(self._url)

    def workers(self) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", __name__, self._url]] * WORKERS

    def stop(self) -> None:
        self._stack.close()


class ProcrastinateProducer:
    """A synchronous producer with one connection."""

    def __init__(self, url: str) -> None:
        self._app = App(connector=SyncPsycopgConnector(conninfo=url))
        self._task = self._app.task(name=TASK)(record)
        self._app.open()

    def add(self, payload: bytes) -> None:
        self._task.defer(payload=payload.decode())

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        self._task.batch_defer(*({"payload": payload.decode()} for payload in payloads))

    def close(self) -> None:
        self._app.close()


def main() -> None:
    """One worker, one job at a time."""
    app = App(connector=PsycopgConnector(conninfo=sys.argv[1]))
    app.task(name=TASK)(record)
    app.run_worker(concurrency=1)


if __name__ == "__main__":
    main()
