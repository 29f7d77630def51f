"""What one connection has read of tasks and need not read again, as long as its own swaps wait to be sorted in.

Whatever changes tasks, in any process, first sorts in what waits (`swapping.py`). So while a row of `swaps` is there
that this process wrote, tasks are as they were when it wrote it; but others may have swapped some of them as well.
Every other verb of this process forgets it all, as where a swap was refused nothing may wait, and yet much be known.
"""

from queue_core.clock import Instant
from queue_core.stores.sqlite.driver import Row

READ_AT_ONCE = 16
"""Ready tasks, from the second time on: who swaps once and then does something else needs one."""


class ReadAhead:
    """Tasks, leases and due times, since something was sorted in last; bounded by how many swaps may wait."""

    __slots__ = ("due_at", "is_shared", "leases", "ready", "taken")

    def __init__(self) -> None:
        self.leases: dict[tuple[int, int, Instant], Row] = {}  # by queue and token: given by swaps here, not deleted
        self.taken: set[int] = set()  # all ids that were leased by swaps here
        self.ready: dict[tuple[int, int | None], list[Row]] = {}  # by queue and tag: the first ones, in reverse
        self.due_at: dict[int, Instant | None] = {}  # by queue: when time next has something to do there
        self.is_shared = False  # others have committed since: is to be told from a row of `swaps` whether this holds

    def forget(self) -> None:
        """Know nothing."""
        self.leases.clear()
        self.taken.clear()
        self.ready.clear()
        self.due_at.clear()
        self.is_shared = False
