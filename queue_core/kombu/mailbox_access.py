"""Mailboxes as a channel uses them: in a server's memory, or, where a store is opened without one, in this process."""

from collections.abc import Sequence
from threading import Event
from typing import Protocol, cast

from queue_core.clock import Clock, Instant, SystemClock
from queue_core.errors import PermissionDeniedError
from queue_core.http_api.caller import HttpCaller
from queue_core.http_api.values import Json
from queue_core.mailboxes import Binding, Mailboxes, Popped, Posted


class MailboxAccess(Protocol):
    """The mailboxes of one namespace: see `mailboxes.Mailboxes`."""

    def declare(self, queue: str, *, expires_seconds: float | None, ttl_seconds: float | None) -> None:
        """Create a mailbox unless there is one."""

    def declare_exchange(self, exchange: str, kind: str) -> None:
        """Record the type of an exchange."""

    def bind(self, exchange: str, binding: Binding) -> None:
        """Have an exchange deliver to a queue."""

    def unbind(self, exchange: str, binding: Binding) -> None:
        """End a binding."""

    def bindings(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange."""

    def delete(self, queue: str) -> int:
        """Drop a queue's mailbox and bindings."""

    def size(self, queue: str) -> int | None:
        """Return the number of messages; None where there is no such mailbox."""

    def purge(self, queue: str) -> int:
        """Drop all messages; return how many."""

    def put(self, queue: str, posted: Posted) -> bool:
        """Put a message into a mailbox; False where there is none."""

    def publish(self, exchange: str, routing_key: str, posted: Posted) -> list[str]:
        """Deliver a message to all mailboxes bound; return the task queues that are bound, too."""

    def pop(self, queues: Sequence[str], count: int) -> list[Popped]:
        """Take up to `count` messages, oldest first."""

    def wait(self, queues: Sequence[str], *, wait_seconds: float) -> bool:
        """Wait until one of these has a message; False when the time is up."""


class ServedMailboxes:
    """The mailboxes of a server. Thread-safe."""

    def __init__(self, caller: HttpCaller, namespace: str) -> None:
        self._caller = caller
        self._namespace = namespace

    def declare(self, queue: str, *, expires_seconds: float | None, ttl_seconds: float | None) -> None:
        """See `MailboxAccess.declare`."""
        self._call("declare", queue=queue, expires_seconds=expires_seconds, ttl_seconds=ttl_seconds)

    def declare_exchange(self, exchange: str, kind: str) -> None:
        """See `MailboxAccess.declare_exchange`."""
        self._unless_denied("exchange", exchange=exchange, kind=kind)

    def bind(self, exchange: str, binding: Binding) -> None:
        """See `MailboxAccess.bind`."""
        self._unless_denied("bind", exchange=exchange, **_members(binding))

    def unbind(self, exchange: str, binding: Binding) -> None:
        """See `MailboxAccess.unbind`."""
        self._unless_denied("unbind", exchange=exchange, **_members(binding))

    def bindings(self, exchange: str) -> list[Binding]:
        """See `MailboxAccess.bindings`."""
        found = cast("list[Json]", self._unless_denied("bindings", exchange=exchange).get("bindings", []))
        return [Binding(str(one["routing_key"]), str(one["queue"]), bool(one["is_task_queue"])) for one in found]

    def delete(self, queue: str) -> int:
        """See `MailboxAccess.delete`."""
        return cast("int", self._unless_denied("delete", queue=queue).get("count", 0))

    def size(self, queue: str) -> int | None:
        """See `MailboxAccess.size`."""
        answer = self._unless_denied("size", queue=queue)
        return cast("int", answer["count"]) if answer.get("found") else None

    def purge(self, queue: str) -> int:
        """See `MailboxAccess.purge`."""
        return cast("int", self._call("purge", queue=queue)["count"])

    def put(self, queue: str, posted: Posted) -> bool:
        """See `MailboxAccess.put`."""
        return cast("bool", self._call("put", queue=queue, **_sent(posted))["found"])

    def publish(self, exchange: str, routing_key: str, posted: Posted) -> list[str]:
        """See `MailboxAccess.publish`."""
        answer = self._unless_denied("publish", exchange=exchange, routing_key=routing_key, **_sent(posted))
        return cast("list[str]", answer.get("queues", []))

    def pop(self, queues: Sequence[str], count: int) -> list[Popped]:
        """See `MailboxAccess.pop`."""
        found = cast("list[Json]", self._call("pop", queues=list(queues), count=count)["messages"])
        return [Popped(str(one["queue"]), Instant(cast("int", one["at"])), str(one["text"])) for one in found]

    def wait(self, queues: Sequence[str], *, wait_seconds: float) -> bool:
        """See `MailboxAccess.wait`."""
        body: Json = {
            "verb": "wait",
            "namespace": self._namespace,
            "queues": list(queues),
            "wait_seconds": wait_seconds,
        }
        return cast("bool", self._caller.post("/v1/mailboxes", body, repeat="safe", wait_seconds=wait_seconds)["found"])

    def _call(self, verb: str, **members: object) -> Json:
        given = {name: value for name, value in members.items() if value is not None}
        return self._caller.post("/v1/mailboxes", {"verb": verb, "namespace": self._namespace, **given}, repeat="once")

    def _unless_denied(self, verb: str, **members: object) -> Json:
        """Make a call that a producer's token does not allow, and that a producer can do without."""
        try:
            return self._call(verb, **members)
        except PermissionDeniedError:
            return {}


class OwnMailboxes:
    """The mailboxes of this process, for one namespace. Thread-safe."""

    def __init__(self, boxes: Mailboxes, namespace: str, *, clock: Clock | None = None) -> None:
        self._boxes = boxes
        self._namespace = namespace
        self._clock = clock or SystemClock()

    def declare(self, queue: str, *, expires_seconds: float | None, ttl_seconds: float | None) -> None:
        """See `MailboxAccess.declare`."""
        now = self._clock.now()
        self._boxes.declare(self._namespace, queue, expires_seconds=expires_seconds, ttl_seconds=ttl_seconds, now=now)

    def declare_exchange(self, exchange: str, kind: str) -> None:
        """See `MailboxAccess.declare_exchange`."""
        self._boxes.declare_exchange(self._namespace, exchange, kind)

    def bind(self, exchange: str, binding: Binding) -> None:
        """See `MailboxAccess.bind`."""
        self._boxes.bind(self._namespace, exchange, binding)

    def unbind(self, exchange: str, binding: Binding) -> None:
        """See `MailboxAccess.unbind`."""
        self._boxes.unbind(self._namespace, exchange, binding)

    def bindings(self, exchange: str) -> list[Binding]:
        """See `MailboxAccess.bindings`."""
        return self._boxes.bindings(self._namespace, exchange)

    def delete(self, queue: str) -> int:
        """See `MailboxAccess.delete`."""
        return self._boxes.delete(self._namespace, queue)

    def size(self, queue: str) -> int | None:
        """See `MailboxAccess.size`."""
        return self._boxes.size(self._namespace, queue, now=self._clock.now())

    def purge(self, queue: str) -> int:
        """See `MailboxAccess.purge`."""
        return self._boxes.purge(self._namespace, queue)

    def put(self, queue: str, posted: Posted) -> bool:
        """See `MailboxAccess.put`."""
        return self._boxes.put(self._namespace, queue, posted, now=self._clock.now())

    def publish(self, exchange: str, routing_key: str, posted: Posted) -> list[str]:
        """See `MailboxAccess.publish`."""
        return self._boxes.publish(self._namespace, exchange, routing_key, posted, now=self._clock.now())

    def pop(self, queues: Sequence[str], count: int) -> list[Popped]:
        """See `MailboxAccess.pop`."""
        return self._boxes.pop(self._namespace, queues, count, now=self._clock.now())

    def wait(self, queues: Sequence[str], *, wait_seconds: float) -> bool:
        """See `MailboxAccess.wait`."""
        arrived = Event()
        self._boxes.watch(self._namespace, queues, arrived.set)
        try:
            is_any = self._boxes.is_any(self._namespace, queues, now=self._clock.now())
            return is_any or arrived.wait(wait_seconds)
        finally:
            self._boxes.unwatch(arrived.set)


def _members(binding: Binding) -> Json:
    return {
        "routing_key": binding.routing_key,
        "queue": binding.queue,
        "is_task_queue": binding.is_task_queue,
    }


def _sent(posted: Posted) -> Json:
    return {"text": posted.text, "ttl_seconds": posted.ttl_seconds, "priority": posted.priority}
