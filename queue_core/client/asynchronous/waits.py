"""Waits that another thread can end without losing what they were granted: of an opened store, and of a server."""

from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol, TypeVar

from pydantic_core import from_json

from queue_core.client.http.caller import HttpCaller, KnownServer, Retries, Session
from queue_core.client.http.transport import HttpResponse
from queue_core.client.http_calls import HttpQueues
from queue_core.client.local_calls import POLL_SECONDS, LocalQueues, WaitingCall
from queue_core.client.queue import Queue
from queue_core.task import TagFilter
from queue_core.verbs.wire import body_bytes

T = TypeVar("T")


class Wait(Protocol):
    """One call that may wait for tasks."""

    def on_queue(self, name: str, call: Callable[[Queue], T]) -> T:
        """Make a call on a queue; `interrupt` ends its wait."""

    def ready(self, queues: Sequence[tuple[str, TagFilter]], wait_seconds: float) -> str | None:
        """See `Queues.wait_ready`."""

    def interrupt(self) -> None:
        """End the wait, from another thread, as if its time were up; tasks leased meanwhile are still returned."""


class LocalWait:
    """A `Wait` on an opened store."""

    def __init__(self, queues: LocalQueues) -> None:
        self._queues = queues
        self._waiting: WaitingCall | None = None
        self._is_interrupted = False

    def on_queue(self, name: str, call: Callable[[Queue], T]) -> T:
        """See `Wait.on_queue`."""
        self._waiting = self._queues.waiting_call(name)
        if self._is_interrupted:
            self._waiting.close()
        return call(self._waiting)

    def ready(self, queues: Sequence[tuple[str, TagFilter]], wait_seconds: float) -> str | None:
        """See `Wait.ready`."""
        left = wait_seconds
        while (found := self._queues.wait_ready(queues, wait_seconds=min(left, POLL_SECONDS))) is None:
            left -= POLL_SECONDS
            if left <= 0 or self._is_interrupted:
                return None
        return found

    def interrupt(self) -> None:
        """See `Wait.interrupt`."""
        self._is_interrupted = True
        if self._waiting is not None:
            self._waiting.close()


class InterruptibleCaller(HttpCaller):
    """A caller for one call at a time, whose wait can be ended.

    The connection is cut, and the call sent again with its key, without waiting: the server then answers what it has
    granted already, as for any call whose response was lost (ADR 28).
    """

    _is_interrupted = False
    _waits = False

    def interrupt(self) -> None:
        """End the wait of the call under way, and of those that follow until `renew`."""
        self._is_interrupted = True
        if self._waits:
            self._servers.interrupt()

    def renew(self) -> None:
        """Let calls wait again."""
        self._is_interrupted = False

    def _send(
        self, server: KnownServer, method: str, path: str, data: bytes, session: Session | None, wait_seconds: float
    ) -> HttpResponse:
        self._waits = wait_seconds > 0
        if self._is_interrupted and self._waits:
            self._waits = False
            data, wait_seconds = body_bytes({**from_json(data), "wait_seconds": 0.0}), 0.0
        return super()._send(server, method, path, data, session, wait_seconds)


class InterruptibleQueues(HttpQueues):
    """The queues of a server, by connections of their own, for one call at a time."""

    def __init__(self, url: str, *, token: str | None, retries: Retries, timeout_seconds: float) -> None:
        self._interruptible = InterruptibleCaller(url, token=token, retries=retries, timeout_seconds=timeout_seconds)
        self._caller = self._interruptible

    def interrupt(self) -> None:
        """See `InterruptibleCaller.interrupt`."""
        self._interruptible.interrupt()

    def renew(self) -> None:
        """See `InterruptibleCaller.renew`."""
        self._interruptible.renew()


class ServerWaits:
    """Connections to a server for calls that wait; one that is free is used again."""

    def __init__(self, open_queues: Callable[[], InterruptibleQueues]) -> None:
        self._open = open_queues
        self._free: deque[InterruptibleQueues] = deque()
        self._is_closed = False

    def take(self) -> InterruptibleQueues:
        """Return connections for one call."""
        try:
            queues = self._free.pop()
        except IndexError:
            return self._open()
        queues.renew()
        return queues

    def give_back(self, queues: InterruptibleQueues) -> None:
        """Let another call use these."""
        self._free.append(queues)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Close the connections that are free, and each of the others when it is given back."""
        self._is_closed = True
        while self._free:
            try:
                self._free.pop().close()
            except IndexError:
                return  # another thread closed the last one


class ServerWait:
    """A `Wait` on a server."""

    def __init__(self, waits: ServerWaits) -> None:
        self._waits = waits
        self._lock = Lock()
        self._queues: InterruptibleQueues | None = None
        self._is_interrupted = False

    def on_queue(self, name: str, call: Callable[[Queue], T]) -> T:
        """See `Wait.on_queue`."""
        return self._run_interruptibly(lambda queues: call(queues.queue(name)))

    def ready(self, queues: Sequence[tuple[str, TagFilter]], wait_seconds: float) -> str | None:
        """See `Wait.ready`."""
        return self._run_interruptibly(lambda server: server.wait_ready(queues, wait_seconds=wait_seconds))

    def interrupt(self) -> None:
        """See `Wait.interrupt`."""
        with self._lock:
            self._is_interrupted = True
            if self._queues is not None:
                self._queues.interrupt()

    def _run_interruptibly(self, call: Callable[[InterruptibleQueues], T]) -> T:
        queues = self._waits.take()
        with self._lock:
            self._queues = queues
            if self._is_interrupted:
                queues.interrupt()
        try:
            return call(queues)
        finally:
            with self._lock:  # no interrupt of this call may reach the next one
                self._queues = None
            self._waits.give_back(queues)
