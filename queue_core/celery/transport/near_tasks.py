"""Tasks that workers hold because they are due in a moment: a few of each producer, and a few at each worker.

Celery takes any number of them, and a worker would keep a crowd to itself while others idle.
"""

from typing import Final

from queue_core.clock import Instant

MOST_NEAR_TASKS: Final = 10
"""All further ones wait in the store."""


class NearTasks:
    """The tasks that are given to workers before they are due."""

    def __init__(self) -> None:
        self._etas: list[Instant] = []

    def has_place(self, *, now: Instant) -> bool:
        """Return whether another one may be given."""
        self._etas = [eta for eta in self._etas if eta > now]
        return len(self._etas) < MOST_NEAR_TASKS

    def add(self, eta: Instant) -> None:
        """Note one that is given."""
        self._etas.append(eta)
