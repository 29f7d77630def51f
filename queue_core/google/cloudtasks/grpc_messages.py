"""Messages over gRPC while they arrive: what they may hold of memory, of threads and of time (ADR 93).

gRPC tells the size of a message only once it is there, so the largest one is reserved meanwhile.
"""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from queue_core.google.cloudtasks.failures import CloudTasksError, RpcStatus, invalid
from queue_core.server.callers.auth import ANONYMOUS_ADMIN, Principal
from queue_core.server.http.in_flight import BytesInFlight, budget_bytes

MAX_BESIDE_BYTES: Final = 64 << 10
"""Bytes of a message besides the payload in it: names, filters, a tag. More than any call needs."""
ARRIVAL_SECONDS: Final = 10.0
"""Seconds for a message to arrive, and to wait for its turn."""
CROWDED_SECONDS: Final = 1.0
"""The same as `ARRIVAL_SECONDS` where another call waits."""
SWEEP_SECONDS: Final = 0.5
"""Seconds between two looks at what has not arrived."""
_VARINT_BYTES: Final = 10
_BYTES, _FIXED64, _VARINT, _FIXED32 = 2, 1, 0, 5


class GrpcCall(Protocol):
    """A call under way; gRPC's `ServicerContext`."""

    def is_active(self) -> bool:
        """Return whether its caller is still there."""

    def cancel(self) -> bool:
        """End it."""


class Arrivals:
    """The messages that are arriving, and those that are not answered yet. Any thread may call.

    A call holds a thread while its message arrives. One that is silent is ended: after a second where all threads are
    held, or where another call waits for its turn.
    """

    def __init__(self, max_bytes: int, *, threads: int, now: Callable[[], float]) -> None:
        """Args:
        max_bytes: the size of the largest message.
        threads: how many calls run at a time.
        """
        self._max_bytes = max_bytes
        self._threads = threads
        self._now = now
        self._in_flight = BytesInFlight(budget_bytes(max_bytes))
        self._changed = threading.Condition()
        self._began: dict[GrpcCall, float] = {}
        self._waiting = 0

    @property
    def held(self) -> int:
        """How many calls wait for their message, or for its turn."""
        return len(self._began)

    @property
    def held_bytes(self) -> int:
        """Bytes that are counted."""
        return self._in_flight.taken

    @contextmanager
    def arrived(self, messages: Iterator[bytes], call: GrpcCall, caller: Principal) -> Iterator[bytes]:
        """Wait for the call's message, and count its bytes until it is answered. Raises `CloudTasksError`."""
        key = id(caller)
        self._begin(call, caller, key)
        try:
            message = next(messages, None)
        finally:
            self._end(call, key)
        if message is None:
            raise invalid("a call has one message, and this one has none")
        with self._changed:
            self._in_flight.take(len(message), key)
        try:
            yield message
        finally:
            with self._changed:
                self._in_flight.leave(len(message), key)
                self._changed.notify_all()

    def _begin(self, call: GrpcCall, caller: Principal, key: Hashable) -> None:
        is_admin, is_alone = caller.is_admin, caller is ANONYMOUS_ADMIN

        def refusal() -> str:
            return self._in_flight.refusal(self._max_bytes, key, is_admin=is_admin, is_alone=is_alone)

        with self._changed:
            self._began[call] = self._now()
            self._waiting += 1
            has_room = self._changed.wait_for(lambda: not (call.is_active() and refusal()), ARRIVAL_SECONDS)
            self._waiting -= 1
            if not has_room:
                del self._began[call]
                raise CloudTasksError(RpcStatus.UNAVAILABLE, f"{refusal()}: try again in 1 s")
            self._in_flight.take(self._max_bytes, key)

    def _end(self, call: GrpcCall, key: Hashable) -> None:
        with self._changed:
            del self._began[call]
            self._in_flight.leave(self._max_bytes, key)
            self._changed.notify_all()

    def sweep(self) -> None:
        """End calls that take too long."""
        with self._changed:
            is_crowded = self._waiting > 0 or len(self._began) >= self._threads
            oldest = self._now() - (CROWDED_SECONDS if is_crowded else ARRIVAL_SECONDS)
            late = [call for call, began in self._began.items() if began < oldest]
            if self._waiting:
                self._changed.notify_all()  # callers that are gone wait no more
        for call in late:
            call.cancel()


def check_size(message: bytes, payload_path: Sequence[int]) -> None:
    """Raise `CloudTasksError` for a message with too much in it besides the payload: it is not parsed.

    Args:
        payload_path: the numbers of the fields that lead to the payload; none for a message that has no payload.
    """
    if (
        len(message) > MAX_BESIDE_BYTES
        and _count_other_bytes(message, 0, len(message), payload_path) > MAX_BESIDE_BYTES
    ):
        raise invalid(f"a message may have {MAX_BESIDE_BYTES} bytes besides its payload")


def _count_other_bytes(message: bytes, at: int, end: int, path: Sequence[int]) -> int:
    """Count the bytes of a part that are not in the field at `path`, up to some more than the bound."""
    found = 0
    while at < end and found <= MAX_BESIDE_BYTES:
        begin = at
        key, at = _varint(message, at, end)
        number, kind = key >> 3, key & 7
        if kind == _BYTES:
            length, at = _varint(message, at, end)
            stop = min(at + length, end)
            if path and number == path[0]:
                found += at - begin
                found += _count_other_bytes(message, at, stop, path[1:]) if len(path) > 1 else 0
                at = stop
                continue
            at = stop
        elif kind == _VARINT:
            at = _varint(message, at, end)[1]
        else:
            at += {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)  # a group's begin or end is its key alone
        found += at - begin
    return found


def _varint(message: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a number; returns it, and the place behind it."""
    value = 0
    for shift in range(0, 7 * _VARINT_BYTES, 7):
        if at >= end:
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, at
