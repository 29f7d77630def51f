"""A monotonic clock on which a store's first answer seems to take long."""

from collections.abc import Callable

from queue_core.clock import MICROSECONDS, microseconds_since_boot

LATE = MICROSECONDS // 3


def slow_at_first() -> Callable[[], int]:
    """Return a clock for `RemoteClock`: a third of a second passes between its first two readings."""
    readings = 0

    def since_boot() -> int:
        nonlocal readings
        readings += 1
        return microseconds_since_boot() + (LATE if readings > 1 else 0)

    return since_boot
