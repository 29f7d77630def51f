"""Brokers for kombu: a store in memory, a file of SQLite, and a server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest

import queue_core.kombu  # noqa: F401 - registers the transport
from queue_core.celery.transport.broker import close_brokers
from tests.support.servers import a_server


@pytest.fixture(params=["memory", "sqlite", "server"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a broker."""
    if request.param == "server":
        with a_server() as running:
            yield f"towline+{running.url}"
            close_brokers()
        return
    yield "towline+memory://" if request.param == "memory" else f"towline+sqlite:///{tmp_path}/towline.db"
    close_brokers()


Connect = Callable[..., kombu.Connection]


@pytest.fixture
def connect(broker: str) -> Iterator[Connect]:
    """Open connections to the broker."""
    opened: list[kombu.Connection] = []

    def connection(**options: Any) -> kombu.Connection:
        opened.append(kombu.Connection(broker, transport_options=options))
        return opened[-1]

    yield connection
    for one in opened:
        one.release()
