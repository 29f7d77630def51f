"""A snapshot that somebody holds on the store is told where a server's state is read: it is degraded, and ready."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from queue_core.client.http_calls import HttpQueues
from queue_core.server.watches import held_snapshots
from queue_core.stores.memory.store import MemoryStore
from queue_core.verbs import HeldSnapshot
from tests.support.eventually import eventually
from tests.support.servers import RunningServer, a_server

HELD = HeldSnapshot("idle in transaction", "pid 7", 7, "psql", "ann", "db1", 61.0, dead_rows=5000, remedy="end it")


class HeldStore(MemoryStore):
    """A store on which a snapshot is held until the test ends it."""

    held: HeldSnapshot | None = HELD

    def held_snapshot(self, *, min_seconds: float = 0.0) -> HeldSnapshot | None:  # type: ignore[override]
        return self.held


@pytest.fixture
def store() -> HeldStore:
    return HeldStore()


@pytest.fixture
def server(store: HeldStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    monkeypatch.setattr(held_snapshots, "LOOK_SECONDS", 0.01)
    with a_server(store) as running:
        yield running


def test_it_is_degraded_and_ready_until_the_snapshot_ends(server: RunningServer, store: HeldStore) -> None:
    eventually(lambda: server.ask("GET", "/readyz", headers=()).json()["status"] == "degraded")
    reply = server.ask("GET", "/readyz", headers=())
    assert (reply.status, reply.json()["reasons"]) == (200, [HELD.sentence])
    with closing(HttpQueues(server.url)) as queues:
        assert queues.degradations() == [HELD.sentence]
    text = server.ask("GET", "/metrics").body.decode()
    assert 'towline_store_held_snapshot{kind="idle in transaction"} 1.0' in text
    assert "towline_store_held_dead_rows 5000.0" in text
    store.held = None
    eventually(lambda: server.ask("GET", "/readyz", headers=()).json()["status"] == "ok")
    with closing(HttpQueues(server.url)) as queues:
        assert queues.degradations() == []
    assert "reasons" not in server.ask("GET", "/readyz", headers=()).json()
    assert "towline_store_held_dead_rows 0.0" in server.ask("GET", "/metrics").body.decode()
