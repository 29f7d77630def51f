"""The link to a private Redis: each call takes effect once, whatever happens to the server or the wire."""

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_core.clock import SystemClock
from queue_core.errors import OutcomeUnknownError, StoreUnavailableError
from queue_core.stores.redis.client import client, handshake
from queue_core.stores.remote_clock import RemoteClock
from queue_core.task import ANY
from tests.support.cutting_proxy import TcpFate, a_tcp_proxy
from tests.support.eventually import eventually
from tests.support.fleet.certificates import a_certificate
from tests.support.stores.engines import Engine, free_port
from tests.support.stores.redis_clients import (
    KEY,
    a_client,
    a_redis,
    count,
    counted,
    impatient,
    opened,
    operator,
    signals_over,
)
from tests.support.stores.slow_clock import slow_at_first

LONG = 20.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A server for tests that leave it as it was."""
    with a_redis(tmp_path_factory.mktemp("redis")) as engine:
        yield engine


@pytest.fixture
def server(shared: Engine) -> Engine:
    """The same, empty."""
    operator(shared).flushall()
    return shared


def test_threads_share_a_link_and_every_call_takes_effect_once(server: Engine) -> None:
    with a_client(server.tcp_url) as shared_link, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: count(shared_link), range(400)))
        assert counted(shared_link) == 400
        assert operator(server).info("clients")["connected_clients"] <= 10


@pytest.mark.parametrize("fate", ["drop", "lose answer", "stall"])
def test_a_call_whose_answer_was_lost_takes_effect_once_and_is_answered(server: Engine, fate: TcpFate) -> None:
    with a_tcp_proxy(server.host, server.port) as wire, a_client(f"redis://127.0.0.1:{wire.port}") as cut:
        assert count(cut) == 1
        wire.cut_next(fate)
        started = SystemClock().monotonic()
        assert count(cut) == 2
        assert SystemClock().monotonic() - started < client.RETRY_SECONDS
        assert wire.cuts == 1
        assert counted(cut) == 2


def test_what_befalls_the_wire_at_random_doubles_nothing(server: Engine) -> None:
    fates: list[TcpFate] = ["pass", "pass", "lose answer", "pass", "drop", "pass", "pass", "lose answer", "pass"]
    sent = iter(fates * 1000)
    with a_tcp_proxy(server.host, server.port, choose=lambda: next(sent)) as wire, a_client(server.tcp_url) as straight:
        with capture_logs(), ThreadPoolExecutor(4) as threads:
            cut = eventually(lambda: opened(f"redis://127.0.0.1:{wire.port}"))
            list(threads.map(lambda _: count(cut), range(100)))
            cut.close()
        assert counted(straight) == 100


def test_a_server_that_is_killed_and_comes_back_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with a_redis(tmp_path, durable=True) as engine, a_client(engine.tcp_url, durability="strict") as strict:
        answered: list[object] = []

        def work() -> None:
            while len(answered) < 300:
                answered.append(count(strict))

        with capture_logs() as logged, ThreadPoolExecutor(2) as threads:
            working = [threads.submit(work) for _ in range(2)]
            eventually(lambda: len(answered) > 100)
            engine.restart()
            for each in working:
                each.result(LONG)
        assert counted(strict) == len(answered) == len(set(answered))
        assert [each["event"] for each in logged].count(handshake.CONNECTION_LOST) == 1
        assert logged[-1]["event"] == handshake.CONNECTION_RESTORED


def test_a_frozen_server_leaves_the_outcome_unknown_and_takes_the_call_once_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queue_core.stores.redis.client.connection.ANSWER_SECONDS", 0.3)
    impatient(monkeypatch, 1.0)
    with a_redis(tmp_path) as engine, a_client(engine.tcp_url) as patient:
        assert count(patient) == 1
        engine.freeze()
        started = SystemClock().monotonic()
        with capture_logs(), pytest.raises(OutcomeUnknownError):
            count(patient)
        assert SystemClock().monotonic() - started < 3
        with pytest.raises(StoreUnavailableError) as caught:
            counted(patient)
        assert not isinstance(caught.value, OutcomeUnknownError)
        engine.thaw()
        before = counted(patient)
        assert before in (1, 2)
        assert count(patient) == before + 1


def test_where_nothing_listens_nothing_took_effect(server: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    monkeypatch.setattr("queue_core.stores.redis.client.connection.FRESH_SECONDS", 0.0)
    with a_tcp_proxy(server.host, server.port) as wire:
        with a_client(f"redis://127.0.0.1:{wire.port}") as cut:
            count(cut)
            wire.close()
            eventually(lambda: has_ended(wire.port))
            with capture_logs(), pytest.raises(StoreUnavailableError) as caught:
                count(cut)
        assert not isinstance(caught.value, OutcomeUnknownError)
        assert opened(f"redis://127.0.0.1:{wire.port}") is None


def has_ended(port: int) -> bool:
    """Whether nobody listens there any more."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_call_that_is_interrupted_leaves_no_answer_to_the_next(server: Engine) -> None:
    class InterruptedCallError(Exception):
        pass

    def interrupt(_number: int, _frame: object) -> None:
        raise InterruptedCallError

    with a_client(server.tcp_url) as one:
        count(one, 41)
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            with pytest.raises(InterruptedCallError):
                one.read("spin", [KEY], [2])
        finally:
            signal.signal(signal.SIGALRM, before)
        assert counted(one) == 41


