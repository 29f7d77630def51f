"""Messages of mailboxes that this process took: one that was sent again after a lost answer is delivered once.

A publisher's repeat has the delivery tag of its first try. A mailbox has one consumer as a rule, which is asked here.
"""

from threading import Lock
from typing import Final

from queue_core.process import forking

MAX_SEEN: Final = 10_000
"""As many as a mailbox holds."""


class SeenLetters:
    """The last messages that were taken, each by its queue and its publisher's tag. Thread-safe."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], None] = {}
        self._lock = Lock()
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """Replace the lock, which another thread of the parent may have held."""
        self._lock = Lock()

    def take(self, queue: str, tag: str) -> bool:
        """Remember a message; False where it was taken before. One without a tag is always another."""
        if not tag:
            return True
        key = (queue, tag)
        with self._lock:
            if key in self._seen:
                return False
            self._seen[key] = None
            if len(self._seen) > MAX_SEEN:
                del self._seen[next(iter(self._seen))]
            return True

    def give_back(self, queue: str, tag: str) -> None:
        """Forget a message that goes back into its mailbox."""
        with self._lock:
            self._seen.pop((queue, tag), None)
