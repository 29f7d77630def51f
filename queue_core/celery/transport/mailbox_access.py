"""Mailboxes as a channel uses them: in a server's memory, or, where a store is opened without one, in this process.

A server that was restarted, or that is used since another one failed, has none of them: what was declared here is
remembered, and declared again where a consumer finds it missing (ADR 39).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import Event, Lock
from typing import Protocol, cast

from queue_core.celery.mailboxes.exchanges import Binding
from queue_core.celery.mailboxes.mailbox import Popped
from queue_core.celery.mailboxes.network import MailboxNetwork
from queue_core.celery.mailboxes.news import Posted
from queue_core.client.http.caller import HttpCaller
from queue_core.clock import Clock, Instant
from queue_core.errors import PermissionDeniedError
from queue_core.process import forking
from queue_core.verbs.wire import Json

MAX_REMEMBERED = 1000
"""Mailboxes that are declared again; of more, those that were declared last."""


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


@dataclass(slots=True)
class Declared:
    """A mailbox as it was declared here, and its bindings, each with its exchange."""

    expires_seconds: float | None
    ttl_seconds: float | None
    bindings: list[tuple[str, Binding]] = field(default_factory=list)


class Declarations:
    """The mailboxes that were declared here. Thread-safe."""

    def __init__(self) -> None:
        self._boxes: dict[str, Declared] = {}
        self._kinds: dict[str, str] = {}
        self._lock = Lock()
        forking.renew_after_forks(self)

    def renew_after_fork(self) -> None:
        """See `forking.Renewable`: the mailboxes are the parent's."""
        self._boxes = {}
        self._lock = Lock()

    def declare(self, queue: str, *, expires_seconds: float | None, ttl_seconds: float | None) -> None:
        """Remember a mailbox."""
        with self._lock:
            known = self._boxes.pop(queue, None)
            bindings = known.bindings if known is not None else []
            self._boxes[queue] = Declared(expires_seconds, ttl_seconds, bindings)
            for oldest in list(islice(self._boxes, max(0, len(self._boxes) - MAX_REMEMBERED))):
                del self._boxes[oldest]

    def declare_exchange(self, exchange: str, kind: str) -> None:
        """Remember the type of an exchange."""
        with self._lock:
            self._kinds.setdefault(exchange, kind)

    def bind(self, exchange: str, binding: Binding) -> None:
        """Remember the binding of a mailbox that is remembered."""
        with self._lock:
            known = self._boxes.get(binding.queue)
            if known is not None and (exchange, binding) not in known.bindings:
                known.bindings.append((exchange, binding))

    def unbind(self, exchange: str, binding: Binding) -> None:
        """Forget a binding."""
        with self._lock:
            known = self._boxes.get(binding.queue)
            if known is not None and (exchange, binding) in known.bindings:
                known.bindings.remove((exchange, binding))

    def forget(self, queue: str) -> None:
        """Forget a mailbox that was deleted."""
        with self._lock:
            self._boxes.pop(queue, None)

    def repeat(self, queues: Sequence[str], access: MailboxAccess) -> bool:
        """Declare again those of these mailboxes that are remembered; False: there is none of them."""
        with self._lock:
            known = {queue: self._boxes[queue] for queue in queues if queue in self._boxes}
            kinds = dict(self._kinds)
        for queue, box in known.items():
            access.declare(queue, expires_seconds=box.expires_seconds, ttl_seconds=box.ttl_seconds)
            for exchange, binding in list(box.bindings):
                if exchange in kinds:
                    access.declare_exchange(exchange, kinds[exchange])
                access.bind(exchange, binding)
        return bool(known)


