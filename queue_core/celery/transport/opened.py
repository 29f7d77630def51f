"""A broker without a server: the store opened here, its mailboxes, and waits for its tasks."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from threading import Event, Thread
from typing import Literal

from queue_core.celery.mailboxes.network import MailboxNetwork
from queue_core.celery.transport.mailbox_access import OwnMailboxes
from queue_core.client.local_calls import ETA_SECONDS, LocalQueues
from queue_core.clock import seconds_between
from queue_core.store import Broadcaster, MessageBus, Store, Subscription
from queue_core.stores import open_store
from queue_core.task import ANY, NewTask
from queue_core.telemetry import instrumentation
from queue_core.unit.service import QueueService
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs import Added, ClientCall

RECHECK_SECONDS = 5.0
"""Longest wait without a look: a wake-up is lost when the waiter that received it was killed."""


class OpenedBroker:
    """A store that this process opened. Thread-safe."""

    def __init__(self, url: str, *, durability: Literal["strict", "relaxed"]) -> None:
        self._store = open_store(url, durability=durability)
        self._service = QueueService(self._store)
        self.queues = LocalQueues(self._service)
        self._network = MailboxNetwork(_bus_of(self._store), self._store.clock)

    def mailboxes(self, namespace: str) -> OwnMailboxes:
        """Return the mailboxes of a namespace."""
        return OwnMailboxes(self._network, namespace, clock=self._store.clock)

    def add(self, name: str, tasks: list[NewTask], call: ClientCall) -> list[Added]:
        """Add tasks to a queue; once, however often this call is repeated."""
        if instrumentation.active is not None:
            return instrumentation.active.add(name, tasks, lambda given: self._add(name, given, call))
        return self._add(name, tasks, call)

    def _add(self, name: str, tasks: list[NewTask], call: ClientCall) -> list[Added]:
        tries = count()

        def add(work: UnitOfWork) -> list[Added]:  # run again where it did not take effect
            return work.add(name, tasks, call=replace(call, is_repeat=call.is_repeat or next(tries) > 0))

        return self._service.run(add, unit="verb")

    def renew_after_fork(self) -> None:
        """Begin anew in the child of a fork; the store has done so before, as it is older."""
        self._network.renew_after_fork(_bus_of(self._store))

    def close(self) -> None:
        """Leave the other processes; the store is closed with its queues."""
        self._network.close()

    def wait_ready(self, names: Sequence[str], *, wait_seconds: float) -> bool:
        """Wait until a task of one of these queues may be leased; False when the time is up.

        For callers that lease what they are woken for: a wake-up that comes here goes to no other worker. Raises
        `UnknownQueueError`.
        """
        monotonic = self._service.clock.monotonic
        ends_at = monotonic() + wait_seconds
        woken = Event()
        with ExitStack() as stack:
            subscriptions = [self._store.signals.subscribe(name, ANY) for name in names]
            for subscription in subscriptions:
                stack.callback(subscription.close)
            for subscription in subscriptions:
                stack.enter_context(_Waiting(subscription, woken, wait_seconds))
            while True:
                seconds = min(self._seconds_to_ready(name) for name in names)
                left = ends_at - monotonic()
                if seconds <= 0 or left <= 0:
                    return seconds <= 0 or woken.is_set()
                if woken.wait(min(left, seconds, ETA_SECONDS)):
                    return True

    def _seconds_to_ready(self, name: str) -> float:
        """Return the seconds until time makes a task leasable; 0: one is; 5 at most."""
        ready, next_eta, now = self._service.read(
            lambda work: (
                work.transaction.stats(name, ANY, now=work.now).ready,
                work.transaction.next_eta(name, now=work.now),
                work.now,
            )
        )
        if ready:
            return 0.0
        if next_eta is None:
            return RECHECK_SECONDS
        return min(RECHECK_SECONDS, max(0.0, seconds_between(now, next_eta)))


class _Waiting:
    """A thread that waits with one of several subscriptions, for the length of a block."""

    def __init__(self, subscription: Subscription, woken: Event, seconds: float) -> None:
        self._subscription = subscription
        self._woken = woken
        self._seconds = seconds
        self._thread = Thread(target=self._wait, name="towline-wake-up", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._subscription.wake()
        self._thread.join()

    def _wait(self) -> None:
        if self._subscription.wait(timeout_seconds=self._seconds):
            self._woken.set()


def _bus_of(store: Store) -> MessageBus | None:
    return store.bus() if isinstance(store, Broadcaster) else None
