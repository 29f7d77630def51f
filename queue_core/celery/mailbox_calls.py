"""The endpoint of mailboxes: kombu's messages that are no tasks, in this server's memory, used in its loop.

Other servers of the store are told what they have to know before a call is answered (ADR 39).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from pydantic import Field
from typing_extensions import TypedDict

from queue_core import limits
from queue_core.celery.mailboxes.exchanges import Binding
from queue_core.celery.mailboxes.mailboxes import MAX_PRIORITY
from queue_core.celery.mailboxes.network import MailboxNetwork
from queue_core.celery.mailboxes.news import Posted
from queue_core.errors import PermissionDeniedError
from queue_core.server import schemas
from queue_core.server.callers.access import is_namespace_in_scope
from queue_core.server.callers.auth import ANONYMOUS_ADMIN
from queue_core.server.callers.open_calls import a_long_wait
from queue_core.server.commit.thread_pool import ThreadPool
from queue_core.server.state import ServerState
from queue_core.server.v1.endpoint import Endpoint
from queue_core.server.v1.handlers import EndpointCall
from queue_core.server.wings import Wing
from queue_core.store import Broadcaster

MAX_TEXT_CHARACTERS = limits.MAX_PAYLOAD_BYTES
MAX_BODY_BYTES = 7 * MAX_TEXT_CHARACTERS
"""Bytes of a call: a text whose every character is escaped, and room for names."""
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
    ttl_seconds: float | None = Field(
        None, ge=0, le=limits.FARTHEST_ETA_SECONDS, description="How long a message may wait."
    )
    priority: int = Field(0, ge=0, le=MAX_PRIORITY, description="Higher first.")
    expires_seconds: float | None = Field(
        None, gt=0, le=limits.FARTHEST_ETA_SECONDS, description="How long a mailbox lives unread."
    )
    count: int = Field(100, ge=1, le=limits.MAX_TASKS_PER_LEASE)
    wait_seconds: float = Field(0.0, ge=0, le=limits.MAX_WAIT_SECONDS)
    says_missing: bool = Field(
        default=False, description="With `wait`: answer at once where mailboxes are missing here, and name them."
    )


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
    """The answer to every verb. `queues`: task queues that are bound; to `pop` and `wait`, mailboxes missing here."""

    found: bool
    count: int
    queues: list[str]
    messages: list[PoppedMessage]
    bindings: list[BoundQueue]


async def mailboxes(core: ServerState, call: EndpointCall) -> MailboxReply:
    params = call.read(MailboxRequest)
    if not is_namespace_in_scope(call.principal, params.namespace):
        raise PermissionDeniedError(
            f"this token is not for all queues of the namespace {params.namespace[:100] or 'without a name'}"
        )
    limits.check_wait_seconds(params.wait_seconds)
    for name in (params.namespace, params.queue, params.exchange, params.routing_key, *params.queues):
        limits.check_text("name", name)
    reply = MailboxReply(found=True, count=0, queues=[], messages=[], bindings=[])
    wing = core.wing(MailboxWing)
    network = wing.network
    if not network.is_open:
        await wing.in_order(network.open)
    if params.verb in ("put", "publish", "pop"):
        if params.verb == "publish" and _is_doubtful(core, params):
            await wing.in_order(network.await_earlier_news)
        _move(core, params, reply)
        if params.verb == "put" and not reply["found"] and network.boxes.has_peers:
            await wing.in_order(network.await_earlier_news)
            _move(core, params, reply)
    elif params.verb == "wait":
        with a_long_wait(core.long_waits, call.caller or ANONYMOUS_ADMIN):
            await _wait(core, params, reply)
    else:
        _arrange(core, params, reply)
    if network.boxes.has_outgoing:
        await wing.in_order(network.flush)
    return reply


def _is_doubtful(core: ServerState, params: MailboxRequest) -> bool:
    """Return whether another server may have told of a queue for it that is not known here yet."""
    boxes = core.wing(MailboxWing).network.boxes
    return boxes.has_peers and boxes.is_doubtful(params.namespace, params.exchange, params.routing_key)


def _arrange(core: ServerState, params: MailboxRequest, reply: MailboxReply) -> None:
    """Serve the verbs that are about mailboxes, exchanges and bindings."""
    boxes, space, queue, now = (
        core.wing(MailboxWing).network.boxes,
        params.namespace,
        params.queue,
        core.service.clock.now(),
    )
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
    boxes, space, now = core.wing(MailboxWing).network.boxes, params.namespace, core.service.clock.now()
    posted = Posted(params.text, params.ttl_seconds, params.priority)
    match params.verb:
        case "put":
            reply["found"] = boxes.put(space, params.queue, posted, now=now)
        case "publish":
            reply["queues"] = boxes.publish(space, params.exchange, params.routing_key, posted, now=now)
        case _:
            popped = boxes.pop(space, params.queues, params.count, now=now)
            reply["messages"] = [PoppedMessage(queue=one.queue, at=one.at, text=one.text) for one in popped]
            reply["queues"] = boxes.missing(space, params.queues)


async def _wait(core: ServerState, params: MailboxRequest, reply: MailboxReply) -> None:
    """Wait until one of the mailboxes has a message, or the time is up."""
    boxes, clock, loop = core.wing(MailboxWing).network.boxes, core.service.clock, asyncio.get_running_loop()
    space, queues = params.namespace, params.queues
    arrived = asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended, as the server has
            loop.call_soon_threadsafe(arrived.set)

    boxes.watch(space, queues, wake)
    try:
        reply["found"] = boxes.is_any(space, queues, now=clock.now())
        if reply["found"] or core.waiting.is_stopping:
            return
        if params.says_missing and (missing := boxes.missing(space, queues, moved=True)):
            reply["queues"] = missing
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(params.wait_seconds):
                await arrived.wait()
    finally:
        boxes.unwatch(wake, now=clock.now())
    reply["found"] = boxes.is_any(space, queues, now=clock.now())


class MailboxWing(Wing):
    """The mailboxes of one server, and their way to those of other servers of the store."""

    endpoints = (
        Endpoint(
            "POST",
            "/v1/mailboxes",
            "Exchange messages of kombu that are no tasks: remote control, events, replies, broadcasts.",
            "mailboxes",
            mailboxes,
            MailboxRequest,
            schemas.response(MailboxReply),
            max_body_bytes=MAX_BODY_BYTES,
        ),
    )

    def __init__(self, core: ServerState) -> None:
        store = core.service.store
        self.network = MailboxNetwork(store.bus() if isinstance(store, Broadcaster) else None, core.service.clock)
        self._thread = ThreadPool(1, name="towline-mail")

    async def in_order(self, call: Callable[[], None]) -> None:
        """Make a call of the network in its thread: one at a time, as their order counts."""
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(outcome: Exception | None) -> None:
            if not made.done():
                if outcome is None:
                    made.set_result(None)
                else:
                    made.set_exception(outcome)

        self._thread.submit(call, done)
        await made

    def stop(self) -> None:
        """See `Wing.stop`."""
        self.network.boxes.wake_all()

    def close(self) -> None:
        """See `Wing.close`."""
        self.network.close()
        self._thread.close()
