"""All faults at once on one store: callers, servers and the engine are killed and restarted, connections are cut.

Callers use the store itself, the store through a proxy that cuts connections, and two servers through such proxies. In
every round some processes have a wall clock that is an hour off.
"""

import itertools
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random

from queue_core.client.local_calls import LocalQueues
from queue_core.errors import StoreError
from queue_core.store import Store
from queue_core.stores import Durability, open_store
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.faults.checker import Violation
from tests.faults.children import Nursery
from tests.faults.history import FileHistory, HistoryCall, read_histories
from tests.faults.outcome import Deadline, FaultBudget, FaultTally
from tests.faults.recorded import release_worker
from tests.faults.reopening import open_and_check
from tests.faults.sites import FaultSite, FaultStore, StoreName, a_site
from tests.faults.store_children import call_until_killed, last_line_of_traceback, serve_until_killed
from tests.faults.workload import LIMITED_QUEUES, QUEUES, create_queues
from tests.support.cutting_proxy import CuttingTcpProxy, TcpFate, a_tcp_proxy
from tests.support.eventually import eventually
from tests.support.stores.engines import EngineUnavailableError, free_port

ROUND_SECONDS = 20.0
SERVERS = 2
CALLERS = (
    ("producer", "store"),
    ("worker", "store"),
    ("worker", "store"),
    ("worker", "proxy"),
    ("worker", "proxy"),
    ("worker", "server"),
    ("worker", "server"),
    ("producer", "server"),
)
MEAN_SECONDS = {"caller": 0.6, "server": 4.0, "sever": 2.0, "engine": 4.0, "freeze": 8.0}
"""Mean seconds between two faults of a kind. A frozen engine is stopped for up to half a second."""
LONGEST_FREEZE_SECONDS = 0.5
CUT_SHARE = 1 / 150
SKEW_SECONDS = 3600.0
START_SECONDS = 60.0
STORE_MODULES = {"sqlite": "sqlite.store", "postgresql": "postgres.store", "redis": "redis.store"}


def kills_on(
    store: StoreName,
    budget: FaultBudget,
    folder: Path,
    *,
    round_seconds: float = ROUND_SECONDS,
    durability: Durability = "strict",
    limited: bool = False,
) -> FaultTally:
    """Run rounds on a new store each, checked when all processes are dead and the engine is back.

    The first round with a violation is the last, and keeps its histories.

    Args:
        round_seconds: how long faults go on in a round, from the first call on.
        durability: `relaxed` proves that this test finds what a killed engine loses.
        limited: queues and tags have limits.
    """
    tally = FaultTally(f"limits-{store}" if limited else store)
    random = Random(f"{budget.seed}/{store}")
    deadline = budget.started()
    try:
        with a_site(store, choose=partial(_a_fate, random)) as site:
            nursery = Nursery(__name__, f"queue_core.stores.{STORE_MODULES[store]}")
            for number in itertools.count(1):
                home = folder / f"round-{number}"
                home.mkdir()
                seeded = Random(f"{budget.seed}/{store}/{number}")
                specs = LIMITED_QUEUES[number % len(LIMITED_QUEUES)] if limited else QUEUES
                a_round = _Round(site, home, nursery, seeded, tally, number, durability, specs)
                a_round.run(min(round_seconds, deadline.left_seconds))
                if not tally.violations:
                    shutil.rmtree(home)
                is_enough = budget.operations is not None and tally.operations >= budget.operations
                if deadline.is_over or is_enough or tally.violations:
                    break
    except EngineUnavailableError as error:
        tally.skipped = str(error)
    return tally


def _a_fate(random: Random) -> TcpFate:
    drawn = random.random()
    return "drop" if drawn < CUT_SHARE / 2 else "lose answer" if drawn < CUT_SHARE else "pass"


@dataclass(slots=True)
class _Child:
    process: ForkServerProcess
    name: str
    role: str
    reach: str


@dataclass(slots=True)
class _Server:
    port: int
    proxy: CuttingTcpProxy
    process: ForkServerProcess | None = None


