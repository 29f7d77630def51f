"""The Redis store: every verb is one function that Redis runs, whole or not at all; several run at a time from here.

With `appendfsync always` Redis answers when the write is on disk, so there is nothing left to sync.
"""

from contextlib import AbstractContextManager, nullcontext
from secrets import token_hex
from typing import Literal

from queue_core.clock import Clock
from queue_core.errors import InvalidRequestError, StoreVersionError
from queue_core.process import forking
from queue_core.store import Check, Ticket, Unit
from queue_core.stores.redis.calls import Calls
from queue_core.stores.redis.check import check
from queue_core.stores.redis.client.client import RedisClient
from queue_core.stores.redis.functions import VERSION, library
from queue_core.stores.redis.keys import IDENTITY, LAYOUT, key_of
from queue_core.stores.redis.sharding.transaction import ShardedTransaction
from queue_core.stores.redis.signals import RedisSignals


class RedisStore:
    """See `Store`."""

    def __init__(self, url: str, *, durability: Literal["strict", "relaxed"] = "strict") -> None:
        """Connect, and look at what is there; `url` as `url.parse_url` takes it.

        Raises what `RedisClient` raises, and `StoreVersionError` for tasks that a newer version has put there.
        """
        self._durability = durability
        self._client = RedisClient(url, library(), durability=durability)
        try:
            self._check_version()
            self._identity = self._named()
            self._signals = RedisSignals(self._client, key_of)
        except BaseException:
            self._client.close()
            raise
        in_cluster = self._client.target.kind == "cluster"
        self._calls = Calls(self._client, self._signals, in_cluster=in_cluster)
        self._verbs = ShardedTransaction(self._calls, dict(self._client.target.spread))
        self._transaction = nullcontext(self._verbs)
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

    def begin(self, unit: Unit = "transaction") -> AbstractContextManager[ShardedTransaction]:  # noqa: ARG002 - the protocol's
        """See `Store.begin`. Each verb is a step of its own: what was done before a failure stands."""
        return self._transaction

    def within(self, connection: object) -> AbstractContextManager[ShardedTransaction]:  # noqa: ARG002 - the protocol's
        """See `Store.within`."""
        raise InvalidRequestError("Redis has no transactions of the caller: leave `connection` out, or use postgresql:")

    def read(self) -> AbstractContextManager[ShardedTransaction]:
        """See `Store.read`. Each verb is consistent in itself; between two of them others may change the queue."""
        return self._transaction

    def ticket(self) -> Ticket:
        """See `Store.ticket`."""
        return Ticket(0)

    def sync(self, ticket: Ticket) -> None:
        """Redis has answered, so it is as durable as it will be."""

    def check_room(self) -> None:
        """See `Store.check_room`: its engine tells of that with each change."""

    def make_room(self) -> bool:
        """See `Store.make_room`."""
        return False

    def check(self) -> Check:
        """See `Store.check`. For a store at rest: it takes many steps."""
        return check(self._calls)

    def close(self) -> None:
        """See `Store.close`."""
        self._signals.close()
        self._client.close()

    def is_erased(self) -> bool:
        """See `Erasable.is_erased`. In a cluster: of the node that has the identity's slot."""
        is_erased = self._client.execute(IDENTITY, "GET", IDENTITY) != self._identity
        if is_erased:
            self._verbs.forget()
        return is_erased

    def mark(self) -> None:
        """See `Erasable.mark`."""
        self._check_version()
        self._identity = self._named()

    def _named(self) -> bytes:
        """The store's identity; it gets one where it has none."""
        self._client.execute(IDENTITY, "SET", IDENTITY, token_hex(12), "NX")
        identity = self._client.execute(IDENTITY, "GET", IDENTITY)
        return identity if isinstance(identity, bytes) else b""

    def _check_version(self) -> None:
        """From now on an older program is refused; one that has the store open already goes on."""
        self._client.execute(LAYOUT, "SET", LAYOUT, VERSION, "NX")
        answer = self._client.execute(LAYOUT, "GET", LAYOUT)
        known = int(answer) if isinstance(answer, bytes) else VERSION
        if known > VERSION:
            raise StoreVersionError(
                f"{self._client.url} has the layout of a newer version ({known}; this one knows {VERSION}): upgrade"
            )
        if known < VERSION:
            self._client.execute(LAYOUT, "SET", LAYOUT, VERSION)
