"""Task, the argument of a handler, and the exceptions `Retry` and `Dead` that a handler raises."""

import json
from typing import Literal

from queue_core.errors import LeaseLostError
from queue_core.limits import check_delay_seconds
from queue_core.task import Lease


class Retry(Exception):  # noqa: N818  a handler says what is to happen: `raise Retry(60)`
    """Release the task, to be leased again after `delay_seconds` instead of the queue's own back-off.

    By default it spends no attempt: the task is not to blame, as when a service it calls is overloaded (429).
    """

    def __init__(self, delay_seconds: float, *, charge: Literal["counted", "uncounted"] = "uncounted") -> None:
        """Set the delay in seconds; with `charge` "counted" it spends an attempt, as any other failure does.

        Raises `InvalidEtaError` unless 0 <= `delay_seconds` <= 30 days.
        """
        check_delay_seconds(delay_seconds)
        super().__init__(f"retry in {delay_seconds} s")
        self.delay_seconds = delay_seconds
        self.charge = charge


class Dead(Exception):  # noqa: N818  as above: `raise Dead("not an image")`
    """Make the task dead at once: no retry can help. It is kept with this reason, and can be redriven."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Task:
    """A leased task, as passed to a handler. The worker renews its lease while the handler runs."""

    __slots__ = ("lease", "lost", "lost_reason")

    lost: bool
    """True once another worker has the task, or may lease it. A plain flag, as nothing waits for it: an `Event` would
    cost ten times the rest of the task."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.lost_reason = ""
        self.lost = False

    @property
    def queue(self) -> str:
        """The task's queue."""
        return self.lease.queue

    @property
    def name(self) -> str:
        """The task's name, chosen by the producer or the queue."""
        return self.lease.name

    @property
    def tag(self) -> str | None:
        """The task's tag, or None."""
        return self.lease.tag

    @property
    def payload(self) -> bytes:
        """The bytes that the producer added."""
        return self.lease.payload

    @property
    def text(self) -> str:
        """The payload as UTF-8 text. Raises `UnicodeDecodeError`."""
        return self.lease.payload.decode()

    @property
    def lease_number(self) -> int:
        """1 for the first counted lease of the task; above 1 when an earlier one failed or expired."""
        return self.lease.lease_number

    def json(self) -> object:
        """Return the payload parsed as JSON. Raises `ValueError`."""
        return json.loads(self.lease.payload)

    def check(self) -> None:
        """Raise `LeaseLostError` when the lease is lost; call it in long loops, and before what must not run twice."""
        if self.lost:
            raise LeaseLostError(
                f"task {self.name} of {self.queue} is no longer held ({self.lost_reason}): stop working on it",
                tokens=[self.lease.token],
            )

    def mark_lost(self, reason: str) -> None:
        """Mark the lease as lost; for the worker itself."""
        if not self.lost:
            self.lost_reason = reason
            self.lost = True

    def __repr__(self) -> str:
        return f"Task(queue={self.queue!r}, name={self.name!r}, tag={self.tag!r}, lease_number={self.lease_number})"
