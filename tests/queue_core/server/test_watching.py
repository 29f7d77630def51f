"""What watches a server finds: whether it is ready, figures, events as they come."""

import pytest

from queue_core.errors import (
    QueueError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, a_server, request
from tests.support.stores.failing_store import FailingStore

ADD = f"/v1/queues/{QUEUE}/add"
TASK = b'{"tasks":[{"text":"x"}]}'


@pytest.mark.parametrize(
    ("failure", "status"),
    [(StoreUnavailableError("away"), 503), (StoreFullError("no room"), 507), (StoreReadOnlyError("read-only"), 500)],
    ids=["away", "full", "read-only"],
)
def test_a_store_that_fails_makes_the_server_unready_until_it_recovers(failure: QueueError, status: int) -> None:
    store = FailingStore()
    with a_server(store) as server:
        assert server.ask("GET", "/readyz").status == 200
        store.failure = failure
        assert server.ask("POST", ADD, TASK).status == status
        assert server.ask("GET", "/readyz").status == 503
        assert server.ask("GET", "/livez").status == 200
        store.failure = None
        assert server.ask("GET", "/readyz").status == 200
        assert server.ask("POST", ADD, TASK).status == 200


def test_metrics_count_per_queue_and_never_per_tag() -> None:
    with a_server() as server:
        server.ask("POST", ADD, b'{"tasks":[{"tag":"secret-tag"},{"delay_seconds":60}]}')
        text = server.ask("GET", "/metrics").body.decode()
    assert 'towline_queue_ready{queue="work"} 1.0' in text
    assert 'towline_queue_delayed{queue="work"} 1.0' in text
    assert 'towline_queue_added_total{queue="work"} 2.0' in text
    assert "secret-tag" not in text


def test_recent_events_are_paged_by_cursor() -> None:
    with a_server() as server:
        server.ask("POST", ADD, b'{"tasks":[{"name":"a"},{"name":"b"},{"name":"c"}]}')
        first = server.ask("GET", "/v1/events?after=0&limit=2").json()
        rest = server.ask("GET", f"/v1/events?after={first['cursor']}").json()
    names = [event["task"] for event in [*first["events"], *rest["events"]]]  # type: ignore[misc]
    assert names == ["a", "b", "c"]
    assert (first["cursor"], rest["cursor"], rest["missed"]) == (2, 3, False)


def test_followers_see_events_as_they_come_and_end_with_the_server() -> None:
    with a_server() as server:
        with server.connect() as connection:
            connection.sendall(request("GET", "/v1/events?follow=true"))
            seen = b""
            while b": towline" not in seen:
                seen += connection.recv(65536)
            server.ask("POST", ADD, b'{"tasks":[{"name":"followed"}]}')
            while b"followed" not in seen:
                seen += connection.recv(65536)
            server.thread.stop()
            while data := connection.recv(65536):
                seen += data
        assert b"event: task.added" in seen


def test_a_follower_that_leaves_is_forgotten() -> None:
    with a_server() as server:
        with server.connect() as connection:
            connection.sendall(request("GET", "/v1/events?follow=true"))
            connection.recv(1000)
            eventually(lambda: len(server.thread.core.ring._followers) == 1)
        eventually(lambda: not server.thread.core.ring._followers)
