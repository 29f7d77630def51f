"""The places of mailboxes among the other processes of a store. Pure, but for the table itself; not thread-safe."""

from collections.abc import Iterable

from queue_core.clock import Instant

Key = tuple[str, str]
"""Namespace and queue."""


class Homes:
    """The mailboxes of other processes, each with the instant at which it was last declared there."""

    def __init__(self) -> None:
        self._of: dict[Key, dict[str, Instant]] = {}

    def note(self, node: str, key: Key, at: Instant) -> None:
        """Note that a process has a mailbox."""
        self._of.setdefault(key, {})[node] = at

    def drop(self, node: str, keys: Iterable[Key]) -> list[Key]:
        """Note that a process has these no more; return those that no other process has."""
        gone = []
        for key in keys:
            nodes = self._of.get(key)
            if nodes is not None and nodes.pop(node, None) is not None and not nodes:
                del self._of[key]
                gone.append(key)
        return gone

    def mailboxes_of(self, node: str) -> list[Key]:
        """Return the mailboxes of a process."""
        return [key for key, nodes in self._of.items() if node in nodes]

    def nodes(self) -> set[str]:
        """Return the processes that have any."""
        return {node for nodes in self._of.values() for node in nodes}

    def all_of(self, key: Key) -> dict[str, Instant]:
        """Return the processes that have a mailbox, each with the instant at which it was last declared there."""
        return dict(self._of.get(key, {}))

    def newest(self, key: Key) -> tuple[Instant, str] | None:
        """Return where a mailbox was declared last, with the instant: that process gets its messages."""
        nodes = self._of.get(key)
        return max((at, node) for node, at in nodes.items()) if nodes else None
