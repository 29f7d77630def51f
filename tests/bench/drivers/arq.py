"""ARQ over Redis: `enqueue_job` to add; two worker processes of ten jobs each, which poll: as it ships, or more often.

Run as a program it is one worker: `python -m tests.bench.drivers.arq URL [tuned]`.
"""

import sys
from collections.abc import Sequence

from arq import Worker, create_pool, func
from arq.connections import ArqRedis, RedisSettings
from redis import Redis

from tests.bench.driver import WORKERS, Loads, Producer
from tests.bench.loop_producer import LoopProducer
from tests.bench.record import record
from tests.bench.site import BenchSite

JOB = "record"
TUNED_POLL_SECONDS = 0.05


class ArqDriver:
    """Defaults; `tuned` polls twenty times a second instead of twice, and keeps no results.

    A poll takes as many jobs as there is room for: with very short jobs the default leaves it idle.
    """

    durable = "to a second"

    def __init__(self, *, tuned: bool = False) -> None:
        self.name = "ARQ, tuned" if tuned else "ARQ"
        self.loads = Loads(add=4_000, drain=4_000 if tuned else 1_000)
        self._tuned = tuned
        self._url = ""

    def start(self, site: BenchSite) -> None:
        self._url = site.redis(logged=True)
        Redis.from_url(self._url).flushall()

    def producer(self) -> Producer:
        return ArqProducer(self._url)

    def workers(self) -> Sequence[Sequence[str]]:
        return [[sys.executable, "-m", __name__, self._url, *(["tuned"] if self._tuned else [])]] * WORKERS

    def stop(self) -> None:
        if self._url:
            Redis.from_url(self._url).flushall()


class ArqProducer(LoopProducer):
    """One pool."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._pool: ArqRedis | None = None
        self.run(self._connect(url))

    async def send(self, payload: bytes) -> None:
        assert self._pool is not None
        await self._pool.enqueue_job(JOB, payload)

    async def leave(self) -> None:
        assert self._pool is not None
        await self._pool.aclose()

    async def _connect(self, url: str) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(url))


async def note(_context: dict[str, object], payload: bytes) -> None:
    """The job."""
    record(payload)


def main() -> None:
    """Run one worker."""
    jobs, settings = [func(note, name=JOB)], RedisSettings.from_dsn(sys.argv[1])
    if sys.argv[2:] == ["tuned"]:
        Worker(jobs, redis_settings=settings, poll_delay=TUNED_POLL_SECONDS, keep_result=0).run()
    else:
        Worker(jobs, redis_settings=settings).run()


if __name__ == "__main__":
    main()
