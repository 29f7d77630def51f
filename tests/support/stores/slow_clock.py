"""Time since boot as a host sees it whose first question to a store was answered late."""

from collections.abc import Callable

from queue_core.clock import MICROSECONDS, microseconds_since_boot

LATE = MICROSECONDS // 3


def slow_at_first() -> Callable[[], int]:
    """For a `RemoteClock`: a third of a second passes between the first reading and the second."""
    readings = 0

    def since_boot() -> int:
        nonlocal readings
        readings += 1
        return microseconds_since_boot() + (LATE if readings > 1 else 0)

    return since_boot
