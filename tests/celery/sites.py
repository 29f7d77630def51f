"""A broker, workers of Celery as processes, and a record of what ran: Towline's server, or a Redis to compare with."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from celery import Celery

from queue_core.celery.transport.broker import close_brokers
from queue_core.client.http_calls import HttpQueues
from queue_core.errors import StoreUnavailableError, UnknownQueueError
from queue_core.stats import QueueStats
from tests.celery.environments import environment_of
from tests.support.commands import ROOT, program_environment
from tests.support.eventually import eventually
from tests.support.stores.engines import Engine, free_port, redis
from tests.support.stores.shared_engines import engines_of_process

PROGRAM = "tests.celery.program"
SECONDS = 120.0
QUEUE = "celery"


class ServerProcess:
    """A server over a store, as a process of its own: it can be killed, and started again at its port."""

    def __init__(self, store_url: str, folder: Path) -> None:
        self.store_url = store_url
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "orchestrator", "serve", "--store", self.store_url]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        with (self._folder / f"server-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=program_environment(), stdout=log, stderr=log
            )
        eventually(self._answers)

    def kill(self) -> None:
        """End it as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it as an operator does."""
        self._end(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP has it stand still until SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait()

    def _answers(self) -> bool:
        with closing(HttpQueues(self.url)) as queues, suppress(StoreUnavailableError):
            queues.queues()
            return True
        return False


@contextmanager
def a_served_store(store: str, folder: Path) -> Iterator[ServerProcess]:
    """Run a server over a new store: `memory`, `sqlite`, `postgresql` or `redis`."""
    if store in ("postgresql", "redis"):
        url = engines_of_process().new_store_url("redis" if store == "redis" else "postgresql")
    else:
        url = "memory:" if store == "memory" else f"sqlite:///{folder}/{free_port()}.db"
    server = ServerProcess(url, folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def a_plain_redis(folder: Path) -> Iterator[Engine]:
    """Run a Redis to compare with."""
    with redis(folder, durable=True) as engine:
        yield engine


@dataclass(frozen=True, slots=True)
class TaskRun:
    """A line of the record: what a task's run says. `word`: `begin`, `end`, or what became of it."""

    name: str
    word: str
    pid: int
    at: float
    redelivered: bool
    deliveries: int


