"""open_queue(url): the store itself, or a server's API, by the URL alone."""

from typing import Literal

from queue_core.api import Queue, Queues
from queue_core.client import RETRIES, TIMEOUT_SECONDS, HttpQueues
from queue_core.http_api.caller import Retries
from queue_core.local import LocalQueues
from queue_core.service import QueueService
from queue_core.stores import open_store
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
    """All queues of a store or of a server, by its URL.

    Args:
        url: `sqlite:///towline.db`, `postgresql://...`, `redis://...`, `memory:`; or a server's `http://`, `https://`,
            `unix:/path`, or those of several on one store, joined by commas: where one fails, the next is asked.
        token: the bearer token for a server that asks for one.
        durability: of a store opened here; a server has its own.
        retries, timeout_seconds: how patient to be with servers; who has other things to look after takes less.
    """
    if url.startswith(SERVER_SCHEMES):
        return HttpQueues(url, token=token, retries=retries, timeout_seconds=timeout_seconds)
    return LocalQueues(QueueService(open_store(url, durability=durability)))


def open_queue(
    url: str,
    name: str = "default",
    *,
    token: str | None = None,
    durability: Literal["strict", "relaxed"] = "strict",
) -> Queue:
    """One queue by its name; a queue that does not exist yet is created with default settings."""
    queues = open_queues(url, token=token, durability=durability)
    if name not in {spec.name for spec in queues.queues()}:
        queues.put_queue(QueueSpec(name))
    return queues.queue(name)
