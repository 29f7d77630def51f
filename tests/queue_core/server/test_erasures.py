"""A Redis that is emptied beneath a server, or comes back without its data: it is told, and queues are made again."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from queue_core.server.base import events
from queue_core.server.base.options import ServeOptions
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from tests.support.eventually import eventually
from tests.support.servers import QUEUE, RunningServer, a_server
from tests.support.stores.engines import Engine, EngineUnavailableError
from tests.support.stores.engines import redis as private_redis

SPEC = QueueSpec(QUEUE, lease_seconds=7.0)
OTHER = QueueSpec("other")
OPTIONS = ServeOptions(queues=(SPEC, OTHER), storage_limit_bytes=1 << 20)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Redis that keeps nothing over a restart."""
    try:
        with private_redis(tmp_path) as engine:
            yield engine
    except EngineUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def server(engine: Engine) -> Iterator[RunningServer]:
    store = open_store(engine.store_url, durability="relaxed")
    with a_server(store, OPTIONS, spec=SPEC) as running:
        yield running


def operator(engine: Engine) -> "redis.Redis[bytes]":
    return redis.Redis(host=engine.host, port=engine.port)


def flush(engine: Engine) -> None:
    with operator(engine) as client:
        client.flushall()


def lose(engine: Engine) -> None:
    engine.kill()
    engine.start()


@pytest.mark.parametrize("empty", [flush, lose])
def test_the_queues_of_the_settings_are_made_again_once_and_that_is_said(
    engine: Engine, server: RunningServer, empty: Callable[[Engine], None]
) -> None:
    with closing(server.queues()) as queues, capture_logs() as logged:
        queues.queue(QUEUE).add([NewTask(b"lost")])
        empty(engine)
        eventually(lambda: len(queues.queues()) == 2)
        eventually(lambda: server.ask("GET", "/readyz", headers=()).status == 200)
        assert {spec.name: spec.lease_seconds for spec in queues.queues()} == {QUEUE: 7.0, "other": OTHER.lease_seconds}
        assert queues.storage().limit_bytes == 1 << 20
        queues.queue(QUEUE).add([NewTask(b"new")])
        assert [lease.payload for lease in queues.queue(QUEUE).lease(10)] == [b"new"]
    told = [
        (line["event"], line["log_level"]) for line in logged if "store" in line and line["event"] != "connection.lost"
    ]
    assert told.count((events.STORE_ERASED, "error")) == 1
    assert told.count((events.QUEUES_MADE_AGAIN, "warning")) == 1


def test_a_server_is_not_ready_until_they_are_made_again(engine: Engine, server: RunningServer) -> None:
    assert server.ask("GET", "/readyz", headers=()).status == 200
    with operator(engine) as client:
        client.flushall()
        client.config_set("maxmemory", 1)  # what writes is refused
        refused = eventually(lambda: _not_ready(server))
        assert "was emptied" in str(refused["detail"])
        assert client.get("towline:{:identity}") is None
        client.config_set("maxmemory", 0)
    eventually(lambda: server.ask("GET", "/readyz", headers=()).status == 200)
    with closing(server.queue()) as queue:
        assert queue.stats().ready == 0


def _not_ready(server: RunningServer) -> dict[str, object] | None:
    reply = server.ask("GET", "/readyz", headers=())
    return reply.json() if reply.status == 503 else None


@pytest.fixture
def another(engine: Engine, server: RunningServer) -> Iterator[RunningServer]:
    """A second server on the same store."""
    with a_server(open_store(engine.store_url, durability="relaxed"), OPTIONS, spec=SPEC) as running:
        yield running


def look(*servers: RunningServer) -> int:
    """How many of them say that the store was emptied, when each looks now."""
    with capture_logs() as logged:
        for server in servers:
            server.thread.core.erasures.check()
    return len([line for line in logged if line["event"] == events.STORE_ERASED])


def test_another_servers_queues_are_not_taken_for_a_store_that_was_emptied(
    server: RunningServer, another: RunningServer
) -> None:
    with closing(another.queues()) as queues:
        queues.put_queue(QueueSpec("third"))
        queues.delete_queue(QUEUE)
    assert look(server, another) == 0


def test_two_servers_on_one_store_both_notice(engine: Engine, server: RunningServer, another: RunningServer) -> None:
    with capture_logs() as logged:  # their own looks may come first
        flush(engine)
        told = look(server, another)
        told += len([line for line in logged if line["event"] == events.STORE_ERASED])
    assert told == 2
    assert look(server, another) == 0
