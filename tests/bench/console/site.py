"""A server with many tasks beside a supervisor's API over a large fleet, without its workers; run as a process.

    python3 -m tests.bench.console.site FOLDER PORT

The store and the state folder in FOLDER are made at the first run. A thread publishes the fleet once a second, as a
supervisor's turns do. `PORT is served` is printed when it answers; SIGTERM ends it.
"""

import argparse
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.http_api.paths import fleet_paths
from orchestrator.http_api.registry import SupervisorRegistry
from orchestrator.state.directory import StateDir
from orchestrator.state.journal import Journal
from orchestrator.supervisor.pool import Pool
from orchestrator.supervisor.snapshot import WallTime, snapshot_of
from orchestrator.supervisor.view import Heartbeat, view_of
from queue_core.client.connect import open_queues
from queue_core.client.queue import Queue
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from tests.support.fleet.fleet_builders import NOW, a_fleet, a_pool, a_sample, a_worker, learn_and_decide

STORE: Final = "tasks.db"
LARGEST: Final = "large-0"
"""The queue with half of all tasks, and all that are dead."""
DRAINED: Final = "drained"
"""The queue whose tasks are leased and added while people look."""
BATCH: Final = 1_000
DECISIONS: Final = 20_000
DEATHS: Final = 2_000


@dataclass(frozen=True, slots=True)
class ConsoleSizes:
    """How much there is to look at."""

    tasks: int = 1_000_000
    queues: int = 1_000
    pools: int = 200
    workers: int = 500
    dead: int = 5_000


class RunningFleetClock:
    """A clock that goes on from the instant of the builders' values."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def monotonic(self) -> Monotonic:
        """Return seconds since the start, from `NOW` on."""
        return Monotonic(NOW + time.monotonic() - self._began)

    def wall_seconds(self) -> float:
        """Return the host's time."""
        return time.time()


