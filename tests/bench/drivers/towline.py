"""Towline as a library: programs that open the SQLite store themselves, without a server.

A consumer's steady state is one step: delete what it holds and lease the next.
"""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from queue_core.connect import open_queue
from queue_core.store import Deletion
from queue_core.task import Lease, NewTask
from tests.bench.driver import Consumer, Loads, Producer
from tests.bench.record import QUEUE
from tests.bench.site import Site

Durability = Literal["strict", "relaxed"]


class TowlineDriver:
    """Strict syncs every acknowledged change; relaxed leaves syncing to checkpoints."""

    def __init__(self, *, durability: Durability) -> None:
        strict = durability == "strict"
        self.name = "Towline, SQLite" if strict else "Towline, SQLite, relaxed"
        self.durable = "yes" if strict else "not across a power cut"
        self.loads = Loads(
            add=10_000 if strict else 40_000,
            drain=10_000 if strict else 30_000,
            add_batch=200_000,
            drain_batch=200_000,
        )
        self._durability = durability
        self._directory: Path | None = None

    def start(self, site: Site) -> None:
        self._directory = site.new_directory("towline")
        open_queue(self._url, QUEUE, durability=self._durability).close()

    def producer(self) -> Producer:
        return TowlineClient(self._url, self._durability)

    def consumer(self) -> Callable[[], Consumer]:
        return partial(TowlineClient, self._url, self._durability)

    def stop(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None

    @property
    def _url(self) -> str:
        return f"sqlite:///{self._directory}/bench.db"


class TowlineClient:
    """One opened store, as producer or consumer."""

    def __init__(self, url: str, durability: Durability) -> None:
        self._queue = open_queue(url, QUEUE, durability=durability)
        self._held: list[Lease] = []

    def add(self, payload: bytes) -> None:
        self._queue.add(payload)

    def add_batch(self, payloads: Sequence[bytes]) -> None:
        self._queue.add([NewTask(payload) for payload in payloads])

    def take(self, tasks: int) -> int:
        finished = [Deletion(lease.token) for lease in self._held]
        self._held, lost = self._queue.exchange(finished, count=tasks)
        assert not lost, f"leases were lost: {lost}"
        return len(self._held)

    def close(self) -> None:
        self._queue.close()
