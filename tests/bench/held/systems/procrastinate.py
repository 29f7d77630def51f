"""Procrastinate: its own workers, ten jobs at once each, woken by NOTIFY as it ships; done jobs are deleted.

Each tag is a queue of its own, a release is a retry in a second. It has no lease: a job ends when its worker says so.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from procrastinate import App, BaseRetryStrategy, PsycopgConnector, RetryDecision, SyncPsycopgConnector
from procrastinate.jobs import Job

from tests.bench.held.system import DELAY_SECONDS, LEASE_BATCH, TAGS, Adder, LoadPhase, LoadTask, Tally

TASK = "bench.held"
UNTAGGED = "untagged"


class GivenBackError(Exception):
    """The job is to be done again in a second."""


class LaterStrategy(BaseRetryStrategy):
    """Retry whatever was given back in a second."""

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision:
        return RetryDecision(retry_in={"seconds": round(DELAY_SECONDS)})


class HeldProcrastinate:
    """Four worker processes."""

    name = "Procrastinate"
    notions = "a tag is a queue of its own, a release a retry; no lease that expires: left out"
    tasks_per_second = 120

    def install(self, url: str) -> None:
        app = App(connector=SyncPsycopgConnector(conninfo=url))
        with app.open():
            app.schema_manager.apply_schema()

    @contextmanager
    def adder(self, url: str) -> Iterator[Adder]:
        app = App(connector=SyncPsycopgConnector(conninfo=url))
        with app.open():

            def add(tasks: Sequence[LoadTask]) -> None:
                batches: dict[tuple[str, float | None], list[dict[str, str]]] = defaultdict(list)
                for task in tasks:
                    batches[task.tag or UNTAGGED, task.delay_seconds].append({"payload": task.payload.decode()})
                for (queue, delay), given in batches.items():
                    later = {"schedule_in": {"seconds": round(delay)}} if delay else {}
                    app.configure_task(TASK, queue=queue, **later).batch_defer(*given)

            yield add

    def consume(self, url: str, number: int, tally: Tally, phase: LoadPhase) -> None:
        logging.getLogger("procrastinate").setLevel(logging.CRITICAL)  # each retry is an error there
        app = App(connector=PsycopgConnector(conninfo=url))

        @app.task(name=TASK, pass_context=True, retry=LaterStrategy())
        async def work(context: object, payload: str) -> None:
            tally.leased(payload, is_first=context.job.attempts == 0)  # type: ignore[attr-defined]
            if phase.fate() == "release":
                tally.count("released")
                raise GivenBackError
            tally.count("done")

        queues = list(TAGS) if number % 2 else [UNTAGGED]

        async def run() -> None:
            async with app.open_async():
                await app.run_worker_async(
                    queues=queues, concurrency=LEASE_BATCH, delete_jobs="always", install_signal_handlers=False
                )

        asyncio.run(run())
