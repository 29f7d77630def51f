"""The broker that a bridge takes messages from."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from queue_core.celery.bridge.message import BridgedMessage

TRY_ONCE: Final[Mapping[str, Any]] = MappingProxyType(
    {"max_retries": 1, "interval_start": 0, "reraise_as_library_errors": False}
)
"""How a connection of kombu's is opened: its own pauses would hide that a broker is away."""


class BridgeSource(Protocol):
    """Messages of some queues of a broker. A message that was taken and not ended is there again for the next bridge.

    Every verb may raise one of `errors`: then `open` begins anew, and what was taken is taken again.
    """

    url: str
    """The broker's address, without secrets."""
    errors: tuple[type[BaseException], ...]

    def open(self) -> None:
        """Connect; also again after an error. Raises `MissingSourceQueueError`."""

    def take(self, count: int, *, wait_seconds: float) -> list[BridgedMessage]:
        """Return messages that are taken and not ended, up to `count`; wait for the first."""

    def end(self, taken: Sequence[BridgedMessage]) -> None:
        """Acknowledge messages: they are gone from the source."""

    def keep(self, taken: BridgedMessage) -> None:
        """Leave a message at the source: it is not taken again before `close`."""

    def waiting(self) -> int:
        """Return how many messages wait to be taken."""

    def close(self) -> None:
        """Give back what was taken and not ended, and disconnect."""


class MissingSourceQueueError(Exception):
    """The broker has no such queue."""
