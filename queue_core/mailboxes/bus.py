"""The way between the processes of one store: short texts that are passed on at once and kept nowhere."""

from collections.abc import Callable, Sequence
from typing import Protocol


class MessageBus(Protocol):
    """Passes pieces of text to the other processes that have the same store open, in the order of sending.

    Thread-safe. What is sent while a process is cut off does not reach it.
    """

    @property
    def piece_characters(self) -> int:
        """How long a piece may be."""

    def receive(
        self,
        node: str,
        *,
        on_piece: Callable[[str], None],
        on_gap: Callable[[], None],
        on_round: Callable[[], None],
    ) -> None:
        """Begin to receive what is sent to everybody or to `node`; return when that is so, at the latest in seconds.

        Args:
            node: the name of this process: eight hexadecimal digits.
            on_piece: called, in a thread of the bus, with each piece, also with this process's own.
            on_gap: called when some may have been missed, as the connection was lost; it is open again.
            on_round: called every few seconds.

        None of them may raise. Raises `StoreError` where this store can't be listened to.
        """

    def send(self, pieces: Sequence[tuple[str, str]]) -> None:
        """Send pieces, each to a process, or "" for all. Raises `StoreError`."""

    def nodes(self) -> set[str]:
        """Return the names of the processes that receive now. Raises `StoreError`."""

    def leave_to_parent(self) -> None:
        """In the child of a fork: leave connections and threads to the parent; the child uses a bus of its own."""

    def close(self) -> None:
        """End the connections and threads."""
