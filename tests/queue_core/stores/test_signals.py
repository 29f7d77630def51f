"""Waking waiters: the same promises for one process and for many."""

import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from queue_core.clock import START, Instant
from queue_core.store import Signals, Subscription
from queue_core.stores.memory.signals import LocalSignals
from queue_core.stores.sqlite.signals import SocketSignals
from queue_core.task import ANY, UNTAGGED, TagFilter
from tests.support.stores.engines import Engine
from tests.support.stores.redis_clients import a_redis, operator, signals_on

LONG_WAIT = 10.0


class Ticking:
    """A clock that moves a second with every look."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> Instant:
        self.at = Instant(self.at + 1_000_000)
        return self.at

    def monotonic(self) -> float:
        return self.at / 1e6


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with a_redis(tmp_path_factory.mktemp("redis")) as engine:
        yield engine


@pytest.fixture(params=["local", "sockets", "sockets, long path", "redis"])
def signals(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Signals]:
    if request.param == "local":
        yield LocalSignals()
        return
    if request.param == "redis":
        server: Engine = request.getfixturevalue("redis_server")
        with signals_on(server.tcp_url) as messages:
            yield messages
        assert operator(server).keys() == []
        return
    folder = tmp_path / ("d" * 120 if "long" in request.param else "d")
    folder.mkdir()
    (folder / "queue.db").touch()
    sockets = SocketSignals(folder / "queue.db", clock=Ticking())
    yield sockets
    sockets.close()
    wake = folder / "queue.db-wake"
    assert not wake.exists() or list(wake.iterdir()) == []


def woken(signals: Signals, *subscriptions: Subscription) -> list[bool]:
    """Who was woken by what was published so far: over a network that arrives a little later, and in order."""
    last = signals.subscribe("last", ANY)
    signals.publish("last", None, 1)
    assert last.wait(timeout_seconds=LONG_WAIT)
    last.close()
    return [each.wait(timeout_seconds=0) for each in subscriptions]


def closing(*subscriptions: Subscription) -> None:
    for each in subscriptions:
        each.close()


def test_a_publish_between_subscribe_and_wait_is_not_missed(signals: Signals) -> None:
    ear = signals.subscribe("q", ANY)
    signals.publish("q", "a", 1)
    assert ear.wait(timeout_seconds=LONG_WAIT)
    assert not ear.wait(timeout_seconds=0)
    ear.close()


@pytest.mark.parametrize(
    ("tags", "tag", "expected"),
    [
        (ANY, None, True),
        (ANY, "a", True),
        (TagFilter.oldest(), "a", True),
        (TagFilter.of("a"), "a", True),
        (TagFilter.of("a"), "b", False),
        (TagFilter.of("a"), None, False),
        (TagFilter.of("b", "a"), "a", True),
        (TagFilter.oldest("b", "a"), "c", False),
        (UNTAGGED, None, True),
        (UNTAGGED, "a", False),
        (TagFilter.of(*[f"t{index}" for index in range(50)]), "t49", True),
    ],
)
def test_a_waiter_hears_of_what_it_would_take(
    signals: Signals, tags: TagFilter, tag: str | None, expected: bool
) -> None:
    ear = signals.subscribe("q", tags)
    signals.publish("other", tag, 5)
    assert woken(signals, ear) == [False]
    signals.publish("q", tag, 1)
    assert woken(signals, ear) == [expected]
    ear.close()


def test_as_many_are_woken_as_there_are_tasks_most_recently_active_first(signals: Signals) -> None:
    first, second, third = (signals.subscribe("q", ANY) for _ in range(3))
    signals.publish("q", None, 2)
    assert woken(signals, first, second, third) == [False, True, True]
    signals.publish("q", None, 9)
    assert woken(signals, first, second, third) == [True, True, True]
    closing(first, second, third)


def test_one_that_waited_in_vain_is_as_idle_as_before_when_it_comes_back(signals: Signals) -> None:
    idle = signals.subscribe("q", ANY)
    busy = signals.subscribe("q", ANY)
    assert woken(signals, idle) == [False]
    idle.close()
    idle = signals.subscribe("q", ANY)
    signals.publish("q", None, 1)
    assert woken(signals, idle, busy) == [False, True]
    closing(idle, busy)


def test_an_unused_wake_up_is_passed_on(signals: Signals) -> None:
    first = signals.subscribe("q", ANY)
    unfit = signals.subscribe("q", TagFilter.of("b"))
    last = signals.subscribe("q", ANY)
    signals.publish("q", "a", 1)
    last.close()
    assert woken(signals, first, unfit) == [True, False]
    closing(first, unfit)


def test_wake_ends_a_wait_of_another_thread(signals: Signals) -> None:
    ear = signals.subscribe("q", ANY)
    other = signals.subscribe("q", TagFilter.of("x"))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ear.wait, timeout_seconds=LONG_WAIT)
        ear.wake()
        waiting.result(LONG_WAIT)
    ear.close()
    assert woken(signals, other) == [False]
    other.close()
    other.close()


def test_a_wake_up_is_passed_on_though_the_store_was_closed(tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    signals, other = SocketSignals(tmp_path / "queue.db"), SocketSignals(tmp_path / "queue.db")
    idle = other.subscribe("q", ANY)
    ear = signals.subscribe("q", ANY)
    other.publish("q", None, 1)
    signals.close()
    ear.close()
    assert idle.wait(timeout_seconds=0)
    idle.close()
    other.close()
    signals.close()


def test_a_dead_waiters_socket_is_removed_and_the_next_is_woken(signals, tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    signals = SocketSignals(tmp_path / "queue.db", clock=Ticking())
    alive = signals.subscribe("q", ANY)
    dead = signals.subscribe("q", ANY)
    folder = tmp_path / "queue.db-wake"
    dead._socket.close()  # as when its process is killed: the name stays
    assert len(list(folder.iterdir())) == 2
    signals.publish("q", None, 1)
    assert woken(signals, alive) == [True]
    assert len(list(folder.iterdir())) == 1
    alive.close()
    signals.close()


def test_a_waiter_of_another_process_is_woken(signals, tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    program = """
        import sys
        from pathlib import Path
        from queue_core.stores.sqlite.signals import SocketSignals
        from queue_core.task import TagFilter
        ear = SocketSignals(Path(sys.argv[1])).subscribe("q", TagFilter.of("a"))
        print("listening", flush=True)
        print(ear.wait(timeout_seconds=30), flush=True)
        ear.close()
    """
    signals = SocketSignals(tmp_path / "queue.db")
    signals.publish("q", "a", 1)  # finds nobody
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "queue.db")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    signals.publish("q", "b", 1)
    signals.publish("q", "a", 1)
    assert process.communicate(timeout=30)[0] == "True\n"
    signals.close()


def test_strangers_names_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "queue.db").touch()
    folder = tmp_path / "queue.db-wake"
    folder.mkdir()
    (folder / "README").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(folder / "a.b.c.d"))
        signals = SocketSignals(tmp_path / "queue.db")
        signals.publish("q", None, 1)
        signals.close()
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("below", ["a", "b" * 100], ids=["a short path", "a long path"])
def test_the_folder_may_come_go_and_come_back_while_a_process_publishes(below: str) -> None:
    with TemporaryDirectory() as short:
        home = Path(short) / below
        home.mkdir()
        (home / "queue.db").touch()
        publisher, listener = SocketSignals(home / "queue.db"), SocketSignals(home / "queue.db")
        publisher.publish("q", None, 1)
        for _ in range(2):
            ear = listener.subscribe("q", ANY)
            publisher.publish("q", None, 1)
            assert woken(listener, ear) == [True]
            ear.close()
            (home / "queue.db-wake").rmdir()
            publisher.publish("q", None, 1)
            publisher.publish("q", None, 1)
        publisher.close()
        listener.close()
