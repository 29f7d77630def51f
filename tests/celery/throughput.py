"""C17, C11: tasks a second of Celery's workers beside Redis in one run, start latency, idle cost, many delayed tasks.

    python -m tests.celery.throughput                     the table: pools x settings x brokers
    python -m tests.celery.throughput --pools prefork --tasks 2000 --rounds 5
    python -m tests.celery.throughput --countdown 100000  a worker's memory beside tasks that are due in an hour
    python -m tests.celery.throughput --publish 1000      publishing alone: one by one, by an exchange, and as a group

Brokers take turns within each round, as the machine's load changes. CPU seconds a task are steadier than rates.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import kombu
import psutil
from celery import Celery, group
from redis import Redis

import queue_core.kombu  # noqa: F401 - registers the transport
from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from tests.celery.throughput_app import CLOCK, NOTE
from tests.support.commands import ROOT, program_environment
from tests.support.stores.engines import free_port, redis

POOLS = ("prefork", "threads")
SETTINGS = ("late", "defaults")
"""`late`: acks_late, prefetch multiplier 1. `defaults`: Celery's own."""
STORES = ("relaxed", "strict")
WARM_PART = 10
"""The first of so many parts of a burst is not counted: the worker starts."""
PROBES = 100
PROBE_SECONDS = 0.03
IDLE_SECONDS = 5.0
LIMIT_SECONDS = 180.0
BARS = {"relaxed": 1.0, "strict": 0.8}
MAX_START_MILLISECONDS = 8.0
MAX_IDLE_PART = 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """One worker's figures: tasks a second, CPU milliseconds a task, milliseconds from publishing to start."""

    rate: float
    worker_cpu: float
    broker_cpu: float
    start_p50: float
    start_p95: float
    idle: float


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of a pool, settings and broker; `ratio`: of its rate to Redis' in the same round."""

    pool: str
    settings: str
    broker: str
    figures: Run
    ratio: float

    @property
    def is_met(self) -> bool:
        """Whether C17 holds."""
        if self.broker == "redis":
            return True
        in_time = self.figures.start_p50 < MAX_START_MILLISECONDS and self.figures.idle < MAX_IDLE_PART
        return in_time and self.ratio >= BARS[self.broker]

    def __str__(self) -> str:
        one = self.figures
        return (
            f"{self.pool:8} {self.settings:9} {self.broker:8} {one.rate:7.0f}/s {self.ratio:6.2f} of redis  "
            f"worker {one.worker_cpu:5.2f} ms  broker {one.broker_cpu:5.2f} ms a task  "
            f"start {one.start_p50:5.1f} ms, p95 {one.start_p95:5.1f} ms  idle {one.idle:5.1%}"
            f"{'' if self.is_met else '  MISSED'}"
        )


@dataclass(slots=True)
class Broker:
    """A running broker and its process."""

    name: str
    url: str
    process: psutil.Process


@dataclass(slots=True)
class Worker:
    """A running worker of Celery."""

    process: "subprocess.Popen[bytes]"
    notes: Path
    log: Path
    seen: psutil.Process = field(init=False)

    def __post_init__(self) -> None:
        self.seen = psutil.Process(self.process.pid)

    def done(self) -> int:
        return self.notes.stat().st_size // NOTE.size if self.notes.exists() else 0

    def noted(self) -> list[tuple[float, float]]:
        return list(NOTE.iter_unpack(self.notes.read_bytes()))

    def cpu(self) -> float:
        """Return the CPU seconds of the worker and its children so far."""
        return sum(cpu_of(one) for one in [self.seen, *self.seen.children(recursive=True)])

    def memory(self) -> int:
        return sum(one.memory_info().rss for one in [self.seen, *self.seen.children(recursive=True)])


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a state."""
    ends_at = CLOCK.monotonic() + LIMIT_SECONDS
    while not holds():
        if CLOCK.monotonic() > ends_at:
            raise TimeoutError(f"{what}: not within {LIMIT_SECONDS:.0f} s")
        time.sleep(0.005)


@contextmanager
def brokers(home: Path, names: Sequence[str]) -> Iterator[dict[str, Broker]]:
    """Run the brokers: a private Redis, and a server of Towline for each durability."""
    with ExitStack() as running:
        found = {}
        for name in names:
            if name == "redis":
                engine = running.enter_context(redis(home))
                with Redis.from_url(engine.tcp_url) as client:
                    pid = client.info("server")["process_id"]
                found[name] = Broker(name, engine.tcp_url, psutil.Process(pid))
            else:
                found[name] = running.enter_context(serving(home, name))
        yield found


@contextmanager
def serving(home: Path, durability: str) -> Iterator[Broker]:
    """Run `towline serve` over a file of SQLite."""
    port = free_port()
    store = f"sqlite:///{home}/{durability}.db"
    command = [sys.executable, "-m", "orchestrator", "serve", "--store", store, "--durability", durability]
    with (home / f"{durability}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--listen", f"127.0.0.1:{port}"], cwd=home, env=program_environment(), stdout=log, stderr=log
        )
    queues = HttpQueues(f"http://127.0.0.1:{port}", retries=Retries(tries=100))
    try:
        queues.queues()  # it is there
        yield Broker(durability, f"towline+http://127.0.0.1:{port}", psutil.Process(process.pid))
    finally:
        queues.close()
        end(process)


@contextmanager
def worker(home: Path, url: str, *, pool: str, settings: str, concurrency: int = 2) -> Iterator[Worker]:
    """Run a worker of Celery, as a user starts it."""
    home = Path(tempfile.mkdtemp(dir=home))
    command = [sys.executable, "-m", "celery", "-A", "tests.celery.throughput_app", "worker", "-l", "INFO"]
    log = home / "log"
    environment = {"BENCH_BROKER": url, "BENCH_SETTINGS": settings, "BENCH_NOTES": str(home / "notes")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "-P", pool, "-c", str(concurrency), "-n", f"{home.name}@bench"],
            cwd=ROOT,
            env={**program_environment(), **environment, **kept("PYTHONPATH")},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Worker(process, home / "notes", log)
    finally:
        end(process)


def kept(name: str) -> dict[str, str]:
    """Return this process's variable, with this tree before it: gevent may be in a folder of its own."""
    return {name: os.pathsep.join([str(ROOT), *filter(None, [os.environ.get(name)])])}


