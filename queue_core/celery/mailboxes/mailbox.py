"""One mailbox: its messages, those of higher priority first, and of one priority the oldest. Not thread-safe."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from queue_core.celery.mailboxes.allowance import text_bytes
from queue_core.clock import Instant

MAILBOX_BYTES = 1500
LETTER_BYTES = 300
"""What a mailbox and a message take beside their texts."""


@dataclass(slots=True)
class Letter:
    """A message in a mailbox: its text, the instant it was put there, and the instant it is dropped."""

    at: Instant
    text: str
    expires_at: Instant | None = None
    priority: int = 0

    @property
    def size(self) -> int:
        """The memory that it takes, as if no other mailbox had the same text."""
        return LETTER_BYTES + text_bytes(self.text)


@dataclass(slots=True)
class Mailbox:
    """One queue of messages. `expires_seconds`: how long it lives unread; `ttl_seconds`: how long its messages do."""

    expires_seconds: float
    ttl_seconds: float | None
    used_at: Instant
    declared_at: Instant
    letters: list[Letter] = field(default_factory=list)
    size: int = 0
    """The memory that its messages take."""
    _expires_at: Instant | None = None
    """The instant before which none of them is dropped."""

    def put(self, letter: Letter) -> None:
        """Add a message."""
        if not self.letters or self.letters[-1].priority >= letter.priority:
            self.letters.append(letter)
        else:
            self.letters.insert(bisect_right(self.letters, -letter.priority, key=_rank), letter)
        self.size += letter.size
        if letter.expires_at is not None:
            self._expires_at = min(letter.expires_at, self._expires_at or letter.expires_at)

    def pop(self) -> Letter:
        """Take the first message out."""
        letter = self.letters.pop(0)
        self.size -= letter.size
        return letter

    def drop_oldest(self, count: int) -> None:
        """Drop some messages, the oldest of the lowest priority first."""
        while count > 0 and self.letters:
            start = bisect_left(self.letters, _rank(self.letters[-1]), key=_rank)
            dropped = self.letters[start : start + count]
            del self.letters[start : start + count]
            self.size -= sum(letter.size for letter in dropped)
            count -= len(dropped)

    def drop_expired(self, now: Instant) -> None:
        """Drop the messages whose time is over."""
        if self._expires_at is None or now < self._expires_at:
            return
        self.letters = [one for one in self.letters if one.expires_at is None or one.expires_at > now]
        self.size = sum(one.size for one in self.letters)
        self._expires_at = min((one.expires_at for one in self.letters if one.expires_at is not None), default=None)

    def clear(self) -> int:
        """Drop all messages; return how many there were."""
        count = len(self.letters)
        self.letters, self.size, self._expires_at = [], 0, None
        return count


@dataclass(frozen=True, slots=True)
class Popped:
    """A message that was taken out of a mailbox."""

    queue: str
    at: Instant
    text: str


def _rank(letter: Letter) -> int:
    return -letter.priority
