"""The memory that callers may make a server take, counted for each namespace and in all. Not thread-safe."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from queue_core.errors import InvalidRequestError


@dataclass(slots=True)
class Allowance:
    """Bytes that are kept for each namespace.

    Args:
        what: named where there is no room.
        of_space: the most that one namespace may take.
        in_all: the most that all of them may take.
    """

    what: str
    of_space: int
    in_all: int
    total: int = 0
    _of: dict[str, int] = field(default_factory=dict)

    def add(self, space: str, size: int) -> None:
        """Count bytes that are kept; negative: that are kept no more."""
        self.total += size
        left = self._of.get(space, 0) + size
        if left > 0:
            self._of[space] = left
        else:
            self._of.pop(space, None)

    def used(self, space: str) -> int:
        """Return the bytes of a namespace."""
        return self._of.get(space, 0)

    def is_over(self, space: str, more: int = 0) -> bool:
        """Return whether there is no room for `more` bytes of a namespace."""
        return self.used(space) + more > self.of_space or self.total + more > self.in_all

    def largest(self) -> str:
        """Return the namespace that takes most; there is one."""
        return max(self._of, key=lambda space: self._of[space])

    def check(self, space: str, more: int, *, free: Callable[[], bool] = lambda: False) -> None:
        """Raise `InvalidRequestError` where there is no room for `more` bytes, and `free` makes none by and by."""
        while self.is_over(space, more):
            if not free():
                is_own = self.used(space) + more > self.of_space
                most, whose = (self.of_space, "this namespace") if is_own else (self.in_all, "all namespaces")
                raise InvalidRequestError(
                    f"{self.what} of {whose} may take at most {most >> 20} MiB, which is reached: delete some"
                )


def text_bytes(*texts: str) -> int:
    """Return the memory that texts take."""
    return sum(map(sys.getsizeof, texts))
