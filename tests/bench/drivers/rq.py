"""RQ over Redis: `enqueue` and `enqueue_many`; two workers, forking for each job as it ships, or not.

Run as a program it is one worker: `python -m tests.bench.drivers.rq fork|simple URL`.
"""

import sys
from collections.abc import Sequence

from redis import Redis
from rq import Queue, SimpleWorker, Worker

from tests.bench.driver import WORKERS, Loads, Producer
from tests.bench.record import record
from tests.bench.site import BenchSite

QUEUE = "bench"
WORKER_CLASSES = {"fork": Worker, "simple": SimpleWorker}


class RqDriver:
    """`simple` runs jobs in the worker's own process, which RQ advises against outside tests."""

    durable = "no"

    def __init__(self, *, simple: bool) -> None:
        self.name = "RQ, simple worker" if simple else "RQ"
        self.loads = Loads(add=3_000, drain=1_000 if simple else 200, add_batch=20_000)
        self._kind = "simple" if simple else "fork"
        self._url = ""

    def start(self, site: BenchSite) -> None:
        self._url = site.redis()
        Redis.from_url(self._url).flushall()

    def producer(self) -> Producer:
        return RqProducer(self._url)

    def workers(self) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", __name__, self._kind, self._url]] * WORKERS

    def stop(self) -> None:
        if self._url:
            Redis.from_url(self._url).flushall()


class RqProducer:
    """One connection and one queue."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)
        self._queue = Queue(QUEUE, connection=self._redis)

    def add(self, payload: bytes) -> None:
        self._queue.enqueue(record, payload)

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        self._queue.enqueue_many([Queue.prepare_data(record, args=[payload]) for payload in payloads])

    def close(self) -> None:
        self._redis.close()


def main() -> None:
    """One worker."""
    kind, url = sys.argv[1:]
    worker = WORKER_CLASSES[kind]([QUEUE], connection=Redis.from_url(url))
    worker.work(logging_level="WARNING")


if __name__ == "__main__":
    main()
