"""Stores under fault: an engine that is killed and restarted, and a proxy that cuts its connections."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tests.support.cutting_proxy import CuttingTcpProxy, TcpFate, a_tcp_proxy
from tests.support.stores import engines
from tests.support.stores.engines import Engine
from tests.support.stores.shared_engines import new_database

StoreName = Literal["sqlite", "postgresql", "redis"]
STORES: tuple[StoreName, ...] = get_args(StoreName)
CLOCK_ERROR_MICROSECONDS = 50_000
"""The error the checker allows for a caller's estimate of an engine's clock. Half of the best round trip would do (a
fraction of a millisecond here), except for a process's first calls without a free core.
"""
UNTOUCHED_LOG = {"auto-aof-rewrite-percentage": "0"}
"""A log size that prevents rewrites: Redis 7.0 killed while it begins another log file may refuse to start ("the
truncated file is not the last file"), about once in 200 kills at 40 MB, which would end the search for our own faults.
"""


@dataclass(frozen=True, slots=True)
class FaultStore:
    """One new, empty store: its URL, and the URL through the proxy (the same without one)."""

    url: str
    proxied_url: str


@dataclass(frozen=True, slots=True)
class FaultSite:
    """Makes new stores. SQLite has no engine, no proxy, and this host's clock."""

    name: StoreName
    home: Path
    engine: Engine | None = None
    proxy: CuttingTcpProxy | None = None

    @property
    def clock_error(self) -> int:
        """Microseconds; see `Contents.clock_error`."""
        return 0 if self.engine is None else CLOCK_ERROR_MICROSECONDS

    def new_place(self, number: int) -> FaultStore:
        """Return the `number`-th store, from 1."""
        if self.engine is None or self.proxy is None:
            url = f"sqlite:///{self.home / f'queue-{number}.db'}"
            return FaultStore(url, url)
        url = new_database(self.engine, number)
        return FaultStore(url, url.replace(f":{self.engine.port}/", f":{self.proxy.port}/"))


@contextmanager
def a_site(name: StoreName, *, choose: Callable[[], TcpFate] = lambda: "pass") -> Iterator[FaultSite]:
    """Run a private durable engine, with data in memory where there is room: SIGKILL does not lose written data.

    Raises `EngineUnavailableError`.
    """
    with ExitStack() as stack:
        home = stack.enter_context(engines.memory_home("towline-faults-"))
        if name == "sqlite":
            yield FaultSite(name, home)
            return
        if name == "postgresql":
            engine = stack.enter_context(engines.postgresql(home))
        else:
            engine = stack.enter_context(engines.redis(home, durable=True, settings=UNTOUCHED_LOG))
        proxy = stack.enter_context(a_tcp_proxy(engine.host, engine.port, choose=choose))
        yield FaultSite(name, home, engine, proxy)
