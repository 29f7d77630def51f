"""The size of a request's body, at most: known before any of it is read, so that nothing larger comes into memory."""

from collections.abc import Callable, Iterable
from typing import Final

from queue_core.limits import LARGEST_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES
from queue_core.server.base.problems import Problem, body_too_large, refusal
from queue_core.task import QueueSpec

BESIDE_BYTES: Final = 64 << 10
"""Bytes of a body besides the base64 of one payload: its tag, its headers, tokens."""
FRESH_SECONDS: Final = 5.0
"""For so long the settings of the queues are taken as known: other servers may change them."""


def body_bytes_of(payload_bytes: int) -> int:
    """Return the size of a body that adds one task with a payload of so many bytes."""
    return -(-payload_bytes // 3) * 4 + BESIDE_BYTES


ONE_TASK_BYTES: Final = body_bytes_of(MAX_PAYLOAD_BYTES)
"""Bytes of a body that adds one task of a plain queue."""


class BodyLimit:
    """The limit of one server: its option, or what one task of the queue with the largest `max_payload` needs.

    Lives in the server's loop.
    """

    def __init__(self, option_bytes: int, *, monotonic: Callable[[], float], read: Callable[[], bool]) -> None:
        """Args:
        option_bytes: the limit as long as no queue's tasks need more.
        read: reads the settings of all queues and calls `learn`; returns whether it has done so, or else will.
            Called at most every `FRESH_SECONDS`.
        """
        self._option_bytes = option_bytes
        self._monotonic = monotonic
        self._read = read
        self._read_at: float | None = None
        self.bytes = option_bytes
        self._task_bytes = min(option_bytes, ONE_TASK_BYTES)

    def learn(self, specs: Iterable[QueueSpec]) -> None:
        """Take up the settings of all queues."""
        self.bytes = self._option_bytes
        self._task_bytes = min(self._option_bytes, ONE_TASK_BYTES)
        self.learn_one(*specs)

    def learn_one(self, *specs: QueueSpec) -> None:
        """Take up settings that were just made. Those of a plain queue need nothing: its batches are to be split."""
        for spec in specs:
            if spec.max_payload_bytes > MAX_PAYLOAD_BYTES:
                needed_bytes = body_bytes_of(spec.max_payload_bytes)
                self.bytes = max(self.bytes, needed_bytes)
                self._task_bytes = max(self._task_bytes, needed_bytes)

    def single_task_limit(self, body_bytes: int | None) -> int:
        """Return the size of a body with one task, for one of this size; None: that is not known."""
        if body_bytes is not None and body_bytes <= self._task_bytes:
            return self._task_bytes
        now = self._monotonic()
        if self._read_at is None or now - self._read_at >= FRESH_SECONDS:
            self._read_at = now
            if not self._read():
                return self.bytes  # the settings are being read: whether a queue has larger tasks is not known
        return self._task_bytes

    def check(self, body_bytes: int) -> None:
        """Raise `refusal`, if there is one."""
        problem = self.refusal(body_bytes)
        if problem is not None:
            raise problem

    def refusal(self, body_bytes: int) -> Problem | None:
        """Return the answer to a body over the limit: final, or to try again once the settings have been read.

        None: it is not over the limit.
        """
        if body_bytes <= self.bytes:
            return None
        now = self._monotonic()
        is_known = self._read_at is not None and now - self._read_at < FRESH_SECONDS
        if is_known or body_bytes > body_bytes_of(LARGEST_PAYLOAD_BYTES):
            return body_too_large(self.bytes)
        self._read_at = now
        if self._read():
            return None if body_bytes <= self.bytes else body_too_large(self.bytes)
        return refusal(
            503,
            "limits-not-known",
            f"a request was to be at most {self.bytes} bytes, and whether a queue allows more is being read: try again",
            headers=((b"retry-after", b"1"),),
        )
