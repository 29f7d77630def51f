"""Mailboxes as two programs of one broker use them: through servers, or with the store opened by each."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from queue_core.celery.transport.mailbox_access import MailboxAccess, ServedMailboxes
from queue_core.celery.transport.opened import OpenedBroker
from queue_core.client.http.caller import HttpCaller, Retries
from queue_core.server.base.options import ServeOptions
from queue_core.server.server import ServerThread
from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.memory.store import MemoryStore
from tests.support.stores.stores import new_store_url

Layout = Literal[
    "one server", "servers on postgresql", "servers on redis", "postgresql", "redis", "sqlite", "a server and sqlite"
]
LAYOUTS: tuple[Layout, ...] = (
    "one server",
    "servers on postgresql",
    "servers on redis",
    "postgresql",
    "redis",
    "sqlite",
    "a server and sqlite",
)

RETRIES = Retries(tries=2, first_pause_seconds=0.05, longest_pause_seconds=0.2, timeouts=1)


class TwoPrograms:
    """Two programs; each may have several namespaces."""

    def __init__(self, first: "HttpCaller | OpenedBroker", second: "HttpCaller | OpenedBroker") -> None:
        self._both = (first, second)

    def mailboxes(self, namespace: str) -> tuple[MailboxAccess, MailboxAccess]:
        first, second = (
            ServedMailboxes(one, namespace) if isinstance(one, HttpCaller) else one.mailboxes(namespace)
            for one in self._both
        )
        return first, second


@contextmanager
def two_programs(layout: Layout, folder: Path) -> Iterator[TwoPrograms]:
    """Run what the layout needs; skip, by name, where its engine is absent."""
    with ExitStack() as stack:
        if layout == "one server":
            url = _a_server(stack, MemoryStore())
            yield TwoPrograms(_a_caller(stack, url), _a_caller(stack, url))
        elif layout == "a server and sqlite":
            store = f"sqlite:///{folder}/towline.db"
            url = _a_server(stack, open_store(store))
            yield TwoPrograms(_a_caller(stack, url), _a_store(stack, store))
        elif layout == "servers on postgresql" or layout == "servers on redis":
            store = new_store_url("postgresql" if layout.endswith("sql") else "redis")
            servers = [_a_server(stack, open_store(store)) for _ in range(2)]
            yield TwoPrograms(*(_a_caller(stack, server) for server in servers))
        else:
            store = f"sqlite:///{folder}/towline.db" if layout == "sqlite" else new_store_url(layout)
            yield TwoPrograms(_a_store(stack, store), _a_store(stack, store))


def _a_server(stack: ExitStack, store: Store) -> str:
    stack.callback(store.close)
    thread = ServerThread(store, ServeOptions(port=0))
    stack.callback(thread.stop)
    return thread.start()


def _a_caller(stack: ExitStack, url: str) -> HttpCaller:
    caller = HttpCaller(url, token=None, retries=RETRIES, timeout_seconds=10.0)
    stack.callback(caller.close)
    return caller


def _a_store(stack: ExitStack, url: str) -> OpenedBroker:
    opened = OpenedBroker(url, durability="strict")
    stack.callback(opened.queues.close)
    stack.callback(opened.close)
    return opened
