"""The endpoint of mailboxes: kombu's messages that are no tasks, in this server's memory, used in its loop."""

import asyncio
from typing import Literal

from pydantic import Field
from typing_extensions import TypedDict

from queue_core import limits
from queue_core.mailboxes import MAX_PRIORITY, Binding, Posted
from queue_core.server import schemas
from queue_core.server.handlers import EndpointCall
from queue_core.server.state import ServerState

MAX_TEXT_CHARACTERS = limits.MAX_PAYLOAD_BYTES
MAX_NAME_CHARACTERS = 1000

Name = str


class MailboxRequest(schemas.RequestBody):
    """One call. Members that its verb does not need are ignored."""

    verb: Literal[
        "declare", "exchange", "bind", "unbind", "bindings", "delete", "size", "purge", "put", "publish", "pop", "wait"
    ]
    namespace: str = Field("", max_length=MAX_NAME_CHARACTERS, description="Mailboxes of others are apart.")
    queue: str = Field("", max_length=MAX_NAME_CHARACTERS)
    queues: tuple[str, ...] = Field((), max_length=limits.MAX_LOOKS_PER_CALL, strict=False)
    exchange: str = Field("", max_length=MAX_NAME_CHARACTERS)
    kind: Literal["direct", "topic", "fanout"] = Field("direct", description="The exchange's type.")
    routing_key: str = Field("", max_length=MAX_NAME_CHARACTERS)
    is_task_queue: bool = Field(default=False, description="The bound queue is one of the store.")
    text: str = Field("", max_length=MAX_TEXT_CHARACTERS, description="The message.")
    ttl_seconds: float | None = Field(None, ge=0, description="How long a message may wait.")
    priority: int = Field(0, ge=0, le=MAX_PRIORITY, description="Higher first.")
    expires_seconds: float | None = Field(None, gt=0, description="How long a mailbox lives unread.")
    count: int = Field(100, ge=1, le=limits.MAX_TASKS_PER_LEASE)
    wait_seconds: float = 0.0


class PoppedMessage(TypedDict):
    """A message that was taken out of a mailbox; `at`: when it was put there, in microseconds."""

    queue: str
    at: int
    text: str


class BoundQueue(TypedDict):
    """A binding of an exchange."""

    routing_key: str
    queue: str
    is_task_queue: bool


class MailboxReply(TypedDict):
    """The answer to every verb."""

    found: bool
    count: int
    queues: list[str]
    messages: list[PoppedMessage]
    bindings: list[BoundQueue]


async def mailboxes(core: ServerState, call: EndpointCall) -> MailboxReply:
    params = call.read(MailboxRequest)
    limits.check_wait_seconds(params.wait_seconds)
    for name in (params.namespace, params.queue, params.exchange, params.routing_key, *params.queues):
        limits.check_text("name", name)
    reply = MailboxReply(found=True, count=0, queues=[], messages=[], bindings=[])
    if params.verb in ("put", "publish", "pop"):
        _move(core, params, reply)
    elif params.verb == "wait":
        reply["found"] = await _wait(core, params)
    else:
        _arrange(core, params, reply)
    return reply


def _arrange(core: ServerState, params: MailboxRequest, reply: MailboxReply) -> None:
    """Serve the verbs that are about mailboxes, exchanges and bindings."""
    boxes, space, queue, now = core.mailboxes, params.namespace, params.queue, core.service.clock.now()
    binding = Binding(params.routing_key, queue, params.is_task_queue)
    match params.verb:
        case "declare":
            boxes.declare(space, queue, expires_seconds=params.expires_seconds, ttl_seconds=params.ttl_seconds, now=now)
        case "exchange":
            boxes.declare_exchange(space, params.exchange, params.kind)
        case "bind":
            boxes.bind(space, params.exchange, binding)
        case "unbind":
            boxes.unbind(space, params.exchange, binding)
        case "bindings":
            reply["bindings"] = [
                BoundQueue(routing_key=one.routing_key, queue=one.queue, is_task_queue=one.is_task_queue)
                for one in boxes.bindings(space, params.exchange)
            ]
        case "delete":
            reply["count"] = boxes.delete(space, queue)
        case "size":
            size = boxes.size(space, queue, now=now)
            reply["found"], reply["count"] = size is not None, size or 0
        case _:
            reply["count"] = boxes.purge(space, queue)


def _move(core: ServerState, params: MailboxRequest, reply: MailboxReply) -> None:
    """Serve the verbs that put messages into mailboxes, or take them out."""
    boxes, space, now = core.mailboxes, params.namespace, core.service.clock.now()
    posted = Posted(params.text, params.ttl_seconds, params.priority)
    match params.verb:
        case "put":
            reply["found"] = boxes.put(space, params.queue, posted, now=now)
        case "publish":
            reply["queues"] = boxes.publish(space, params.exchange, params.routing_key, posted, now=now)
        case _:
            popped = boxes.pop(space, params.queues, params.count, now=now)
            reply["messages"] = [PoppedMessage(queue=one.queue, at=one.at, text=one.text) for one in popped]


async def _wait(core: ServerState, params: MailboxRequest) -> bool:
    """Wait until one of the mailboxes has a message, or the time is up."""
    boxes, clock = core.mailboxes, core.service.clock
    arrived = asyncio.Event()

    def wake() -> None:
        arrived.set()

    boxes.watch(params.namespace, params.queues, wake)
    try:
        if boxes.is_any(params.namespace, params.queues, now=clock.now()):
            return True
        if not core.waiting.is_stopping:
            async with asyncio.timeout(params.wait_seconds):
                await arrived.wait()
    except TimeoutError:
        pass
    finally:
        boxes.unwatch(wake)
    return boxes.is_any(params.namespace, params.queues, now=clock.now())
