"""beanstalkd through greenstalk: reserve and delete are two calls, one task each; it has no batches."""

from collections.abc import Callable, Sequence
from functools import partial
from urllib.parse import urlsplit

import greenstalk

from tests.bench.driver import Consumer, Loads, NotOfferedError, Producer
from tests.bench.site import BenchSite


class BeanstalkdDriver:
    """In memory, or with a log that is synced at every write."""

    def __init__(self, *, synced: bool) -> None:
        self.name = "beanstalkd, log synced" if synced else "beanstalkd"
        self.durable = "yes" if synced else "no"
        self.loads = Loads(add=20_000, drain=20_000)
        self._synced = synced
        self._address = ("", 0)

    def start(self, site: BenchSite) -> None:
        url = urlsplit(site.beanstalkd(synced=self._synced))
        self._address = (url.hostname or "", url.port or 0)
        self._empty()

    def producer(self) -> Producer:
        return BeanstalkdClient(self._address)

    def consumer(self) -> Callable[[], Consumer]:
        return partial(BeanstalkdClient, self._address)

    def stop(self) -> None:
        if self._address[1]:
            self._empty()

    def _empty(self) -> None:
        client = BeanstalkdClient(self._address)
        while client.take(1):
            pass
        client.close()


class BeanstalkdClient:
    """One connection, as producer or consumer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._client = greenstalk.Client(address, encoding=None)

    def add(self, payload: bytes) -> None:
        self._client.put(payload)

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        raise NotOfferedError

    def take(self, tasks: int) -> int:
        if tasks > 1:
            raise NotOfferedError
        try:
            self._client.delete(self._client.reserve(timeout=0))
        except greenstalk.TimedOutError:
            return 0
        return 1

    def close(self) -> None:
        self._client.close()
