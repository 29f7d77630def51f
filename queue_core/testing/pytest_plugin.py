"""Fixtures for tests of handlers and functions, where pytest is installed: it finds them by an entry point.

pytest loads this module in every run, so nothing else of the package is imported before a test uses a fixture.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from queue_core import App, NewTask
    from queue_core.testing.run import MemoryQueues, TaskOutcome


class EmptyingRun(Protocol):
    """The fixture `run_until_empty`: the function of that name, on the queues of `towline_queues`."""

    def __call__(
        self, app: "App", tasks: "bytes | NewTask | Iterable[NewTask]" = (), *, max_calls: int = ...
    ) -> "list[TaskOutcome]":
        """See `queue_core.testing.run.run_until_empty`."""


@pytest.fixture
def towline_queues() -> "MemoryQueues":
    """Queues in memory of the test's own, with a manual clock."""
    from queue_core.testing.run import MemoryQueues

    return MemoryQueues()


@pytest.fixture
def run_until_empty(towline_queues: "MemoryQueues") -> EmptyingRun:
    """Run an app's handlers and functions until the queues of `towline_queues` are empty."""
    from queue_core.testing import run

    def empty(
        app: "App", tasks: "bytes | NewTask | Iterable[NewTask]" = (), *, max_calls: int = run.MAX_CALLS
    ) -> "list[TaskOutcome]":
        return run.run_until_empty(app, tasks, queues=towline_queues, max_calls=max_calls)

    return empty
