"""What waiting costs: a thousand lease calls that wait for nothing, and how soon added work reaches one that waits."""

import multiprocessing
import resource
import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from multiprocessing.connection import Connection

from queue_core.connect import open_queue
from queue_core.store import Deletion
from tests.bench.alone.served import cpu_share, serving
from tests.bench.load import held_open, lease_request
from tests.bench.measure import LATENCY_EVERY_SECONDS, LATENCY_SAMPLES, WARM_UP_TASKS, MeasurementFailedError
from tests.bench.record import QUEUE, STAMP_DIGITS, stamped_payload
from tests.bench.site import Site

WAITERS = 1_000
OPEN_FILES = WAITERS * 2 + 500
WAIT_SECONDS = 60.0
SETTLE_SECONDS = 2.0
WATCH_SECONDS = 10.0
ANSWER_SECONDS = 30.0


def measure(site: Site) -> Mapping[str, float]:
    """The share of a core under idle waiters, and the median from add to a waiting lease's return, in seconds."""
    _allow_open_files()
    with serving(site, f"sqlite:///{site.new_directory('waiting')}/bench.db") as served:
        open_queue(served.url, QUEUE).close()
        requests = [
            lease_request(served.address, QUEUE, worker=f"waiter-{number}", wait_seconds=WAIT_SECONDS)
            for number in range(WAITERS)
        ]
        with held_open(served.address, requests):
            time.sleep(SETTLE_SECONDS)
            share = cpu_share(served.process.pid, seconds=max(WATCH_SECONDS / site.divide_loads_by, 2.0))
        wake_up = _wake_up(served.url, max(LATENCY_SAMPLES // site.divide_loads_by, 20))
    return {"cpu_share": share, "wake_up": wake_up}


def _allow_open_files() -> None:
    """A thousand sockets here and in the server, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        raise MeasurementFailedError(f"open files are limited to {hard}; {OPEN_FILES} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, OPEN_FILES), hard))


def _wake_up(url: str, samples: int) -> float:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_lease_as_they_come, args=(url, samples + WARM_UP_TASKS, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(ANSWER_SECONDS):
            raise MeasurementFailedError("the waiting worker did not start")
        ours.recv()
        with closing(open_queue(url, QUEUE)) as queue:
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
    """A worker that waits: seconds from the stamp in each payload to the return of the lease."""
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
