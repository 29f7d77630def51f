"""Pass texts between the processes of a Redis with sharded pub/sub; nothing is kept there (ADR 39).

All channels are in one slot, so that texts arrive in the order of sending; a process is there while its own channel has
a subscriber.
"""

from collections.abc import Callable, Sequence

from queue_core.errors import StoreUnavailableError
from queue_core.stores.redis.client.client import RedisClient
from queue_core.stores.redis.client.pubsub import PubSub

PIECE_CHARACTERS = 256 << 10
OPEN_SECONDS = 5.0
KEY = "towline:{:mailboxes}"
"""The key whose slot has the channels. Channels are those of all databases of a server, so their names tell which."""


class PubSubBus:
    """See `MessageBus`."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._channel = f"{KEY}:{client.target.database}"
        self._pubsub: PubSub | None = None

    @property
    def piece_characters(self) -> int:
        """See `MessageBus.piece_characters`."""
        return PIECE_CHARACTERS

    def receive(
        self,
        node: str,
        *,
        on_piece: Callable[[str], None],
        on_gap: Callable[[], None],
        on_round: Callable[[], None],
    ) -> None:
        """See `MessageBus.receive`."""
        if self._pubsub is None:
            self._pubsub = PubSub(
                self._client,
                on_message=lambda _channel, data: on_piece(data.decode("ascii", "replace")),
                on_reopened=lambda channel: on_gap() if channel != self._channel else None,  # the last of the two
                on_round=on_round,
            )
        for channel in (self._channel, f"{self._channel}:{node}"):
            if not self._pubsub.open(channel, KEY, timeout_seconds=OPEN_SECONDS):
                raise StoreUnavailableError(f"{self._client.url}: no subscription within {OPEN_SECONDS:g} s")

    def send(self, pieces: Sequence[tuple[str, str]]) -> None:
        """See `MessageBus.send`."""
        for node, piece in pieces:
            self._client.execute(KEY, "SPUBLISH", f"{self._channel}:{node}" if node else self._channel, piece)

    def nodes(self) -> set[str]:
        """See `MessageBus.nodes`."""
        answer = self._client.execute(KEY, "PUBSUB", "SHARDCHANNELS", f"{self._channel}:*")
        names = answer if isinstance(answer, list) else []
        return {name.decode().rpartition(":")[2] for name in names if isinstance(name, bytes)}

    def leave_to_parent(self) -> None:
        """See `MessageBus.leave_to_parent`."""
        if self._pubsub is not None:
            self._pubsub.leave_to_parent()

    def close(self) -> None:
        """See `MessageBus.close`."""
        if self._pubsub is not None:
            self._pubsub.close()
