"""Opened queues of a process, by URL: Django makes a backend for each thread, and these share one client."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Final, Literal

from queue_core.client.connect import open_queues
from queue_core.client.queue import Queues
from queue_core.config.store_urls import masked
from queue_core.errors import InvalidSettingError
from queue_core.limits import MAX_LEASES
from queue_core.task import QueueSpec

OPTIONS: Final = ("url", "token", "durability", "database", "modules", "max_leases")
CREATED_MAX_LEASES: Final = 5
"""Leases of a task in a queue that the backend created: Django's users expect a task that fails to end as failed."""


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The `OPTIONS` of a backend.

    Args:
        url: the store's or the server's.
        token: the bearer token of a server that requires one.
        database: the alias of the Django database whose transactions adds belong to.
        modules: packages beside those of `INSTALLED_APPS` and of the settings whose tasks may be run.
        max_leases: the limit of each task that is added; None: the queue's.
    """

    url: str
    token: str | None = None
    durability: Literal["strict", "relaxed"] = "strict"
    database: str = "default"
    modules: tuple[str, ...] = ()
    max_leases: int | None = None


def options_of(alias: str, given: Mapping[str, object]) -> BackendOptions:
    """Read the options of a backend. Raises `InvalidSettingError` that names the first that is wrong."""
    place = f"TASKS[{alias!r}]['OPTIONS']"
    unknown = sorted(given.keys() - set(OPTIONS))
    if unknown:
        raise InvalidSettingError(f"{place} has an unknown option {unknown[0]!r}; it may have: {', '.join(OPTIONS)}")
    url, token, database = given.get("url"), given.get("token"), given.get("database", "default")
    if not isinstance(url, str) or not url:
        raise InvalidSettingError(f"{place} needs a 'url', such as http://127.0.0.1:7878 or postgresql:///towline")
    if token is not None and not isinstance(token, str):
        raise InvalidSettingError(f"{place}['token'] must be text: {type(token).__name__} given")
    if not isinstance(database, str):
        raise InvalidSettingError(f"{place}['database'] must be the alias of a database: {database!r}")
    durability = given.get("durability", "strict")
    if durability not in ("strict", "relaxed"):
        raise InvalidSettingError(f"{place}['durability'] must be 'strict' or 'relaxed': {durability!r}")
    modules = given.get("modules", ())
    if not isinstance(modules, list | tuple) or not all(isinstance(module, str) for module in modules):
        raise InvalidSettingError(f"{place}['modules'] must be a list of packages, such as ['shop']: {modules!r}")
    most = given.get("max_leases")
    if most is not None and not (isinstance(most, int) and 1 <= most <= MAX_LEASES):
        raise InvalidSettingError(f"{place}['max_leases'] must be in [1, {MAX_LEASES}]: {most!r}")
    return BackendOptions(
        url, token, "relaxed" if durability == "relaxed" else "strict", database, tuple(modules), most
    )


class OpenedQueues:
    """Clients by URL and token, opened when they are first used, and the queues known to be there. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._opened: dict[tuple[str, str | None], Queues] = {}
        self._known: set[tuple[str, str]] = set()
        self.instead: Queues | None = None

    def queues(self, options: BackendOptions) -> Queues:
        """Return the queues of a backend."""
        if self.instead is not None:
            return self.instead
        with self._lock:
            key = (options.url, options.token)
            if key not in self._opened:
                self._opened[key] = open_queues(options.url, token=options.token, durability=options.durability)
            return self._opened[key]

    def spec(self, options: BackendOptions, name: str) -> QueueSpec:
        """Return the settings of a queue as they are now; it is created if it is not there."""
        return next(spec for spec in self.ensure(options, name).queues() if spec.name == name)

    def ensure(self, options: BackendOptions, name: str) -> Queues:
        """Return the queues of a backend; create the one called `name` if it is not there."""
        queues = self.queues(options)
        if self.instead is None and (options.url, name) in self._known:
            return queues
        if name not in {spec.name for spec in queues.queues()}:
            # Names are drawn at random here, so a deleted one needs no memory.
            queues.put_queue(QueueSpec(name, max_leases=CREATED_MAX_LEASES, name_retention_seconds=0))
        if self.instead is None:
            self._known.add((options.url, name))
        return queues

    def __repr__(self) -> str:
        return f"OpenedQueues({', '.join(masked(url) for url, _ in self._opened)})"


OPENED: Final = OpenedQueues()


@contextmanager
def use_queues(queues: Queues) -> Iterator[Queues]:
    """Have all backends of this process use these queues in place of their URLs': for tests."""
    before, OPENED.instead = OPENED.instead, queues
    try:
        yield queues
    finally:
        OPENED.instead = before
