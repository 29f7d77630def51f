"""AppQueues: the queues that an app's functions are added to, opened at the first add, once per process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from queue_core.errors import PermissionDeniedError
from queue_core.process.forking import renew_after_forks
from queue_core.task import QueueSpec

if TYPE_CHECKING:
    from queue_core.client.queue import Queue, Queues
    from queue_core.worker.context import Task


class AppQueues:
    """The queues of an app: those of its settings file, store or server; in a worker or a test, those bound to it.

    Thread-safe. After a fork a child uses connections of its own, as clients and stores renew themselves (ADR 29).
    """

    def __init__(self, place: "str | Path | None") -> None:
        """`place`: see `App`. Raises `AppError` for a text that is neither a URL nor a settings file."""
        self._place = place
        if place is not None:
            from queue_core.worker.functions.target import checked_place

            self._place = checked_place(place)
        self._lock = RLock()
        self._opened: Queues | None = None
        self._direct: Queues | None = None
        self._bound: Queues | None = None
        self._specs: dict[str, QueueSpec] = {}
        self._known: dict[tuple[int, str], tuple[Queues, Queue]] = {}
        self._values: dict[str, object] | None = None
        renew_after_forks(self)

    def queue(self, name: str, *, joins_transaction: bool = False) -> "Queue":
        """Return a queue, created with the file's settings, else default ones, if it doesn't exist.

        joins_transaction: prefer the store itself to its server, which can't join a transaction.
        """
        with self._lock:
            queues = self._queues(joins_transaction=joins_transaction)
            known = self._known.get((id(queues), name))
            if known is None or known[0] is not queues:
                self._create_missing(queues, name)
                known = self._known[id(queues), name] = (queues, queues.queue(name))
            return known[1]

    @contextmanager
    def bound_to(self, queues: "Queues", *, values: dict[str, object] | None = None) -> Iterator[None]:
        """Add to these queues within the block; `values` collects what functions return, by lease token."""
        with self._lock:
            before = self._bound, self._values
            self._bound, self._values = queues, values
        try:
            yield
        finally:
            with self._lock:
                self._bound, self._values = before
                self._known.clear()

    def keep_value(self, task: "Task", value: object) -> None:
        """Keep a function's value for a test."""
        if self._values is not None:
            self._values[task.lease.token] = value

    def close(self) -> None:
        """Close the connections; the next add opens new ones."""
        with self._lock:
            opened = [queues for queues in (self._opened, self._direct) if queues is not None]
            self._opened = self._direct = None
            self._known.clear()
        for queues in opened:
            queues.close()

    def renew_after_fork(self) -> None:
        """See `Renewable`."""
        self._lock = RLock()

    def _queues(self, *, joins_transaction: bool) -> "Queues":
        queues = self._bound or self._opened_place()
        if not joins_transaction:
            return queues
        from queue_core.client.local_calls import LocalQueues

        return queues if isinstance(queues, LocalQueues) else self._opened_store() or queues

    def _opened_place(self) -> "Queues":
        if self._opened is None:
            from queue_core.client.connect import open_queues
            from queue_core.worker.functions.target import find_app_target

            target = find_app_target(self._place)
            self._opened = open_queues(target.url, token=target.token, durability=target.durability)
            self._specs = {spec.name: spec for spec in target.specs}
        return self._opened

    def _opened_store(self) -> "Queues | None":
        """Return the store of a settings file whose server the app uses; None: there is no other way to the tasks."""
        if self._direct is None:
            from queue_core.client.connect import open_queues
            from queue_core.worker.functions.target import store_target

            target = store_target(self._place)
            if target is None:
                return None
            self._direct = open_queues(target.url, durability=target.durability)
        return self._direct

    def _create_missing(self, queues: "Queues", name: str) -> None:
        try:
            if name not in {spec.name for spec in queues.queues()}:
                queues.put_queue(self._specs.get(name) or QueueSpec(name))
        except PermissionDeniedError:
            return  # a producer's token: the server has the queue, or the add says that it has not
