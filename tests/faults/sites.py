"""The stores under fault: the engine that is killed and started again, and the wire to it that is cut."""

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
"""What the checker grants to a caller's estimate of an engine's clock. Half of the best round trip is what it should
be off, a fraction of a millisecond here, but for the first calls of a process that was not given the processor."""
UNTOUCHED_LOG = {"auto-aof-rewrite-percentage": "0"}
"""Redis 7.0 that is killed while it begins another file of its log may refuse to start again ("the truncated file is
not the last file"), which ends the search for faults of ours: once in some 200 kills when the log had reached 40 MB."""


@dataclass(frozen=True, slots=True)
class FaultStore:
    """One new, empty store: its URL, and the one that leads over the wire (the same where there is none)."""

    url: str
    wired_url: str


@dataclass(frozen=True, slots=True)
class FaultSite:
    """Where new stores are made. SQLite has no engine, no wire, and this host's own clock."""

    name: StoreName
    home: Path
    engine: Engine | None = None
    wire: CuttingTcpProxy | None = None

    @property
    def clock_error(self) -> int:
        """Microseconds; see `Contents.clock_error`."""
        return 0 if self.engine is None else CLOCK_ERROR_MICROSECONDS

    def new_place(self, number: int) -> FaultStore:
        """The `number`-th store, from 1."""
        if self.engine is None or self.wire is None:
            url = f"sqlite:///{self.home / f'queue-{number}.db'}"
            return FaultStore(url, url)
        url = new_database(self.engine, number)
        return FaultStore(url, url.replace(f":{self.engine.port}/", f":{self.wire.port}/"))


@contextmanager
def a_site(name: StoreName, *, choose: Callable[[], TcpFate] = lambda: "pass") -> Iterator[FaultSite]:
    """A durable engine of its own, with its data in memory where there is room: SIGKILL does not lose what was written.

    Raises `EngineUnavailableError` where it can't be had.
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
        wire = stack.enter_context(a_tcp_proxy(engine.host, engine.port, choose=choose))
        yield FaultSite(name, home, engine, wire)
