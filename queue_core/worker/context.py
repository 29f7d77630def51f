"""What a handler is given: the task it holds, and whether it still holds it."""

import json
from typing import Literal

from queue_core.errors import LeaseLostError
from queue_core.limits import check_delay_seconds
from queue_core.task import Lease


class Retry(Exception):  # noqa: N818  a handler says what is to happen: `raise Retry(60)`
    """Give the task back, to be leased again after `delay_seconds` instead of the queue's own back-off.

    The task is not to blame, as when what it depends on refuses more work (429): it spends no attempt.
    """

    def __init__(self, delay_seconds: float, *, charge: Literal["counted", "uncounted"] = "uncounted") -> None:
        """`counted`: it spends an attempt, as any other failure does.

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
    """One leased task in the hands of a handler. The runner renews its lease while the handler lives."""

    __slots__ = ("lease", "lost", "lost_reason")

    lost: bool
    """Whether the lease has ended under the handler: the task belongs to somebody else, or will soon. Nobody waits for
    it, so that it is a flag, and no `Event`, which costs ten times the rest."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.lost_reason = ""
        self.lost = False

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self.lease.queue

    @property
    def name(self) -> str:
        """Its name: given by the producer, or chosen by the queue."""
        return self.lease.name

    @property
    def tag(self) -> str | None:
        """Its tag, or None."""
        return self.lease.tag

    @property
    def payload(self) -> bytes:
        """What the producer added, byte for byte."""
        return self.lease.payload

    @property
    def text(self) -> str:
        """The payload as UTF-8 text. Raises `UnicodeDecodeError`."""
        return self.lease.payload.decode()

    @property
    def lease_number(self) -> int:
        """1 when this is the first counted lease of the task; above 1 an earlier one failed or expired."""
        return self.lease.lease_number

    def json(self) -> object:
        """The payload read as JSON. Raises `ValueError`."""
        return json.loads(self.lease.payload)

    def check(self) -> None:
        """Raise `LeaseLostError` when the lease is lost; call it in long loops, and before a step that can't repeat."""
        if self.lost:
            raise LeaseLostError(
                f"task {self.name} of {self.queue} is no longer held ({self.lost_reason}): stop working on it",
                tokens=[self.lease.token],
            )

    def mark_lost(self, reason: str) -> None:
        """Tell the handler that the lease has ended. For the runner."""
        if not self.lost:
            self.lost_reason = reason
            self.lost = True

    def __repr__(self) -> str:
        return f"Task(queue={self.queue!r}, name={self.name!r}, tag={self.tag!r}, lease_number={self.lease_number})"
