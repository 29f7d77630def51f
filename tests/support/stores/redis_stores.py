"""Redis stores for tests of their internals: repeated calls, raw commands."""

from collections.abc import Sequence
from itertools import count

import redis

from queue_core.store import Store
from queue_core.stores.redis.client.connection import Answer, Cell
from queue_core.stores.redis.client.topology import Key
from queue_core.stores.redis.keys import key_of
from queue_core.stores.redis.leases import DELAYED, REQUEST
from queue_core.stores.redis.store import RedisStore
from tests.support.stores.stores import new_url


def a_redis_store() -> RedisStore:
    """Open an empty store on the engine that the tests share."""
    return RedisStore(new_url("redis"))


def with_repeated_calls(store: RedisStore) -> RedisStore:
    """Send every changing call twice, as if each answer were lost: both must return the same.

    Leases are repeated only while they live, so those of 0 s are not.
    """
    client = store._calls.client
    send, numbers = client.call, count(1)

    def call(
        function: str, keys: Sequence[Key], args: Sequence[Cell] = (), *, call_id: tuple[Cell, int] | None = None
    ) -> Answer:
        numbered = call_id or ("twice", next(numbers))
        first = send(function, keys, args, call_id=numbered)
        again = send(function, keys, args, call_id=numbered)
        assert again == first or _ends_at_once(args), f"{function} was answered otherwise the second time"
        return first

    client.call = call  # type: ignore[method-assign]
    return store


def _ends_at_once(args: Sequence[Cell]) -> bool:
    """Return whether a call requests leases of 0 s."""
    cells = [cell for cell in args if isinstance(cell, bytes)]
    lengths = [REQUEST.unpack(cell)[1] for cell in cells if len(cell) == REQUEST.size]
    lengths += [DELAYED.unpack(cell)[3] for cell in cells if len(cell) == DELAYED.size]
    return 0 in lengths


def operator_of(store: Store) -> "redis.Redis[bytes]":
    """Open a plain Redis connection to the same database."""
    return redis.Redis.from_url(store.url.partition("?")[0])


def hash_of(store: RedisStore, queue: str) -> dict[bytes, bytes]:
    """Return all fields of a queue's hash."""
    with operator_of(store) as client:
        return client.hgetall(key_of(queue))
