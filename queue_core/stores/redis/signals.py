"""Wake waiting lease calls of every process on the same Redis: each task sends a message to one fitting waiter.

Redis keeps the waiters of each queue; the functions in `lua/wake.lua` choose among them. A wake-up is only a hint: if
one is lost, a waiter finds its task later.
"""

import contextlib
import hashlib
import re
from bisect import insort
from collections import deque
from itertools import count as counter
from secrets import token_hex
from threading import Condition, Lock

from queue_core.errors import StoreError
from queue_core.stores.redis.client.client import RedisClient
from queue_core.stores.redis.client.pubsub import PubSub
from queue_core.stores.redis.keys import key_of
from queue_core.task import TagFilter

MAX_IDLE = 1000
MAX_UNREAD = 1000
PUBLISH_SECONDS = 1.0
"""How long, in seconds, tasks are published to a queue after a verb's answer said that the queue has waiters."""
OPEN_SECONDS = 1.0

_MESSAGE = re.compile(r"([0-9]+)([-+].*)", re.DOTALL)


class RedisSignals:
    """`Signals` over sharded pub/sub. Publishing costs no call when no caller waits."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._begin()

    def _begin(self) -> None:
        """Start with no waiter and no thread, under a new name of the process."""
        self._process = token_hex(6)
        self._numbers = counter(1)
        self._lock = Lock()
        self._waiters: dict[str, dict[int, RedisSubscription]] = {}
        self._queues: dict[str, str] = {}
        self._stale: dict[int, RedisSubscription] = {}
        self._idle: dict[str, list[int]] = {}
        self._publish_until: dict[str, float] = {}
        self._pubsub = PubSub(
            self._client, on_message=self._on_message, on_reopened=self._on_reopened, on_round=self._register_all
        )

    def renew_after_fork(self) -> None:
        """See `forking.Renewable`. The child of a fork has no waiters yet."""
        self._pubsub.leave_to_parent()
        self._begin()

    def note_waiters(self, queue: str) -> None:
        """Note that the queue has waiters, so that tasks which become leasable are published."""
        self._publish_until[queue] = self._client.clock.monotonic() + PUBLISH_SECONDS

    @property
    def trouble(self) -> str:
        """Always "": while Redis is unreachable no other call works either."""
        return ""

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """Wake up to `count` fitting waiters, most recently active first; dead processes are passed over."""
        if queue in self._waiters or self._publish_until.get(queue, 0.0) > self._client.clock.monotonic():
            with contextlib.suppress(StoreError):  # waiters poll before long
                self._wake(queue, "-" if tag is None else f"+{tag}", count)

    def subscribe(self, queue: str, tags: TagFilter) -> "RedisSubscription":
        """Register a waiter. One whose last wait timed out counts as active since that wait began.

        While Redis can't be reached this returns as well, and the waiter is woken once Redis is back.
        """
        number = next(self._numbers)
        waiter = RedisSubscription(self, queue, number, f"{self._process}.{number}.{_tags_text(tags)}")
        with self._lock:
            idle = self._idle.get(queue)
            waiter.active_at = idle.pop() if idle else 0
            waiters = self._waiters.setdefault(queue, {})
            waiters[number] = waiter
            name = self._channel_of(queue)
            self._queues[name] = queue
        if self._pubsub.open(name, key_of(queue), timeout_seconds=OPEN_SECONDS):
            with contextlib.suppress(StoreError):
                self._register(queue, [waiter])
        return waiter

    def close(self) -> None:
        """Close the connections that receive wake-ups."""
        self._pubsub.close()

    def leave(self, waiter: "RedisSubscription", *, is_in_vain: bool) -> None:
        """Unregister a waiter; after a wait that timed out, the next waiter of this process inherits its idle time."""
        with self._lock:
            waiters = self._waiters.get(waiter.queue, {})
            if waiters.pop(waiter.number, None) is None:
                return
            if not waiters:
                self._waiters.pop(waiter.queue, None)
            if is_in_vain and waiter.active_at:
                idle = self._idle.setdefault(waiter.queue, [])
                insort(idle, waiter.active_at)
                del idle[:-MAX_IDLE]
        self._unregister(waiter)

    def pass_on(self, queue: str, label: str) -> None:
        """Pass an unused wake-up on to the next fitting waiter."""
        with contextlib.suppress(StoreError):
            self._wake(queue, label, 1)

    # -- calls ----------------------------------------------------------------------------------------------------

    def _wake(self, queue: str, label: str, count: int) -> None:
        self._client.call_hint("wake", [key_of(queue)], [label, count])

    def _register(self, queue: str, waiters: "list[RedisSubscription]") -> list[bool]:
        """Register waiters with Redis; return for each whether it was unknown there."""
        cells: list[str | int] = []
        for waiter in waiters:
            cells += (waiter.text, waiter.active_at)
        answer = self._client.call_hint("register_waiters", [key_of(queue)], cells)
        now, *unknown = answer if isinstance(answer, list) else [0]
        for waiter in waiters:
            if not waiter.active_at and isinstance(now, int):
                waiter.active_at = now
        return [bool(each) for each in unknown]

    def _unregister(self, waiter: "RedisSubscription") -> bool:
        try:
            self._client.call_hint("unregister_waiters", [key_of(waiter.queue)], [waiter.text])
        except StoreError:
            self._stale[waiter.number] = waiter
            return False
        self._stale.pop(waiter.number, None)
        return True

    def _channel_of(self, queue: str) -> str:
        return f"{key_of(queue)}:e:{self._process}"

    # -- in the pub/sub thread ------------------------------------------------------------------------------------

    def _on_message(self, name: str, data: bytes) -> None:
        queue = self._queues.get(name, "")
        message = _MESSAGE.fullmatch(data.decode(errors="replace"))
        if message is None:
            return
        number, label = int(message[1]), message[2]
        waiter = self._waiters.get(queue, {}).get(number)
        if waiter is not None and waiter.offer(label):
            return
        stale = self._stale.get(number)
        if stale is None or self._unregister(stale):
            self.pass_on(queue, label)

    def _on_reopened(self, name: str) -> None:
        """Wake all waiters of a channel, as messages sent while it was closed are lost."""
        queue = self._queues.get(name, "")
        self._register_again(queue)
        for waiter in self._listed(queue):
            waiter.wake()

    def _register_all(self) -> None:
        for waiter in list(self._stale.values()):
            if not self._unregister(waiter):
                return
        for name, queue in list(self._queues.items()):
            with self._lock:
                is_wanted = queue in self._waiters
                if not is_wanted:
                    del self._queues[name]
                    self._pubsub.shut(name)
            if is_wanted and not self._register_again(queue):
                return

    def _register_again(self, queue: str) -> bool:
        """Register the queue's waiters again, and wake those that Redis had lost: they may have missed a message."""
        waiters = self._listed(queue)
        if not waiters:
            return True
        try:
            unknown = self._register(queue, waiters)
        except StoreError:
            return False
        present = set(self._listed(queue))
        for waiter, was_unknown in zip(waiters, unknown, strict=False):
            if waiter not in present:
                self._unregister(waiter)
            elif was_unknown:
                waiter.wake()
        return True

    def _listed(self, queue: str) -> "list[RedisSubscription]":
        with self._lock:
            return list(self._waiters.get(queue, {}).values())


