"""The messages that a channel delivered and that nobody acknowledged yet: its prefetch count, and how they end."""

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from kombu.transport import virtual

from queue_core.celery.mailboxes.mailbox import Popped
from queue_core.celery.transport import begun_requests, celery_state
from queue_core.celery.transport.keeper import CUT_SHORT, Ending, GivenBack
from queue_core.celery.transport.prefetched_etas import PrefetchedEtas
from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import StoreUnavailableError

UNSEEN = GivenBack(charge="uncounted", delay_seconds=0)
"""For a message that was delivered, but that nothing was done with."""
REQUEUED = "given back by its worker: it was rejected, or the process that ran it died"
UNRECORDED = GivenBack(error="its worker ended before it recorded how the task ended")
REJECTED = GivenBack(dead_reason="rejected by its worker")
DELAY_STEPS_PER_SECOND = 50
"""Delays are rounded up, so that tasks of one moment go back by one call."""
CREDIT = 100
"""Messages leased at a time where a channel has no prefetch count."""


def unseen_until(eta: Instant, *, now: Instant) -> GivenBack:
    """Return how to give back a task that waits for its eta, of which its worker has enough."""
    steps = math.ceil(max(0, eta - now) * DELAY_STEPS_PER_SECOND / MICROSECONDS)
    return replace(UNSEEN, delay_seconds=steps / DELAY_STEPS_PER_SECOND)


class AcknowledgedChannel(Protocol):
    """A channel as the ends of its messages use it."""

    def take_letter(self, tag: str) -> Popped | None:
        """Return the mailbox's message that was delivered under this tag, and forget it; None for a lease."""

    def put_back(self, letter: Popped) -> None:
        """Put a message back into its mailbox."""

    def acknowledge(self, tag: str) -> None:
        """Delete a lease's task at the next flush, or when it has ended."""

    def end_lease(self, tag: str, ending: Ending) -> None:
        """End a lease at the next flush."""

    def keep_lease(self, tag: str) -> None:
        """Go on renewing the lease of a running task, as this channel is gone."""

    def flush_ends(self) -> None:
        """End the leases that are to end. Raises `StoreUnavailableError`."""

    def kick(self) -> None:
        """Have the ended leases flushed, and others leased."""


class LeaseQoS(virtual.QoS):
    """Acknowledgements end leases; a prefetched message that goes back is not counted as delivered."""

    channel: AcknowledgedChannel

    def __init__(self, channel: AcknowledgedChannel, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self.prefetched_etas = PrefetchedEtas()
        self._requests: dict[str, Any] = {}

    def credit(self) -> int:
        """Return how many messages the channel takes at present."""
        estimate = self.can_consume_max_estimate()
        return CREDIT if estimate is None else int(estimate)

    def is_unacknowledged(self, delivery_tag: str) -> bool:
        """Return whether this message was delivered and not acknowledged yet."""
        return delivery_tag in self._delivered

    def note_request(self, request: Any) -> None:
        """Remember what Celery's worker made of a message, until it is acknowledged."""
        tag = request._message.delivery_tag  # noqa: SLF001 - there is no other way
        if tag in self._delivered:
            self._requests[tag] = request

    def _answered(self, delivery_tag: str) -> None:
        self._requests.pop(delivery_tag, None)
        super().ack(delivery_tag)
        self.channel.kick()

    def ack(self, delivery_tag: str) -> None:
        """Delete the message's task, by option only when it has ended. The slot is free in any case."""
        try:
            if self.channel.take_letter(delivery_tag) is None:
                self.channel.acknowledge(delivery_tag)
        finally:
            self._answered(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:  # noqa: FBT001, FBT002 - kombu's signature
        """Give the message's task back, or make it dead."""
        message = self._delivered.get(delivery_tag)
        try:
            letter = self.channel.take_letter(delivery_tag)
            if letter is not None:
                if requeue:
                    self.channel.put_back(letter)
            elif requeue:
                # The first time at once, as brokers do; a task that comes back again waits its queue's back-off.
                is_again = bool(message is not None and (message.delivery_info or {}).get("redelivered"))
                delay_seconds = None if is_again else 0.0
                self.channel.end_lease(delivery_tag, GivenBack(delay_seconds=delay_seconds, error=REQUEUED))
            else:
                self.channel.end_lease(delivery_tag, REJECTED)
        finally:
            self._answered(delivery_tag)

    def refuse(self, delivery_tag: str, reason: str) -> None:
        """Make the message's task dead, as nobody can run it."""
        try:
            self.channel.end_lease(delivery_tag, GivenBack(dead_reason=reason))
        finally:
            self._answered(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Give back what was not acknowledged, except for running tasks of a worker that goes on without its broker."""
        self._flush()
        requests, self._requests = self._requests, {}
        is_stopping = celery_state.is_stopping()
        running = celery_state.running_tags()
        while self._delivered:
            try:
                tag, _ = self._delivered.popitem()
            except KeyError:  # another thread took the last
                break
            letter = self.channel.take_letter(tag)
            if letter is not None:
                with suppress(StoreUnavailableError):
                    self.channel.put_back(letter)
            elif tag in running and not is_stopping:
                self.channel.keep_lease(tag)
            elif tag in running:
                self.channel.end_lease(tag, CUT_SHORT)
            else:  # Celery ends its worker over some exceptions: their tasks have had an attempt
                has_begun = begun_requests.has_begun(requests.get(tag))
                self.channel.end_lease(tag, UNRECORDED if has_begun else UNSEEN)
        with suppress(StoreUnavailableError):  # the keeper tries again
            self.channel.flush_ends()
        return []
