"""The transport: connections to a broker, and the rounds in which their channels lease and deliver.

In Celery's event loop a thread waits for tasks, another for messages; each only writes a byte, and the loop leases. So
acknowledgements, prefetch counts and deliveries have one thread.
"""

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import structlog
from kombu.transport import virtual
from kombu.transport.virtual.base import Transport as VirtualTransport

from queue_core.config.store_urls import masked
from queue_core.errors import QueueError, StoreUnavailableError
from queue_core.kombu import celery_state, events
from queue_core.kombu.address import address_of, completed
from queue_core.kombu.broker import broker_of, worker_name
from queue_core.kombu.channel import Delivery, TowlineChannel
from queue_core.kombu.envelope import KombuMessage, priority_of
from queue_core.kombu.options import options_of
from queue_core.kombu.wake_thread import WakeThread
from queue_core.task import quarantined_task_of

LETTERS_PER_ROUND = 100
SAFETY_SECONDS = 5.0
"""Pause between two rounds that nothing asked for."""
WAIT_SECONDS = 20.0
"""How long a call that waits may take."""

Addressed: TypeAlias = tuple[TowlineChannel, Delivery]
"""A message and the channel that consumes it."""

_log = structlog.get_logger(__name__)


class TowlineTransport(VirtualTransport):
    """Connections of kombu to a store or server of Towline."""

    Channel = TowlineChannel

    can_parse_url = True
    default_port = 7878
    driver_type = "towline"
    driver_name = "towline"
    polling_interval = 0.05
    connection_errors = (*virtual.Transport.connection_errors, StoreUnavailableError)
    channel_errors = (*virtual.Transport.channel_errors, QueueError)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """Raises `InvalidSettingError` for a wrong URL or option."""
        super().__init__(client, **kwargs)
        self.options = options_of(client.transport_options)
        self.polling_interval = self.options.polling_seconds
        self.address = completed(address_of(client), os.environ)
        self.broker = broker_of(self.address, self.options)
        self.mailboxes = self.broker.mailboxes(self.address.namespace)
        self.mailbox_names = self.broker.mailbox_names(self.address.namespace)
        self.ttls: dict[str, float | None] = {}
        self.is_retired = False
        self._refused: set[str] = set()
        self._loop: Any = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._is_kicked = False
        self._is_mail_due = True
        self._later: list[Addressed] = []
        self._timer: Any = None
        self._task_waiter: WakeThread | None = None
        self._mail_waiter: WakeThread | None = None

    @property
    def worker(self) -> str:
        """The name that this process holds leases by."""
        return worker_name(self.options)

    def driver_version(self) -> str:
        """Return the version of Towline."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("towline")
        except PackageNotFoundError:  # run from a checkout
            return "0"

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:  # noqa: ARG002, FBT001, FBT002 - kombu's signature
        """Return the URL of a broker, without secrets unless asked for."""
        shown = uri if include_password else masked(uri)
        return shown if shown.startswith("towline") else f"towline+{shown}"

    def establish_connection(self) -> Any:
        """Look whether the broker answers. Raises `StoreUnavailableError`, or the error of a wrong token."""
        self.broker.refresh()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Give back what was not acknowledged, except for running tasks, and stop to wait."""
        self._stop_waiting()
        later, self._later = self._later, []
        _give_back(later)
        super().close_connection(connection)
        with suppress(StoreUnavailableError):
            self.broker.keeper.flush()

    def verify_connection(self, connection: Any) -> bool:  # noqa: ARG002 - kombu's signature
        """Return whether the connection is open: each call finds out for itself whether the broker answers."""
        return True

    # -- in an event loop -------------------------------------------------------------------------------------------

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002 - kombu's signature
        """Lease and deliver in this loop; called again after every reconnection."""
        self._stop_waiting()
        self._loop = loop
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.settimeout(0)
        self._wake = (reader, writer)
        loop.add_reader(reader.fileno(), self._on_wake)
        self._timer = loop.call_repeatedly(SAFETY_SECONDS, self._on_mail)
        self._task_waiter = WakeThread(self._wait_for_tasks, self.kick, name="towline-tasks")
        self._mail_waiter = WakeThread(self._wait_for_letters, self._on_mail, name="towline-messages")
        self.kick()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002 - kombu's signature
        """Undo `register_with_event_loop`."""
        self._stop_waiting()

    def consumers_changed(self) -> None:
        """Take notice of a new consumer, or of the end of one."""
        if self._loop is not None:
            self._on_mail()

    def kick(self) -> None:
        """Ask for a round, from any thread. Without an event loop, end leases at once."""
        wake = self._wake
        if wake is None:
            if self.broker.keeper.has_endings():
                with suppress(StoreUnavailableError):  # the keeper tries again
                    self.broker.keeper.flush()
            return
        if not self._is_kicked:
            self._is_kicked = True
            with suppress(OSError):  # closed meanwhile, or full, which wakes it as well
                wake[1].send(b"k")

    def _on_wake(self, *_: object) -> None:
        if self._wake is None:
            return
        with suppress(BlockingIOError):
            self._wake[0].recv(4096)
        self._is_kicked = False
        self._round()

    def _round(self) -> None:
        """Lease and deliver, and have the threads wait for more."""
        if self._lease_and_deliver():
            self.kick()
        if self.is_retired and not self.broker.keeper.has_leases():
            celery_state.stop()
        self._arm([channel for channel in self.channels if channel is not None])

    def _lease_and_deliver(self) -> bool:
        """End leases, lease within each channel's credit, and deliver in the order of publishing; False: nothing."""
        channels = [channel for channel in list(self.channels) if channel is not None]
        letters, self._later = self._later, []
        tasks: list[Addressed] = []
        try:
            if self._is_mail_due or self._wake is None:
                self._is_mail_due = False
                letters += self._letters(channels)
            for channel in channels:
                for queue in channel.task_queues():
                    credit = channel.qos.credit() - sum(of is channel for of, _ in tasks)
                    if credit <= 0:
                        break
                    tasks += [(channel, delivery) for delivery in channel.lease(queue, credit)]
            self.broker.keeper.flush()
            if tasks:  # a message that was sent before one of these tasks must not come after it
                letters += self._letters(channels)
        except BaseException:
            _give_back([*letters, *tasks])
            raise
        # Nor may one that was sent after this lease come before a task that was added since.
        horizon = min((task.leased_at for _, task in tasks), default=None)
        if horizon is not None:
            self._later = [one for one in letters if one[1].at > horizon]
            letters = [one for one in letters if one[1].at <= horizon]
        self._took(is_task=bool(tasks), is_letter=bool(letters))
        self._deliver_all(merged(letters, tasks))
        return bool(letters or tasks)

    def _letters(self, channels: Sequence[TowlineChannel]) -> list[Addressed]:
        return [(channel, letter) for channel in channels for letter in channel.letters(LETTERS_PER_ROUND)]

    def _on_mail(self) -> None:
        self._is_mail_due = True
        self.kick()

    def _took(self, *, is_task: bool, is_letter: bool) -> None:
        if is_task and self._task_waiter is not None:
            self._task_waiter.took()
        if is_letter and self._mail_waiter is not None:
            self._mail_waiter.took()

    def _arm(self, channels: Sequence[TowlineChannel]) -> None:
        """Have the threads wait again, for tasks only where there is room for one."""
        if self._task_waiter is not None:
            wanted = [
                channel._store_name(queue)  # noqa: SLF001 - of this package
                for channel in channels
                if channel.qos.credit() > 0
                for queue in channel.task_queues()
                if not self.is_refused(queue)
            ]
            self._task_waiter.wait_for([] if self.is_retired else wanted)
        if self._mail_waiter is not None:
            self._mail_waiter.wait_for([queue for channel in channels for queue in channel.mailbox_queues()])

    def _wait_for_tasks(self, names: Sequence[str]) -> bool:
        return self.broker.wait_ready(names, wait_seconds=WAIT_SECONDS, polling_seconds=self.options.polling_seconds)

    def _wait_for_letters(self, names: Sequence[str]) -> bool:
        return self.mailboxes.wait(names, wait_seconds=WAIT_SECONDS)

    def _stop_waiting(self) -> None:
        for waiter in (self._task_waiter, self._mail_waiter):
            if waiter is not None:
                waiter.stop()
        self._task_waiter = self._mail_waiter = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop, self._loop = self._loop, None
        wake, self._wake = self._wake, None
        self._is_kicked = False
        if wake is not None:
            with suppress(Exception):  # the loop may be closed already
                loop.remove_reader(wake[0].fileno())
            for end in wake:
                end.close()

    # -- without an event loop --------------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:  # noqa: ARG002 - kombu's signature
        """Deliver what there is, within prefetch counts; wait for it up to `timeout`. Raises `TimeoutError`."""
        clock = self.broker.clock
        ends_at = None if timeout is None else clock.monotonic() + timeout
        while not self._lease_and_deliver():
            left = None if ends_at is None else ends_at - clock.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._pause(left)

    def _pause(self, left: float | None) -> None:
        """Wait for a message; where tasks and messages may come, look for both now and then."""
        mail = [queue for channel in self.channels for queue in channel.mailbox_queues()]
        has_tasks = any(channel.task_queues() for channel in self.channels)
        pause = self.options.polling_seconds if has_tasks else WAIT_SECONDS
        pause = pause if left is None else min(pause, left)
        if mail:
            self.mailboxes.wait(mail, wait_seconds=pause)
        else:
            self.broker.pause(pause if has_tasks else self.options.polling_seconds)

    # -- deliveries -------------------------------------------------------------------------------------------------

    def _deliver_all(self, deliveries: Sequence[Addressed]) -> None:
        """Deliver messages; what is left when a consumer fails goes back."""
        left = list(deliveries)
        try:
            while left:
                channel, delivery = left.pop(0)
                callback = self._callbacks.get(delivery.queue)
                if callback is None:
                    channel.give_back(delivery)
                else:
                    callback(delivery.message)
        finally:
            _give_back(left)

    def parsed(self, text: str) -> KombuMessage:
        """Return a message's text as a message."""
        message: KombuMessage = json.loads(text)
        return message

    def is_refused(self, queue: str) -> bool:
        """Return whether a queue grants this worker nothing any more."""
        return self.is_retired or queue in self._refused

    def refuse(self, queue: str, reason: str) -> None:
        """Lease no more from a queue; from none, unless this worker is for one task, which may be in another queue."""
        self._refused.add(queue)
        consumed = {one for channel in self.channels for one in channel.task_queues()}
        if quarantined_task_of(self.worker) is None or consumed <= self._refused:
            self.retire(reason)

    def retire(self, reason: str) -> None:
        """Lease no more: a supervisor has fenced this worker. A worker of Celery's ends once its tasks are done."""
        if not self.is_retired:
            self.is_retired = True
            _log.info(events.WORKER_RETIRED, worker=self.worker, pid=os.getpid(), reason=reason)


def merged(letters: Sequence[Addressed], tasks: Sequence[Addressed]) -> list[Addressed]:
    """Merge messages in the order of publishing into tasks, which keep their own order (of priority)."""
    waiting = sorted(letters, key=lambda one: (-priority_of(one[1].message), one[1].at))
    result: list[Addressed] = []
    for task in tasks:
        while waiting and waiting[0][1].at <= task[1].at:
            result.append(waiting.pop(0))
        result.append(task)
    return result + waiting


def _give_back(deliveries: Sequence[Addressed]) -> None:
    for channel, delivery in deliveries:
        with suppress(StoreUnavailableError):
            channel.give_back(delivery)