def end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def measure(home: Path, broker: Broker, *, pool: str, settings: str, tasks: int) -> Run:
    """Run one worker over a burst that waits for it, then tasks one by one, then nothing."""
    app = Celery("producer", broker=broker.url)
    app.conf.task_ignore_result = True
    for _ in range(tasks):
        app.send_task("note", (0.0,))
    with worker(home, broker.url, pool=pool, settings=settings) as running:
        until(lambda: running.done() >= tasks // WARM_PART, "the first tasks")
        before = running.done(), running.cpu(), cpu_of(broker.process)
        until(lambda: running.done() >= tasks, "all tasks")
        after = running.done(), running.cpu(), cpu_of(broker.process)
        counted = after[0] - before[0]
        begun = sorted(at for _, at in running.noted())
        rate = (tasks - tasks // WARM_PART) / (begun[-1] - begun[tasks // WARM_PART])
        for number in range(PROBES):
            time.sleep(PROBE_SECONDS)
            app.send_task("note", (CLOCK.monotonic(),))
            until(lambda number=number: running.done() > tasks + number, "a single task")  # type: ignore[misc]
        waits = sorted(1000 * (at - sent) for sent, at in running.noted() if sent)
        idle_from = running.cpu()
        time.sleep(IDLE_SECONDS)
        idle = (running.cpu() - idle_from) / IDLE_SECONDS
    app.close()
    return Run(
        rate,
        1000 * (after[1] - before[1]) / counted,
        1000 * (after[2] - before[2]) / counted,
        median(waits),
        waits[int(0.95 * len(waits))],
        idle,
    )


def run(
    *,
    pools: Sequence[str] = POOLS,
    settings: Sequence[str] = SETTINGS,
    stores: Sequence[str] = STORES,
    tasks: int = 1500,
    rounds: int = 3,
    told: Callable[[str], None] = lambda _line: None,
) -> list[Row]:
    """Measure each pool and settings on Redis and on stores of Towline, in turns; return the medians."""
    found: dict[tuple[str, str, str], list[Run]] = {}
    with tempfile.TemporaryDirectory() as folder, brokers(Path(folder), ("redis", *stores)) as running:
        for _ in range(rounds):
            for pool in pools:
                for each in settings:
                    for name, broker in running.items():
                        one = measure(Path(folder), broker, pool=pool, settings=each, tasks=tasks)
                        found.setdefault((pool, each, name), []).append(one)
                        told(f"{pool} {each} {name}: {one.rate:.0f}/s, {one.worker_cpu + one.broker_cpu:.2f} ms a task")
    return [row(key, runs, found[*key[:2], "redis"]) for key, runs in found.items()]


def row(key: tuple[str, str, str], runs: Sequence[Run], beside: Sequence[Run]) -> Row:
    """Return the medians of some runs."""
    middle = Run(*(median(getattr(one, name) for one in runs) for name in Run.__dataclass_fields__))
    ratio = median(one.rate / other.rate for one, other in zip(runs, beside, strict=True))
    return Row(*key, middle, ratio)


@dataclass(frozen=True, slots=True)
class Delayed:
    """A worker beside tasks with a countdown: its memory before and after, and where the tasks are."""

    tasks: int
    bytes_before: int
    bytes_after: int
    delayed: int
    in_flight: int
    is_running_others: bool

    def __str__(self) -> str:
        return (
            f"{self.tasks:,} tasks with a countdown of 1 h: {self.delayed:,} delayed, {self.in_flight:,} in flight; "
            f"worker {self.bytes_before / 1e6:.0f} MB before, {self.bytes_after / 1e6:.0f} MB after"
        )


def countdown(tasks: int, *, pool: str = "prefork") -> Delayed:
    """C11: publish tasks that are due in an hour beside a worker."""
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), "relaxed") as broker:
        app = Celery("producer", broker=broker.url)
        with worker(Path(folder), broker.url, pool=pool, settings="late") as running:
            app.send_task("note", (0.0,))
            until(lambda: running.done() == 1, "the first task")
            before = running.memory()
            for _ in range(tasks):
                app.send_task("note", (0.0,), countdown=3600, ignore_result=True)
            app.send_task("note", (0.0,))
            until(lambda: running.done() == 2, "a task beside delayed ones")
            queues = HttpQueues(broker.url.removeprefix("towline+"))
            until(lambda: queues.queue("celery").stats().in_flight == 0, "its acknowledgement")
            stats = queues.queue("celery").stats()
            queues.close()
            after, is_running = running.memory(), running.done() == 2
        app.close()
    return Delayed(tasks, before, after, stats.delayed, stats.in_flight, is_running)