def test_functions_that_were_flushed_are_loaded_again(server: Engine) -> None:
    with a_client(server.tcp_url) as one:
        assert count(one) == 1
        operator(server).function_flush()
        assert counted(one) == 1
        assert count(one) == 2


def test_a_closed_link_calls_nobody(server: Engine) -> None:
    with a_client(server.tcp_url) as one:
        count(one)
    with pytest.raises(StoreUnavailableError):
        count(one)
    eventually(lambda: operator(server).info("clients")["connected_clients"] == 1)


def test_a_socket_and_a_database_are_reached(server: Engine) -> None:
    path = server.socket_url.removeprefix("unix://").partition("?")[0]
    with a_client(f"redis+unix://{path}?database=5") as local, a_client(f"{server.tcp_url[:-1]}5") as same:
        assert count(local) == 1
        assert count(same) == 2
    with a_client(server.tcp_url) as other:
        assert counted(other) == 0


def test_a_server_is_known_by_its_certificate(tmp_path: Path) -> None:
    made, port = a_certificate(tmp_path), free_port()
    certificate = made.certificate
    settings = {"tls-port": str(port), "tls-auth-clients": "no", "tls-cert-file": str(certificate)}
    settings |= {"tls-key-file": str(made.key), "tls-ca-cert-file": str(certificate)}
    with a_redis(tmp_path, settings):
        with (
            a_client(f"rediss://localhost:{port}?ssl_ca_certs={certificate}") as secure,
            signals_over(secure) as signals,
        ):
            assert count(secure) == 1
            ear = signals.subscribe("q", ANY)
            signals.publish("q", None, 1)
            assert ear.wait(timeout_seconds=LONG)
            ear.close()
        assert opened(f"rediss://localhost:{port}") is None
        assert opened(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}") is None


def test_the_clock_is_the_servers(server: Engine) -> None:
    with a_client(server.tcp_url) as one:
        seconds, microseconds = operator(server).time()
        assert abs(one.clock.now() - seconds * 1_000_000 - microseconds) < 1_000_000
        assert one.clock.error_seconds < 0.05
        assert one.clock.is_vague or not one.clock.is_stale  # vague: its answer took long, on a busy machine


def test_the_wire_of_a_link_is_found_cut_within_seconds(server: Engine) -> None:
    with a_tcp_proxy(server.host, server.port) as wire, a_client(f"redis://127.0.0.1:{wire.port}") as cut:
        count(cut)
        wire.sever()
        started = SystemClock().monotonic()
        with capture_logs():
            assert count(cut) == 2
        assert SystemClock().monotonic() - started < 2


def test_a_first_answer_that_took_long_is_asked_for_again_at_once(
    server: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RemoteClock", lambda: RemoteClock(since_boot=slow_at_first()))
    with a_client(server.tcp_url) as opened_vaguely:
        assert not opened_vaguely.clock.is_vague