def fill_store(url: str, sizes: ConsoleSizes) -> None:
    """Add queues and tasks; a part of those of the largest queue is dead."""
    queues = open_queues(url, durability="relaxed")
    names = [LARGEST, *(f"queue-{number:04}" for number in range(1, sizes.queues - 1)), DRAINED]
    for name in names:
        queues.put_queue(QueueSpec(name, max_leases=1 if name == LARGEST else None))
    with_dead = queues.queue(LARGEST)
    _add(with_dead, sizes.dead)
    for number in range(0, sizes.dead, BATCH):
        leases = with_dead.lease(min(BATCH, sizes.dead - number), worker=f"resize-{number % 7}")
        with_dead.release(leases, dead_reason=f"{('ValueError', 'KeyError', 'OSError')[number % 3]}: of no use")
    _add(with_dead, sizes.tasks // 2)
    small = names[1:-1]
    for name in small:
        _add(queues.queue(name), sizes.tasks // 2 // len(small))
    queues.close()


def _add(queue: Queue, count: int) -> None:
    tasks = (NewTask(b'{"id": 7}', tag=f"customer-{number % 50}") for number in range(count))
    while batch := list(islice(tasks, BATCH)):
        queue.add(batch)


def a_large_fleet(sizes: ConsoleSizes) -> list[Pool]:
    """Return pools whose workers are idle and busy in turn, each with a decision."""
    each = max(1, sizes.workers // sizes.pools)
    pools, left = [], sizes.workers
    for number in range(sizes.pools):
        spec = a_pool(f"pool-{number:03}", queue=f"queue-{number + 1:04}", most=20)
        size = left if number == sizes.pools - 1 else min(each, left)
        pools.append(_a_pool(spec, size))
        left -= size
    return pools


def _a_pool(spec: PoolSpec, size: int) -> Pool:
    workers = [
        a_worker(f"{spec.name}-{place:04}", ("busy", "idle")[place % 2], spec=spec, ref=f"pid:{4_000 + place}@1")
        for place in range(size)
    ]
    pool = Pool(spec.name, spec, a_fleet(*workers, pool=spec.name))
    pool.sample = a_sample(ages=[4.0, 1.5])
    pool.decision, pool.state = learn_and_decide(pool.sample, fleet=pool.fleet, spec=spec, state=pool.state, now=NOW)
    pool.counters.count_decision(pool.decision)
    return pool


def write_journals(files: StateDir, pools: list[Pool], *, now_seconds: float) -> None:
    """Write decisions and deaths, in their order: two full files of decisions, as after a long run."""
    for name, count, record in (("decisions", DECISIONS, _decision), ("deaths", DEATHS, _death)):
        journal = Journal(files.path / f"{name}.jsonl")
        for number in range(count):
            pool = pools[number % len(pools)]
            journal.append({"at": round(now_seconds - (count - number), 1), "pool": pool.name, **record(pool, number)})


def _decision(pool: Pool, number: int) -> dict[str, object]:
    assert pool.decision is not None
    recorded = {name: value for name, value in pool.decision.record().items() if name != "pool"}
    return {**recorded, "current": number % 9, "target": number % 11}


def _death(pool: Pool, number: int) -> dict[str, object]:
    return {"worker": f"{pool.name}-{number:06}", "cause": "crashed", "detail": "code 1", "lived_seconds": 3.5}


class PublishedLargeFleet:
    """Publishes a fleet once a second from a thread: its view and its snapshot."""

    def __init__(self, files: StateDir, pools: list[Pool], clock: RunningFleetClock) -> None:
        self.heartbeat = Heartbeat(now=clock.monotonic())
        self._files = files
        self._pools = pools
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.publish()

    def publish(self) -> None:
        """Publish it as of now."""
        now, wall = self._clock.monotonic(), self._clock.wall_seconds()
        for pool in self._pools:
            assert pool.sample is not None
            pool.sample = replace(pool.sample, at=now)
        self.heartbeat.show(view_of(self._pools, phase="leading", started_at=Monotonic(NOW - 3600)))
        self.heartbeat.beat(now=now)
        shown = snapshot_of(self._pools, wall=WallTime(wall_seconds=wall, monotonic=now))
        about = {"version": 1, "pid": 1, "phase": "leading", "url": "", "shown_at": wall, "not_in_force": []}
        self._files.write_snapshot({**about, **shown})

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stopped.wait(1.0):
            self.publish()


def served(folder: Path, port: int, sizes: ConsoleSizes) -> Iterator[str]:
    """Serve once: yield the URL, and stop when resumed."""
    store = folder / STORE
    url = f"sqlite:///{store}"
    if not store.exists():
        fill_store(url, sizes)
    files, clock, pools = StateDir(folder / "state"), RunningFleetClock(), a_large_fleet(sizes)
    files.path.mkdir(exist_ok=True)
    write_journals(files, pools, now_seconds=time.time())
    fleet = PublishedLargeFleet(files, pools, clock)
    queues = OwnQueues()
    registry = SupervisorRegistry(queues, fleet.heartbeat, clock, files, version="bench")
    extensions = fleet_paths(fleet.heartbeat, clock, files=files, queues=queues, registry=registry)
    opened = open_store(url, durability="relaxed")
    server = ServerThread(opened, ServeOptions(port=port, console_writes=True), extensions=extensions)
    with files.locked():
        address = server.start()
        queues.locate(address, token=None)
        registry.start(address, ServeOptions(port=port))
        fleet.start()
        yield address
        fleet.stop()
        registry.stop()
        server.stop()
    queues.close()
    opened.close()


def main() -> None:
    """Run the process."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.console.site")
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    for name in ("tasks", "queues", "pools", "workers", "dead"):
        parser.add_argument(f"--{name}", type=int, default=getattr(ConsoleSizes(), name))
    given = parser.parse_args()
    sizes = ConsoleSizes(given.tasks, given.queues, given.pools, given.workers, given.dead)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    for url in served(given.folder, given.port, sizes):
        print(f"{url} is served", flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
