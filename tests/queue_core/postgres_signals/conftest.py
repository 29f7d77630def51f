"""What every test of PostgreSQL's signals begins with: a schema of its own, and somebody who waits there."""

from collections.abc import Iterator

import pytest

from queue_core.stores.postgres.notify import listener
from queue_core.stores.postgres.notify.signals import NotifySignals
from tests.support.stores.postgres_connections import make_schema, signals_on
from tests.support.stores.stores import new_url


@pytest.fixture(autouse=True)
def no_looking_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has the first listener of its store; that it looks again after a while is tested by itself."""
    monkeypatch.setattr(listener, "REPOLL_SECONDS", ())


@pytest.fixture
def url() -> str:
    return make_schema(new_url("postgresql"))


@pytest.fixture
def here(url: str) -> Iterator[NotifySignals]:
    """Who waits."""
    with signals_on(url) as signals:
        yield signals
