"""Forgets what is kept for a while only, now and then and a bounded amount at a time, in the transactions of others.

Each process counts what it adds to what is kept, and is due once that is enough. The first time comes at random, so
that processes which live for a few tasks take their part too.
"""

import random
from collections.abc import Mapping
from threading import Lock

from queue_core.stores.postgres import packing as pack
from queue_core.stores.postgres.calling import Statement
from queue_core.stores.postgres.step import Step
from queue_core.stores.postgres.upkeep import is_due

KEPT_SAMPLES = 10_000
SAMPLES_BETWEEN = 2000
"""Leases that finish between two cuts; whoever cuts looks for dead rows too."""
TAGGED_BETWEEN = 1000
TAGS_EXAMINED = 2000
"""More than tags can have come since the last time."""

_TRIM = Statement(
    "towline_trim",
    "SELECT towline.trim_samples(id, $2) FROM towline.queues WHERE name = $1",
    (pack.text, pack.int8),
)
_FORGET = Statement(
    "towline_forget_tags",
    "SELECT towline.forget_tags(id, $2, $3, $4) FROM towline.queues WHERE name = $1",
    (pack.text, pack.int8, pack.text, pack.int4),
)
_FORGET_MARKS = Statement("towline_forget_marks", "SELECT towline.forget_marks()")


class Tidying:
    """What one process is due to forget; for several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._finished: dict[str, int] = {}
        self._tagged: dict[str, int] = {}
        self._examined: dict[str, str] = {}

    def tidy(self, step: Step) -> None:
        """The last act of a transaction before its commit, if it is due."""
        finished = self._due(self._finished, step.finished, SAMPLES_BETWEEN)
        for queue in finished:
            step.rows(_TRIM, queue, KEPT_SAMPLES)
        if finished:
            step.rows(_FORGET_MARKS)
            step.is_littered = is_due(step)
        for queue in self._due(self._tagged, step.tagged, TAGGED_BETWEEN):
            rows = step.rows(_FORGET, queue, step.now, self._examined.get(queue, ""), TAGS_EXAMINED)
            if rows:
                self._examined[queue] = rows[0][0]

    def _due(self, totals: dict[str, int], added: Mapping[str, int], between: int) -> list[str]:
        if not added:
            return []
        due = []
        with self._lock:
            for queue, number in added.items():
                total = totals.get(queue, random.randrange(between)) + number  # noqa: S311
                if total >= between:
                    due.append(queue)
                totals[queue] = total % between
        return due
