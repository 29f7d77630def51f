"""The transport: connections to a broker, and the rounds in which their channels lease and deliver.

In Celery's event loop a thread waits for tasks, another for messages, and a third makes the calls that lease and
delete, one at a time. The loop reckons what each asks for, and delivers what it brings: so prefetch counts and
deliveries have one thread, and the loop never waits for a disk.
"""

import json
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

from kombu.transport import virtual
from kombu.transport.virtual.base import Transport as VirtualTransport

from queue_core.celery.transport import celery_state, events
from queue_core.celery.transport.address import address_of, completed, url_of
from queue_core.celery.transport.broker import broker_of, worker_name
from queue_core.celery.transport.channel import TowlineChannel
from queue_core.celery.transport.connection_info import hide_secrets
from queue_core.celery.transport.envelope import KombuMessage
from queue_core.celery.transport.fetch_thread import FetchThread
from queue_core.celery.transport.options import options_of
from queue_core.celery.transport.rounds import (
    Addressed,
    ChannelRoom,
    Delivery,
    Fetched,
    Fetcher,
    Gathering,
    RoundChannel,
    give_back,
    merged,
)
from queue_core.celery.transport.wake_thread import WakeThread
from queue_core.config.store_urls import masked
from queue_core.errors import QueueError, StoreUnavailableError
from queue_core.log import get_logger
from queue_core.task import quarantined_task_of

SAFETY_SECONDS = 5.0
"""Pause between two rounds that nothing asked for."""
LOOK_SECONDS = 0.25
"""Pause between two looks, without an event loop, whether the worker was told to stop: Celery's own is 2 s."""
SOON_SECONDS = 0.02
STOP_SECONDS = 1.0
"""How long the end of a connection waits for a call that is under way: what it brings is given back in any case."""
WAIT_SECONDS = 20.0
"""How long a call that waits may take."""
MAX_WARNED_QUEUES = 1000

_log = get_logger()
hide_secrets()


