"""Wake waiting lease calls of other processes on the same file: a datagram to one matching waiter per task.

A waiter is a socket in `<file>-wake/` whose name says which tasks it would lease. Signals are hints: a lost one costs
only time.
"""

import contextlib
import hashlib
import os
import select
import socket
from base64 import urlsafe_b64encode
from bisect import insort
from dataclasses import dataclass
from itertools import count as counter
from pathlib import Path
from threading import Lock
from weakref import WeakSet

from queue_core.clock import Clock, SystemClock
from queue_core.task import TagFilter

MAX_NAMED_TAGS = 8
"""Tags that a socket's name may list; a waiter for more is woken for every tag."""
MAX_IDLE = 1000
"""Waits that ended in vain, remembered of each queue."""
MAX_SOCKET_PATH_BYTES = 107
"""The kernel's limit."""

_TASK = b"t"
_END = b"e"
_ANY = "any"
_MANY = "many"


@dataclass(frozen=True, slots=True)
class _Waiter:
    """A waiter, parsed from the name of its socket: `queue.active_at.tags.unique`."""

    file: str
    queue: str
    active_at: int
    tags: str

    def fits(self, queue: str, tag: str) -> bool:
        if self.queue != queue:
            return False
        return self.tags in (_ANY, _MANY) or any(self.tags[at : at + 4] == tag for at in range(0, len(self.tags), 4))


class SocketSignals:
    """`Signals` over Unix datagram sockets. Publishing without a waiter costs one listing of their folder, 3 to 6 us.

    That is less than a tenth of an add that is synced to a disk; to keep the answer in memory was tried (ADR 26).
    """

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path
        self._folder = path.with_name(path.name + "-wake")
        self._folder_path = str(self._folder)
        self._clock = clock or SystemClock()
        self._numbers = counter(1)
        self._sender: socket.socket | None = None
        self._descriptor: int | None = None
        self._idle: dict[str, list[int]] = {}
        self._lock = Lock()
        self._subscriptions: WeakSet[SocketSubscription] = WeakSet()

    @property
    def trouble(self) -> str:
        """See `Signals.trouble`: there is none that lasts."""
        return ""

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """Wake up to `count` matching waiters, most recently active first; one that is gone is passed over."""
        waiters = self._waiters()
        if not waiters:
            return
        hashed_queue, hashed_tag = _hash(queue, 6), _hash_tag(tag)
        fitting = [waiter for waiter in waiters if waiter.fits(hashed_queue, hashed_tag)]
        fitting.sort(key=lambda waiter: waiter.active_at, reverse=True)
        message = _TASK + (b"" if tag is None else tag.encode())
        left = count
        for waiter in fitting:
            if left <= 0 and waiter.tags != _MANY:
                continue
            # One with too many tags to list may be woken in vain: it is woken in addition to others.
            if self._send(waiter.file, message) and waiter.tags != _MANY:
                left -= 1

    def subscribe(self, queue: str, tags: TagFilter) -> "SocketSubscription":
        """Subscribe a waiter. After a wait in vain, the next one counts as active since that wait began."""
        self._make_folder()
        now = self._clock.now()
        with self._lock:
            idle = self._idle.get(queue)
            active_at = idle.pop() if idle else now
        file = f"{_hash(queue, 6)}.{active_at:x}.{_tags_text(tags)}.{os.getpid():x}-{next(self._numbers):x}"
        subscription = SocketSubscription(self, queue, self._address(file), self._folder / file, active_at)
        self._subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        """Stop sending."""
        with self._lock:
            if self._sender is not None:
                self._sender.close()
                self._sender = None
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def renew_after_fork(self) -> None:
        """In the child of a fork, which has no waiter: the sockets are the parent's."""
        self._lock = Lock()
        self._idle = {}
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        subscriptions, self._subscriptions = self._subscriptions, WeakSet()
        for subscription in subscriptions:
            subscription.leave_to_parent()

    def record_idle(self, queue: str, active_at: int) -> None:
        """Record a wait that ended in vain: the next waiter of this process counts as active since `active_at`."""
        with self._lock:
            idle = self._idle.setdefault(queue, [])
            insort(idle, active_at)
            del idle[:-MAX_IDLE]

    def _waiters(self) -> list[_Waiter]:
        """Return the waiters whose sockets' names can be parsed."""
        try:
            files = os.listdir(self._folder_path)  # noqa: PTH208 - on the way of every add
        except OSError:
            return []
        return [waiter for waiter in map(_waiter, files) if waiter is not None]

    def _send(self, file: str, message: bytes) -> bool:
        with self._lock:
            if self._sender is None:
                self._sender = _sender()
            try:
                self._sender.sendto(message, self._address_locked(file))
            except (ConnectionRefusedError, FileNotFoundError):
                with contextlib.suppress(OSError):
                    (self._folder / file).unlink()
                return False
            except OSError:
                return False  # its socket is full, so that it wakes anyway, or belongs to another user
            return True

    def _address(self, file: str) -> str:
        with self._lock:
            return self._address_locked(file)

    def _address_locked(self, file: str) -> str:
        """Return the socket's address; through a descriptor of its folder where the path is too long for a socket."""
        path = str(self._folder / file)
        if len(path.encode()) <= MAX_SOCKET_PATH_BYTES:
            return path
        if self._descriptor is not None and not os.fstat(self._descriptor).st_nlink:  # removed, and perhaps made anew
            os.close(self._descriptor)
            self._descriptor = None
        if self._descriptor is None:
            self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._descriptor}/{file}"

    def _make_folder(self) -> None:
        if self._folder.is_dir():
            return
        shared = 0o770 if self._path.stat().st_mode & 0o060 == 0o060 else 0o700
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=shared)


