"""Waking waiters over a real PostgreSQL with somebody in between: a caller whose transaction it is, or a pooler."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from queue_core.stores.postgres.notify import listener
from queue_core.stores.postgres.notify.signals import NotifySignals
from queue_core.stores.postgres.notify.waiters import PostgresSubscription
from queue_core.task import ANY
from tests.support.eventually import eventually
from tests.support.stores.postgres_connections import (
    LONG,
    Pooler,
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
from tests.support.stores.stores import new_url


@pytest.fixture
def pooled(url: str) -> Iterator[str]:
    """The same database by way of a pooler."""
    pooler = Pooler("127.0.0.1", port_of(url))
    yield through(url, pooler.port)
    pooler.close()


# -- in a transaction of the caller's own -------------------------------------------------------------------------


def test_a_caller_s_own_transaction_wakes_when_it_commits(url: str, here: NotifySignals) -> None:
    idle, busy = here.subscribe("q", ANY), here.subscribe("q", ANY)
    with operator(url) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT towline.notify_on_commit('q', 'a', 1)")
        await_notifications(here, here)
        assert woken(idle, busy) == [False, False]
        connection.execute("COMMIT")
    assert busy.wait(timeout_seconds=LONG)
    await_notifications(here, here)
    assert woken(idle) == [False]
    assert rows(url, "unsent_notifications") == 0
    closing(idle, busy)


def test_a_caller_s_transaction_that_is_rolled_back_wakes_nobody(url: str, here: NotifySignals) -> None:
    ear = here.subscribe("q", ANY)
    with operator(url) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT towline.notify_on_commit('q', 'a', 1)")
        connection.execute("ROLLBACK")
    await_notifications(here, here)
    assert woken(ear) == [False]
    ear.close()


def test_a_waiter_that_came_during_the_caller_s_transaction_is_woken_in_seconds(url: str, here: NotifySignals) -> None:
    other = here.subscribe("other", ANY)
    with operator(url) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT towline.notify_on_commit('q', 'a', 1)")
        ear = here.subscribe("q", ANY)
        connection.execute("COMMIT")
    assert ear.wait(timeout_seconds=2 * listener.PASS_ON_SECONDS)
    closing(ear, other)


def test_the_first_listener_looks_again_for_those_who_told_nobody(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "REPOLL_SECONDS", (0.2,))
    with operator(url) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT towline.notify_on_commit('q', 'a', 1)")
        with signals_on(url) as here:
            ear = here.subscribe("q", ANY)
            connection.execute("COMMIT")
            assert ear.wait(timeout_seconds=2.0)
            ear.close()
    assert rows(url, "unsent_notifications") == 0


# -- behind a proxy -----------------------------------------------------------------------------------------------


def test_behind_a_pooler_waiters_look_for_themselves_and_it_is_said_once(
    url: str, pooled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "POLL_SECONDS", 0.05)
    with capture_logs() as logged, signals_on(pooled) as here:
        for _ in range(3):
            ear = here.subscribe("q", ANY)
            assert ear.wait(timeout_seconds=LONG)
            assert not ear.wait(timeout_seconds=0)
            ear.close()
        assert "listen=" in here.trouble
    assert [entry["event"] for entry in logged] == [listener.SIGNALS_UNHEARD]
    assert rows(url, "waiters") == 0


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
        ear: PostgresSubscription = there.subscribe("q", ANY)
        eventually(lambda: there.trouble)
        assert "same database" in there.trouble
        assert [entry["event"] for entry in logged] == [listener.SIGNALS_UNHEARD]
        ear.close()
