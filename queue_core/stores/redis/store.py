"""The Redis store: every verb is one function that Redis runs atomically; thread-safe.

With `appendfsync always` Redis answers when the write is on disk, so no sync is left to do. See ADR 14.
"""

from contextlib import AbstractContextManager, nullcontext
from secrets import token_hex
from typing import Literal

from queue_core.clock import Clock
from queue_core.errors import InvalidRequestError, StoreVersionError
from queue_core.process import forking
from queue_core.store import Ticket, Unit
from queue_core.stores.redis.bus import PubSubBus
from queue_core.stores.redis.calls import VERSION, Calls, library
from queue_core.stores.redis.check import check
from queue_core.stores.redis.client.client import RedisClient
from queue_core.stores.redis.keys import IDENTITY, LAYOUT, SHARDED
from queue_core.stores.redis.signals import RedisSignals
from queue_core.stores.redis.transaction import RedisTransaction
from queue_core.stores.remote_clock import RemoteClock
from queue_core.verbs import Check


class RedisStore:
    """See `Store`."""

    def __init__(
        self,
        url: str,
        *,
        durability: Literal["strict", "relaxed"] = "strict",
        clock: RemoteClock | None = None,
    ) -> None:
        """Connect and check the version of the layout; see `parse_url` for `url`.

        Args:
            clock: the store's; a test of clock steps brings its own.

        Raises the errors of `RedisClient`, and `StoreVersionError` for a layout of a newer version.
        """
        self._durability = durability
        self._client = RedisClient(url, library(), durability=durability, clock=clock)
        try:
            self._check_version()
            self._identity = self._read_identity()
            self._signals = RedisSignals(self._client)
        except BaseException:
            self._client.close()
            raise
        in_cluster = self._client.target.kind == "cluster"
        self._calls = Calls(self._client, self._signals, in_cluster=in_cluster)
        self._transaction = nullcontext(RedisTransaction(self._calls))
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """See `forking.Renewable`."""
        self._client.renew_after_fork()
        self._signals.renew_after_fork()

    @property
    def url(self) -> str:
        """See `Store.url`."""
        return self._client.url

    @property
    def durability(self) -> Literal["strict", "relaxed"]:
        """See `Store.durability`."""
        return self._durability

    @property
    def signals(self) -> RedisSignals:
        """See `Store.signals`."""
        return self._signals

    def bus(self) -> PubSubBus:
        """See `Broadcaster.bus`."""
        return PubSubBus(self._client)

    @property
    def clock(self) -> Clock:
        """See `Store.clock`."""
        return self._client.clock

    @property
    def is_remote(self) -> bool:
        """See `Store.is_remote`."""
        return True

    @property
    def unit(self) -> Unit:
        """See `Store.unit`."""
        return "verb"

    def begin(self, unit: Unit = "transaction") -> AbstractContextManager[RedisTransaction]:  # noqa: ARG002 - the protocol's
        """See `Store.begin`. Each verb commits by itself: verbs before a failure stay done."""
        return self._transaction

    def within(self, connection: object) -> AbstractContextManager[RedisTransaction]:  # noqa: ARG002 - the protocol's
        """See `Store.within`."""
        raise InvalidRequestError("Redis has no transactions of the caller: leave `connection` out, or use postgresql:")

    def read(self) -> AbstractContextManager[RedisTransaction]:
        """See `Store.read`. Each verb is consistent in itself; the queue may change between two verbs."""
        return self._transaction

    def ticket(self) -> Ticket:
        """See `Store.ticket`."""
        return Ticket(0)

    def sync(self, ticket: Ticket) -> None:
        """Do nothing: a write that Redis has answered is as durable as its settings make it."""

    def check_room(self) -> None:
        """See `Store.check_room`: Redis reports a lack of room with each change."""

    def make_room(self) -> bool:
        """See `Store.make_room`."""
        return False

    def held_snapshot(self, *, min_seconds: float = 0.0) -> None:
        """See `Store.held_snapshot`: nothing is kept for a snapshot."""

    def check(self) -> Check:
        """See `Store.check`. For a store that is not in use, as it takes many calls."""
        return check(self._calls)

    def close(self) -> None:
        """See `Store.close`."""
        self._signals.close()
        self._client.close()

    def is_erased(self) -> bool:
        """See `Erasable.is_erased`. In a cluster this checks the node that has the identity's slot."""
        return self._client.execute(IDENTITY, "GET", IDENTITY) != self._identity

    def mark(self) -> None:
        """See `Erasable.mark`."""
        self._check_version()
        self._identity = self._read_identity()

    def _read_identity(self) -> bytes:
        """Return the store's identity; make one where there is none."""
        self._client.execute(IDENTITY, "SET", IDENTITY, token_hex(12), "NX")
        identity = self._client.execute(IDENTITY, "GET", IDENTITY)
        return identity if isinstance(identity, bytes) else b""

    def _check_version(self) -> None:
        """Check and raise the version of the layout; older programs can't open the store afterwards.

        Raises `StoreVersionError`, also for a store that has queues in shards.
        """
        sharded = self._client.execute(SHARDED, "HKEYS", SHARDED)
        if isinstance(sharded, list) and sharded:
            names = ", ".join(sorted(name.decode() for name in sharded if isinstance(name, bytes)))
            raise StoreVersionError(
                f"{self._client.url}: stored in shards, which this version can't read: {names}. Move them to another "
                "store with the version that made them (towline migrate), or delete them there"
            )
        self._client.execute(LAYOUT, "SET", LAYOUT, VERSION, "NX")
        answer = self._client.execute(LAYOUT, "GET", LAYOUT)
        known = int(answer) if isinstance(answer, bytes) else VERSION
        if known > VERSION:
            raise StoreVersionError(
                f"{self._client.url} has the layout of a newer version ({known}; this one knows {VERSION}): upgrade"
            )
        if known < VERSION:
            self._client.execute(LAYOUT, "SET", LAYOUT, VERSION)
