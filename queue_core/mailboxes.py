"""Messages that are no tasks: remote control, replies, events and broadcasts between programs that use kombu.

They are kept in memory for as long as somebody reads them, and lost with the process: a durable task a heartbeat would
be a sync of the disk every other second. Exchanges and bindings are shared here too. Thread-safe; time is an argument.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock

from queue_core.clock import Instant, after
from queue_core.errors import InvalidRequestError

MAX_MESSAGES = 10_000
"""Messages of one mailbox; the oldest go first."""
MAX_MAILBOXES = 20_000
"""Mailboxes of all namespaces."""
MAX_BYTES = 64 << 20
"""Characters of all messages; the oldest of the fullest mailbox go first."""
MAX_PRIORITY = 9
UNUSED_SECONDS = 600.0
"""Time after which a mailbox that nobody reads is dropped, where its declaration says no other."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A message to put into mailboxes. `ttl_seconds`: how long it may wait; of higher `priority`: before others."""

    text: str
    ttl_seconds: float | None = None
    priority: int = 0


@dataclass(slots=True)
class Letter:
    """A message in a mailbox: its text, the instant it was put there, and the instant it is dropped."""

    at: Instant
    text: str
    expires_at: Instant | None = None
    priority: int = 0


@dataclass(slots=True)
class Mailbox:
    """One queue of messages. `expires_seconds`: how long it lives unread; `ttl_seconds`: how long its messages do."""

    expires_seconds: float
    ttl_seconds: float | None
    used_at: Instant
    letters: deque[Letter] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue that an exchange delivers to. `is_task_queue`: its messages are tasks, which the publisher adds."""

    routing_key: str
    queue: str
    is_task_queue: bool


@dataclass(frozen=True, slots=True)
class Popped:
    """A message that was taken out of a mailbox."""

    queue: str
    at: Instant
    text: str


@dataclass(slots=True)
class Exchange:
    """An exchange: its type and its bindings."""

    kind: str
    bindings: dict[Binding, None] = field(default_factory=dict)


class Mailboxes:
    """The mailboxes, exchanges and bindings of all namespaces of one server or one process."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[str, str], Mailbox] = {}
        self._exchanges: dict[tuple[str, str], Exchange] = {}
        self._watchers: dict[Callable[[], None], frozenset[tuple[str, str]]] = {}
        self._size = 0
        self._lock = Lock()

    def renew_lock(self) -> None:
        """Replace the lock, in the child of a fork, where nobody else holds it."""
        self._lock = Lock()
        self._watchers = {}

    def declare(
        self, space: str, queue: str, *, expires_seconds: float | None, ttl_seconds: float | None, now: Instant
    ) -> None:
        """Create a mailbox unless there is one. Raises `InvalidRequestError` beyond the limit."""
        with self._lock:
            self._expire(now)
            if (space, queue) not in self._boxes:
                if len(self._boxes) >= MAX_MAILBOXES:
                    raise InvalidRequestError(f"there are {MAX_MAILBOXES} mailboxes, which is the limit: close some")
                lifetime = UNUSED_SECONDS if expires_seconds is None else expires_seconds
                self._boxes[space, queue] = Mailbox(lifetime, ttl_seconds, now)

    def declare_exchange(self, space: str, exchange: str, kind: str) -> None:
        """Record the type of an exchange, unless it has one."""
        with self._lock:
            self._exchanges.setdefault((space, exchange), Exchange(kind))

    def bind(self, space: str, exchange: str, binding: Binding) -> None:
        """Have an exchange deliver to a queue."""
        with self._lock:
            self._exchanges.setdefault((space, exchange), Exchange("direct")).bindings[binding] = None

    def unbind(self, space: str, exchange: str, binding: Binding) -> None:
        """End a binding, if there is one."""
        with self._lock:
            known = self._exchanges.get((space, exchange))
            if known is not None:
                known.bindings.pop(binding, None)

    def delete(self, space: str, queue: str) -> int:
        """Drop a queue's mailbox and its bindings; return how many messages went with it."""
        with self._lock:
            return self._drop(space, queue)

    def bindings(self, space: str, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange."""
        with self._lock:
            known = self._exchanges.get((space, exchange))
            return [] if known is None else list(known.bindings)

    def size(self, space: str, queue: str, *, now: Instant) -> int | None:
        """Return the number of messages; None where there is no such mailbox."""
        with self._lock:
            self._expire(now)
            box = self._boxes.get((space, queue))
            if box is None:
                return None
            self._drop_expired(box, now)
            return len(box.letters)

    def purge(self, space: str, queue: str) -> int:
        """Drop all messages; return how many."""
        with self._lock:
            box = self._boxes.get((space, queue))
            return 0 if box is None else self._empty(box)

    def put(self, space: str, queue: str, posted: Posted, *, now: Instant) -> bool:
        """Put a message into a mailbox; False where there is none."""
        with self._lock:
            self._expire(now)
            watchers = self._put(space, queue, posted, now)
        for wake in watchers or ():
            wake()
        return watchers is not None

    def publish(self, space: str, exchange: str, routing_key: str, posted: Posted, *, now: Instant) -> list[str]:
        """Put a message into the mailboxes that an exchange delivers it to; return the task queues it is for, too."""
        wakes: dict[Callable[[], None], None] = {}
        with self._lock:
            self._expire(now)
            known = self._exchanges.get((space, exchange))
            if known is None:
                return []
            matching = [one for one in known.bindings if matches(known.kind, one.routing_key, routing_key)]
            task_queues = list(dict.fromkeys(one.queue for one in matching if one.is_task_queue))
            for queue in dict.fromkeys(one.queue for one in matching if not one.is_task_queue):
                wakes |= dict.fromkeys(self._put(space, queue, posted, now) or ())
        for wake in wakes:
            wake()
        return task_queues

    def pop(self, space: str, queues: Sequence[str], count: int, *, now: Instant) -> list[Popped]:
        """Take up to `count` messages, oldest first."""
        found: list[tuple[Letter, str]] = []
        with self._lock:
            self._expire(now, reading=[(space, queue) for queue in queues])
            for queue in queues:
                box = self._boxes.get((space, queue))
                if box is not None:
                    self._drop_expired(box, now)
                    found += [(letter, queue) for letter in islice(box.letters, count)]
            found = sorted(found, key=lambda one: (-one[0].priority, one[0].at))[:count]
            for letter, queue in found:
                self._boxes[space, queue].letters.popleft()
                self._size -= len(letter.text)
        return [Popped(queue, letter.at, letter.text) for letter, queue in found]

    def is_any(self, space: str, queues: Sequence[str], *, now: Instant) -> bool:
        """Return whether one of these mailboxes has a message."""
        with self._lock:
            self._expire(now, reading=[(space, queue) for queue in queues])
            boxes = [self._boxes.get((space, queue)) for queue in queues]
            return any(box.letters for box in boxes if box is not None)

    def watch(self, space: str, queues: Sequence[str], wake: Callable[[], None]) -> None:
        """Have `wake` called whenever a message arrives in one of these, from the thread that puts it there."""
        with self._lock:
            self._watchers[wake] = frozenset((space, queue) for queue in queues)

    def unwatch(self, wake: Callable[[], None]) -> None:
        """End what `watch` began."""
        with self._lock:
            self._watchers.pop(wake, None)

    def wake_all(self) -> None:
        """Call every watcher."""
        with self._lock:
            watchers = list(self._watchers)
        for wake in watchers:
            wake()

    def _put(self, space: str, queue: str, posted: Posted, now: Instant) -> list[Callable[[], None]] | None:
        box = self._boxes.get((space, queue))
        if box is None:
            return None
        lifetimes = [seconds for seconds in (posted.ttl_seconds, box.ttl_seconds) if seconds is not None]
        letter = Letter(now, posted.text, after(now, min(lifetimes)) if lifetimes else None, posted.priority)
        place = len(box.letters)
        while place and box.letters[place - 1].priority < letter.priority:
            place -= 1
        box.letters.insert(place, letter)
        self._size += len(letter.text)
        if len(box.letters) > MAX_MESSAGES:
            self._size -= len(box.letters.popleft().text)
        while self._size > MAX_BYTES:
            fullest = max(self._boxes.values(), key=lambda one: len(one.letters))
            self._size -= len(fullest.letters.popleft().text)
        return [wake for wake, wanted in self._watchers.items() if (space, queue) in wanted]

    def _expire(self, now: Instant, *, reading: Sequence[tuple[str, str]] = ()) -> None:
        """Drop mailboxes that nobody reads. A reader that waits keeps its own."""
        in_use = {*reading, *[key for wanted in self._watchers.values() for key in wanted]}
        for key in in_use:
            if key in self._boxes:
                self._boxes[key].used_at = now
        over = [key for key, box in self._boxes.items() if now > after(box.used_at, box.expires_seconds)]
        for space, queue in over:
            self._drop(space, queue)

    def _drop(self, space: str, queue: str) -> int:
        for (of, _), exchange in self._exchanges.items():
            if of == space:
                for binding in [one for one in exchange.bindings if one.queue == queue]:
                    del exchange.bindings[binding]
        box = self._boxes.pop((space, queue), None)
        return 0 if box is None else self._empty(box)

    def _empty(self, box: Mailbox) -> int:
        count = len(box.letters)
        self._size -= sum(len(letter.text) for letter in box.letters)
        box.letters.clear()
        return count

    def _drop_expired(self, box: Mailbox, now: Instant) -> None:
        live = [letter for letter in box.letters if letter.expires_at is None or letter.expires_at > now]
        if len(live) < len(box.letters):
            self._empty(box)
            box.letters.extend(live)
            self._size += sum(len(letter.text) for letter in live)


def matches(kind: str, bound_key: str, routing_key: str) -> bool:
    """Return whether an exchange of this type delivers a message with this routing key to a queue bound by that."""
    if kind == "fanout":
        return True
    if kind != "topic":
        return bound_key == routing_key
    return _topic_matches(bound_key.split("."), routing_key.split(".") if routing_key else [])


def _topic_matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Match AMQP's topics: `*` is one word, `#` any number of them, also none."""
    ends = {0}
    for one in pattern:
        if one == "#":
            ends = set(range(min(ends), len(words) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(words) and one in ("*", words[end])}
        if not ends:
            return False
    return len(words) in ends