class RedisSubscription:
    """A `Subscription` of one waiter."""

    def __init__(self, signals: RedisSignals, queue: str, number: int, text: str) -> None:
        self.queue = queue
        self.number = number
        self.text = text
        self.active_at = 0
        self._signals = signals
        self._changed = Condition()
        self._unread: deque[str] = deque(maxlen=MAX_UNREAD)
        self._is_ended = False
        self._is_in_vain = False
        self._is_closed = False

    def wait(self, *, timeout_seconds: float) -> bool:
        """Sleep until woken (True) or the time is up (False)."""
        with self._changed:
            woken = self._changed.wait_for(lambda: bool(self._unread) or self._is_ended, timeout=timeout_seconds)
            self._is_in_vain = not woken
            if self._is_ended:
                self._is_ended = False
            elif self._unread:
                self._unread.popleft()
            return woken

    def wake(self) -> None:
        """End a `wait` in another thread."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def offer(self, label: str) -> bool:
        """Deliver a wake-up for a task of this label; return False when the waiter is closed."""
        with self._changed:
            if self._is_closed:
                return False
            self._unread.append(label)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Unregister; an unused wake-up is passed on to the next fitting waiter."""
        self._signals.leave(self, is_in_vain=self._is_in_vain and not self._unread)
        with self._changed:
            self._is_closed = True
            unread = list(self._unread)
            self._unread.clear()
        for label in unread:
            self._signals.pass_on(self.queue, label)


def _tags_text(tags: TagFilter) -> str:
    if tags.kind == "untagged":
        return "-"
    return ",".join(hashlib.sha1(tag.encode(), usedforsecurity=False).hexdigest()[:12] for tag in tags.tags) or "*"
