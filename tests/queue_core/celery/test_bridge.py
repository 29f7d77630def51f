"""Bridges from real brokers: what arrives, what stays, what a killed one leaves, and what it does in an outage."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast

import pytest
from celery import Celery

from queue_core.celery.bridge.consumer import BridgeConsumer
from queue_core.celery.bridge.lists import TAKEN_SUFFIX, BridgeLists
from queue_core.celery.bridge.mover import BATCH, BridgeMover, BridgeNote, BridgePlan
from queue_core.celery.bridge.source import BridgeSource
from queue_core.client.http_calls import HttpQueues
from queue_core.clock import SystemClock
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from tests.support.commands import ROOT, Commands, program_environment
from tests.support.eventually import eventually
from tests.support.servers import RunningServer, a_server
from tests.support.stores import engines
from tests.support.stores.engine_process import Engine, EngineUnavailableError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

KILLS = 4
MESSAGES = 600
BIG = "x" * (1 << 20)


@dataclass
class OldBroker:
    """A broker with an app that sends to it."""

    url: str
    engine: Engine
    app: Celery

    def send(self, count: int, *, queue: str, **options: Any) -> None:
        with self.app.producer_pool.acquire(block=True) as producer:
            for number in range(count):
                self.app.send_task("shop.add", (number, 1), queue=queue, producer=producer, **options)

    def source(self, queue: str, stop: Event) -> BridgeSource:
        if self.url.startswith("redis"):
            return BridgeLists(self.url, [queue], options={}, stop=stop)
        return BridgeConsumer(self.url, [queue], prefetch=2 * BATCH, options={}, clock=SystemClock())

    def left(self, queue: str) -> int:
        """Return how many messages are there, those that a bridge has taken too."""
        with self.app.connection_for_read() as connection, connection.channel() as channel:
            if self.url.startswith("redis"):
                return int(channel.client.llen(queue) + channel.client.llen(f"{queue}{TAKEN_SUFFIX}"))
            return int(channel.queue_declare(queue, passive=True).message_count)


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldBroker]:
    with ExitStack() as stack:
        try:
            if request.param == "redis":
                engine = stack.enter_context(engines.redis(tmp_path_factory.mktemp("redis"), durable=True))
                url = engine.tcp_url
            else:
                node = stack.enter_context(pytest.importorskip("tests.support.rabbitmq").rabbitmq())
                engine, url = node.engine, node.url
        except EngineUnavailableError as error:
            pytest.skip(str(error))
        app = Celery("old", broker=url)
        yield OldBroker(url, engine, app)
        app.close()


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


@dataclass
class RunningMove:
    """A mover in a thread."""

    mover: BridgeMover
    stop: Event
    notes: list[BridgeNote] = field(default_factory=list)
    thread: Thread | None = None

    def end(self) -> None:
        self.stop.set()
        if self.thread is not None:
            self.thread.join(60)
            assert not self.thread.is_alive()

    def has_told(self, kind: str) -> bool:
        return any(note.kind == kind for note in self.notes)


def a_move(
    old: OldBroker, queues: HttpQueues, queue: str, *, around: Callable[[BridgeSource], BridgeSource] = lambda it: it
) -> RunningMove:
    stop = Event()
    notes: list[BridgeNote] = []
    source = around(old.source(queue, stop))
    source.open()
    mover = BridgeMover(
        source,
        queues,
        BridgePlan(),
        target="here",
        clock=SystemClock(),
        stop=stop,
        on_note=notes.append,
        progress=lambda _done, _waiting: None,
    )
    mover.prepare([queue])
    return RunningMove(mover, stop, notes)


def numbers(queues: HttpQueues, queue: str) -> list[int]:
    """Return the first argument of each task that arrived."""
    page = queues.queue(queue).peek(limit=1000, payload_bytes=1 << 20)
    return sorted(json.loads(json.loads(task.payload)["body"])[0][0] for task in page.tasks)


def test_messages_arrive_with_their_tag_and_eta_and_one_that_is_too_large_stays_and_is_named(
    old: OldBroker, towline: Commands
) -> None:
    old.send(3, queue="mail_out")
    old.send(1, queue="mail_out", countdown=3600)
    old.app.send_task("shop.large", (BIG,), queue="mail_out")
    arguments = ("bridge", "--from", old.url, "--queue", "mail_out", "--once", "--store", "sqlite:///q.db")
    told = towline(*arguments)
    assert told.code == 1
    assert "4 messages moved" in told.err
    assert "shop.large" in told.err and "1048576 bytes" in told.err
    stats = cast("dict[str, Any]", towline("stats", "mail--5fout", "--store", "sqlite:///q.db", "--json").json)
    assert (stats["ready"], stats["delayed"]) == (3, 1)
    assert old.left("mail_out") == 1
    again = towline(*arguments, "--json")
    ended = cast("dict[str, Any]", again.lines[-1])
    assert (ended["moved"], ended["known"], len(ended["kept"])) == (0, 0, 1)
    assert ended["queues"] == {"mail_out": "mail--5fout"}


class EndsNothing:
    """A source whose bridge dies between the add and the acknowledgement."""

    def __init__(self, source: BridgeSource) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def end(self, _taken: object) -> None:
        raise KeyboardInterrupt


def test_what_was_added_and_not_acknowledged_arrives_once(old: OldBroker, server: RunningServer) -> None:
    old.send(5, queue="cut")
    queues = server.queues()
    cut = a_move(old, queues, "cut", around=lambda source: cast("BridgeSource", EndsNothing(source)))
    with pytest.raises(KeyboardInterrupt):
        cut.mover.run(once=True)
    cut.mover._source.close()
    assert numbers(queues, "cut") == [0, 1, 2, 3, 4]
    eventually(lambda: old.left("cut") == 5)  # a broker gives back what was not acknowledged when it likes
    again = a_move(old, queues, "cut")
    assert again.mover.run(once=True) == "empty"
    again.mover._source.close()
    assert numbers(queues, "cut") == [0, 1, 2, 3, 4]
    assert (again.mover.counts.moved, again.mover.counts.known) == (0, 5)
    queues.close()


def handles_sigterm(pid: int) -> bool:
    """Return whether a program has come so far that it ends at the signal in its own way."""
    (caught,) = re.findall(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))


def test_bridges_that_are_killed_lose_and_double_nothing_and_a_signal_ends_the_last(
    old: OldBroker, server: RunningServer, tmp_path: Path
) -> None:
    queues = server.queues()
    sending = Thread(target=old.send, args=(MESSAGES,), kwargs={"queue": "many"})
    old.app.send_task("shop.add", (-1, 1), queue="many")
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "bridge",
        "--from",
        old.url,
        "--queue",
        "many",
        "--url",
        server.url,
    ]

    def start() -> "subprocess.Popen[bytes]":
        with (tmp_path / "bridge.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=tmp_path, env={**program_environment(), "PYTHONPATH": str(ROOT)}, stderr=log
            )

    def arrived() -> int:
        return queues.queue("many").stats().added_total if "many" in {one.name for one in queues.queues()} else 0

    running = start()
    eventually(arrived)
    sending.start()
    for number in range(1, KILLS + 1):
        eventually(lambda least=number: arrived() > least * MESSAGES // (KILLS + 2))
        running.kill()
        running.wait()
        running = start()
    sending.join(60)
    eventually(lambda: arrived() == MESSAGES + 1 and old.left("many") == 0)
    eventually(lambda: handles_sigterm(running.pid))
    running.terminate()
    assert running.wait(60) == 0
    assert numbers(queues, "many") == [-1, *range(MESSAGES)]
    assert "; stopped" in (tmp_path / "bridge.log").read_text()
    queues.close()


def test_it_waits_for_a_source_that_is_away_and_for_a_target(old: OldBroker) -> None:
    store = MemoryStore()
    thread = ServerThread(store, ServeOptions(port=0))
    url = thread.start()
    queues = RunningServer(thread, store, url).queues()
    old.send(1, queue="away")
    move = a_move(old, queues, "away")
    move.thread = Thread(target=move.mover.run, kwargs={"once": False})
    move.thread.start()
    try:
        eventually(lambda: numbers(queues, "away") == [0])
        thread.stop()
        old.send(1, queue="away")
        eventually(lambda: move.has_told("away"))
        thread = ServerThread(store, ServeOptions(port=int(url.rpartition(":")[2])))
        thread.start()
        eventually(lambda: move.has_told("back"))
        eventually(lambda: numbers(queues, "away") == [0, 0])
        move.notes.clear()
        if old.url.startswith("redis"):  # RabbitMQ takes 10 s to be back
            old.engine.kill()
            eventually(lambda: move.has_told("away"))
            old.engine.start()
            eventually(lambda: move.has_told("back"))
            old.send(1, queue="away")
            eventually(lambda: numbers(queues, "away") == [0, 0, 0])
    finally:
        move.end()
        move.mover._source.close()
        queues.close()
        thread.stop()
        store.close()


def test_a_broker_that_is_not_there_is_told_without_its_password(towline: Commands) -> None:
    port = engines.free_port()
    for url in (f"redis://:geheim@127.0.0.1:{port}/0", f"amqp://shop:geheim@127.0.0.1:{port}//"):
        told = towline("bridge", "--from", url, "--queue", "celery", "--store", "sqlite:///q.db")
        assert told.code == 69
        assert "geheim" not in told.err
        assert str(port) in told.err
