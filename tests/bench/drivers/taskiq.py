"""Taskiq over a Redis stream: `kiq` to add; `taskiq worker` with its two processes of up to 100 tasks each.

An async task, as its documentation advises; by default a message is acknowledged once its task has ended.
"""

import os
import sys
from collections.abc import Sequence

from redis import Redis
from taskiq_redis import RedisStreamBroker

from tests.bench.driver import WORKERS, Loads, Producer
from tests.bench.loop_producer import LoopProducer
from tests.bench.record import record
from tests.bench.site import BenchSite

TASK = "bench.record"
URL_VARIABLE = "TOWLINE_BENCH_TASKIQ"


class TaskiqDriver:
    """Defaults, without its log line per task."""

    name = "Taskiq, stream, 100 tasks a worker"
    durable = "to a second"
    loads = Loads(add=6_000, drain=12_000)

    def __init__(self) -> None:
        self._url = ""

    def start(self, site: BenchSite) -> None:
        self._url = site.redis(logged=True)
        Redis.from_url(self._url).flushall()

    def producer(self) -> Producer:
        return TaskiqProducer(self._url)

    def workers(self) -> Sequence[Sequence[str]]:
        broker = f"{__name__}:broker_of_worker"
        command = [sys.executable, "-m", "taskiq", "worker", broker, "--workers", str(WORKERS)]
        return [["env", f"{URL_VARIABLE}={self._url}", *command, "--log-level", "WARNING"]]

    def stop(self) -> None:
        if self._url:
            Redis.from_url(self._url).flushall()


class TaskiqProducer(LoopProducer):
    """One broker; messages are JSON, so payloads are text."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._broker = make_broker(url)
        self._task = self._broker.find_task(TASK)
        self.run(self._broker.startup())

    async def send(self, payload: bytes) -> None:
        assert self._task is not None
        await self._task.kiq(payload.decode())

    async def leave(self) -> None:
        await self._broker.shutdown()


def make_broker(url: str) -> RedisStreamBroker:
    """Return the broker of producer and workers."""
    broker = RedisStreamBroker(url)
    broker.register_task(note, task_name=TASK)
    return broker


async def note(payload: str) -> None:
    """The task."""
    record(payload)


def broker_of_worker() -> RedisStreamBroker:
    """Return the broker for `taskiq worker`."""
    return make_broker(os.environ[URL_VARIABLE])
