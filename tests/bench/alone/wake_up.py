"""Measure how soon added work reaches a waiting worker: added at one server, leased at the same or another."""

import multiprocessing
import statistics
import time
from contextlib import closing
from multiprocessing.connection import Connection

from queue_core.client.connect import open_queue
from queue_core.verbs import Deletion
from tests.bench.measure import LATENCY_EVERY_SECONDS, LATENCY_SAMPLES, WARM_UP_TASKS, MeasurementFailedError
from tests.bench.record import QUEUE, STAMP_DIGITS, stamped_payload
from tests.bench.site import BenchSite

WAIT_SECONDS = 60.0
ANSWER_SECONDS = 30.0


def wake_up_seconds(site: BenchSite, *, add_at: str, wait_at: str) -> float:
    """Return the median time from just before an add to the return of the waiting lease, one task every 20 ms."""
    samples = max(LATENCY_SAMPLES // site.divide_loads_by, 20)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_lease_as_they_come, args=(wait_at, samples + WARM_UP_TASKS, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(ANSWER_SECONDS):
            raise MeasurementFailedError("the waiting worker did not start")
        ours.recv()
        with closing(open_queue(add_at, QUEUE)) as queue:
            due = time.monotonic()
            for _ in range(samples + WARM_UP_TASKS):
                due += LATENCY_EVERY_SECONDS
                time.sleep(max(due - time.monotonic(), 0))
                queue.add(stamped_payload())
        if not ours.poll(ANSWER_SECONDS):
            raise MeasurementFailedError("the waiting worker did not get every task")
        taken: list[float] = ours.recv()
    except EOFError:
        raise MeasurementFailedError("the waiting worker ended early; its traceback is above") from None
    finally:
        child.kill()
        child.join()
        ours.close()
    return statistics.median(taken[WARM_UP_TASKS:])


def _lease_as_they_come(url: str, tasks: int, pipe: Connection) -> None:
    """Lease as a waiting worker; return seconds from each payload's time stamp to the lease's return."""
    taken: list[float] = []
    finished: list[Deletion] = []
    with closing(open_queue(url, QUEUE)) as queue:
        pipe.send("ready")
        while len(taken) < tasks:
            leases, _ = queue.exchange(finished, worker="waiter", wait_seconds=WAIT_SECONDS)
            now = time.monotonic_ns()
            taken += [(now - int(lease.payload[:STAMP_DIGITS])) / 1e9 for lease in leases]
            finished = [Deletion(lease.token) for lease in leases]
    pipe.send(taken)
