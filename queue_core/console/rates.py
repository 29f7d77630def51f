"""Tasks in and out of a queue per second: the difference of its totals between two looks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from queue_core.clock import MICROSECONDS
from queue_core.verbs.wire import Json

KEPT_SECONDS: Final = 15.0
"""Looks of before are forgotten: the rate is that of now."""
LEAST_SECONDS: Final = 0.9
"""Time between two looks, at least, for a rate that says something."""


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """The totals of a queue at an instant, in seconds."""

    at: float
    added: int
    deleted: int


def totals_of(stats: Json) -> QueueTotals:
    """Return a look, from a queue's stats."""
    as_of, added, deleted = (int(str(stats[name])) for name in ("as_of", "added_total", "deleted_total"))
    return QueueTotals(as_of / MICROSECONDS, added, deleted)


def kept(looks: Sequence[QueueTotals], look: QueueTotals) -> tuple[QueueTotals, ...]:
    """Return the looks of late, with one more."""
    of_late = [one for one in looks if 0 <= look.at - one.at <= KEPT_SECONDS]
    if of_late and look.at - of_late[-1].at < LEAST_SECONDS:
        return tuple(of_late)
    return (*of_late, look)


def rates(looks: Sequence[QueueTotals], look: QueueTotals) -> tuple[float, float] | None:
    """Return tasks added and done per second since the oldest look of late; None without one.

    Totals that went down are those of a queue that was made anew.
    """
    since = next((one for one in looks if LEAST_SECONDS <= look.at - one.at <= KEPT_SECONDS), None)
    if since is None or look.added < since.added or look.deleted < since.deleted:
        return None
    seconds = look.at - since.at
    return (look.added - since.added) / seconds, (look.deleted - since.deleted) / seconds