@dataclass(slots=True)
class _Round:
    site: FaultSite
    home: Path
    nursery: Nursery
    random: Random
    tally: FaultTally
    number: int
    durability: Durability
    specs: Sequence[QueueSpec]
    callers: list[_Child] = field(default_factory=list)
    servers: list[_Server] = field(default_factory=list)
    returns: list[int] = field(default_factory=list)
    disturbances: list[int] = field(default_factory=list)
    names: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def run(self, seconds: float) -> None:
        """Run the round, from an empty store to the verdict."""
        place = self.site.new_place(self.number)
        with ExitStack() as stack:
            cuts_before = self._cuts()
            queues = stack.enter_context(closing(LocalQueues(QueueService(self._open(place)))))
            create_queues(queues, self.specs)
            history = stack.enter_context(FileHistory(self.home / "supervisor.jsonl"))
            for _ in range(SERVERS):
                port = free_port()
                proxy = stack.enter_context(a_tcp_proxy("127.0.0.1", port, choose=partial(_a_fate, self.random)))
                self.servers.append(_Server(port, proxy))
            stack.callback(self._end_everybody)
            for index in range(SERVERS):
                self._serve(index, place)
            for role, reach in CALLERS:
                self._spawn(role, reach, place)
            eventually(lambda: any(path.stat().st_size for path in self.home.glob("*.jsonl")), seconds=START_SECONDS)
            self._disturb(Deadline(time.monotonic() + seconds), place, queues, history)
            self._end_everybody()
            self.tally.cuts += self._cuts() - cuts_before
        if self.site.engine is not None:
            self.site.engine.restart()  # no request of a dead caller is in flight any more
        calls = read_histories(self.home)
        self._count(calls)
        open_it = partial(self._open, place)
        where = f"round {self.number}"
        clock_error = self.site.clock_error
        found = open_and_check(open_it, calls, clock_error=clock_error, checked=self.tally.checked)
        self.tally.found(found, where)
        self.tally.reopenings += 1

    def _open(self, place: FaultStore) -> Store:
        return open_store(place.url, durability=self.durability)

    def _disturb(self, until: Deadline, place: FaultStore, queues: LocalQueues, history: FileHistory) -> None:
        """Inject one fault after another, each kind at its own rate."""
        calls = itertools.count(1)
        kinds = [kind for kind in MEAN_SECONDS if self.site.engine is not None or kind in ("caller", "server", "sever")]
        due = {kind: self._soon(kind) for kind in kinds}
        while not until.is_over and all(child.process.is_alive() for child in self.callers):
            kind = min(due, key=lambda one: due[one])
            time.sleep(max(0.0, min(due[kind] - time.monotonic(), until.left_seconds)))
            if until.left_seconds <= 0.0:
                return
            due[kind] = self._soon(kind)
            if kind == "caller":
                victim = self.random.choice(self.callers)
                self._end(victim)
                if self.random.random() < 0.5:
                    with suppress(StoreError):
                        release_worker(queues, victim.name, history=history, numbers=calls)
                self._spawn(victim.role, victim.reach, place)
            elif kind == "server":
                index = self.random.randrange(SERVERS)
                self._end_server(index)
                self._serve(index, place)
            elif kind == "sever":
                self.random.choice([*self._proxies()]).sever()
                self.tally.cuts += 1
            else:
                self._disturb_engine(kind)

    def _disturb_engine(self, kind: str) -> None:
        assert self.site.engine is not None
        self.disturbances.append(time.monotonic_ns())
        if kind == "freeze":
            self.site.engine.freeze()
            time.sleep(self.random.uniform(0.0, LONGEST_FREEZE_SECONDS))
            self.site.engine.thaw()
            return
        self.site.engine.kill()
        time.sleep(self.random.choice((0.0, 0.0, 0.2, 1.0)) * self.random.random())
        self.site.engine.start()
        self.returns.append(time.monotonic_ns())
        self.tally.engine_kills += 1

    def _soon(self, kind: str) -> float:
        return time.monotonic() + self.random.expovariate(1 / MEAN_SECONDS[kind])

    def _proxies(self) -> Sequence[CuttingTcpProxy]:
        return [*(server.proxy for server in self.servers), *([self.site.proxy] if self.site.proxy is not None else [])]

    def _cuts(self) -> int:
        return sum(proxy.cuts for proxy in self._proxies())

    # -- processes ------------------------------------------------------------------------------------------------

    def _skew(self) -> float:
        """Skew the clock of one process in four, if the store's clock decides and not this host's."""
        skewed = self.site.engine is not None and self.random.random() < 0.25
        return self.random.choice((-SKEW_SECONDS, SKEW_SECONDS)) if skewed else 0.0

    def _spawn(self, role: str, reach: str, place: FaultStore) -> None:
        name = f"{role}-{reach}-{next(self.names)}"
        url = {"store": place.url, "proxy": place.proxied_url, "server": self._server_urls()}[reach]
        limited = self.specs is not QUEUES
        arguments = (self.home, name, role, self.random.random(), url, self._skew(), self.durability, limited)
        process = self.nursery.start(call_until_killed, *arguments, name=name)
        self.callers.append(_Child(process, name, role, reach))

    def _server_urls(self) -> str:
        """Return one server or both, each through its proxy or directly."""
        ports = [self.random.choice((server.port, server.proxy.port)) for server in self.servers]
        self.random.shuffle(ports)
        return ",".join(f"http://127.0.0.1:{port}" for port in ports[: self.random.randint(1, SERVERS)])

    def _end(self, child: _Child) -> None:
        self.callers.remove(child)
        self._collect(child.process, child.name)

    def _serve(self, index: int, place: FaultStore) -> None:
        name = f"server-{next(self.names)}"
        url = self.random.choice((place.url, place.proxied_url))
        port = self.servers[index].port
        arguments = (self.home, name, url, port, self._skew(), self.durability)
        process = self.nursery.start(serve_until_killed, *arguments, name=name)
        self.servers[index].process = process

    def _end_server(self, index: int) -> None:
        process = self.servers[index].process
        if process is not None:
            self.servers[index].process = None
            self._collect(process, process.name)

    def _collect(self, process: ForkServerProcess, name: str) -> None:
        code = self.nursery.kill(process)
        self.tally.kills += code == -signal.SIGKILL
        if code != -signal.SIGKILL:
            what = f"{name} ended with {code}: {last_line_of_traceback(self.home, name)}"
            self.tally.found([Violation("I16", what)], f"round {self.number}")

    def _end_everybody(self) -> None:
        while self.callers:
            self._end(self.callers[0])
        for index in range(SERVERS):
            self._end_server(index)

    # -- counts ---------------------------------------------------------------------------------------------------

    def _count(self, calls: Sequence[HistoryCall]) -> None:
        """Count operations; calls that reached no server are none."""
        done = [call for call in calls if call.outcome != "fail" or call.error != "StoreUnavailableError"]
        self.tally.operations += len(done)
        self.tally.unknown += sum(call.outcome == "unknown" for call in done)
        if self.site.engine is not None:
            self.tally.at_most("clock_off_by_at_least_milliseconds", clock_seen_off(calls) * 1e3)
        answered = sorted(call.answered.ns for call in done if call.answered is not None and call.outcome == "ok")
        for back in self.returns:
            following = [ns for ns in answered if ns > back]
            next_disturbance = min((ns for ns in self.disturbances if ns > back), default=None)
            if following and (next_disturbance is None or following[0] < next_disturbance):
                self.tally.at_most("first_verb_after_the_engine_is_back_seconds", (following[0] - back) / 1e9)


def clock_seen_off(calls: Sequence[HistoryCall]) -> float:
    """Return how many seconds lease instants lay outside their calls: the clock estimate was off by at least that."""
    off = [0]
    for call in calls:
        if call.answered is not None:
            for lease in call.answer.leases:
                off += [call.invoked.at - lease.leased_at, lease.leased_at - call.answered.at]
    return max(off) / 1e6
