"""`open_queue_async(url)`: open a queue of a store or of a server for an event loop."""

import asyncio
from typing import Literal

from queue_core.client.asynchronous.client import AsyncQueue, AsyncQueues
from queue_core.client.asynchronous.waits import InterruptibleQueues, LocalWait, ServerWait, ServerWaits
from queue_core.client.connect import open_queues
from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import RETRIES, TIMEOUT_SECONDS
from queue_core.client.local_calls import LocalQueues
from queue_core.clock import SystemClock
from queue_core.task import QueueSpec


async def open_queues_async(
    url: str,
    *,
    token: str | None = None,
    durability: Literal["strict", "relaxed"] = "strict",
    retries: Retries = RETRIES,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> AsyncQueues:
    """Open all queues of a store or of a server by its URL, for use in this event loop; see `open_queues`.

    Use it as `async with await open_queues_async(url) as queues`, or call `close`.
    """

    def opened() -> AsyncQueues:
        queues = open_queues(url, token=token, durability=durability, retries=retries, timeout_seconds=timeout_seconds)
        if isinstance(queues, LocalQueues):
            return async_queues_of(queues)
        waits = ServerWaits(
            lambda: InterruptibleQueues(url, token=token, retries=retries, timeout_seconds=timeout_seconds)
        )

        def close() -> None:
            waits.close()
            queues.close()

        return AsyncQueues(queues, lambda: ServerWait(waits), clock=SystemClock(), close=close)

    return await asyncio.to_thread(opened)


def async_queues_of(queues: LocalQueues) -> AsyncQueues:
    """Return the queues of an opened store for an event loop; closing them closes the store."""
    return AsyncQueues(queues, lambda: LocalWait(queues), clock=SystemClock(), close=queues.close)


async def open_queue_async(
    url: str,
    name: str = "default",
    *,
    token: str | None = None,
    durability: Literal["strict", "relaxed"] = "strict",
) -> AsyncQueue:
    """Open one queue by its name; create it with default settings if it doesn't exist. See `open_queues_async`."""
    queues = await open_queues_async(url, token=token, durability=durability)
    try:
        if name not in {spec.name for spec in await queues.queues()}:
            await queues.put_queue(QueueSpec(name))
    except BaseException:
        await queues.close()
        raise
    return queues.queue(name)