class TowlineTransport(VirtualTransport):
    """Connections of kombu to a store or server of Towline."""

    Channel = TowlineChannel

    can_parse_url = False  # so that kombu knows the port of `towline://host:port`; see `as_uri`
    default_port = 7878
    driver_type = "towline"
    driver_name = "towline"
    polling_interval = 0.05
    connection_errors = (*virtual.Transport.connection_errors, StoreUnavailableError)
    channel_errors = (*virtual.Transport.channel_errors, QueueError)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """Raises `InvalidSettingError` for a wrong URL or option."""
        super().__init__(client, **kwargs)
        self.can_parse_url = True  # of kombu's own writing of a URL, a token without a colon would be readable
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
        self._is_wanted = False
        """Whether a round was asked for since the last call of one began."""
        self._is_urgent = False
        """Whether it was for something that may be there."""
        self._woken = Event()
        """Without an event loop: ends a pause."""
        self._is_pausing = False
        self._is_in_worker = False
        """Whether Celery's worker drains this transport without an event loop, as with gevent."""
        self._cycles_due = 0
        self._gathering = Gathering()
        self._fetcher = Fetcher(self.broker.keeper)
        self._fetch_thread: FetchThread[Fetched] | None = None
        self._later: list[Addressed] = []
        self._fetched: deque[Addressed] = deque()
        """Without an event loop: messages that the next calls of `drain_events` deliver."""
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

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:  # noqa: FBT001, FBT002 - kombu's signature
        """Return the URL of a broker, without secrets unless asked for."""
        if self.broker.is_served:  # kombu may have taken it to pieces
            token = self.address.token if include_password else mask
            shown = url_of(replace(self.address, token=token if self.address.token else None))
        else:
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
        give_back([*self._take_fetched(), *later])
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
        give_back(self._take_fetched())
        self.broker.loop_began()
        self._loop = loop
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.settimeout(0)
        self._wake = (reader, writer)
        loop.add_reader(reader.fileno(), self._on_wake)
        self._timer = loop.call_repeatedly(SAFETY_SECONDS, self._on_mail)
        self._fetch_thread = FetchThread(self._wake_up, unwanted=self._discard, name="towline-calls")
        self._start_waiters()
        self.kick()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002 - kombu's signature
        """Undo `register_with_event_loop`."""
        self._stop_waiting()

    def consumers_changed(self) -> None:
        """Take notice of a new consumer, or of the end of one."""
        if self._loop is not None:
            self._on_mail()

    def kick(self) -> None:
        """Ask for a round, from any thread. Without an event loop, end leases at once, or have `drain_events` do so."""
        if self._wake is None:
            if self._is_pausing:
                self._woken.set()
            elif self._is_in_worker:
                self.broker.keeper.flush_soon()
            elif self.broker.keeper.has_endings():
                with suppress(StoreUnavailableError):  # the keeper tries again
                    self.broker.keeper.flush()
            return
        self._is_wanted = True
        self._wake_up()

    def _wake_up(self) -> None:
        wake = self._wake
        if wake is not None and not self._is_kicked:
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
        """Take what was fetched, fetch again if there may be more, and deliver meanwhile; wait where there is none."""
        thread = self._fetch_thread
        if thread is None:
            return
        fetched = thread.take()
        due: list[Addressed] = []
        if fetched is not None:
            due = self._due(fetched)
            self._is_wanted = self._is_wanted or fetched.may_be_more
            self._gathering.call_ended(due, now=self.broker.clock.monotonic())
        try:
            if self._is_wanted and not thread.is_busy and not self._is_gathering(due):
                self._begin(thread, coming=due)
        except BaseException:
            give_back(due)
            raise
        if not thread.is_busy:
            later, self._later = self._later, []
            due += later
        self._deliver_all(due)
        if self.is_retired and not self.broker.keeper.has_leases():
            celery_state.stop()
        self._arm(is_idle=not thread.is_busy)

    def _begin(self, thread: FetchThread[Fetched], *, coming: Sequence[Addressed]) -> None:
        """Begin to fetch, if there is room for anything or something to end."""
        self._is_wanted = self._is_urgent = False
        is_mail_due, self._is_mail_due = self._is_mail_due, False
        rooms = self._rooms(coming=coming)
        if not is_mail_due and not self.broker.keeper.has_endings() and all(one.room <= 0 for one in rooms):
            return
        self._gathering.call_began(now=self.broker.clock.monotonic())
        if not thread.begin(partial(self._fetcher.fetch, rooms, is_mail_due=is_mail_due)):
            self._is_wanted = True  # the thread that waits for tasks was faster
            self._is_mail_due = self._is_mail_due or is_mail_due

    def _is_gathering(self, coming: Sequence[Addressed]) -> bool:
        """Return whether acknowledgements wait for others, for a moment."""
        if self._is_urgent or self._is_mail_due or (not coming and not self.broker.keeper.has_endings()):
            return False
        pause_seconds = self._gathering.pause_seconds(now=self.broker.clock.monotonic())
        if pause_seconds > 0:
            self._loop.call_later(pause_seconds, self._round)
        return pause_seconds > 0

    def _rooms(self, *, coming: Sequence[Addressed] = ()) -> list[ChannelRoom]:
        """Return what each channel takes, beside what is about to be delivered."""
        rooms = []
        for channel in list(self.channels):
            if channel is not None:
                taken = sum(of is channel for of, _ in coming)
                rooms.append(channel.room_for(channel.qos.credit() - taken))
        return rooms

    def _due(self, fetched: Fetched) -> list[Addressed]:
        """Return what is to be delivered now, in the order of publishing."""
        later, self._later = self._later, []
        letters = [*later, *fetched.letters]
        # A message that was sent after these leases must not come before a task that was added since.
        horizon = min((task.leased_at for _, task in fetched.tasks), default=None)
        if horizon is not None:
            self._later = [one for one in letters if one[1].at > horizon]
            letters = [one for one in letters if one[1].at <= horizon]
        if fetched.tasks and self._task_waiter is not None:
            self._task_waiter.took()
        if letters and self._mail_waiter is not None:
            self._mail_waiter.took()
        return merged(letters, fetched.tasks)

    def _discard(self, fetched: Fetched) -> None:
        """Give back what came when nobody wanted it any more."""
        give_back([*fetched.letters, *fetched.tasks])
        with suppress(StoreUnavailableError):  # the keeper tries again
            self.broker.keeper.flush()

    def _start_waiters(self) -> None:
        self._task_waiter = WakeThread(self._wait_for_tasks, self._on_tasks, name="towline-tasks")
        self._mail_waiter = WakeThread(self._wait_for_letters, self._on_mail, name="towline-messages")

    def _on_tasks(self) -> None:
        """Lease at once, in the thread that waited, as far as the loop left room for it; else ask the loop."""
        thread = self._fetch_thread
        if thread is None or not thread.make_offered():
            self._is_urgent = True
            self.kick()

    def _on_mail(self) -> None:
        self._is_mail_due = True
        self.kick()

    def _arm(self, *, is_idle: bool) -> None:
        """Have the threads wait again: for tasks only where there is room for one, and no call asks for them."""
        channels = [channel for channel in self.channels if channel is not None]
        if self._task_waiter is not None and is_idle:
            wanted = [
                channel._store_name(queue)  # noqa: SLF001 - of this package
                for channel in channels
                if channel.qos.credit() > 0 and not self.is_retired
                for queue in channel.task_queues()
                if not self.is_refused(queue)
            ]
            if self._fetch_thread is not None:
                fetch = partial(self._fetcher.fetch, self._rooms(), is_mail_due=False)
                self._fetch_thread.offer(fetch if wanted else None)
            self._task_waiter.wait_for(wanted)
        if self._mail_waiter is not None:
            self._mail_waiter.wait_for([queue for channel in channels for queue in channel.mailbox_queues()])

    def _wait_for_tasks(self, names: Sequence[str]) -> bool:
        return self.broker.wait_ready(names, wait_seconds=WAIT_SECONDS)

    def _wait_for_letters(self, names: Sequence[str]) -> bool:
        return self.mailboxes.wait(names, wait_seconds=WAIT_SECONDS)

    def _stop_waiting(self) -> None:
        for waiter in (self._task_waiter, self._mail_waiter):
            if waiter is not None:
                waiter.stop()
        self._task_waiter = self._mail_waiter = None
        thread, self._fetch_thread = self._fetch_thread, None
        if thread is not None:
            thread.stop(wait_seconds=STOP_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop, self._loop = self._loop, None
        if loop is not None:
            self.broker.loop_ended()
        wake, self._wake = self._wake, None
        self._is_kicked = False
        if wake is not None:
            with suppress(Exception):  # the loop may be closed already
                loop.remove_reader(wake[0].fileno())
            for end in wake:
                end.close()

    # -- without an event loop --------------------------------------------------------------------------------------

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:  # noqa: ARG002 - kombu's signature
        """Deliver one message, within prefetch counts; wait for it up to `timeout`. Raises `TimeoutError`.

        kombu counts calls where it waits for a number of messages. The next calls deliver what was fetched with it.
        """
        clock = self.broker.clock
        ends_at = None if timeout is None else clock.monotonic() + timeout
        while not self._deliver_next():
            if self._later:
                continue
            left = None if ends_at is None else ends_at - clock.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._pause(left)

    def _deliver_next(self) -> bool:
        """Deliver a message, of those that were fetched if there are any; return whether there was one."""
        if not self._fetched:
            self._fetched.extend(self._due(self._fetcher.fetch(self._rooms(), is_mail_due=True)))
        while self._fetched:
            if self._deliver(*self._fetched.popleft()):
                return True
        return False

    def give_back_fetched(self, channel: RoundChannel, queue: str) -> None:
        """Give back what was fetched of a queue whose consumer on this channel has ended."""
        fetched = self._take_fetched()
        of_channel = [one for one in fetched if one[0] is channel and one[1].queue == queue]
        self._fetched.extend(one for one in fetched if one[0] is not channel or one[1].queue != queue)
        if of_channel:
            give_back(of_channel)
            self.kick()

    def _take_fetched(self) -> list[Addressed]:
        fetched = list(self._fetched)
        self._fetched.clear()
        return fetched

    def _pause(self, left: float | None) -> None:
        """Wait for a message or for room; without a server, look for tasks now and then.

        Raises `TimeoutError` when this worker was told to stop.
        """
        mail = [queue for channel in self.channels for queue in channel.mailbox_queues()]
        has_tasks = any(channel.task_queues() for channel in self.channels)
        if has_tasks and self.broker.is_served:
            self._wait_for_wake(WAIT_SECONDS if left is None else min(WAIT_SECONDS, left))
            return
        pause = self.options.polling_seconds if has_tasks else WAIT_SECONDS
        pause = pause if left is None else min(pause, left)
        if mail:
            self.mailboxes.wait(mail, wait_seconds=pause)
        else:
            self.broker.pause(pause if has_tasks else self.options.polling_seconds)

    def _wait_for_wake(self, seconds: float) -> None:
        """Have threads wait for tasks and messages, which other threads' acknowledgements may make room for.

        Celery without an event loop acknowledges between two calls of `drain_events`: a task's begin or end is followed
        by one at once, and by another soon, as it may come first.
        """
        ends_at = self.broker.clock.monotonic() + seconds
        if self._task_waiter is None:
            self._start_waiters()
            self._is_in_worker = celery_state.call_around_tasks(self._on_task)
        self._is_pausing = True
        try:
            self._arm(is_idle=True)
            while not self.broker.keeper.has_endings():
                left = ends_at - self.broker.clock.monotonic()
                if left <= 0:
                    break
                is_woken = self._woken.wait(min(left, SOON_SECONDS if self._cycles_due else LOOK_SECONDS))
                if self._cycles_due:
                    self._cycles_due -= 1
                    raise TimeoutError
                if celery_state.is_stopping():
                    raise TimeoutError
                if is_woken:
                    break
        finally:
            self._is_pausing = False
            self._woken.clear()

    def _on_task(self, **_: object) -> None:
        self._cycles_due = 2
        self._woken.set()

    def warn_of_arguments(self, queue: str, ignored: Sequence[str]) -> None:
        """Log, once, that arguments of a queue have no effect."""
        warned = self.broker.warned_queues
        if queue not in warned and len(warned) < MAX_WARNED_QUEUES:
            warned.add(queue)
            _log.warning(events.ARGUMENTS_IGNORED, queue=queue, arguments=", ".join(ignored))

    # -- deliveries -------------------------------------------------------------------------------------------------

    def _deliver_all(self, deliveries: Sequence[Addressed]) -> None:
        """Deliver messages; what is left when a consumer fails goes back."""
        left = list(deliveries)
        try:
            while left:
                self._deliver(*left.pop(0))
        finally:
            give_back(left)

    def _deliver(self, channel: RoundChannel, delivery: Delivery) -> bool:
        """Deliver a message, or give it back where nobody takes it."""
        callback = self._callbacks.get(delivery.queue)
        if callback is None or not channel.takes(delivery):
            channel.give_back(delivery)
            return False
        if delivery.leased_at and not delivery.is_counted:  # nobody will acknowledge it
            channel.end_lease(delivery.tag, None)
            self.kick()
        callback(delivery.message)
        return True

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
