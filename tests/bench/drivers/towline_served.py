"""Towline's whole path: `towline serve` over SQLite, and two `towline work` processes with a no-op handler."""

from collections.abc import Sequence
from contextlib import ExitStack

from queue_core.client.connect import open_queue
from queue_core.task import NewTask
from tests.bench.alone.served import TOWLINE, serving, work_command
from tests.bench.driver import WORKERS, Loads, Producer
from tests.bench.places import Durability, new_place
from tests.bench.record import QUEUE
from tests.bench.site import BenchSite


class TowlineServedDriver:
    """Strict syncs every acknowledged change; a worker holds one task at a time without prefetch."""

    loads = Loads(add=3_000, drain=8_000, add_batch=50_000)

    def __init__(self, *, durability: Durability) -> None:
        strict = durability == "strict"
        self.name = "Towline, served" if strict else "Towline, served, relaxed"
        self.durable = "yes" if strict else "not across a power cut"
        self._durability: Durability = durability
        self._stack = ExitStack()
        self._url = ""

    def start(self, site: BenchSite) -> None:
        place = self._stack.enter_context(new_place(site, "sqlite", durability=self._durability))
        self._url = self._stack.enter_context(serving(site, place)).url
        open_queue(self._url, QUEUE).close()

    def producer(self) -> Producer:
        return HttpProducer(self._url)

    def workers(self) -> Sequence[Sequence[str]]:
        arguments, settings = work_command(self._url)
        environment = [f"{name}={value}" for name, value in settings.items()]
        return [["env", *environment, *TOWLINE, *arguments]] * WORKERS

    def stop(self) -> None:
        self._stack.close()


class HttpProducer:
    """The client over one kept-alive connection."""

    def __init__(self, url: str) -> None:
        self._queue = open_queue(url, QUEUE)

    def add(self, payload: bytes) -> None:
        self._queue.add(payload)

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        self._queue.add([NewTask(payload) for payload in payloads])

    def close(self) -> None:
        self._queue.close()
