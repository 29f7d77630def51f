"""Waking over Redis: what holds when processes die, servers restart and wires are cut. The contract: `test_signals`."""

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_core.stores.redis.client import pubsub
from queue_core.stores.redis.signals import RedisSignals
from queue_core.task import ANY, TagFilter
from tests.support.cutting_proxy import CuttingTcpProxy, a_tcp_proxy
from tests.support.eventually import eventually
from tests.support.stores.engines import Engine
from tests.support.stores.redis_clients import a_redis, operator, signals_on

LONG_WAIT = 10.0

WAITER = """
    import sys
    from queue_core.task import TagFilter
    from tests.support.stores.redis_clients import signals_on
    with signals_on(sys.argv[1]) as signals:
        ear = signals.subscribe("q", TagFilter.of("a"))
        print("listening", flush=True)
        print(ear.wait(timeout_seconds=30), flush=True)
        ear.close()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A server for tests that leave it as it was."""
    with a_redis(tmp_path_factory.mktemp("redis")) as engine:
        yield engine


@pytest.fixture
def signals(server: Engine) -> Iterator[RedisSignals]:
    with signals_on(server.tcp_url) as messages:
        yield messages


@contextmanager
def over_a_wire(server: Engine) -> Iterator[tuple[CuttingTcpProxy, RedisSignals]]:
    with a_tcp_proxy(server.host, server.port) as wire, signals_on(f"redis://127.0.0.1:{wire.port}") as messages:
        yield wire, messages


@contextmanager
def a_waiting_process(server: Engine) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WAITER), server.tcp_url],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[4],
    )
    try:
        assert process.stdout is not None
        while process.stdout.readline() != "listening\n":
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.communicate()


def ears(server: Engine) -> int:
    return operator(server).zcard("towline:{q}:e")


def test_a_waiter_of_another_process_is_woken_by_what_it_would_take(server: Engine, signals: RedisSignals) -> None:
    with a_waiting_process(server) as process:
        signals.note_waiters("q")
        signals.publish("q", "b", 1)
        signals.publish("q", "a", 1)
        assert process.communicate(timeout=30)[0] == "True\n"
    assert ears(server) == 0


def test_publishing_calls_nobody_unless_a_verb_found_listeners(server: Engine, signals: RedisSignals) -> None:
    ear = signals.subscribe("q", ANY)
    with over_a_wire(server) as (wire, others):
        wire.messages = 0
        others.publish("q", None, 1)
        assert wire.messages == 0
        others.note_waiters("q")
        others.publish("q", None, 1)
        assert wire.messages > 0
    assert ear.wait(timeout_seconds=LONG_WAIT)
    ear.close()


def test_the_ear_of_a_killed_process_is_dropped_and_the_next_is_woken(server: Engine, signals: RedisSignals) -> None:
    ear = signals.subscribe("q", ANY)
    with a_waiting_process(server) as process:
        assert ears(server) == 2
        process.kill()
        process.wait()
        eventually(lambda: len(operator(server).execute_command("PUBSUB", "SHARDCHANNELS", "*")) == 1)
        signals.publish("q", "a", 1)
        assert ear.wait(timeout_seconds=LONG_WAIT)
    assert ears(server) == 1
    ear.close()


def test_two_tasks_in_a_row_go_to_two_waiters(signals: RedisSignals) -> None:
    first, second = signals.subscribe("q", ANY), signals.subscribe("q", ANY)
    signals.publish("q", None, 1)
    signals.publish("q", None, 1)
    assert second.wait(timeout_seconds=LONG_WAIT)
    assert first.wait(timeout_seconds=LONG_WAIT)
    assert not second.wait(timeout_seconds=0)
    first.close()
    second.close()


def test_hundreds_of_waiters_are_woken_at_once(server: Engine, signals: RedisSignals) -> None:
    many = [signals.subscribe("q", TagFilter.of("a") if index % 2 else ANY) for index in range(200)]
    signals.publish("q", "a", 200)
    assert all(ear.wait(timeout_seconds=LONG_WAIT) for ear in many)
    for ear in many:
        ear.close()
    assert ears(server) == 0


def test_a_restarted_server_is_told_again_who_waits_and_they_look_for_themselves(tmp_path: Path) -> None:
    with a_redis(tmp_path, durable=True) as engine, signals_on(engine.tcp_url) as messages, capture_logs():
        ear = messages.subscribe("q", ANY)
        engine.restart()
        assert ear.wait(timeout_seconds=LONG_WAIT)
        eventually(lambda: ears(engine) == 1)
        messages.publish("q", None, 1)
        assert ear.wait(timeout_seconds=LONG_WAIT)
        ear.close()


def test_a_cut_wire_is_mended_and_whoever_waits_looks_for_itself(server: Engine, signals: RedisSignals) -> None:
    with over_a_wire(server) as (wire, messages), capture_logs():
        ear = messages.subscribe("q", ANY)
        wire.sever()
        assert ear.wait(timeout_seconds=LONG_WAIT)
        signals.note_waiters("q")
        signals.publish("q", None, 1)
        assert ear.wait(timeout_seconds=LONG_WAIT)
        ear.close()


def test_a_wire_that_fell_silent_is_noticed(
    server: Engine, signals: RedisSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "SILENCE_SECONDS", 0.3)
    with over_a_wire(server) as (wire, messages), capture_logs():
        ear = messages.subscribe("q", ANY)
        wire.cut_next("stall")
        eventually(lambda: not wire.is_armed)
        assert ear.wait(timeout_seconds=LONG_WAIT)
        ear.close()


def test_whoever_begins_to_wait_while_the_server_is_away_is_woken_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_core.stores.redis.signals.OPEN_SECONDS", 0.1)
    with a_redis(tmp_path) as engine, signals_on(engine.tcp_url) as messages, capture_logs():
        engine.kill()
        ear = messages.subscribe("q", ANY)
        assert not ear.wait(timeout_seconds=0)
        engine.start()
        assert ear.wait(timeout_seconds=LONG_WAIT)
        messages.publish("q", None, 1)
        assert ear.wait(timeout_seconds=LONG_WAIT)
        ear.close()


def test_ears_that_the_server_forgot_are_made_known_again(
    server: Engine, signals: RedisSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "ROUND_SECONDS", 0.1)
    ear = signals.subscribe("q", ANY)
    operator(server).flushall()
    assert ear.wait(timeout_seconds=LONG_WAIT)
    assert ears(server) == 1
    ear.close()


def test_waiting_is_neither_logged_nor_synced(tmp_path: Path) -> None:
    with a_redis(tmp_path, durable=True) as engine, signals_on(engine.tcp_url) as messages:
        messages.subscribe("q", ANY).close()
        before = operator(engine).info("persistence")["aof_current_size"]
        for _ in range(20):
            ear = messages.subscribe("q", ANY)
            messages.publish("q", None, 1)
            assert ear.wait(timeout_seconds=LONG_WAIT)
            ear.close()
        assert operator(engine).info("persistence")["aof_current_size"] == before


def test_nothing_is_kept_open_for_nobody(server: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub, "ROUND_SECONDS", 0.05)
    monkeypatch.setattr(pubsub, "IDLE_SECONDS", 0.05)
    with signals_on(server.tcp_url) as messages:
        for _ in range(2):
            ear = messages.subscribe("q", ANY)
            messages.publish("q", None, 1)
            assert ear.wait(timeout_seconds=LONG_WAIT)
            ear.close()
            eventually(lambda: "towline-redis-pubsub" not in {thread.name for thread in threading.enumerate()})
        eventually(lambda: not operator(server).execute_command("PUBSUB", "SHARDCHANNELS", "*"))