@dataclass
class Site:
    """A broker and the workers on it.

    Args:
        broker: as workers are told it.
        server: Towline's; None: the broker is the Redis of `engine`.
        version: of Celery, of the workers; "": that of the project's environment.
        options: variables of the workers' program: see `tests.celery.program`.
    """

    folder: Path
    broker: str
    app: Celery
    version: str = ""
    server: ServerProcess | None = None
    engine: Engine | None = None
    options: dict[str, str] = field(default_factory=dict)
    workers: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    connections: list[Any] = field(default_factory=list)

    def connect(self) -> Any:
        """Open a connection to the broker that is closed with the site."""
        self.connections.append(self.app.connection_for_read())
        return self.connections[-1]

    def send(self, task: str, *args: object, **options: Any) -> Any:
        """Publish a call of one of the program's tasks."""
        return self.app.send_task(f"{PROGRAM}.{task}", args, **options)

    def start(self, name: str, *arguments: str, pool: str = "prefork", wait: bool = True, **options: str) -> None:
        """Start a worker with a concurrency of one, unless the arguments say more; wait until it consumes."""
        command = [sys.executable, "-m", "celery", "-A", PROGRAM, "worker", "-n", f"{name}@host", "-l", "INFO"]
        command += ["-P", pool, *([] if "-c" in arguments or pool == "solo" else ["-c", "1"]), *arguments]
        environment = environment_of(self.version) | {
            "LAB_BROKER": self.broker,
            "LAB_FOLDER": str(self.folder),
            "TOWLINE_WORKER": name,
            **self.options,
            **options,
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            self.workers[name] = subprocess.Popen(
                [*command], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        if wait:
            self.is_ready(name)

    def is_ready(self, name: str) -> None:
        """Wait until a worker consumes."""
        eventually(lambda: b" ready." in self.log(name), seconds=SECONDS)

    def log(self, name: str) -> bytes:
        """Return what a worker has said."""
        return (self.folder / f"{name}.log").read_bytes()

    def tell(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a worker's main process."""
        self.workers[name].send_signal(number)

    def kill(self, name: str) -> None:
        """Kill a worker and its children, as a machine does that goes down."""
        worker = self.workers.pop(name)
        family = [worker, *_children(worker.pid)]
        for one in family:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                one.kill()
        worker.wait()

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """Have a worker end, and return its exit code."""
        worker = self.workers.pop(name)
        worker.send_signal(number)
        return worker.wait(SECONDS)

    def runs(self, name: str, word: str = "begin") -> list[TaskRun]:
        """Return the lines of a task in the record."""
        path = self.folder / "record"
        lines = path.read_text().splitlines() if path.exists() else []
        parts = [line.split(" ") for line in lines]
        return [
            TaskRun(of, said, int(pid), float(at), again == "True", int(count))
            for of, said, pid, at, again, count in parts
            if of == name and said == word
        ]

    def let_end(self, name: str, *, again: bool = True) -> None:
        """Let a task `hold` end; without `again` not the run of one that was delivered again."""
        (self.folder / f"{name}.go").touch()
        if again:
            (self.folder / f"{name}-again.go").touch()

    def restart_broker(self) -> None:
        """Kill the broker and start it again."""
        if self.server is not None:
            self.server.kill()
            self.server.start()
        elif self.engine is not None:
            self.engine.stop()
            self.engine.start()

    def stop_late(self, name: str) -> None:
        """Have a worker end that is asked for it at once, and killed where it does not hear."""
        self.tell(name, signal.SIGTERM)
        try:
            self.workers[name].wait(20)
        except subprocess.TimeoutExpired:
            self.kill(name)
        else:
            self.workers.pop(name)

    def begun(self, name: str, count: int = 1, *, seconds: float = SECONDS) -> list[TaskRun]:
        """Wait until a task has begun so many times."""
        eventually(lambda: len(self.runs(name)) >= count, seconds=seconds)
        return self.runs(name)

    def ended(self, name: str, count: int = 1, *, seconds: float = SECONDS) -> list[TaskRun]:
        """Wait until a task has ended so many times."""
        eventually(lambda: len(self.runs(name, "end")) >= count, seconds=seconds)
        return self.runs(name, "end")

    def wait_quiet(self, *, seconds: float = SECONDS) -> None:
        """Wait until no task is left at the broker."""
        eventually(lambda: self.left() == 0, seconds=seconds)

    def left(self) -> int:
        """Return the number of tasks that wait, are delayed, or are at a worker."""
        if self.server is None:
            with self.app.connection_for_write() as connection:
                channel = connection.default_channel
                return int(channel.client.llen(QUEUE) + channel.client.hlen(channel.unacked_key))
        stats = self.stats()
        return 0 if stats is None else stats.ready + stats.delayed + stats.in_flight

    def stats(self, queue: str = QUEUE) -> QueueStats | None:
        """Return what Towline's server says of a queue; None where there is none."""
        assert self.server is not None
        with closing(HttpQueues(self.server.url)) as queues:
            try:
                return queues.queue(queue).stats()
            except UnknownQueueError:
                return None

    def queues(self) -> HttpQueues:
        """Return a client of Towline's server."""
        assert self.server is not None
        return HttpQueues(self.server.url)

    def close(self) -> None:
        """End everything that was started here."""
        for name in list(self.workers):
            with suppress(ProcessLookupError):
                self.tell(name, signal.SIGCONT)
            self.kill(name)
        for connection in self.connections:
            with suppress(Exception):  # it may be closed, or its broker gone
                connection.close()
        self.app.close()


@contextmanager
def a_site(store: str, folder: Path, *, version: str = "", **options: str) -> Iterator[Site]:
    """Run a broker: Towline's server over a store, or with `plain redis` a Redis; workers are started on it.

    Args:
        options: variables of the workers' program.
    """
    home = folder / f"site-{free_port()}"
    home.mkdir()
    try:
        if store == "plain redis":
            with a_plain_redis(home) as engine:
                yield from _sites(home, engine.tcp_url, engine, version, options)
        else:
            with a_served_store(store, home) as server:
                yield from _sites(home, f"towline+{server.url}", server, version, options)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _sites(
    home: Path, broker: str, server: ServerProcess | Engine, version: str, options: dict[str, str]
) -> Iterator[Site]:
    import queue_core.kombu  # noqa: F401 - registers the transport

    app = Celery("producer", broker=broker, backend=options.get("LAB_BACKEND") or f"file://{home}")
    app.conf.broker_transport_options = {"eta": options.get("LAB_ETA", "store"), "lease_seconds": 60}
    site = Site(home, broker, app, version, options=dict(options))
    if isinstance(server, Engine):
        site.engine = server
    else:
        site.server = server
    try:
        yield site
    finally:
        site.close()
        close_brokers()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_run(run: TaskRun) -> None:
    """Kill the process that runs a task."""
    os.kill(run.pid, signal.SIGKILL)
