"""Hold the locks that containers of other supervisors check, while ours leads them: else each would end by itself.

A container made for a local engine checks a lock in its supervisor's folder. Whoever leads its fleet holds that lock,
as far as the folder is on this host; of a folder elsewhere the containers finish after their orphan grace (ADR 141).
"""

import fcntl
import os
from collections.abc import Collection
from pathlib import Path

from orchestrator.runtimes.docker.identity import identity_in


class ForeignLocks:
    """The locks held for other supervisors' containers. Belongs to one thread."""

    def __init__(self, name: str) -> None:
        """`name`: of the lock's file in a supervisor's folder."""
        self._name = name
        self._held: dict[str, int] = {}

    def keep(self, states: Collection[str]) -> None:
        """Hold the locks of these state directories, as far as nobody else does, and no others.

        Call it now and then: a supervisor that still lives holds its own lock, and may end later.
        """
        for state in self._held.keys() - set(states):
            os.close(self._held.pop(state))
        for state in set(states) - self._held.keys():
            lock = self._taken(state)
            if lock is not None:
                self._held[state] = lock

    def _taken(self, state: str) -> int | None:
        identity, _, path = state.partition(":")
        folder = Path(path)
        try:
            if identity_in(folder) != identity:
                return None
            lock = os.open(folder / self._name, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            return None
        return lock
