"""The stores that the contract is held against and queues are moved between, and a server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.store import Store
from tests.support.servers import RunningServer, a_server
from tests.support.stores.stores import STORES, opened
from tests.support.stores.task_builders import a_queue
from tests.support.stores.transfers import fill


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store in turn, with one queue; it passes its own check at the end."""
    with opened(request.param, tmp_path) as opened_store:
        a_queue(opened_store)
        yield opened_store
        assert opened_store.check().problems == ()


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server over a memory store with the queue `work`."""
    with a_server() as running:
        yield running


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Store]:
    """For moves: a store with a queue that has everything in it."""
    (tmp_path / "old").mkdir()
    with opened("sqlite", tmp_path / "old") as store:
        fill(store)
        yield store


@pytest.fixture(params=STORES)
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """For moves and imports: each store in turn, empty; healthy at the end."""
    (tmp_path / "new").mkdir()
    with opened(request.param, tmp_path / "new") as store:
        yield store
        assert store.check().problems == ()
