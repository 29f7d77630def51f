"""The mailboxes of one process with their messages: what they take, who waits for them, and when they end.

Pure, but for the table itself; not thread-safe.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from queue_core.celery.mailboxes.allowance import Allowance, text_bytes
from queue_core.celery.mailboxes.homes import Key
from queue_core.celery.mailboxes.mailbox import MAILBOX_BYTES, Letter, Mailbox, Popped
from queue_core.celery.mailboxes.news import Posted
from queue_core.clock import NEVER, Instant, after
from queue_core.errors import InvalidRequestError
from queue_core.limits import MAX_ANSWER_BYTES, check_lifetime_seconds

MAX_MESSAGES = 10_000
"""Messages of one mailbox; the oldest go first."""
MAX_SPACE_BYTES = 64 << 20
MAX_BYTES = 128 << 20
"""Messages of a namespace, and of all; the oldest of the fullest mailboxes go first."""
MAX_SPACE_NAMES_BYTES = 32 << 20
MAX_NAMES_BYTES = 64 << 20
"""Mailboxes, exchanges, bindings and waiting calls of a namespace, and of all; more are refused."""
WATCH_BYTES = 300
EXPIRED_PER_CALL = 1000
"""Mailboxes that one call drops, as nobody reads them; further ones go with the next calls."""
UNUSED_SECONDS = 600.0
"""Time after which a mailbox that nobody reads is dropped, where its declaration says no other."""

Wake = Callable[[], None]


class BoxTable:
    """The mailboxes of all namespaces here. `names` counts what is declared, exchanges too, and calls that wait."""

    def __init__(self) -> None:
        self.names = Allowance("mailboxes, exchanges and bindings", MAX_SPACE_NAMES_BYTES, MAX_NAMES_BYTES)
        self._messages = Allowance("messages", MAX_SPACE_BYTES, MAX_BYTES)
        self._boxes: dict[Key, Mailbox] = {}
        self._ends: list[tuple[Instant, Key]] = []
        """A heap: for each mailbox, an instant up to which it lives in any case."""
        self._watchers: dict[Wake, tuple[Key, ...]] = {}
        self._watching: dict[Key, dict[Wake, None]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._boxes

    def __len__(self) -> int:
        return len(self._boxes)

    def items(self) -> Iterable[tuple[Key, Mailbox]]:
        """Return all mailboxes."""
        return self._boxes.items()

    def get(self, key: Key) -> Mailbox | None:
        """Return a mailbox; None: there is none."""
        return self._boxes.get(key)

    def declare(self, key: Key, *, expires_seconds: float | None, ttl_seconds: float | None, now: Instant) -> Mailbox:
        """Return a mailbox, a new one unless there is one. Raises `InvalidRequestError` beyond the limits."""
        lifetime = UNUSED_SECONDS if expires_seconds is None else expires_seconds
        check_lifetime_seconds("expires_seconds", lifetime)
        check_ttl(ttl_seconds)
        if key not in self._boxes:
            self.names.check(key[0], _mailbox_bytes(key))
            self.names.add(key[0], _mailbox_bytes(key))
            self._boxes[key] = Mailbox(lifetime, ttl_seconds, now, now)
            self._ends_at(key, after(now, lifetime))
        return self._boxes[key]

    def drop(self, key: Key) -> None:
        """Drop a mailbox with its messages."""
        self.clear(key)
        del self._boxes[key]
        self.names.add(key[0], -_mailbox_bytes(key))

    def expired(self, now: Instant, *, reading: Sequence[Key] = ()) -> list[Key]:
        """Return mailboxes that nobody reads, which are to be dropped. A reader that waits keeps its own."""
        for key in reading:
            if key in self._boxes:
                self._boxes[key].used_at = now
        over: list[Key] = []
        while self._ends and self._ends[0][0] < now and len(over) < EXPIRED_PER_CALL:
            _, key = heappop(self._ends)
            box = self._boxes.get(key)
            if box is None:
                continue
            if key in self._watching:
                box.used_at = now
            ends_at = after(box.used_at, box.expires_seconds)
            if ends_at < now:
                over.append(key)
            else:
                self._ends_at(key, ends_at)
        return list(dict.fromkeys(over))

    def _ends_at(self, key: Key, at: Instant) -> None:
        heappush(self._ends, (at, key))
        if len(self._ends) > 2 * len(self._boxes) + 100:  # those of mailboxes that were dropped
            self._ends = [(after(box.used_at, box.expires_seconds), of) for of, box in self._boxes.items()]
            heapify(self._ends)

    # -- messages ---------------------------------------------------------------------------------------------------

    def put(self, key: Key, posted: Posted, now: Instant) -> None:
        """Put a message into a mailbox; `make_room` is to be called afterwards."""
        box = self._boxes[key]
        lifetimes = [seconds for seconds in (posted.ttl_seconds, box.ttl_seconds) if seconds is not None]
        letter = Letter(now, posted.text, after(now, min(lifetimes)) if lifetimes else None, posted.priority)
        had = box.size
        box.put(letter)
        box.drop_oldest(len(box.letters) - MAX_MESSAGES)
        self._messages.add(key[0], box.size - had)

    def make_room(self, space: str) -> None:
        """Drop messages until the bounds hold: half of the fullest mailbox, and again."""
        while self._messages.is_over(space):
            of = space if self._messages.used(space) > MAX_SPACE_BYTES else self._messages.largest()
            fullest = [(-box.size, key) for key, box in self._boxes.items() if key[0] == of and box.letters]
            heapify(fullest)
            while fullest and self._messages.is_over(of):
                _, key = heappop(fullest)
                box = self._boxes[key]
                had = box.size
                box.drop_oldest((len(box.letters) + 1) // 2)
                self._messages.add(of, box.size - had)
                if box.letters:
                    heappush(fullest, (-box.size, key))

    def pop(self, keys: Iterable[Key], count: int, now: Instant) -> list[Popped]:
        """Take up to `count` messages, those of higher priority first, and oldest first; a few MiB at most."""
        found: list[Popped] = []
        left_bytes = MAX_ANSWER_BYTES
        firsts: list[tuple[int, Instant, int, Key]] = []
        for place, key in enumerate(dict.fromkeys(keys)):
            if self.count(key, now):
                first = self._boxes[key].letters[0]
                firsts.append((-first.priority, first.at, place, key))
        heapify(firsts)
        while firsts and len(found) < count:
            *_, place, key = heappop(firsts)
            box = self._boxes[key]
            left_bytes -= text_bytes(box.letters[0].text)
            if left_bytes < 0 and found:
                break
            letter = box.pop()
            self._messages.add(key[0], -letter.size)
            found.append(Popped(key[1], letter.at, letter.text))
            for one in box.letters[:1]:
                heappush(firsts, (-one.priority, one.at, place, key))
        return found

    def count(self, key: Key, now: Instant) -> int:
        """Return the number of messages in a mailbox, after those whose time is over were dropped."""
        box = self._boxes.get(key)
        if box is None:
            return 0
        had = box.size
        box.drop_expired(now)
        self._messages.add(key[0], box.size - had)
        return len(box.letters)

    def clear(self, key: Key) -> int:
        """Drop all messages of a mailbox; return how many there were."""
        box = self._boxes.get(key)
        if box is None:
            return 0
        self._messages.add(key[0], -box.size)
        return box.clear()

    # -- those who wait ---------------------------------------------------------------------------------------------

    def watch(self, keys: Iterable[Key], wake: Wake) -> None:
        """Note who waits for messages in these mailboxes. Raises `InvalidRequestError` beyond the limit."""
        wanted = tuple(dict.fromkeys(keys))
        for key in wanted[:1]:
            self.names.check(key[0], _watch_bytes(wanted))
            self.names.add(key[0], _watch_bytes(wanted))
        self._watchers[wake] = wanted
        for key in wanted:
            self._watching.setdefault(key, {})[wake] = None

    def unwatch(self, wake: Wake, *, now: Instant) -> None:
        """Note that nobody waits any more. The mailboxes were in use until now."""
        keys = self._watchers.pop(wake, ())
        for key in keys:
            del self._watching[key][wake]
            if not self._watching[key]:
                del self._watching[key]
            if key in self._boxes:
                self._boxes[key].used_at = now
        for key in keys[:1]:
            self.names.add(key[0], -_watch_bytes(keys))

    def watchers(self, key: Key) -> Iterable[Wake]:
        """Return who waits for messages in a mailbox."""
        return self._watching.get(key, ())

    def all_watchers(self) -> Iterable[Wake]:
        """Return who waits for messages."""
        return tuple(self._watchers)


def check_ttl(seconds: float | None) -> None:
    """Raise `InvalidRequestError` for a lifetime of messages beyond 10 years."""
    if seconds is not None:
        check_lifetime_seconds("ttl_seconds", seconds)


def check_copies(posted: Posted, count: int) -> None:
    """Raise `InvalidRequestError` for a message that takes more than there may be, as it is for so many mailboxes."""
    size = Letter(NEVER, posted.text).size
    if count * size > MAX_SPACE_BYTES:
        raise InvalidRequestError(
            f"messages of a namespace may take {MAX_SPACE_BYTES >> 20} MiB: "
            f"one of {size} bytes is for {count} mailboxes"
        )


def _mailbox_bytes(key: Key) -> int:
    return MAILBOX_BYTES + text_bytes(*key)


def _watch_bytes(keys: Sequence[Key]) -> int:
    return sum(WATCH_BYTES + text_bytes(key[1]) for key in keys)
