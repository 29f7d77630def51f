"""Tasks in and out of a queue per second: the difference of its totals between two samples. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from queue_core.clock import MICROSECONDS
from queue_core.verbs.wire import Json

KEPT_SECONDS: Final = 15.0
"""Earlier samples are forgotten: the rate is the current one."""
LEAST_SECONDS: Final = 0.9
"""Time between two samples, at least, for a rate that says something."""


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """The totals of a queue at an instant, in seconds; `failed` counts attempts."""

    at: float
    added: int
    deleted: int
    failed: int = 0


@dataclass(frozen=True, slots=True)
class QueueRates:
    """Tasks added and completed, and attempts that failed, per second."""

    added: float
    completed: float
    failed: float


def totals_of(stats: Json) -> QueueTotals:
    """Return a sample, from a queue's stats."""
    as_of, added, deleted, released, expired = (
        int(str(stats[name])) for name in ("as_of", "added_total", "deleted_total", "released_total", "expired_total")
    )
    return QueueTotals(as_of / MICROSECONDS, added, deleted, released + expired)


def kept(looks: Sequence[QueueTotals], look: QueueTotals) -> tuple[QueueTotals, ...]:
    """Return the recent samples, with one more."""
    recent = [one for one in looks if 0 <= look.at - one.at <= KEPT_SECONDS]
    if recent and look.at - recent[-1].at < LEAST_SECONDS:
        return tuple(recent)
    return (*recent, look)


def rates(looks: Sequence[QueueTotals], look: QueueTotals) -> QueueRates | None:
    """Return the rates since the oldest recent sample; None without one.

    Totals that went down are those of a queue that was deleted and made again.
    """
    since = next((one for one in looks if LEAST_SECONDS <= look.at - one.at <= KEPT_SECONDS), None)
    if since is None or look.added < since.added or look.deleted < since.deleted or look.failed < since.failed:
        return None
    seconds = look.at - since.at
    added, completed, failed = look.added - since.added, look.deleted - since.deleted, look.failed - since.failed
    return QueueRates(added / seconds, completed / seconds, failed / seconds)
