"""Waking waiters over a real PostgreSQL: of this process, of others, of those that die; over cut wires and restarts."""

import signal
import statistics
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from structlog.testing import capture_logs

from queue_core.clock import SystemClock
from queue_core.store import Subscription
from queue_core.stores.postgres import events, listening
from queue_core.stores.postgres.ears import Ear
from queue_core.stores.postgres.signals import NotifySignals
from queue_core.task import ANY, UNTAGGED, TagFilter
from tests.support import engines
from tests.support.cutting_wire import a_wire
from tests.support.engines import Engine, EngineUnavailableError
from tests.support.eventually import eventually
from tests.support.postgres_links import Pooler, make_schema, operator, signals_on, through
from tests.support.stores import new_url

LONG = 20.0


@pytest.fixture(autouse=True)
def no_looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has the first listener of its store; that it looks again after a while is tested by itself."""
    monkeypatch.setattr(listening, "LOOK_AGAIN_SECONDS", ())


@pytest.fixture
def url() -> str:
    return make_schema(new_url("postgresql"))


@pytest.fixture
def here(url: str) -> Iterator[NotifySignals]:
    """Who waits."""
    with signals_on(url) as signals:
        yield signals


@pytest.fixture(params=["of this process", "of another"])
def there(request: pytest.FixtureRequest, url: str, here: NotifySignals) -> Iterator[NotifySignals]:
    """Who publishes."""
    if request.param == "of this process":
        yield here
        return
    with signals_on(url) as signals:
        yield signals


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Engine]:
    """A server to kill."""
    try:
        with engines.postgresql(tmp_path) as engine:
            make_schema(engine.tcp_url)
            yield engine
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def port_of(url: str) -> int:
    return int(str(conninfo_to_dict(url)["port"]))


def settle(there: NotifySignals, here: NotifySignals) -> None:
    """What `there` published before this has been heard here, as one after the other is told."""
    last = here.subscribe("settled", ANY)
    there.publish("settled", None, 1)
    assert last.wait(timeout_seconds=LONG)
    last.close()


def woken(*subscriptions: Subscription) -> list[bool]:
    return [each.wait(timeout_seconds=0) for each in subscriptions]


def closing(*subscriptions: Subscription) -> None:
    for each in subscriptions:
        each.close()


def rows(url: str, table: str) -> int:
    with operator(url) as connection:
        row = connection.execute(f"SELECT count(*) FROM towline.{table}").fetchone()  # type: ignore[call-overload]
    assert row is not None
    return int(str(row[0]))


# -- what every store's signals promise ---------------------------------------------------------------------------


def test_a_publish_between_subscribe_and_wait_is_not_missed(there: NotifySignals, here: NotifySignals) -> None:
    ear = here.subscribe("q", ANY)
    there.publish("q", "a", 1)
    assert ear.wait(timeout_seconds=LONG)
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
        (TagFilter.of('quo"te, \\ {NULL}'), 'quo"te, \\ {NULL}', True),
        (TagFilter.of("NULL"), None, False),
        (TagFilter.of("Größe"), "Größe", True),
    ],
)
def test_a_waiter_hears_of_what_it_would_take(
    here: NotifySignals, tags: TagFilter, tag: str | None, expected: bool
) -> None:
    ear = here.subscribe("q", tags)
    here.publish("other", tag, 5)
    settle(here, here)
    assert woken(ear) == [False]
    here.publish("q", tag, 1)
    settle(here, here)
    assert woken(ear) == [expected]
    ear.close()


def test_as_many_are_woken_as_there_are_tasks_most_recently_active_first(
    there: NotifySignals, here: NotifySignals
) -> None:
    first, second, third = (here.subscribe("q", ANY) for _ in range(3))
    there.publish("q", None, 2)
    settle(there, here)
    assert woken(first, second, third) == [False, True, True]
    there.publish("q", None, 9)
    settle(there, here)
    assert woken(first, second, third) == [True, True, True]
    closing(first, second, third)


def test_whoever_is_awake_comes_after_those_who_wait(there: NotifySignals, here: NotifySignals) -> None:
    idle, busy = here.subscribe("q", ANY), here.subscribe("q", ANY)
    there.publish("q", None, 1)
    assert busy.wait(timeout_seconds=LONG)
    there.publish("q", None, 1)
    settle(there, here)
    assert woken(idle) == [True]
    there.publish("q", None, 1)
    settle(there, here)
    assert woken(busy, idle) == [True, False]
    closing(idle, busy)


def test_one_that_waited_in_vain_is_as_idle_as_before_when_it_comes_back(here: NotifySignals) -> None:
    idle, busy = here.subscribe("q", ANY), here.subscribe("q", ANY)
    assert woken(idle) == [False]
    idle.close()
    idle = here.subscribe("q", ANY)
    here.publish("q", None, 1)
    settle(here, here)
    assert woken(idle, busy) == [False, True]
    closing(idle, busy)


def test_an_unused_wake_up_is_passed_on(there: NotifySignals, here: NotifySignals) -> None:
    first = here.subscribe("q", ANY)
    unfit = here.subscribe("q", TagFilter.of("b"))
    last = here.subscribe("q", ANY)
    there.publish("q", "a", 1)
    settle(there, here)
    last.close()
    settle(here, here)
    assert woken(first, unfit) == [True, False]
    closing(first, unfit)


def test_wake_ends_a_wait_of_another_thread(here: NotifySignals) -> None:
    ear = here.subscribe("q", ANY)
    other = here.subscribe("q", ANY)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ear.wait, timeout_seconds=LONG)
        ear.wake()
        waiting.result(LONG)
    ear.close()
    settle(here, here)
    assert woken(other) == [False]
    other.close()
    other.close()


def test_the_most_recently_active_is_found_among_processes(url: str, here: NotifySignals) -> None:
    with signals_on(url) as there:
        ears = [here.subscribe("q", ANY), there.subscribe("q", ANY), here.subscribe("q", ANY)]
        here.publish("q", None, 2)
        settle(here, here)
        settle(here, there)
        assert woken(*ears) == [False, True, True]
        closing(*ears)


def test_a_hundred_waiters_of_one_process_are_woken_by_one_publish(here: NotifySignals) -> None:
    tag = "\x01" * 500  # the longest there is when a notification spells it out
    ears = [here.subscribe("q", TagFilter.of(tag)) for _ in range(450)]
    here.publish("q", tag, len(ears))
    assert all(ear.wait(timeout_seconds=LONG) for ear in ears)
    closing(*ears)


# -- cost ---------------------------------------------------------------------------------------------------------


def test_who_never_waits_opens_no_connection_to_listen(url: str, here: NotifySignals) -> None:
    for number in range(100):
        here.publish("q", str(number), 1)
    here.close()
    assert rows(url, "listeners") == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "towline-listener"]


def test_nobody_is_notified_where_nobody_waits(url: str, here: NotifySignals) -> None:
    ear = here.subscribe("other", ANY)
    with operator(url) as connection:
        for fits in ("'q', NULL, 5", "'q', 'a', 1"):
            assert connection.execute(f"SELECT towline.wake({fits})").fetchone() == (0,)  # type: ignore[call-overload]
    ear.close()


def test_nothing_is_left_of_waiters_that_are_gone(url: str, here: NotifySignals) -> None:
    ears = [here.subscribe("q", ANY) for _ in range(20)]
    assert rows(url, "ears") == 20
    closing(*ears)
    settle(here, here)
    eventually(lambda: rows(url, "ears") == 0)
    here.close()
    assert rows(url, "listeners") == 0


def test_a_waiter_is_woken_in_a_few_milliseconds(url: str, here: NotifySignals) -> None:
    monotonic = SystemClock().monotonic
    took = []
    with signals_on(url) as there:
        for _ in range(50):
            ear = here.subscribe("q", ANY)
            started = monotonic()
            there.publish("q", "a", 1)
            assert ear.wait(timeout_seconds=LONG)
            took.append(monotonic() - started)
            ear.close()
    assert statistics.median(took) < 0.01


def test_the_connection_is_closed_when_nobody_waits_any_more_and_opened_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "LINGER_SECONDS", 0.02)
    monkeypatch.setattr(listening, "PASS_ON_SECONDS", 0.01)
    with signals_on(url) as here:
        for _ in range(2):
            ear = here.subscribe("q", ANY)
            assert rows(url, "listeners") == 1
            here.publish("q", None, 1)
            assert ear.wait(timeout_seconds=LONG)
            ear.close()
            eventually(lambda: rows(url, "listeners") == 0)


@pytest.mark.parametrize("ending", ["signals.close()", "pass"], ids=["closes", "just ends"])
def test_what_a_program_published_right_before_its_end_is_told(url: str, here: NotifySignals, ending: str) -> None:
    ear = here.subscribe("q", ANY)
    program = f"""
        from tests.support.postgres_links import signals_on
        opened = signals_on({url!r})
        signals = opened.__enter__()
        signals.publish("q", None, 1)
        {ending}
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
    assert ear.wait(timeout_seconds=LONG)
    ear.close()


