"""Waking waiters over a real PostgreSQL that lose something: a process of theirs, the wire, the server for a while."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from queue_core.stores.postgres.notify import listener
from queue_core.stores.postgres.notify.signals import NotifySignals
from queue_core.task import ANY
from tests.support.cutting_proxy import a_tcp_proxy
from tests.support.eventually import eventually
from tests.support.stores.engines import Engine
from tests.support.stores.postgres_connections import (
    LONG,
    a_postgres,
    await_notifications,
    closing,
    make_schema,
    operator,
    port_of,
    rows,
    signals_on,
    through,
    woken,
)


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Engine]:
    """A server to kill."""
    with a_postgres(tmp_path) as engine:
        make_schema(engine.tcp_url)
        yield engine


# -- the dead and the stopped -------------------------------------------------------------------------------------


@contextmanager
def another_process_waiting(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process with the most recently active ear of the queue; it says what its wait ended with."""
    program = f"""
        from queue_core.task import ANY
        from tests.support.stores.postgres_connections import signals_on
        with signals_on({url!r}) as signals:
            ear = signals.subscribe("q", ANY)
            print("waiting", flush=True)
            print(ear.wait(timeout_seconds=60), flush=True)
            ear.close()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            yield process
        finally:
            process.kill()


def test_a_waiter_of_another_process_is_woken(url: str, here: NotifySignals) -> None:
    ear = here.subscribe("q", ANY)
    with another_process_waiting(url) as process:
        here.publish("q", None, 1)
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert woken(ear) == [False]
    ear.close()


def test_a_process_that_was_killed_swallows_no_wake_up(url: str, here: NotifySignals) -> None:
    ear = here.subscribe("q", ANY)
    with another_process_waiting(url) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        eventually(lambda: _listening_backends(url) == 1)
        here.publish("q", None, 1)
        assert ear.wait(timeout_seconds=1.0)
        eventually(lambda: rows(url, "waiters") == 1)
        assert rows(url, "listeners") == 1
    ear.close()


def _listening_backends(url: str) -> int:
    """Sessions that hold a listener's lock."""
    with operator(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND mode = 'ExclusiveLock'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        ).fetchone()
    assert row is not None
    return int(str(row[0]))


def test_a_wake_up_that_a_stopped_process_does_not_take_is_passed_on(url: str, here: NotifySignals) -> None:
    ear = here.subscribe("q", ANY)
    with another_process_waiting(url) as process:
        process.send_signal(signal.SIGSTOP)
        here.publish("q", None, 1)
        assert ear.wait(timeout_seconds=LONG)
        process.send_signal(signal.SIGCONT)
    ear.close()


def test_a_new_listener_removes_what_the_dead_left(url: str, here: NotifySignals) -> None:
    with another_process_waiting(url) as process:
        process.kill()
        process.wait()
        eventually(lambda: _listening_backends(url) == 0)
        assert rows(url, "waiters") == 1
        closing(here.subscribe("other", ANY))
        await_notifications(here, here)
        eventually(lambda: rows(url, "waiters") == 0)
        assert rows(url, "listeners") == 1


# -- the server and the wire --------------------------------------------------------------------------------------


def test_whoever_waited_through_a_restart_looks_once_and_is_woken_again(own_engine: Engine) -> None:
    with signals_on(own_engine.tcp_url) as here, capture_logs() as logged:
        ear = here.subscribe("q", ANY)
        own_engine.restart()
        assert ear.wait(timeout_seconds=LONG)
        eventually(lambda: not here.trouble)
        assert not ear.wait(timeout_seconds=0)
        here.publish("q", "a", 1)
        assert ear.wait(timeout_seconds=LONG)
        ear.close()
    assert {entry["event"] for entry in logged} == {listener.LISTENER_LOST, listener.LISTENER_RESTORED}


def test_whoever_begins_to_wait_while_the_server_is_away_is_woken_when_it_is_back(own_engine: Engine) -> None:
    with signals_on(own_engine.tcp_url) as here:
        first = here.subscribe("q", ANY)
        own_engine.kill()
        eventually(lambda: here.trouble)
        second = here.subscribe("q", ANY)
        here.publish("q", "a", 1)
        own_engine.start()
        assert first.wait(timeout_seconds=LONG)
        assert second.wait(timeout_seconds=LONG)
        closing(first, second)


def test_a_cut_wire_is_mended_and_all_look(url: str) -> None:
    with a_tcp_proxy("127.0.0.1", port_of(url)) as cut, signals_on(through(url, cut.port)) as here:
        ear = here.subscribe("q", ANY)
        cut.sever()
        assert ear.wait(timeout_seconds=LONG)
        with signals_on(url) as there:
            # That of the lost listener may be there still: whoever wakes it finds it dead, and passes it over.
            eventually(lambda: rows(url, "waiters WHERE towline.is_listening(listener)") == 1)
            there.publish("q", None, 1)
            assert ear.wait(timeout_seconds=LONG)
        ear.close()


def test_a_waiter_that_is_just_readied_again_is_woken(url: str) -> None:
    """Its row is locked then: after a cut, all look by themselves and are readied as if they had been woken."""
    with signals_on(url) as here, signals_on(url) as there, operator(url) as beside:
        ear = here.subscribe("q", ANY)
        with beside.transaction():
            locked = beside.execute("SELECT number FROM towline.waiters FOR UPDATE").fetchall()
            there.publish("q", None, 1)
            assert ear.wait(timeout_seconds=LONG)
        assert len(locked) == 1
        ear.close()


def test_a_registration_that_was_cut_off_is_made_up_for(url: str) -> None:
    with a_tcp_proxy("127.0.0.1", port_of(url)) as cut, signals_on(through(url, cut.port)) as here:
        here.subscribe("other", ANY)
        cut.cut_next("drop")
        ear = here.subscribe("q", ANY)
        assert ear.wait(timeout_seconds=LONG)
        here.publish("q", None, 1)
        assert ear.wait(timeout_seconds=LONG)
