"""Tells other processes on the same store of tasks they may lease; beside the loop where that crosses a network."""

import structlog

from queue_core.errors import QueueError
from queue_core.server import events
from queue_core.server.hands import Hands
from queue_core.store import Store

MAX_UNTOLD = 10_000
"""Tags that wait to be told of. A hint that is dropped costs those who wait elsewhere a few seconds."""

log = structlog.get_logger()


class Outbox:
    """Publishes signals; several for a tag become one while another is on its way. Used in the loop."""

    def __init__(self, store: Store) -> None:
        self._signals = store.signals
        self._hands = Hands(1, name="towline-signals") if store.is_remote else None
        self._untold: dict[tuple[str, str | None], int] = {}
        self._is_failing = False

    def publish(self, queue: str, tag: str | None, count: int) -> None:
        """`count` tasks of a tag became leasable that nobody here waits for."""
        if self._hands is None:
            self._signals.publish(queue, tag, count)
            return
        key = (queue, tag)
        if key in self._untold or len(self._untold) < MAX_UNTOLD:
            self._untold[key] = self._untold.get(key, 0) + count
        self._send(self._hands)

    def close(self) -> None:
        """Send what is on its way."""
        if self._hands is not None:
            self._hands.close()

    def _send(self, hands: Hands) -> None:
        if not self._untold or not hands.idle:
            return
        untold, self._untold = self._untold, {}

        def send() -> None:
            for (queue, tag), count in untold.items():
                self._signals.publish(queue, tag, count)

        def sent(outcome: Exception | None) -> None:
            self._note(outcome)
            self._send(hands)

        hands.do(send, sent)

    def _note(self, outcome: Exception | None) -> None:
        """Signals are a hint: leases go on without them."""
        if outcome is None:
            self._is_failing = False
            return
        if not self._is_failing:
            known = isinstance(outcome, QueueError | OSError)
            log.warning(events.SIGNALS_UNSENT, error=str(outcome), exc_info=None if known else outcome)
        self._is_failing = True
