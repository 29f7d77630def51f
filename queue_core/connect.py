"""open_queue(url): the store itself, or a server's API, by the URL alone."""

from typing import Literal

from queue_core.api import QueueApi, QueuesApi
from queue_core.client import HttpQueues
from queue_core.pull_queue import PullQueues
from queue_core.service import QueueService
from queue_core.stores import open_store
from queue_core.task import QueueSpec

SERVER_SCHEMES = ("http://", "https://", "unix://")


def open_queues(
    url: str, *, token: str | None = None, durability: Literal["strict", "relaxed"] = "strict"
) -> QueuesApi:
    """All queues of a store (`sqlite:///towline.db`, `memory:`) or of a server (`http://`, `https://`, `unix://`).

    Args:
        token: the bearer token for a server that asks for one.
        durability: of a store opened here; a server has its own.
    """
    if url.startswith(SERVER_SCHEMES):
        return HttpQueues(url, token=token)
    return PullQueues(QueueService(open_store(url, durability=durability)))


def open_queue(
    url: str,
    name: str = "default",
    *,
    token: str | None = None,
    durability: Literal["strict", "relaxed"] = "strict",
) -> QueueApi:
    """One queue by its name; a queue that does not exist yet is created with default settings."""
    queues = open_queues(url, token=token, durability=durability)
    if name not in {spec.name for spec in queues.queues()}:
        queues.put_queue(QueueSpec(name))
    return queues.queue(name)
