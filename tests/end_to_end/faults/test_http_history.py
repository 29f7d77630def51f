"""Clients over HTTP are told the truth whatever breaks: seconds of `python3 -m tests.faults --http`, and its teeth."""

import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.faults.__main__ import main
from tests.faults.faulty_proxy import Fate, FatePlan, FaultyProxy, Kind, a_faulty_proxy
from tests.faults.held import HOLD
from tests.faults.http_mutants import open_hopefully, serve_giving_back
from tests.faults.outcome import FaultBudget, FaultTally
from tests.faults.over_http import FaultConditions, held_conditions, over_http
from tests.faults.report import story_of
from tests.faults.sites import StoreName
from tests.faults.story import HandMadeHistory, a_lease
from tests.support.eventually import eventually

LONGEST_SECONDS = 240.0  # on a quiet machine a tenth of it
ENOUGH_OPERATIONS = 1500
REQUEST = b"POST /a HTTP/1.1\r\ncontent-length: 4\r\n\r\n1234"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n5678"


@pytest.mark.parametrize(("store", "servers"), [("sqlite", 1), ("postgresql", 1), ("redis", 2)])
def test_every_answer_over_http_was_true(store: StoreName, servers: int, tmp_path: Path) -> None:
    """Two servers on PostgreSQL are those of the next test."""
    how = FaultConditions(servers)
    tally = over_http(
        store, FaultBudget(LONGEST_SECONDS, seed=3, operations=ENOUGH_OPERATIONS), tmp_path, conditions=how
    )
    if tally.skipped:
        pytest.skip(tally.skipped)
    assert tally.violations == []
    assert all(tally.counts[kind] for kind in ("kill server", "stop server", "kill client", "sever", "swallow"))
    assert bool(tally.counts.get("kill engine")) == (store != "sqlite")


def test_every_answer_was_true_while_floors_rose_and_snapshots_were_held(tmp_path: Path) -> None:
    budget = FaultBudget(LONGEST_SECONDS, seed=3, operations=ENOUGH_OPERATIONS)
    tally = over_http("postgresql", budget, tmp_path, conditions=held_conditions(2))
    if tally.skipped:
        pytest.skip(tally.skipped)
    assert tally.violations == []
    assert all(tally.counts[kind] for kind in ("kill engine", "kill server", HOLD))
    assert tally.counts["floors raised"] > 10


def test_a_client_that_counts_a_lost_answer_as_done_is_found_out(tmp_path: Path) -> None:
    how = FaultConditions(shares={"refuse": 0.1, "swallow": 0.05}, mean_seconds={}, open_it=open_hopefully)
    tally = over_http("sqlite", FaultBudget(LONGEST_SECONDS, seed=3, operations=1500), tmp_path, conditions=how)
    assert "I4" in _found(tally)


def test_a_server_that_gives_leases_back_because_of_a_socket_is_found_out(tmp_path: Path) -> None:
    how = FaultConditions(shares={"reset answered": 0.2}, mean_seconds={}, serve_it=serve_giving_back)
    tally = over_http("sqlite", FaultBudget(LONGEST_SECONDS, seed=3, operations=1500), tmp_path, conditions=how)
    assert {"I2", "I6"} <= _found(tally)
    proof = next(tmp_path.glob("*/violations.txt")).read_text()
    assert "leased as" in proof


def test_the_command_takes_two_servers_on_one_store_only_over_http(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--servers", "2"], ["--http", "--store", "sqlite", "--servers", "2"]):
        with pytest.raises(SystemExit):
            main(arguments)
        assert "--servers" in capsys.readouterr().err


def test_a_task_s_story_tells_its_calls_in_order() -> None:
    lease = a_lease(since=2.05, until=2.5)
    told = list(
        story_of(HandMadeHistory().add().lease(lease).end("delete", lease.token, lost=True).add("b").calls, "a")
    )
    assert ["adds a" in told[0], "number 1" in told[1], "delete of" in told[2]] == [True, True, True]
    assert len(told) == 3
    assert told[2].endswith(f"lost {lease.token}")


@pytest.mark.parametrize(
    ("kind", "arrives", "answer"),
    [
        ("pass", REQUEST, ANSWER),
        ("refuse", b"", b"reset"),
        ("cut request", REQUEST[: len(REQUEST) // 2], b"reset"),
        ("reset sent", REQUEST, b"reset"),
        ("reset answered", REQUEST, ANSWER + b"reset"),
        ("swallow", REQUEST, b""),
        ("swallow stalled", REQUEST, b"nothing"),
        ("stall request", REQUEST, ANSWER),
        ("stall answer", REQUEST, ANSWER),
        ("split", REQUEST, ANSWER),
    ],
)
def test_a_request_meets_its_fate(kind: Kind, arrives: bytes, answer: bytes) -> None:
    with _an_answering_server() as (port, arrived), _a_proxy(port, kind) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=0.5) as client:
            client.sendall(REQUEST)
            assert _all_that_comes(client, len(ANSWER) if answer == ANSWER else None) == answer
        assert eventually(lambda: bytes(arrived) == arrives)


def test_a_held_request_arrives_though_its_client_has_gone() -> None:
    with _an_answering_server() as (port, arrived), _a_proxy(port, "stall request", seconds=0.2) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client:
            client.sendall(REQUEST)
            assert eventually(lambda: proxy.met["stall request"] == 1)
        assert not arrived
        assert eventually(lambda: bytes(arrived) == REQUEST)
        assert proxy.met["late"] == 1


def test_a_proxy_that_refuses_cannot_be_connected_to_until_it_accepts_again() -> None:
    with _an_answering_server() as (port, _), _a_proxy(port, "pass") as proxy:
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", proxy.port))
        proxy.accept()
        socket.create_connection(("127.0.0.1", proxy.port)).close()


def test_a_plan_gives_each_kind_its_share() -> None:
    plan = FatePlan({"swallow": 0.1, "stall answer": 0.2}, Random(1))
    drawn = [plan() for _ in range(10_000)]
    assert sum(fate.kind == "swallow" for fate in drawn) == pytest.approx(1000, rel=0.15)
    assert sum(fate.kind == "stall answer" for fate in drawn) == pytest.approx(2000, rel=0.15)
    assert all((fate.seconds > 0) == (fate.kind == "stall answer") for fate in drawn)


def _found(tally: FaultTally) -> set[str]:
    return {violation.invariant for violation in tally.violations}


def _a_proxy(port: int, kind: Kind, *, seconds: float = 0.05) -> AbstractContextManager[FaultyProxy]:
    return a_faulty_proxy(port, lambda: Fate(kind, seconds))


def _all_that_comes(client: socket.socket, enough: int | None) -> bytes:
    """What is read until the end or `enough`; "reset" after it where that is how it ends, "nothing" for silence."""
    data = b""
    while enough is None or len(data) < enough:
        try:
            piece = client.recv(65536)
        except ConnectionResetError:
            return data + b"reset"
        except TimeoutError:
            return data + b"nothing"
        if not piece:
            break
        data += piece
    return data


@contextmanager
def _an_answering_server() -> Iterator[tuple[int, bytearray]]:
    """Its port, and all that arrived; it answers a whole request."""
    arrived = bytearray()

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(65536):
                    arrived.extend(piece)
                    if arrived.endswith(REQUEST):
                        connection.sendall(ANSWER)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    listening = socket.create_server(("127.0.0.1", 0))
    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listening.getsockname()[1], arrived
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        accepting.join()
