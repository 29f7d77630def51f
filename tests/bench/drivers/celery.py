"""Celery over Redis: `delay` to add; one worker with a prefork pool of two, as `celery worker` runs it, or tuned.

Run as a program it is that worker: `python -m tests.bench.drivers.celery URL [tuned]`.
"""

import sys
from collections.abc import Sequence

from celery import Celery
from redis import Redis

from tests.bench.driver import WORKERS, Loads, NotOfferedError, Producer
from tests.bench.record import record
from tests.bench.site import BenchSite

TASK = "bench.record"


def make_app(url: str) -> Celery:
    """Return the application of producer and workers: defaults, no result backend."""
    app = Celery("bench", broker=url)
    app.task(record, name=TASK, ignore_result=True)
    return app


class CeleryDriver:
    """Prefork, concurrency 2, otherwise defaults; `tuned` prefetches 100 messages a process, without gossip."""

    loads = Loads(add=4_000, drain=4_000)

    def __init__(self, *, logged: bool = False, tuned: bool = False) -> None:
        """`logged`: Redis syncs a log every second; else it keeps nothing."""
        self.name = "Celery + Redis, tuned" if tuned else "Celery + Redis"
        self.durable = "to a second" if logged else "no"
        self._logged = logged
        self._tuned = tuned
        self._url = ""

    def start(self, site: BenchSite) -> None:
        self._url = site.redis(logged=self._logged)
        Redis.from_url(self._url).flushall()

    def producer(self) -> Producer:
        return CeleryProducer(self._url)

    def workers(self) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", __name__, self._url, *(["tuned"] if self._tuned else [])]]

    def stop(self) -> None:
        if self._url:
            Redis.from_url(self._url).flushall()


class CeleryProducer:
    """`delay`, one message a call."""

    def __init__(self, url: str) -> None:
        self._app = make_app(url)
        self._task = self._app.tasks[TASK]

    def add(self, payload: bytes) -> None:
        self._task.delay(payload.decode())

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        raise NotOfferedError

    def close(self) -> None:
        self._app.close()


def main() -> None:
    """Run the worker."""
    command = ["worker", "--pool=prefork", f"--concurrency={WORKERS}", "--loglevel=WARNING"]
    if sys.argv[2:] == ["tuned"]:
        command += ["--prefetch-multiplier=100", "--without-gossip", "--without-mingle", "--without-heartbeat"]
    make_app(sys.argv[1]).worker_main(command)


if __name__ == "__main__":
    main()
