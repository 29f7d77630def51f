"""Predict bursts that recur at even intervals, such as those of a scheduled job. Pure.

A prediction only starts workers one start-up time ahead. A burst that fails to come costs their idle seconds once, then
nothing until bursts recur evenly again.
"""

from itertools import pairwise
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.samples import Waiting
from orchestrator.base.values import value

_KNOWN: Final = 4  # bursts that are kept
_NEEDED: Final = 3  # bursts needed for a prediction
_EVEN_SHARE: Final = 0.1  # of the mean interval: scatter within which intervals are even
_EVEN_TURNS: Final = 2.0  # the same in turns; the larger applies
_LEAST_TASKS: Final = 2  # tasks of a burst
_APART_TURNS: Final = 3.0  # turns within which arrivals belong to one burst


@value
class Recurrence:
    """The start of the last few bursts and the tasks that each brought at once, oldest first."""

    began_at: tuple[Monotonic, ...] = ()
    tasks: tuple[int, ...] = ()

    def after(self, arrivals: int, *, at: Monotonic, turn_seconds: float) -> "Recurrence":
        """Learn that `arrivals` came in the turn that ended `at`.

        A burst is a turn with at least half the tasks of the largest known burst, some turns after the previous one.
        Much smaller bursts are forgotten when a larger one comes.
        """
        largest = max(self.tasks, default=0)
        if arrivals < max(_LEAST_TASKS, largest / 2):
            return self
        if self.began_at and at - self.began_at[-1] <= _APART_TURNS * turn_seconds:
            return self
        known = [(then, tasks) for then, tasks in zip(self.began_at, self.tasks, strict=True) if tasks >= arrivals / 2]
        known = [*known, (at, arrivals)][-_KNOWN:]
        return Recurrence(tuple([then for then, _ in known]), tuple([tasks for _, tasks in known]))

    def next(self, *, now: Monotonic, turn_seconds: float) -> tuple[Waiting, ...]:
        """Return the next burst as tasks of negative age; empty if intervals are uneven or the burst is overdue."""
        if len(self.began_at) < _NEEDED:
            return ()
        gaps = [later - earlier for earlier, later in pairwise(self.began_at)]
        mean = sum(gaps) / len(gaps)
        scatter = max(_EVEN_SHARE * mean, _EVEN_TURNS * turn_seconds)
        due_in = self.began_at[-1] + mean - now
        if max(gaps) - min(gaps) > scatter or due_in < -scatter:
            return ()
        return (Waiting(max(self.tasks), -max(0.0, due_in - turn_seconds)),)
