"""A broker as this process sees it: the queues of a store or server, its mailboxes, and the leases held there.

One for all connections to it, as a lease outlives the connection that it came by.
"""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event, Lock

from queue_core.celery.transport import begun_requests, celery_state
from queue_core.celery.transport.address import BrokerAddress
from queue_core.celery.transport.keeper import LeaseKeeper
from queue_core.celery.transport.mailbox_access import MailboxAccess, ServedMailboxes
from queue_core.celery.transport.opened import OpenedBroker
from queue_core.celery.transport.options import TransportOptions
from queue_core.celery.transport.prefetched_etas import PrefetchedEtas
from queue_core.celery.transport.publication import LeftPublications, Publication, PublishSessions, client_call
from queue_core.celery.transport.seen_letters import SeenLetters
from queue_core.client.connect import SERVER_SCHEMES
from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.client.queue import Queue, Queues
from queue_core.clock import Clock, SystemClock
from queue_core.errors import InvalidRequestError, OutcomeUnknownError, QueueError, UnknownQueueError
from queue_core.limits import MAX_ETA_SECONDS, MAX_WORKER_CHARACTERS
from queue_core.process import forking
from queue_core.task import ANY, NewTask, QueueSpec

TIMEOUT_SECONDS = 5.0
"""How long a reply of a server may take: Celery's main loop waits for it."""
RETRIES = Retries(tries=2, first_pause_seconds=0.05, longest_pause_seconds=0.2, timeouts=1)
WORKER_VARIABLE = "TOWLINE_WORKER"
_ALL = ""
"""Stands for all queues of a message, in one call."""


