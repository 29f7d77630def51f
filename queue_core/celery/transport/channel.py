"""A channel of kombu over leases: publishing adds tasks, consuming leases them, and an acknowledgement deletes them.

Durable queues are the store's. All others (remote control, replies, events, broadcasts) are mailboxes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.base import queue_declare_ok_t
from kombu.utils.uuid import uuid

from queue_core.celery.mailboxes.exchanges import Binding, matches
from queue_core.celery.mailboxes.mailbox import Popped
from queue_core.celery.mailboxes.news import Posted
from queue_core.celery.transport import celery_state, events
from queue_core.celery.transport.address import BrokerAddress
from queue_core.celery.transport.broker import KombuBroker
from queue_core.celery.transport.envelope import (
    PREFETCH_SECONDS,
    KombuMessage,
    MessageExpiry,
    eta_to_prefetch,
    message_of,
    posted_of,
    stamped,
    tag_of,
    task_of,
    text_of,
    text_without_tag,
)
from queue_core.celery.transport.keeper import Ending, GivenBack
from queue_core.celery.transport.mailbox_access import MailboxAccess
from queue_core.celery.transport.malformed import MalformedMessageError, message_in
from queue_core.celery.transport.options import TransportOptions
from queue_core.celery.transport.publication import Publication, left_in, taken_from
from queue_core.celery.transport.publish_batch import PublishBatch
from queue_core.celery.transport.qos import UNSEEN, LeaseQoS, unseen_until
from queue_core.celery.transport.receiving import LETTER, StrictBase64, receive
from queue_core.celery.transport.rounds import ChannelRoom, Delivery, RoundChannel
from queue_core.config.celery_names import expiry_refused, ignored_arguments, is_of_one_consumer, label_of, store_name
from queue_core.errors import (
    InvalidRequestError,
    InvalidSettingError,
    StoreUnavailableError,
    UnknownQueueError,
    WorkerRetiredError,
)
from queue_core.limits import MAX_PAYLOAD_BYTES, check_payload
from queue_core.log import get_logger
from queue_core.task import Lease, NewTask

_log = get_logger()


class ChannelTransport(Protocol):
    """The transport of a channel: what the channels of a connection share, and the rounds that deliver to them."""

    client: Any
    options: TransportOptions
    address: BrokerAddress
    broker: KombuBroker
    mailboxes: MailboxAccess
    mailbox_names: set[str]
    ttls: dict[str, float | None]
    _callbacks: dict[str, Callable[[KombuMessage], Any]]

    @property
    def worker(self) -> str:
        """The name that this process holds leases by."""

    def kick(self) -> None:
        """Ask for a round."""

    def consumers_changed(self) -> None:
        """Take notice of a new consumer, or of the end of one."""

    def give_back_fetched(self, channel: RoundChannel, queue: str) -> None:
        """Give back what was fetched of a queue whose consumer on this channel has ended."""

    def is_refused(self, queue: str) -> bool:
        """Return whether a queue grants this worker nothing any more."""

    def refuse(self, queue: str, reason: str) -> None:
        """Lease no more from a queue."""

    def warn_of_arguments(self, queue: str, ignored: Sequence[str]) -> None:
        """Log, once, that arguments of a queue have no effect."""


class TowlineChannel(virtual.Channel):
    """One channel of a connection."""

    QoS = LeaseQoS
    codecs = {"base64": StrictBase64()}  # noqa: RUF012 - kombu's attribute
    supports_fanout = True
    do_restore = True

    connection: ChannelTransport
    qos: LeaseQoS

    def __init__(self, connection: ChannelTransport, **kwargs: Any) -> None:
        self._transport = connection  # kombu's own is gone after a loss of the connection; late acknowledgements come
        self._letters: dict[str, Popped] = {}
        self._no_ack: dict[str, bool] = {}
        self._auto_delete: set[str] = set()
        self._turn = 0
        super().__init__(connection, **kwargs)

    # -- queues and exchanges ---------------------------------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **options: Any) -> dict[str, Any]:
        """Return the arguments of a queue as RabbitMQ names them."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments or {}, **options)
        return prepared

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,  # noqa: FBT001, FBT002 - kombu's signature
        durable: bool = True,  # noqa: FBT001, FBT002
        exclusive: bool = False,  # noqa: FBT001, FBT002
        auto_delete: bool = False,  # noqa: FBT001, FBT002
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> queue_declare_ok_t:
        """Create a queue, or with `passive` only look whether there is one.

        Raises `InvalidSettingError` for a queue of the store with `expires`: its tasks are not deleted by themselves.
        """
        name = queue or f"amq.gen-{uuid()}"
        given = arguments or {}
        if not passive and (ignored := ignored_arguments(given)):
            self._transport.warn_of_arguments(name, ignored)
        if passive:
            if not self._has_queue(name):
                space = self.connection.client.virtual_host or "/"
                raise ChannelError(
                    f"NOT_FOUND - no queue {name!r} in vhost {space!r}", (50, 10), "Channel.queue_declare", "404"
                )
        elif self._is_passing(
            name, durable=durable and not exclusive, is_temporary=auto_delete or "x-expires" in given
        ):
            self._transport.mailboxes.declare(
                name, expires_seconds=_seconds(given.get("x-expires")), ttl_seconds=_seconds(given.get("x-message-ttl"))
            )
            self._transport.mailbox_names.add(name)
            if auto_delete:
                self._auto_delete.add(name)
        else:
            if "x-expires" in given and not is_of_one_consumer(name):
                raise InvalidSettingError(expiry_refused(name))
            self._transport.mailbox_names.discard(name)
            label = label_of(name, namespace=self._transport.address.namespace)
            spec = self._transport.options.spec(self._store_name(name), given, label=label)
            self._transport.broker.create_queue(spec)
            self._transport.ttls[name] = _seconds(given.get("x-message-ttl"))
            unmet = [*(["auto_delete"] if auto_delete else []), *(["x-expires"] if "x-expires" in given else [])]
            if unmet:  # a durable queue's tasks are never deleted with it
                self._transport.warn_of_arguments(name, unmet)
        return queue_declare_ok_t(name, self._size(name), 0)

    def _is_passing(self, queue: str, *, durable: bool, is_temporary: bool) -> bool:
        """Return whether a queue that is declared is a mailbox: it is not durable, or only one consumer's."""
        if self._transport.broker.is_known(self._store_name(queue)):
            return False
        return not durable or (is_temporary and is_of_one_consumer(queue))

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",  # noqa: A002 - kombu's signature
        durable: bool = False,  # noqa: FBT001, FBT002
        auto_delete: bool = False,  # noqa: FBT001, FBT002
        arguments: dict[str, Any] | None = None,
        nowait: bool = False,  # noqa: FBT001, FBT002
        passive: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Declare an exchange, for all connections."""
        is_new = (exchange or f"amq.{type or 'direct'}") not in self.state.exchanges
        super().exchange_declare(exchange, type, durable, auto_delete, arguments, nowait, passive)
        if is_new and not passive:
            self._transport.mailboxes.declare_exchange(exchange or f"amq.{type or 'direct'}", type or "direct")

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Have an exchange deliver to a queue, for all connections."""
        source = exchange or "amq.direct"
        if self.state.has_binding(queue, source, routing_key):
            return
        if source not in self.state.exchanges:
            self.exchange_declare(source)
        self._transport.mailboxes.bind(source, Binding(routing_key, queue, self._is_task_queue(queue)))
        super().queue_bind(queue, source, routing_key, arguments)

    def _queue_bind(self, *_: Any) -> None:
        """Do nothing more: `queue_bind` has shared the binding."""

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: dict[str, Any] | None = None,  # noqa: ARG002
        **_: Any,
    ) -> None:
        """End a binding."""
        source = exchange or "amq.direct"
        self._transport.mailboxes.unbind(source, Binding(routing_key, queue, self._is_task_queue(queue)))
        self._forget_binding(queue, source, routing_key)

    def get_table(self, exchange: str) -> list[tuple[str, None, str]]:
        """Return the bindings of an exchange."""
        found = [(one.routing_key, None, one.queue) for one in self._transport.mailboxes.bindings(exchange)]
        own = [(key, None, queue) for key, _, queue in self._own_table(exchange)]
        return list(dict.fromkeys([*found, *own]))

    def queue_delete(
        self,
        queue: str,
        if_unused: bool = False,  # noqa: FBT001, FBT002, ARG002 - kombu's signature
        if_empty: bool = False,  # noqa: FBT001, FBT002
        **_: Any,
    ) -> int:
        """Delete a queue with its bindings; return the number of its messages."""
        if if_empty and self._size(queue):
            return 0
        count = self._size(queue)
        self._forget_bindings(queue)
        self._transport.mailboxes.delete(queue)
        if queue in self._transport.mailbox_names:
            self._transport.mailbox_names.discard(queue)
        elif self._transport.broker.has_queue(self._store_name(queue)):
            self._transport.broker.queues.delete_queue(self._store_name(queue))
            self._transport.broker.forget(self._store_name(queue))
        return count

    def _forget_bindings(self, queue: str) -> None:
        """Forget this connection's bindings of a queue that goes, so that the next declaration shares them again."""
        for source, key, _arguments in list(self.state.queue_bindings(queue)):
            self._forget_binding(queue, source, key)
        self.state.queue_bindings_delete(queue)

    def _forget_binding(self, queue: str, source: str, key: str) -> None:
        """Forget one in the tables that this connection publishes by: kombu's own unbind changes a copy of them."""
        self.state.binding_delete(queue, source, key)
        if source in self.state.exchanges:
            table = self.state.exchanges[source].get("table", [])
            table[:] = [one for one in table if (one[0], one[2]) != (key, queue)]

    def _has_queue(self, queue: str, **_: Any) -> bool:
        name = self._store_name(queue)
        return self._transport.broker.has_queue(name) or self._transport.mailboxes.size(queue) is not None

    def _size(self, queue: str) -> int:
        if queue not in self._transport.mailbox_names:
            try:
                return self._transport.broker.queue(self._store_name(queue)).stats().ready
            except UnknownQueueError:
                pass
        return self._transport.mailboxes.size(queue) or 0

    def _purge(self, queue: str) -> int:
        if queue not in self._transport.mailbox_names:
            try:
                return self._purge_ready(queue)
            except UnknownQueueError:
                pass
        return self._transport.mailboxes.purge(queue)

    def _purge_ready(self, queue: str) -> int:
        """Delete the tasks of a queue, those that wait for their eta too."""
        stats = self._transport.broker.queue(self._store_name(queue)).stats()
        self._transport.broker.queue(self._store_name(queue)).purge()
        return stats.ready + stats.delayed

    # -- publishing -------------------------------------------------------------------------------------------------

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Leave text as it is: the store keeps text; only bytes are written in base64."""
        if isinstance(body, str):
            return body, "utf-8"
        encoded: tuple[Any, str | None] = super().encode_body(body, encoding)
        return encoded

    def basic_publish(self, message: KombuMessage, exchange: str, routing_key: str, **_: Any) -> None:
        """Add a task for each durable queue that the message is for, and put it into the mailboxes that it is for."""
        left = self._transport.broker.left
        kept = taken_from(message["properties"])
        self._inplace_augment_message(message, exchange, routing_key)
        repeated = left.take(partial(text_without_tag, message), channel=self)
        publication = kept or repeated or Publication(tag=message["properties"]["delivery_tag"])
        message["properties"]["delivery_tag"] = publication.tag
        try:
            if publication.queues is None:
                publication.queues = self._routed(message, exchange, routing_key)
            if publication.queues:
                self._add(publication.queues, message, publication)
        except StoreUnavailableError:
            left.leave(text_without_tag(message), publication, channel=self)
            left_in(message["properties"], publication)
            raise

    def _routed(self, message: KombuMessage, exchange: str, routing_key: str) -> list[str]:
        """Put a message into the mailboxes that it is for, and return the task queues that it is for."""
        if not exchange:
            if self._is_task_queue(routing_key):
                return [routing_key]
            self._put(routing_key, message)
            return []
        kind = self.state.exchanges.get(exchange, {}).get("type", "direct")
        text = text_of(message).encode("utf-8", "surrogatepass")
        if len(text) <= MAX_PAYLOAD_BYTES:
            queues = self._transport.mailboxes.publish(exchange, routing_key, posted_of(message))
        else:
            bound = self._transport.mailboxes.bindings(exchange)
            matching = [one for one in bound if matches(kind, one.routing_key, routing_key)]
            if not all(one.is_task_queue for one in matching):
                check_payload(text)  # a mailbox takes no more than most queues do
            queues = [one.queue for one in matching]
        own = [
            queue
            for key, _pattern, queue in self._own_table(exchange)
            if matches(kind, key, routing_key) and self._is_task_queue(queue)
        ]
        return list(dict.fromkeys([*queues, *own]))

    def _own_table(self, exchange: str) -> Sequence[tuple[str, Any, str]]:
        """Return the bindings that this connection declared: a producer's token may not share them."""
        table: Sequence[tuple[str, Any, str]] = self.state.exchanges.get(exchange, {}).get("table", ())
        return table

    def _put(self, queue: str, message: KombuMessage, **_: Any) -> None:
        if not self._transport.mailboxes.put(queue, posted_of(message)):
            _log.info(events.MESSAGE_DROPPED, queue=queue, reason="no such queue")

    def _add(self, queues: Sequence[str], message: KombuMessage, publication: Publication) -> None:
        names = [self._store_name(queue) for queue in queues]
        task = self._task(names, message)
        self._transport.broker.add(names, task, publication=publication, create=self._transport.options.spec)

    def _task(self, names: Sequence[str], message: KombuMessage) -> NewTask:
        broker, delays = self._transport.broker, self._transport.options.eta == "store"
        farthest = broker.max_eta_seconds(names)
        now = broker.clock.now()
        prefetch_seconds = PREFETCH_SECONDS if broker.prefetched_etas.has_room(now=now) else 0
        task = task_of(message, now=now, delays=delays, max_eta_seconds=farthest, prefetch_seconds=prefetch_seconds)
        prefetch_eta = eta_to_prefetch(message.get("headers") or {}, now=now)
        if prefetch_eta is not None and task.eta is None:
            broker.prefetched_etas.add(prefetch_eta)
        return task

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """Return what kombu's `Producer.batch()` puts messages into."""
        return PublishBatch(self, max_size)

    def has_task_queue(self, queue: str) -> bool:
        """Return whether a queue is one of the store."""
        return self._is_task_queue(queue)

    def prepared_task(self, message: KombuMessage, queue: str) -> NewTask:
        """Return the task of a message that a batch adds to a queue."""
        self._inplace_augment_message(message, "", queue)
        return self._task([self._store_name(queue)], message)

    def add_tasks(self, queue: str, tasks: Sequence[NewTask]) -> None:
        """Add tasks to a queue, all of them or none."""
        self._transport.broker.add_many(self._store_name(queue), tasks, create=self._transport.options.spec)

    def _is_task_queue(self, queue: str) -> bool:
        """Return whether a queue is one of the store, not a mailbox."""
        if queue in self._transport.mailbox_names:
            return False
        if self._transport.broker.is_known(self._store_name(queue)):
            return True
        return self._transport.mailboxes.size(queue) is None and self._transport.broker.has_queue(
            self._store_name(queue)
        )

    def _store_name(self, queue: str) -> str:
        return store_name(queue, namespace=self._transport.address.namespace)

    # -- consuming --------------------------------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,  # noqa: FBT001 - kombu's signature
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **kwargs: Any,
    ) -> None:
        """Deliver a queue's messages to `callback`."""
        self._no_ack[queue] = bool(no_ack)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self._transport._callbacks[queue] = partial(  # noqa: SLF001 - as kombu does
            receive, self, queue, callback, no_ack=bool(no_ack)
        )
        self._transport.consumers_changed()

    def basic_cancel(self, consumer_tag: str) -> None:
        """End what `basic_consume` began."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._active_queues:
            return
        self._no_ack.pop(queue, None)
        self._transport.give_back_fetched(self, queue)
        if queue in self._auto_delete:
            self._auto_delete.discard(queue)
            self._forget_bindings(queue)
            self._transport.mailboxes.delete(queue)
        self._transport.consumers_changed()

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        """Return one message, or None."""
        is_task = self._is_task_queue(queue)
        found = self.lease(queue, 1)[0] if is_task else self.letters([queue], 1, no_ack=no_ack)
        if not found:
            return None
        if no_ack and is_task:
            self.end_lease(found[0].tag, None)
            self.flush_ends()
        message = self.Message(found[0].message, channel=self)
        if not no_ack:
            self.qos.append(message, message.delivery_tag)
        return message

    def mailbox_queues(self) -> list[str]:
        """Return the mailboxes that this channel consumes."""
        return [queue for queue in self._active_queues if not self._is_task_queue(queue)]

    def task_queues(self) -> list[str]:
        """Return the task queues that this channel consumes, each time beginning with the next."""
        queues = [queue for queue in self._active_queues if self._is_task_queue(queue)]
        self._turn += 1
        start = self._turn % len(queues) if queues else 0
        return queues[start:] + queues[:start]

    def room_for(self, room: int) -> ChannelRoom:
        """Return what this channel takes, with room for so many messages that are acknowledged."""
        queues = self.mailbox_queues()
        free = [queue for queue in queues if self._no_ack.get(queue)]
        counted = [queue for queue in queues if not self._no_ack.get(queue)]
        return ChannelRoom(self, self.task_queues() if room > 0 else (), free, counted, room)

    def letters(self, queues: Sequence[str], count: int, *, no_ack: bool) -> list[Delivery]:
        """Take messages out of mailboxes."""
        deliveries: list[Delivery] = []
        for letter in self._transport.mailboxes.pop(queues, count):
            tag = f"{LETTER}{uuid()}"
            try:
                parsed = message_in(letter.text.encode("utf-8", "surrogatepass"))
            except MalformedMessageError as error:
                _log.warning(events.MESSAGE_MALFORMED, queue=letter.queue, reason=str(error))
                continue
            if not self._transport.broker.seen.take(letter.queue, tag_of(parsed)):
                continue
            if not no_ack:
                self._letters[tag] = letter
            message = stamped(parsed, delivery_tag=tag, deliveries=1)
            deliveries.append(Delivery(letter.queue, letter.at, message))
        return deliveries

    def lease(self, queue: str, count: int) -> tuple[list[Delivery], int]:
        """Delete the tasks that were acknowledged, and lease up to `count` of the next.

        Returns the messages, and how many leases were granted.
        """
        transport = self._transport
        if transport.is_refused(queue):
            return [], 0
        name = self._store_name(queue)
        try:
            with transport.broker.keeper.deletions(name) as deletions:
                leases, lost = transport.broker.queue(name).exchange(
                    deletions, count=count, seconds=transport.options.lease_seconds, worker=transport.worker
                )
            transport.broker.keeper.report_lost(lost)
        except WorkerRetiredError as error:
            transport.refuse(queue, str(error))
            return [], 0
        except UnknownQueueError:
            transport.broker.forget(name)
            return [], 0
        for lease in leases:
            transport.broker.keeper.hold(lease)
        found = [delivery for lease in leases if (delivery := self._delivery(queue, lease)) is not None]
        return found, len(leases)

    def _delivery(self, queue: str, lease: Lease) -> Delivery | None:
        """Return a leased task's message; None, and its lease ended, where its time is over."""
        transport = self._transport
        try:
            message = message_of(lease, delivery_tag=lease.token)
        except MalformedMessageError as error:
            _log.warning(events.MESSAGE_MALFORMED, queue=queue, reason=str(error))
            self.end_lease(lease.token, GivenBack(dead_reason=f"malformed message: {error}"))
            return None
        expiry = MessageExpiry(transport.options.expired == "drop", transport.ttls.get(queue))
        if expiry.is_over(message, added_at=lease.ready_at, now=lease.leased_at):
            _log.info(events.MESSAGE_EXPIRED, queue=queue, task=lease.name)
            self.end_lease(lease.token, None)
            return None
        is_counted = not self._no_ack.get(queue)
        prefetch_eta = None
        if is_counted and transport.options.eta == "store":
            prefetch_eta = eta_to_prefetch(message.get("headers") or {}, now=lease.leased_at)
        return Delivery(queue, lease.added_at, message, lease.leased_at, is_counted, prefetch_eta)

    def takes(self, delivery: Delivery) -> bool:
        """Return whether a task that was leased is to be delivered."""
        if not delivery.is_counted:
            return True
        # A prefetch count may have become smaller since the lease was asked for.
        if self.qos.credit() <= 0:
            return False
        now = self._transport.broker.clock.now()
        if delivery.prefetch_eta is None or delivery.prefetch_eta <= now:
            return True
        if not self.qos.prefetched_etas.has_room(now=now):
            return False
        self.qos.prefetched_etas.add(delivery.prefetch_eta)
        return True

    def is_unacknowledged(self, tag: str) -> bool:
        """Return whether this message was delivered and not acknowledged yet."""
        return self.qos.is_unacknowledged(tag)

    # -- ends of messages -------------------------------------------------------------------------------------------

    def take_letter(self, tag: str) -> Popped | None:
        """Return the mailbox's message that was delivered under this tag, and forget it; None for a lease."""
        return self._letters.pop(tag, None)

    def put_back(self, letter: Popped) -> None:
        """Put a message back into its mailbox."""
        message = message_in(letter.text.encode("utf-8", "surrogatepass"))
        self._transport.broker.seen.give_back(letter.queue, tag_of(message))
        self._transport.mailboxes.put(letter.queue, Posted(letter.text))

    def acknowledge(self, tag: str) -> None:
        """Delete a lease's task at the next flush; one that runs, with `ack: when_done`, when it has ended."""
        task = celery_state.running_request(tag) if self._transport.options.ack == "when_done" else None
        if task is not None:
            self._transport.broker.keeper.end_with(tag, task)
        else:
            self.end_lease(tag, None)

    def end_lease(self, tag: str, ending: Ending) -> None:
        """End a lease at the next flush. A message of a mailbox has none."""
        if not tag.startswith(LETTER):
            self._transport.broker.keeper.end(tag, ending)

    def keep_lease(self, tag: str) -> None:
        """Go on renewing the lease of a running task, as this channel is gone."""
        self._transport.broker.keep_lease(tag)

    def flush_ends(self) -> None:
        """End the leases that are to end. Raises `StoreUnavailableError`."""
        self._transport.broker.keeper.flush()

    def kick(self) -> None:
        """Have the ended leases flushed, and others leased: at the next turn of the event loop, or now without one."""
        self._transport.kick()

    def give_back(self, delivery: Delivery) -> None:
        """Give back what could not be delivered; a task with an eta waits for it in the store."""
        letter = self.take_letter(delivery.tag)
        if letter is not None:
            self.put_back(letter)
        elif delivery.prefetch_eta is not None:
            now = self._transport.broker.clock.now()
            self.end_lease(delivery.tag, unseen_until(delivery.prefetch_eta, now=now))
        else:
            self.end_lease(delivery.tag, UNSEEN)


def _seconds(milliseconds: Any) -> float | None:
    """Return an argument in milliseconds as seconds. Raises `InvalidRequestError`."""
    if milliseconds is None:
        return None
    try:
        seconds = float(milliseconds) / 1000
    except (TypeError, ValueError):
        raise InvalidRequestError(f"a queue's argument must be a number of milliseconds: {milliseconds!r}") from None
    return max(seconds, 0.001)
