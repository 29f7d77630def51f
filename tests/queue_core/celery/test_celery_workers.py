"""Workers of an unmodified Celery, as processes, on a server: what runs, what survives, what is told."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord
from celery.exceptions import TaskRevokedError

from queue_core.celery.transport.broker import close_brokers
from queue_core.client.http_calls import HttpQueues
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, TaskState
from tests.celery.environments import NoEnvironmentError, environment_of, packages_of
from tests.support.commands import ROOT
from tests.support.eventually import eventually
from tests.support.servers import RunningServer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

SECONDS = 60.0
PROGRAM = "tests.queue_core.celery.shop"


@dataclass
class Shop:
    """A server, the program's own app, and workers."""

    folder: Path
    server: RunningServer
    app: Celery
    queues: HttpQueues
    version: str = ""
    workers: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def send(self, task: str, *args: object, **options: Any) -> Any:
        return self.app.send_task(f"{PROGRAM}.{task}", args, **options)

    def result(self, task: str, *args: object, **options: Any) -> Any:
        return self.send(task, *args, **options).get(timeout=SECONDS, interval=0.01)

    def start(self, name: str, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
        """Start a worker, and wait until it consumes."""
        command = [sys.executable, "-m", "celery", "-A", PROGRAM, "worker", "-n", f"{name}@host", "-l", "INFO"]
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            self.workers[name] = subprocess.Popen(
                [*command, *arguments],
                cwd=ROOT,
                env={
                    **environment_of(self.version),
                    "SHOP_BROKER": f"towline+{self.server.url}",
                    "SHOP_FOLDER": str(self.folder),
                    "TOWLINE_WORKER": name,
                    **environment,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        eventually(lambda: b" ready." in log.read_bytes())
        return self.workers[name]

    def lines(self, name: str) -> list[str]:
        """Return what the runs of a task recorded."""
        path = self.folder / "record"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]

    def let_end(self, name: str) -> None:
        (self.folder / f"{name}.go").touch()

    def stats(self, queue: str = "celery") -> Any:
        return self.queues.queue(queue).stats()

    def close(self) -> None:
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.kill()
            worker.wait()


@contextmanager
def a_shop(folder: Path, *, version: str = "") -> Iterator[Shop]:
    """Run a server; `version`: of Celery, of the workers, "": that of this environment."""
    try:
        _ = version and packages_of(version)
    except NoEnvironmentError as error:
        pytest.skip(str(error))
    store = MemoryStore()
    thread = ServerThread(store, ServeOptions(port=0))
    app = Celery("producer", broker=f"towline+{thread.start()}", backend=f"file://{folder}")
    server = RunningServer(thread, store, thread.url)
    shop = Shop(folder, server, app, server.queues(), version)
    try:
        yield shop
    finally:
        shop.close()
        app.close()
        shop.queues.close()
        close_brokers()
        shop.server.thread.stop()
        store.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with a_shop(tmp_path) as made:
        yield made


@pytest.fixture(scope="module", params=["", "5.5", "5.7"], ids=lambda version: version or "installed")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A shop with a worker of two processes."""
    with a_shop(tmp_path_factory.mktemp("shop"), version=request.param) as made:
        made.start("one", "-c", "2", "-E")
        yield made


def test_a_task_runs_and_its_result_comes_back(running: Shop) -> None:
    assert running.result("add", 1, 2) == 3


def test_a_task_retries_and_waits_for_its_countdown_in_the_store(running: Shop) -> None:
    assert running.result("third_time_lucky") == 2
    late = running.send("add", 1, 1, countdown=3600)
    eventually(lambda: running.stats().delayed == 1)
    assert running.app.control.inspect(timeout=0.5).scheduled() == {"one@host": []}
    late.revoke()


def test_a_chord_ends_in_its_callback(running: Shop) -> None:
    header = [running.app.signature(f"{PROGRAM}.add", (number, number)) for number in range(5)]
    result = chord(header, app=running.app)(running.app.signature(f"{PROGRAM}.total"))
    assert result.get(timeout=SECONDS, interval=0.01) == 20


def test_a_worker_is_inspected_and_takes_queues_of_any_name(running: Shop) -> None:
    assert running.app.control.inspect(timeout=0.5).ping() == {"one@host": {"ok": "pong"}}
    running.app.control.add_consumer("high_priority.mail", reply=True, timeout=0.5)
    assert running.result("add", 2, 2, queue="high_priority.mail") == 4
    eventually(lambda: running.stats("high--5fpriority--2email").deleted_total == 1)


def test_a_revoked_task_does_not_run(running: Shop) -> None:
    running.app.control.revoke("revoked")
    with pytest.raises(TaskRevokedError):
        running.result("add", 1, 1, task_id="revoked")


def test_events_come_from_a_worker(running: Shop) -> None:
    seen: list[str] = []
    with running.app.connection_for_read() as connection:
        receiver = running.app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        with receiver.consumer_context() as (receiving, _channel, _consumers):
            running.result("add", 1, 1)
            eventually(lambda: drained(receiving) and "task-succeeded" in seen)
    assert {"task-received", "task-started"} <= set(seen)


def drained(connection: Any) -> bool:
    with suppress(TimeoutError):
        connection.drain_events(timeout=0)
    return True


@pytest.mark.skipif("priority" not in NewTask.__dataclass_fields__, reason="stores have no priorities yet")
def test_a_task_of_higher_priority_is_first(running: Shop) -> None:
    names = ["block-1", "block-2"]
    blocks = [running.send("hold", name) for name in names]
    eventually(lambda: all(running.lines(name) for name in names))
    later = [running.send("hold", f"prio-{number}", priority=number) for number in (0, 9)]
    for name in ("prio-0", "prio-9", "block-1"):  # one process is free, the other is not
        running.let_end(name)
    later[0].get(timeout=SECONDS, interval=0.01)
    running.let_end("block-2")
    for result in (*blocks, *later):
        result.get(timeout=SECONDS, interval=0.01)
    record = (running.folder / "record").read_text()
    assert record.index("prio-9") < record.index("prio-0")


@pytest.mark.parametrize(("pool", "version"), [("prefork", ""), ("threads", "5.5"), ("solo", "5.6"), ("gevent", "5.7")])
def test_a_task_that_is_longer_than_its_lease_runs_once(tmp_path: Path, pool: str, version: str) -> None:
    with a_shop(tmp_path, version=version) as shop:
        _run_long_task(shop, pool)


def _run_long_task(shop: Shop, pool: str) -> None:
    worker = shop.start("one", "-P", pool, "-c", "1", SHOP_LEASE_SECONDS="0.6")
    task = shop.send("hold", "long")
    eventually(lambda: shop.lines("long"))
    renewals = eventually(lambda: renewed(shop, 6))
    shop.let_end("long")
    assert task.get(timeout=SECONDS, interval=0.01) == "long"
    assert renewals
    assert shop.lines("long") == ["False", "ended"]
    eventually(lambda: shop.stats().deleted_total == 1)
    assert shop.stats().expired_total == 0
    worker.terminate()
    assert worker.wait(SECONDS) == 0


def renewed(shop: Shop, lease_parts: int) -> bool:
    """Return whether the one live lease ends so many parts of a lease after its task was ready."""
    (task,) = shop.queues.queue("celery").peek(states=frozenset({TaskState.LEASED})).tasks
    return task.eta - task.leased_at > lease_parts * 600_000


def test_the_tasks_of_a_killed_worker_run_again_at_once_when_it_is_released_by_its_name(shop: Shop) -> None:
    dead = shop.start("one", "-c", "1")
    task = shop.send("hold", "cut")
    eventually(lambda: shop.lines("cut"))
    shop.start("two", "-c", "1")
    dead.kill()
    dead.wait()
    assert [lease.worker for lease in shop.queues.release_worker("one")] == ["one"]
    eventually(lambda: len(shop.lines("cut")) == 2)
    shop.let_end("cut")
    assert task.get(timeout=SECONDS, interval=0.01) == "cut"
    assert shop.lines("cut") == ["False", "True", "ended"]


def test_without_a_supervisor_they_run_again_when_the_lease_ends(shop: Shop) -> None:
    dead = shop.start("one", "-c", "1", SHOP_LEASE_SECONDS="1.5")
    task = shop.send("hold", "cut")
    eventually(lambda: shop.lines("cut"))
    dead.kill()
    dead.wait()
    shop.start("two", "-P", "solo")
    eventually(lambda: len(shop.lines("cut")) == 2)
    shop.let_end("cut")
    assert task.get(timeout=SECONDS, interval=0.01) == "cut"


def test_a_task_that_kills_its_process_is_dead_at_its_limit_and_its_neighbours_are_done(shop: Shop) -> None:
    shop.start("one", "-c", "2", SHOP_MAX_LEASES="2")
    shop.send("poison")
    assert [shop.result("add", number, 1) for number in range(4)] == [1, 2, 3, 4]
    eventually(lambda: shop.stats().dead == 1)
    (dead,) = shop.queues.queue("celery").peek(states=frozenset({TaskState.DEAD})).tasks
    assert (dead.leases, "the process that ran it died" in dead.reason) == (2, True)
    assert shop.stats().deleted_total == 4


@pytest.mark.parametrize(("cancels", "version"), [("", "5.7"), ("", "5.5"), ("1", "5.5")])
def test_a_server_that_is_back_in_time_finds_running_tasks_done_once_or_given_up(
    tmp_path: Path, cancels: str, version: str
) -> None:
    with a_shop(tmp_path, version=version) as shop:
        _have_outage(shop, cancels)


def _have_outage(shop: Shop, cancels: str) -> None:
    shop.start("one", "-c", "1", SHOP_CANCELS=cancels)
    task = shop.send("hold", "kept")
    eventually(lambda: shop.lines("kept"))
    _restart_server(shop)
    if not cancels:  # a task can outlast more than one
        eventually(lambda: shop.app.control.inspect(timeout=0.5).ping())
        _restart_server(shop)
    else:
        eventually(lambda: len(shop.lines("kept")) == 2)
    shop.let_end("kept")
    assert task.get(timeout=SECONDS, interval=0.01) == "kept"
    eventually(lambda: shop.stats().deleted_total == 1)
    assert (shop.stats().in_flight, shop.stats().ready) == (0, 0)
    assert shop.lines("kept").count("ended") == 1


def test_a_task_that_ends_in_a_thread_while_the_server_is_away_is_done_once(tmp_path: Path) -> None:
    with a_shop(tmp_path, version="5.7") as shop:
        shop.start("one", "-c", "1", "-P", "threads")
        shop.send("hold", "kept")
        eventually(lambda: shop.lines("kept"))
        _stop_server(shop)
        shop.let_end("kept")
        _start_server(shop, tries=3)
        eventually(lambda: shop.stats().deleted_total == 1)
        assert (shop.stats().in_flight, shop.stats().ready) == (0, 0)
        assert shop.lines("kept") == ["False", "ended"]


def _restart_server(shop: Shop) -> None:
    _stop_server(shop)
    _start_server(shop)


def _stop_server(shop: Shop) -> None:
    """Stop the server, and wait until the worker has noticed."""
    before = _tries(shop)
    shop.server.thread.stop()
    eventually(lambda: _tries(shop) > before)


def _tries(shop: Shop) -> int:
    """Return how often the worker has tried to connect again."""
    return (shop.folder / "one.log").read_bytes().count(b"Trying again")


def _start_server(shop: Shop, *, tries: int = 0) -> None:
    """Start the server again, when the worker has tried to reach it so often."""
    eventually(lambda: _tries(shop) >= tries)
    thread = ServerThread(shop.server.store, ServeOptions(port=shop.server.port))
    thread.start()
    shop.server = RunningServer(thread, shop.server.store, shop.server.url)