PUBLISHED_LEAST = 0.8
"""Of Redis' rate, with a sync of the disk for each message at both."""


def publish_one_by_one(app: Celery, count: int) -> None:
    for _ in range(count):
        app.send_task("note", (0.0,))


def publish_by_exchange(app: Celery, count: int) -> None:
    queue = kombu.Queue("routed", kombu.Exchange("routes", "topic"), routing_key="note.#")
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(count):
            app.send_task(
                "note", (0.0,), producer=producer, exchange=queue.exchange, routing_key="note.a", declare=[queue]
            )


def publish_group(app: Celery, count: int) -> None:
    group(app.signature("note", (0.0,)) for _ in range(count)).apply_async()


def publish_batch(app: Celery, count: int) -> None:
    members = group(app.signature("note", (0.0,)) for _ in range(count))
    with app.producer_pool.acquire(block=True) as producer, producer.batch():
        members.apply_async(producer=producer)


WAYS: Final[Mapping[str, Callable[[Celery, int], None]]] = {
    "one by one": publish_one_by_one,
    "exchange": publish_by_exchange,
    "group": publish_group,
    "batch": publish_batch,
}


def publishing(count: int, rounds: int) -> Iterator[str]:
    """Publish to Redis, which syncs its disk for each message, and to a strict store, in turns; yield the medians."""
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, brokers(Path(folder), ("redis", "strict")) as running:
        with Redis.from_url(running["redis"].url) as client:
            client.config_set("appendonly", "yes")
            client.config_set("appendfsync", "always")
        apps = {name: Celery("producer", broker=one.url) for name, one in running.items()}
        for app in apps.values():
            app.conf.task_ignore_result = True
            for publish in WAYS.values():
                publish(app, 2)
        for _ in range(rounds):
            for way, publish in WAYS.items():
                for name, app in apps.items():
                    before = cpu_of(running[name].process), time.process_time(), CLOCK.monotonic()
                    publish(app, count)
                    after = cpu_of(running[name].process), time.process_time(), CLOCK.monotonic()
                    broker_cpu, own_cpu, seconds = (late - soon for late, soon in zip(after, before, strict=True))
                    of_way = found.setdefault((way, name), [])
                    of_way.append((count / seconds, 1000 * own_cpu / count, 1000 * broker_cpu / count))
        for app in apps.values():
            app.close()
    for (way, name), runs in found.items():
        rate, own, broker = (median(column) for column in zip(*runs, strict=True))
        ratio = median(one[0] / other[0] for one, other in zip(runs, found[way, "redis"], strict=True))
        missed = "" if ratio >= PUBLISHED_LEAST else "  MISSED"
        figures = f"{rate:7.0f}/s {ratio:6.2f} of redis  own {own:5.2f} ms  broker {broker:5.2f} ms"
        yield f"{way:10} {name:8} {figures}{missed}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", nargs="+", default=POOLS)
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--stores", nargs="+", default=STORES, choices=STORES)
    parser.add_argument("--tasks", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--countdown", type=int, default=0)
    parser.add_argument("--publish", type=int, default=0)
    given = parser.parse_args()
    if given.publish:
        sys.stdout.writelines(f"{line}\n" for line in publishing(given.publish, given.rounds))
        return
    if given.countdown:
        sys.stdout.write(f"{countdown(given.countdown)}\n")
        return
    rows = run(
        pools=given.pools,
        settings=given.settings,
        stores=given.stores,
        tasks=given.tasks,
        rounds=given.rounds,
        told=lambda line: print(line, file=sys.stderr, flush=True),
    )
    sys.stdout.write("".join(f"{one}\n" for one in rows))


if __name__ == "__main__":
    main()
