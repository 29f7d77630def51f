"""Instrumentation: the seam between queues, workers and whatever traces them. Nothing by default.

Where nothing is instrumented an add and a handler's call cost one comparison with None more.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from queue_core.task import Lease, NewTask
from queue_core.verbs import Added

HandlerCall: TypeAlias = Callable[..., object]
ErrorTest: TypeAlias = Callable[[BaseException], bool]


class Instrumentation(Protocol):
    """Observes adds and handlers; it may write headers into tasks, and never changes what is done."""

    def add(self, queue: str, tasks: list[NewTask], call: Callable[[list[NewTask]], list[Added]]) -> list[Added]:
        """Call `call` with the tasks to add, and return what it returns."""

    def handler(
        self, function: HandlerCall, leases: Sequence[Lease], *, is_async: bool, is_batch: bool, is_retry: ErrorTest
    ) -> HandlerCall:
        """Return the function to call in place of a handler, for these leases: it returns and raises the same.

        Args:
            is_retry: returns whether an exception of the handler only asks for a later lease.
        """


active: Instrumentation | None = None
"""The instrumentation of this process: handlers and adds are in many places, and there is one pipeline of traces."""