class ServedMailboxes:
    """The mailboxes of a server. Thread-safe."""

    def __init__(self, caller: HttpCaller, namespace: str) -> None:
        self._caller = caller
        self._namespace = namespace
        self._declared = Declarations()

    def declare(self, queue: str, *, expires_seconds: float | None, ttl_seconds: float | None) -> None:
        """See `MailboxAccess.declare`."""
        self._call("declare", queue=queue, expires_seconds=expires_seconds, ttl_seconds=ttl_seconds)
        self._declared.declare(queue, expires_seconds=expires_seconds, ttl_seconds=ttl_seconds)

    def declare_exchange(self, exchange: str, kind: str) -> None:
        """See `MailboxAccess.declare_exchange`."""
        self._unless_denied("exchange", exchange=exchange, kind=kind)
        self._declared.declare_exchange(exchange, kind)

    def bind(self, exchange: str, binding: Binding) -> None:
        """See `MailboxAccess.bind`."""
        self._unless_denied("bind", exchange=exchange, **_members(binding))
        self._declared.bind(exchange, binding)

    def unbind(self, exchange: str, binding: Binding) -> None:
        """See `MailboxAccess.unbind`."""
        self._declared.unbind(exchange, binding)
        self._unless_denied("unbind", exchange=exchange, **_members(binding))

    def bindings(self, exchange: str) -> list[Binding]:
        """See `MailboxAccess.bindings`."""
        found = cast("list[Json]", self._unless_denied("bindings", exchange=exchange).get("bindings", []))
        return [Binding(str(one["routing_key"]), str(one["queue"]), bool(one["is_task_queue"])) for one in found]

    def delete(self, queue: str) -> int:
        """See `MailboxAccess.delete`."""
        self._declared.forget(queue)
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
        answer = self._call("pop", queues=list(queues), count=count)
        self._declared.repeat(cast("list[str]", answer["queues"]), self)
        found = cast("list[Json]", answer["messages"])
        return [Popped(str(one["queue"]), Instant(cast("int", one["at"])), str(one["text"])) for one in found]

    def wait(self, queues: Sequence[str], *, wait_seconds: float) -> bool:
        """See `MailboxAccess.wait`."""
        answer = self._wait(queues, wait_seconds, says_missing=True)
        missing = cast("list[str]", answer["queues"])
        if missing:
            self._declared.repeat(missing, self)
            answer = self._wait(queues, wait_seconds, says_missing=False)
        return cast("bool", answer["found"])

    def _wait(self, queues: Sequence[str], wait_seconds: float, *, says_missing: bool) -> Json:
        body: Json = {
            "verb": "wait",
            "namespace": self._namespace,
            "queues": list(queues),
            "wait_seconds": wait_seconds,
            "says_missing": says_missing,
        }
        return self._caller.post("/v1/mailboxes", body, repeat="safe", wait_seconds=wait_seconds)

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
    """The mailboxes of this process, for one namespace, and those of all others that have its store open. Thread-safe.

    Each verb returns when the others were told what it changed. Raises `StoreError` when that was not possible.
    """

    def __init__(self, network: MailboxNetwork, namespace: str, *, clock: Clock) -> None:
        """Args:
        clock: the store's.
        """
        self._network = network
        self._boxes = network.boxes
        self._namespace = namespace
        self._clock = clock
        self._declared = Declarations()

    def declare(self, queue: str, *, expires_seconds: float | None, ttl_seconds: float | None) -> None:
        """See `MailboxAccess.declare`."""
        self._network.open()
        self._boxes.declare(
            self._namespace, queue, expires_seconds=expires_seconds, ttl_seconds=ttl_seconds, now=self._clock.now()
        )
        self._declared.declare(queue, expires_seconds=expires_seconds, ttl_seconds=ttl_seconds)
        self._network.flush()

    def declare_exchange(self, exchange: str, kind: str) -> None:
        """See `MailboxAccess.declare_exchange`. A program that only adds tasks need not listen to others."""
        self._boxes.declare_exchange(self._namespace, exchange, kind)
        self._declared.declare_exchange(exchange, kind)
        self._network.flush()

    def bind(self, exchange: str, binding: Binding) -> None:
        """See `MailboxAccess.bind`."""
        self._boxes.bind(self._namespace, exchange, binding)
        self._declared.bind(exchange, binding)
        self._network.flush()

    def unbind(self, exchange: str, binding: Binding) -> None:
        """See `MailboxAccess.unbind`."""
        self._declared.unbind(exchange, binding)
        self._boxes.unbind(self._namespace, exchange, binding)
        self._network.flush()

    def bindings(self, exchange: str) -> list[Binding]:
        """See `MailboxAccess.bindings`."""
        self._network.open()
        return self._boxes.bindings(self._namespace, exchange)

    def delete(self, queue: str) -> int:
        """See `MailboxAccess.delete`."""
        self._declared.forget(queue)
        count = self._boxes.delete(self._namespace, queue)
        self._network.flush()
        return count

    def size(self, queue: str) -> int | None:
        """See `MailboxAccess.size`."""
        self._network.open()
        return self._boxes.size(self._namespace, queue, now=self._clock.now())

    def purge(self, queue: str) -> int:
        """See `MailboxAccess.purge`."""
        self._network.open()
        count = self._boxes.purge(self._namespace, queue)
        self._network.flush()
        return count

    def put(self, queue: str, posted: Posted) -> bool:
        """See `MailboxAccess.put`."""
        self._network.open()
        is_found = self._boxes.put(self._namespace, queue, posted, now=self._clock.now())
        if not is_found and self._boxes.has_peers:
            self._network.await_earlier_news()
            is_found = self._boxes.put(self._namespace, queue, posted, now=self._clock.now())
        self._network.flush()
        return is_found

    def publish(self, exchange: str, routing_key: str, posted: Posted) -> list[str]:
        """See `MailboxAccess.publish`."""
        self._network.open()
        if self._boxes.has_peers and self._boxes.is_doubtful(self._namespace, exchange, routing_key):
            self._network.await_earlier_news()
        queues = self._boxes.publish(self._namespace, exchange, routing_key, posted, now=self._clock.now())
        self._network.flush()
        return queues

    def pop(self, queues: Sequence[str], count: int) -> list[Popped]:
        """See `MailboxAccess.pop`."""
        self._declared.repeat(self._boxes.missing(self._namespace, queues), self)
        return self._boxes.pop(self._namespace, queues, count, now=self._clock.now())

    def wait(self, queues: Sequence[str], *, wait_seconds: float) -> bool:
        """See `MailboxAccess.wait`."""
        arrived = Event()
        self._boxes.watch(self._namespace, queues, arrived.set)
        try:
            self._declared.repeat(self._boxes.missing(self._namespace, queues, moved=True), self)
            is_any = self._boxes.is_any(self._namespace, queues, now=self._clock.now())
            return is_any or arrived.wait(wait_seconds)
        finally:
            self._boxes.unwatch(arrived.set, now=self._clock.now())


def _members(binding: Binding) -> Json:
    return {
        "routing_key": binding.routing_key,
        "queue": binding.queue,
        "is_task_queue": binding.is_task_queue,
    }


def _sent(posted: Posted) -> Json:
    return {"text": posted.text, "ttl_seconds": posted.ttl_seconds, "priority": posted.priority}
