"""Processes that add, lease and delete tasks as fast as a server answers, and a meter of their leases."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Final

from queue_core.client.http_calls import HttpQueue
from queue_core.task import NewTask
from tests.bench.console.site import DRAINED

CONSUMERS: Final = 2


def consume(url: str, stopped: Event, counted: "Synchronized[int]") -> None:
    """Add, lease and delete tasks until stopped, ten at a time."""
    queue = HttpQueue(url, DRAINED)
    while not stopped.is_set():
        queue.add([NewTask(b"x") for _ in range(10)])
        leases = queue.lease(10, seconds=60.0)
        queue.delete(leases)
        with counted.get_lock():
            counted.value += len(leases)
    queue.close()


@contextmanager
def consuming(url: str) -> Iterator["LeaseMeter"]:
    """Lease as fast as the server answers, from processes of their own."""
    context = multiprocessing.get_context("spawn")
    stopped, counted = context.Event(), context.Value("q", 0)
    processes = [context.Process(target=consume, args=(url, stopped, counted)) for _ in range(CONSUMERS)]
    for process in processes:
        process.start()
    try:
        meter = LeaseMeter(counted)
        meter.rate(2.0)
        yield meter
    finally:
        stopped.set()
        for process in processes:
            process.join(20)


class LeaseMeter:
    """Counts leases over a time."""

    def __init__(self, counted: "Synchronized[int]") -> None:
        self._counted = counted

    def rate(self, seconds: float) -> float:
        """Return leases a second over the next seconds."""
        before, began = self._counted.value, time.monotonic()
        time.sleep(seconds)
        return (self._counted.value - before) / (time.monotonic() - began)
