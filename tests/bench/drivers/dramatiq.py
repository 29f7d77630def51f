"""Dramatiq over Redis: `send` to add; two worker processes of eight threads each, the default.

Run as a program it is one worker: `python -m tests.bench.drivers.dramatiq URL`.
"""

import signal
import sys
from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from redis import Redis

from tests.bench.driver import WORKERS, Loads, NotOfferedError, Producer
from tests.bench.record import record
from tests.bench.site import BenchSite

ACTOR = "record"


class DramatiqDriver:
    """The Redis broker with its default middleware; no results."""

    name = "Dramatiq + Redis"
    durable = "no"
    loads = Loads(add=5_000, drain=4_000)

    def __init__(self) -> None:
        self._url = ""

    def start(self, site: BenchSite) -> None:
        self._url = site.redis()
        Redis.from_url(self._url).flushall()

    def producer(self) -> Producer:
        return DramatiqProducer(self._url)

    def workers(self) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", __name__, self._url]] * WORKERS

    def stop(self) -> None:
        if self._url:
            Redis.from_url(self._url).flushall()


class DramatiqProducer:
    """One broker; messages are JSON, so payloads are text."""

    def __init__(self, url: str) -> None:
        self._broker = RedisBroker(url=url)
        self._actor = dramatiq.actor(record, actor_name=ACTOR, broker=self._broker)

    def add(self, payload: bytes) -> None:
        self._actor.send(payload.decode())

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        raise NotOfferedError

    def close(self) -> None:
        self._broker.close()


def main() -> None:
    """One worker process."""
    broker = RedisBroker(url=sys.argv[1])
    dramatiq.actor(record, actor_name=ACTOR, broker=broker)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    worker = dramatiq.Worker(broker)
    worker.start()
    signal.sigwait({signal.SIGTERM})
    worker.stop()


if __name__ == "__main__":
    main()
