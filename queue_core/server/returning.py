"""Callers who were answered together: most come right back, and are read without the loop while a turn is under way."""

from typing import Protocol

MAX_RETURNING = 8
"""Remembered at most: of more than a few the loop reads many at once, and is quicker."""


class Caller(Protocol):
    """A connection."""

    def hear(self) -> None:
        """Read the next request and begin it, if it is here."""


class Returning:
    """Lives in the server's loop."""

    def __init__(self, *, most: int = MAX_RETURNING) -> None:
        self._most = most
        self._callers: dict[Caller, None] = {}

    def __len__(self) -> int:
        return len(self._callers)

    def answered(self, caller: Caller) -> None:
        """It got an answer, and may be read by `hear`."""
        if len(self._callers) < self._most:
            self._callers[caller] = None

    def forget(self, caller: Caller) -> None:
        """It came back, or never will."""
        self._callers.pop(caller, None)

    def clear(self) -> None:
        """Others are about to be answered: who has not come back by now is slower than they are."""
        self._callers.clear()

    def hear(self) -> int:
        """Read each once; how many those were. The first who is here may begin a turn, for which others are heard."""
        callers = tuple(self._callers)
        for caller in callers:
            if caller in self._callers:
                caller.hear()
        return len(callers)