class SocketSubscription:
    """The subscription of one waiter: its socket."""

    def __init__(self, signals: SocketSignals, queue: str, address: str, path: Path, active_at: int) -> None:
        self._signals = signals
        self._queue = queue
        self._address = address
        self._path = path
        self._active_at = active_at
        self._in_vain = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(address)
        except OSError:
            self._socket.close()
            raise

    def wait(self, *, timeout_seconds: float) -> bool:
        """Sleep until woken (True) or the time is up (False)."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        woken = bool(poll.poll(max(0, timeout_seconds) * 1000)) and bool(self._unread(at_most=1))
        self._in_vain = not woken
        return woken

    def wake(self) -> None:
        """End a `wait` in another thread."""
        with contextlib.suppress(OSError), _sender() as sender:
            sender.sendto(_END, self._address)

    def close(self) -> None:
        """End the subscription; an unused wake-up is passed on to the next matching waiter."""
        if self._socket.fileno() < 0:
            return
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)
        unread = self._unread(at_most=1000)
        self._socket.close()
        if self._in_vain and not unread:
            self._signals.record_idle(self._queue, self._active_at)
        for message in unread:
            if message.startswith(_TASK):
                self._signals.publish(self._queue, message[1:].decode() or None, 1)

    def leave_to_parent(self) -> None:
        """In the child of a fork: close the copied descriptor; the socket's name stays, as the parent waits on it."""
        self._socket.close()

    def _unread(self, *, at_most: int) -> list[bytes]:
        messages: list[bytes] = []
        while len(messages) < at_most:
            try:
                message = self._socket.recv(1024)
            except OSError:
                break
            if not message:
                break
            messages.append(message)
        return messages


def _sender() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)


def _waiter(file: str) -> _Waiter | None:
    parts = file.split(".")
    if len(parts) != 4:
        return None
    try:
        return _Waiter(file, parts[0], int(parts[1], 16), parts[2])
    except ValueError:
        return None


def _tags_text(tags: TagFilter) -> str:
    if tags.kind == "untagged":
        return _hash_tag(None)
    if not tags.tags:
        return _ANY
    return "".join(_hash_tag(tag) for tag in tags.tags) if len(tags.tags) <= MAX_NAMED_TAGS else _MANY


def _hash_tag(tag: str | None) -> str:
    return _hash("\x00" if tag is None else tag, 4)


def _hash(text: str, characters: int) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
    return urlsafe_b64encode(digest).decode()[:characters]
