"""The classes of kombu's own integration tests, on the broker of `BROKER`: run by `tests.celery.kombu_classes`.

The suite does not collect it: `t` is there only for its runs.
"""

import os
from contextlib import suppress

import kombu
import pytest
from t.integration import common

import queue_core.kombu  # noqa: F401 - registers the transport

BROKER = os.environ.get("BROKER", "")
NOBODY = os.environ.get("NOBODY", "")
"""A broker that can't be reached."""
OPTIONS = {"namespace": os.environ.get("PYTEST_XDIST_WORKER", "")}
"""Tests that run beside each other use queues of the same names."""


@pytest.fixture
def connection() -> kombu.Connection:
    return kombu.Connection(BROKER, transport_options=OPTIONS)


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection(NOBODY)


@pytest.fixture
def failover_connection() -> kombu.Connection:
    return kombu.Connection(f"{NOBODY};{BROKER}", connect_timeout=5, transport_options=OPTIONS)


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class DrainingConnection(kombu.Connection):
    """Has one call of `drain_events` deliver all that waits, as `TestPriority` takes for granted: py-amqp's does.

    Ours delivers one message, as kombu's other virtual transports do; its tests of Redis call it once for each, too.
    """

    def drain_events(self, **options: object) -> None:
        """Deliver all that waits. Raises `TimeoutError` where nothing does."""
        super().drain_events(**options)
        with suppress(TimeoutError):
            while True:
                super().drain_events(timeout=0.1)


class TestPriority(common.BasePriority):
    @pytest.fixture
    def connection(self) -> kombu.Connection:
        return DrainingConnection(BROKER, transport_options=OPTIONS)


class TestMessage(common.BaseMessage):
    pass


class TestFailover(common.BaseFailover):
    pass


if hasattr(common, "BaseEventLoop"):  # since kombu 5.7

    class TestEventLoop(common.BaseEventLoop):
        pass
