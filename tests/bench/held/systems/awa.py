"""awa, its queue storage installed: its own workers, batches copied in.

Each tag is a queue of its own, a release is `RetryAfter`, a lease that expires is a job that passes its deadline.
"""

import asyncio
import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import awa

from tests.bench.held.system import (
    DELAY_SECONDS,
    LEASE_BATCH,
    LEASE_SECONDS,
    TAGS,
    Adder,
    LoadPhase,
    LoadTask,
    Tally,
)
from tests.bench.measure import MeasurementFailedError

UNTAGGED = "untagged"
CONNECTIONS = 6
OVERDUE = 100
"""Jobs of a queue that a worker may have beside the ten: those that are to pass their deadline keep their place."""
RESCUE_MILLISECONDS = 1_000


@dataclass
class HeldItem:
    """What a job carries."""

    body: str


class HeldAwa:
    """Four worker processes, each with a client of its own."""

    name = "awa"
    notions = "a tag is a queue of its own, a release RetryAfter, an expiry a passed deadline"
    tasks_per_second = 800

    def install(self, url: str) -> None:
        try:
            with awa.Client(_given(url), max_connections=CONNECTIONS) as client:
                client.migrate()
                client.install_queue_storage()
        except awa.AwaError as error:
            raise MeasurementFailedError(f"awa's tables: {error}") from None

    @contextmanager
    def adder(self, url: str) -> Iterator[Adder]:
        with awa.Client(_given(url), max_connections=CONNECTIONS) as client:

            def add(tasks: Sequence[LoadTask]) -> None:
                for delay in {task.delay_seconds for task in tasks}:
                    chosen = [task for task in tasks if task.delay_seconds == delay]
                    now = dt.datetime.now(dt.UTC)
                    client.enqueue_many_copy(
                        [HeldItem(task.payload.decode()) for task in chosen],
                        run_at=None if delay is None else now + dt.timedelta(seconds=delay),
                        opts=[{"queue": task.tag or UNTAGGED} for task in chosen],
                    )

            yield add

    def consume(self, url: str, number: int, tally: Tally, phase: LoadPhase) -> None:
        asyncio.run(_work(url, TAGS if number % 2 else (UNTAGGED,), tally, phase))


def _given(url: str) -> str:
    """Return a URL that its driver accepts: it wants a host's name beside the path of a socket."""
    return url.replace("@/", "@localhost/")


async def _work(url: str, queues: Sequence[str], tally: Tally, phase: LoadPhase) -> None:
    client = awa.AsyncClient(_given(url), max_connections=CONNECTIONS)

    @client.task(HeldItem, queue=queues[0])
    async def work(job: "awa.Job[HeldItem]") -> object:
        tally.leased(job.args.body, is_first=job.attempt == 1)
        fate = phase.fate()
        if fate == "release":
            tally.count("released")
            return awa.RetryAfter(DELAY_SECONDS)
        if fate == "expire":
            await asyncio.sleep(LEASE_SECONDS + 2 * RESCUE_MILLISECONDS / 1e3)
            return None
        tally.count("done")
        return None

    await client.start(
        [
            {
                "name": queue,
                "max_workers": LEASE_BATCH + OVERDUE,
                "deadline_duration_ms": round(LEASE_SECONDS * 1e3),
                "claim_batch_size": LEASE_BATCH,
            }
            for queue in queues
        ],
        deadline_rescue_interval_ms=RESCUE_MILLISECONDS,
    )
    await asyncio.Event().wait()