class KombuBroker:
    """One broker of this process. Thread-safe, and usable in the children of forks."""

    def __init__(self, address: BrokerAddress, options: TransportOptions, *, clock: Clock | None = None) -> None:
        self._opened: OpenedBroker | None = None
        self._served: HttpQueues | None = None
        self._caller: HttpCaller | None = None
        if address.url.startswith(SERVER_SCHEMES):
            self._served = HttpQueues(
                address.url, token=address.token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS
            )
            self.queues: Queues = self._served
            self._caller = HttpCaller(
                address.url, token=address.token, retries=RETRIES, timeout_seconds=TIMEOUT_SECONDS
            )
        else:
            self._opened = OpenedBroker(address.url, durability=options.durability)
            self.queues = self._opened.queues
        self.clock = clock or SystemClock()
        self._kept = celery_state.KeptTasks()
        self.keeper = LeaseKeeper(
            self.queues, running=self._awaited, end_lost=begun_requests.end_lost, clock=self.clock
        )
        self.prefetched_etas = PrefetchedEtas()
        """Those that this process has published."""
        self.warned_queues: set[str] = set()
        """Queues of which it was logged that some of their arguments have no effect."""
        self._sessions = PublishSessions()
        self.left = LeftPublications()
        self.seen = SeenLetters()
        self._pausing = Event()
        self._known: dict[str, QueueSpec] = {}
        self._mailbox_names: dict[str, set[str]] = {}
        forking.renew_after_forks(self)

    @property
    def is_served(self) -> bool:
        """Return whether it is a server's, and not a store that this process opened."""
        return self._caller is not None

    def renew_after_fork(self) -> None:
        """Replace the locks of threads that the child of a fork does not have."""
        self._pausing = Event()
        self._kept = celery_state.KeptTasks()
        if self._opened is not None:
            self._opened.renew_after_fork()

    def keep_lease(self, token: str) -> None:
        """Go on renewing the lease of a running task, as the connection that it came by is gone."""
        self._kept.keep(token)
        self.keeper.keep(token)

    def loop_began(self) -> None:
        """Have Celery's pool tell the ends of tasks that ran on while there was no connection."""
        self._kept.loop_began(self.keeper.held())

    def loop_ended(self) -> None:
        """Expect Celery's pool to forget its jobs, if the connection was lost."""
        self._kept.loop_ended()

    def _awaited(self) -> frozenset[str]:
        return self._kept.awaited()

    def mailboxes(self, namespace: str) -> MailboxAccess:
        """Return the mailboxes of a namespace."""
        if self._opened is not None:
            return self._opened.mailboxes(namespace)
        assert self._caller is not None, "a broker is a server or a store"
        return ServedMailboxes(self._caller, namespace)

    def mailbox_names(self, namespace: str) -> set[str]:
        """Return the names of queues that this process declared as mailboxes; whoever declares one adds it."""
        return self._mailbox_names.setdefault(namespace, set())

    def pause(self, seconds: float) -> None:
        """Do nothing for a while."""
        self._pausing.wait(seconds)

    def is_known(self, name: str) -> bool:
        """Return whether the store had a queue of this name when it was last asked."""
        return name in self._known

    def queue(self, name: str) -> Queue:
        """Return a queue by its name in the store."""
        return self.queues.queue(name)

    def refresh(self) -> None:
        """Read the queues. Raises `StoreUnavailableError` when the broker can't be reached."""
        self._known = {spec.name: spec for spec in self.queues.queues()}

    def has_queue(self, name: str) -> bool:
        """Return whether the store has a queue of this name."""
        if name not in self._known:
            self.refresh()
        return name in self._known

    def create_queue(self, spec: QueueSpec) -> None:
        """Create a queue unless there is one: its settings are its operator's."""
        if not self.has_queue(spec.name):
            self.queues.put_queue(spec)
            self._known[spec.name] = spec

    def max_eta_seconds(self, names: Sequence[str]) -> float:
        """Return how far ahead an eta may be that all of these queues take, as far as known."""
        known = [self._known[name].max_eta_seconds for name in names if name in self._known]
        return min(known) if len(known) == len(names) and known else MAX_ETA_SECONDS

    def add(
        self, names: Sequence[str], task: NewTask, *, publication: Publication, create: Callable[[str], QueueSpec]
    ) -> None:
        """Add a task to each of these queues; to all of them or none, but for queues on different nodes of a cluster
        and servers of earlier versions.

        Args:
            publication: the one that is done by this; after a `StoreUnavailableError` it can be done again.
            create: returns the settings of a queue that was deleted since it was declared, which is created again.
        """
        try:
            self._add(names, task, publication)
        except UnknownQueueError:
            self.refresh()
            for name in names:
                self.create_queue(create(name))
            self._add(names, task, publication)

    def add_many(self, name: str, tasks: Sequence[NewTask], *, create: Callable[[str], QueueSpec]) -> None:
        """Add tasks to a queue by one call: all of them or none. See `add`."""
        publication = Publication()
        try:
            self._add_to(name, list(tasks), publication, key=name)
        except UnknownQueueError:
            self.refresh()
            self.create_queue(create(name))
            self._add_to(name, list(tasks), publication, key=name)

    def _add(self, names: Sequence[str], task: NewTask, publication: Publication) -> None:
        if len(names) > 1 and not publication.done:
            try:
                self._add_to(names[0], [replace(task, queue=name) for name in names], publication, key=_ALL)
            except InvalidRequestError as error:
                if type(error) is not InvalidRequestError:  # the task itself is refused, as too large
                    raise
            else:
                return
        for name in names:
            if name not in publication.done:
                self._add_to(name, [task], publication, key=name)

    def _add_to(self, name: str, tasks: list[NewTask], publication: Publication, *, key: str) -> None:
        """Make one call of a publication: with the number that it had before, if it may have been sent."""
        session = publication.calls.get(key) or self._sessions.begin()
        publication.calls[key] = session
        began_at = self.clock.monotonic()
        try:
            if self._served is not None:
                self._served.queue_for(name, session).add(tasks)
            elif self._opened is not None:
                self._opened.add(name, tasks, client_call(session, name, tasks, now=began_at))
        except OutcomeUnknownError:
            if session.sent_at is None:
                session.sent_at = began_at
            raise
        except QueueError:
            if session.sent_at is None:
                del publication.calls[key]
                self._sessions.end(session)
            raise
        publication.done.add(key)
        del publication.calls[key]
        self._sessions.end(session)

    def forget(self, name: str) -> None:
        """Ask the store again whether it has this queue."""
        self._known.pop(name, None)

    def close(self) -> None:
        """Close the connections to the store or server."""
        self.keeper.stop()
        if self._opened is not None:
            self._opened.close()
        self.queues.close()
        if self._caller is not None:
            self._caller.close()

    def wait_ready(self, names: Sequence[str], *, wait_seconds: float) -> bool:
        """Wait until a task of one of these queues may be leased; False when the time is up."""
        try:
            if self._opened is not None:
                return self._opened.wait_ready(names, wait_seconds=wait_seconds)
            wanted = [(name, ANY) for name in names]
            return self.queues.wait_ready(wanted, wait_seconds=wait_seconds) is not None
        except UnknownQueueError:
            self.refresh()
            self._pausing.wait(1.0)
        return False


_brokers: dict[tuple[str, str | None, str], KombuBroker] = {}
_opening = Lock()


def broker_of(address: BrokerAddress, options: TransportOptions) -> KombuBroker:
    """Return this process's broker at an address; opened once, and open until the process ends."""
    key = (address.url, address.token, options.durability)
    with _opening:
        if key not in _brokers:
            _brokers[key] = KombuBroker(address, options)
        return _brokers[key]


def close_brokers() -> None:
    """Close all brokers of this process, whose connections are closed: for tests, and programs that go on without."""
    with _opening:
        while _brokers:
            _brokers.popitem()[1].close()


def worker_name(options: TransportOptions) -> str:
    """Return the name that this process holds leases by: a supervisor's, or one that tells host and process."""
    name = options.worker or os.environ.get(WORKER_VARIABLE) or f"kombu-{socket.gethostname()}-{os.getpid()}"
    return name[:MAX_WORKER_CHARACTERS]
