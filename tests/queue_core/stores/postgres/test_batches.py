"""Calls that are longer than what a socket takes at once."""

from contextlib import closing

from queue_core.stores import open_store
from queue_core.task import ANY, NewTask, QueueSpec
from queue_core.verbs import LeaseRequest
from tests.support.stores.stores import new_store_url


def test_the_largest_batch_goes_there_and_comes_back_byte_for_byte() -> None:
    payloads = [number.to_bytes(2, "big") * 2_000 for number in range(1_000)]
    with closing(open_store(new_store_url("postgresql"))) as store:
        now = store.clock.now()
        with store.begin() as transaction:
            transaction.put_queue(QueueSpec("work"), now=now)
        with store.begin() as transaction:
            transaction.add("work", [NewTask(payload) for payload in payloads], now=now)
        with store.begin() as transaction:
            granted = transaction.lease("work", LeaseRequest(1_000, None, ANY, ""), now=now)
        assert [lease.payload for lease in granted.leases] == payloads
