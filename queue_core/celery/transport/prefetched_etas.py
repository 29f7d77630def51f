"""Tasks that workers get before they are due: a few per producer, and a few per worker.

Celery prefetches any number of them, and one worker would keep many while others idle.
"""

from typing import Final

from queue_core.clock import Instant

MAX_PREFETCHED_ETAS: Final = 10
"""Further ones wait in the store."""


class PrefetchedEtas:
    """The etas of tasks that workers got before they are due."""

    def __init__(self) -> None:
        self._etas: list[Instant] = []

    def has_room(self, *, now: Instant) -> bool:
        """Return whether another task may be prefetched."""
        self._etas = [eta for eta in self._etas if eta > now]
        return len(self._etas) < MAX_PREFETCHED_ETAS

    def add(self, eta: Instant) -> None:
        """Record a prefetched task."""
        self._etas.append(eta)
