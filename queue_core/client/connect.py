"""`open_queue(url)`: open a queue of a store or of a server, depending on the URL."""

from typing import Literal

from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import RETRIES, TIMEOUT_SECONDS, HttpQueues
from queue_core.client.queue import Queue, Queues
from queue_core.task import QueueSpec

SERVER_SCHEMES = ("http://", "https://", "unix:")


def open_queues(
    url: str,
    *,
    token: str | None = None,
    durability: Literal["strict", "relaxed"] = "strict",
    retries: Retries = RETRIES,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Queues:
    """Open all queues of a store or of a server by its URL.

    Args:
        url: `sqlite:///towline.db`, `postgresql://...`, `redis://...`, `memory:`; or a server's `http://`, `https://`,
            `unix:/path`, or several servers of one store, joined by commas: when one fails, the next is used.
        token: the bearer token for a server that requires one.
        durability: of a store that is opened in this process; a server has its own.
        retries, timeout_seconds: bounds of calls to a server; lower them where a caller must not block for long.
    """
    if url.startswith(SERVER_SCHEMES):
        return HttpQueues(url, token=token, retries=retries, timeout_seconds=timeout_seconds)
    # Only those who open a store import what a server does for its callers, a fifth of a worker's imports.
    from queue_core.client.local_calls import LocalQueues
    from queue_core.stores import open_store
    from queue_core.unit.service import QueueService

    return LocalQueues(QueueService(open_store(url, durability=durability)))


def open_queue(
    url: str,
    name: str = "default",
    *,
    token: str | None = None,
    durability: Literal["strict", "relaxed"] = "strict",
) -> Queue:
    """Open one queue by its name; create it with default settings if it doesn't exist."""
    queues = open_queues(url, token=token, durability=durability)
    if name not in {spec.name for spec in queues.queues()}:
        queues.put_queue(QueueSpec(name))
    return queues.queue(name)