# -- the dead and the stopped -------------------------------------------------------------------------------------


@contextmanager
def another_process_waiting(url: str) -> Iterator[subprocess.Popen[str]]:
    """A process with the most recently active ear of the queue; it says what its wait ended with."""
    program = f"""
        from queue_core.task import ANY
        from tests.support.postgres_links import signals_on
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
        eventually(lambda: rows(url, "ears") == 1)
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
        assert rows(url, "ears") == 1
        closing(here.subscribe("other", ANY))
        settle(here, here)
        eventually(lambda: rows(url, "ears") == 0)
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
    assert {entry["event"] for entry in logged} == {events.LISTENER_LOST, events.LISTENER_RESTORED}


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
    with a_wire("127.0.0.1", port_of(url)) as cut, signals_on(through(url, cut.port)) as here:
        ear = here.subscribe("q", ANY)
        cut.sever()
        assert ear.wait(timeout_seconds=LONG)
        with signals_on(url) as there:
            # That of the lost listener may be there still: whoever wakes it finds it dead, and passes it over.
            eventually(lambda: rows(url, "ears WHERE towline.is_listening(listener)") == 1)
            there.publish("q", None, 1)
            assert ear.wait(timeout_seconds=LONG)
        ear.close()


def test_a_registration_that_was_cut_off_is_made_up_for(url: str) -> None:
    with a_wire("127.0.0.1", port_of(url)) as cut, signals_on(through(url, cut.port)) as here:
        here.subscribe("other", ANY)
        cut.cut_next("drop")
        ear = here.subscribe("q", ANY)
        assert ear.wait(timeout_seconds=LONG)
        here.publish("q", None, 1)
        assert ear.wait(timeout_seconds=LONG)


# -- in a transaction of the caller's own -------------------------------------------------------------------------


def test_a_caller_s_own_transaction_wakes_when_it_commits(url: str, here: NotifySignals) -> None:
    idle, busy = here.subscribe("q", ANY), here.subscribe("q", ANY)
    with operator(url) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT towline.tell('q', 'a', 1)")
        settle(here, here)
        assert woken(idle, busy) == [False, False]
        connection.execute("COMMIT")
    assert busy.wait(timeout_seconds=LONG)
    settle(here, here)
    assert woken(idle) == [False]
    assert rows(url, "untold") == 0
    closing(idle, busy)


def test_a_caller_s_transaction_that_is_rolled_back_wakes_nobody(url: str, here: NotifySignals) -> None:
    ear = here.subscribe("q", ANY)
    with operator(url) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT towline.tell('q', 'a', 1)")
        connection.execute("ROLLBACK")
    settle(here, here)
    assert woken(ear) == [False]
    ear.close()


def test_a_waiter_that_came_during_the_caller_s_transaction_is_woken_in_seconds(url: str, here: NotifySignals) -> None:
    other = here.subscribe("other", ANY)
    with operator(url) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT towline.tell('q', 'a', 1)")
        ear = here.subscribe("q", ANY)
        connection.execute("COMMIT")
    assert ear.wait(timeout_seconds=2 * listening.PASS_ON_SECONDS)
    closing(ear, other)


def test_the_first_listener_looks_again_for_those_who_told_nobody(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "LOOK_AGAIN_SECONDS", (0.2,))
    with operator(url) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT towline.tell('q', 'a', 1)")
        with signals_on(url) as here:
            ear = here.subscribe("q", ANY)
            connection.execute("COMMIT")
            assert ear.wait(timeout_seconds=2.0)
            ear.close()
    assert rows(url, "untold") == 0


# -- behind a proxy -----------------------------------------------------------------------------------------------


@pytest.fixture
def pooled(url: str) -> Iterator[str]:
    """The same database by way of a pooler."""
    pooler = Pooler("127.0.0.1", port_of(url))
    yield through(url, pooler.port)
    pooler.close()


def test_behind_a_pooler_waiters_look_for_themselves_and_it_is_said_once(
    url: str, pooled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "LOOK_SECONDS", 0.05)
    with capture_logs() as logged, signals_on(pooled) as here:
        for _ in range(3):
            ear = here.subscribe("q", ANY)
            assert ear.wait(timeout_seconds=LONG)
            assert not ear.wait(timeout_seconds=0)
            ear.close()
        assert "listen=" in here.trouble
    assert [entry["event"] for entry in logged] == [events.SIGNALS_UNHEARD]
    assert rows(url, "ears") == 0


def test_behind_a_pooler_others_are_woken_all_the_same(pooled: str, here: NotifySignals) -> None:
    ear = here.subscribe("q", ANY)
    with signals_on(pooled) as there:
        there.publish("q", "a", 1)
        assert ear.wait(timeout_seconds=LONG)
    ear.close()


def test_with_a_direct_way_to_listen_a_pooler_does_no_harm(url: str, pooled: str, here: NotifySignals) -> None:
    with signals_on(f"{pooled}?listen={url}") as there:
        ear = there.subscribe("q", ANY)
        here.publish("q", "a", 1)
        assert ear.wait(timeout_seconds=LONG)
        assert not there.trouble
        ear.close()


def test_a_way_to_listen_that_leads_elsewhere_is_said(url: str, pooled: str) -> None:
    with capture_logs() as logged, signals_on(f"{pooled}?listen={make_schema(new_url('postgresql'))}") as there:
        ear: Ear = there.subscribe("q", ANY)
        eventually(lambda: there.trouble)
        assert "same database" in there.trouble
        assert [entry["event"] for entry in logged] == [events.SIGNALS_UNHEARD]
        ear.close()
