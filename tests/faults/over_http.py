"""Clients over HTTP are held to every answer while proxies, kills and stops disturb their calls.

Client processes with several threads use the product's own client, most through a proxy before each server, some
directly. Servers, engines and clients are killed and stopped at random, for longer than leases last. In the end the
store is drained, and every answer must have been true.
"""

import heapq
import itertools
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random
from types import MappingProxyType

from queue_core.client.connect import open_queues
from queue_core.client.http.caller import Retries
from queue_core.client.http_calls import HttpQueues
from queue_core.client.local_calls import LocalQueues
from queue_core.errors import StoreError
from queue_core.stores import open_store
from queue_core.unit.service import QueueService
from tests.faults.checker import Violation
from tests.faults.children import Nursery
from tests.faults.faulty_proxy import (
    RESETS,
    STALLS,
    SWALLOWS,
    USUAL_SHARES,
    FatePlan,
    FaultyProxy,
    Kind,
    a_faulty_proxy,
)
from tests.faults.held import HOLD, HOLD_SECONDS, SnapshotHolder, floor_steps, missed_floors, serve_floored
from tests.faults.held import MEAN_SECONDS as HELD_MEAN_SECONDS
from tests.faults.history import FileHistory, HistoryCall, read_histories
from tests.faults.http_children import Opener, call_over_http_until_killed
from tests.faults.kill_store import STORE_MODULES
from tests.faults.outcome import Deadline, FaultBudget, FaultTally
from tests.faults.recorded import release_worker
from tests.faults.reopening import open_and_check
from tests.faults.report import excerpts
from tests.faults.sites import FaultSite, FaultStore, StoreName, a_site
from tests.faults.store_children import last_line_of_traceback, serve_until_killed
from tests.faults.workload import create_queues
from tests.support.eventually import eventually
from tests.support.stores.engines import EngineUnavailableError, free_port

ROUND_OPERATIONS = 25_000
ROUND_SECONDS = 60.0
ROUGHLY_OPERATIONS = 100
"""The estimate from lines may exceed the operations by so many, or a fifth; then no further round follows."""
START_SECONDS = 60.0
LOOK_SECONDS = 0.25
FIRST_WITHIN_SECONDS = 1.0
PROOF = "violations.txt"
PROGRESS_SECONDS = 10.0
DIRECT_SHARE = 0.25
"""The share of clients that connect to the servers directly: they meet refused connections, but no proxy faults."""
MEAN_SECONDS: Mapping[str, float] = MappingProxyType(
    {
        "kill client": 1.5,
        "stop client": 3.0,
        "kill server": 4.0,
        "stop server": 5.0,
        "sever": 2.0,
        "refuse": 4.0,
        "kill engine": 5.0,
        "stop engine": 6.0,
    }
)
"""Mean seconds between two faults of a kind; a stop may outlast every lease. The first of each kind comes within a
second, so that a short round has them all.
"""
STOP_SECONDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "stop client": (0.3, 2.5),
        "stop server": (0.3, 2.5),
        "stop engine": (0.2, 1.5),
        "refuse": (0.1, 0.6),
        HOLD: HOLD_SECONDS,
    }
)
DOWN_SECONDS = (0.0, 0.0, 0.1, 0.5)
VERDICTS = {"ok": "done", "fail": "not done", "unknown": "unknown"}
VERBS = ("add", "lease", "exchange", "renew", "release", "delete", "delete then", "delete by name", "release worker")


@dataclass(frozen=True, slots=True)
class FaultConditions:
    """A run's processes and fault rates; a mutant replaces the client or the server.

    `shares`: of requests, by fault. `mean_seconds`: between faults of a kind, see `MEAN_SECONDS`.
    """

    servers: int = 1
    clients: int = 3
    threads: int = 6
    shares: Mapping[Kind, float] = field(default_factory=lambda: USUAL_SHARES)
    mean_seconds: Mapping[str, float] = field(default_factory=lambda: MEAN_SECONDS)
    open_it: Opener = open_queues
    serve_it: Callable[..., None] = serve_until_killed
    round_operations: int = ROUND_OPERATIONS
    round_seconds: float = ROUND_SECONDS


def held_conditions(servers: int) -> FaultConditions:
    """Return a run on PostgreSQL during which somebody holds snapshots now and then, and floors rise all the time."""
    return FaultConditions(servers, mean_seconds={**MEAN_SECONDS, HOLD: HELD_MEAN_SECONDS}, serve_it=serve_floored)


def usual_servers(store: StoreName) -> int:
    """Return how many servers share a store of the kind: SQLite allows one."""
    return 1 if store == "sqlite" else 2


def over_http(
    store: StoreName,
    budget: FaultBudget,
    folder: Path,
    *,
    conditions: FaultConditions | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> FaultTally:
    """Run rounds on a new store each; the first with a violation is the last, and keeps its histories."""
    how = conditions or FaultConditions(usual_servers(store))
    tally = FaultTally(f"http-{store}")
    counts: Counter[str] = Counter()
    deadline = budget.started()
    try:
        with a_site(store) as site:
            nursery = Nursery(__name__, f"queue_core.stores.{STORE_MODULES[store]}")
            for number in itertools.count(1):
                home = folder / f"round-{number}"
                home.mkdir()
                seeded = Random(f"{budget.seed}/http/{store}/{how.servers}/{number}")
                a_round = _Round(site, home, nursery, seeded, tally, counts, how, number, budget.operations, report)
                a_round.run(deadline)
                if not tally.violations:
                    shutil.rmtree(home)
                is_enough = budget.operations is not None and tally.operations >= budget.operations
                if deadline.is_over or is_enough or tally.violations:
                    break
    except EngineUnavailableError as error:
        tally.skipped = str(error)
    tally.counts = dict(counts)
    tally.summary = _summary(tally, counts, how.servers)
    return tally


@dataclass(slots=True, eq=False)
class _Process:
    """A client or server; `ports` are those of a client's servers, or the server's own."""

    process: ForkServerProcess
    name: str
    is_over: bool = False

    def signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if not self.is_over and self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, number)


@dataclass(slots=True)
class _Round:
    site: FaultSite
    home: Path
    nursery: Nursery
    random: Random
    tally: FaultTally
    counts: "Counter[str]"
    how: FaultConditions
    number: int
    operations: int | None
    report: Callable[[str], None]
    ports: list[int] = field(default_factory=list)
    proxies: list[FaultyProxy] = field(default_factory=list)
    servers: list[_Process] = field(default_factory=list)
    clients: list[_Process] = field(default_factory=list)
    holders: list[SnapshotHolder] = field(default_factory=list)
    names: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    read: dict[Path, int] = field(default_factory=dict)
    lines: int = 0

    def run(self, deadline: Deadline) -> None:
        """Run the round, from an empty store to the verdict."""
        place = self.site.new_place(self.number)
        with ExitStack() as stack:
            queues = LocalQueues(QueueService(open_store(place.url)))
            with closing(queues):
                create_queues(queues)
            history = stack.enter_context(FileHistory(self.home / "supervisor.jsonl"))
            self.ports = [free_port() for _ in range(self.how.servers)]
            for index, port in enumerate(self.ports):
                plan = FatePlan(self.how.shares, Random(f"{self.random.random()}/{index}"))
                self.proxies.append(stack.enter_context(a_faulty_proxy(port, plan)))
            stack.callback(self._end_everybody)
            for index in range(self.how.servers):
                self.servers.append(self._serve(index, place))
            supervisor = HttpQueues(self._urls(self.ports), retries=Retries(tries=2), timeout_seconds=2.0)
            stack.callback(supervisor.close)
            releasing = ThreadPoolExecutor(1, thread_name_prefix="release")  # it may wait for a stopped server
            stack.callback(releasing.shutdown, cancel_futures=True)
            numbers = itertools.count(1)

            def release(worker: str) -> None:
                with suppress(StoreError):
                    release_worker(supervisor, worker, history=history, numbers=numbers)

            for _ in range(self.how.clients):
                self.clients.append(self._call())
            eventually(lambda: self._count_lines() > 0, seconds=START_SECONDS)
            until = Deadline(time.monotonic() + min(self.how.round_seconds, deadline.left_seconds))
            self._disturb(until, partial(self._break, lambda worker: releasing.submit(release, worker), place))
            releasing.shutdown(cancel_futures=True)
            self._end_everybody()
        for proxy in self.proxies:
            self.counts.update(proxy.met)
        if self.site.engine is not None:
            self.site.engine.restart()  # no request of a dead server is in flight any more
        calls = read_histories(self.home)
        self._count(calls)
        open_it = partial(open_store, place.url)
        clock_error = self.site.clock_error
        found = open_and_check(open_it, calls, clock_error=clock_error, over_http=True, checked=self.tally.checked)
        if HOLD in self.how.mean_seconds:
            found = [*found, *missed_floors(self.home)]
            self.counts["floors raised"] += floor_steps(place.url)
        self.tally.found(found, f"round {self.number}")
        if found:
            (self.home / PROOF).write_text("\n".join(excerpts(calls, found)) + "\n")
            self.report(f"round {self.number}: the calls that prove its violations are in {self.home / PROOF}")
        self.tally.reopenings += 1
        self.report(f"round {self.number}: {self.tally.operations} operations, {len(self.tally.violations)} violations")

    # -- faults ---------------------------------------------------------------------------------------------------

    def _disturb(self, until: Deadline, break_it: Callable[[str], None]) -> None:
        """Inject one fault after another, each kind at its own rate, until the round has its operations."""
        for kind in self.how.mean_seconds:
            if self.site.engine is not None or not kind.endswith("engine"):
                self._plan(kind, break_it, self.random.uniform(0.0, FIRST_WITHIN_SECONDS))
        enough = self.how.round_operations
        if self.operations is not None:
            left = self.operations - self.tally.operations
            enough = min(enough, left + max(ROUGHLY_OPERATIONS, left // 5))
        next_progress = time.monotonic() + PROGRESS_SECONDS
        while not until.is_over and self._count_lines() < enough and self._are_alive():
            now = time.monotonic()
            if now >= next_progress:
                next_progress += PROGRESS_SECONDS
                self.report(f"round {self.number}: about {self.tally.operations + self._count_lines()} operations")
            if self.events and self.events[0][0] <= now:
                heapq.heappop(self.events)[2]()
            else:
                first = self.events[0][0] if self.events else now + LOOK_SECONDS
                time.sleep(max(0.0, min(first - now, LOOK_SECONDS)))

    def _plan(self, kind: str, break_it: Callable[[str], None], seconds: float) -> None:
        def happen() -> None:
            break_it(kind)
            self._plan(kind, break_it, self.random.expovariate(1 / self.how.mean_seconds[kind]))

        self._at(seconds, happen)

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time.monotonic() + seconds, next(self.names), action))

    def _break(self, release: Callable[[str], object], place: FaultStore, kind: str) -> None:
        """Inject one fault now and schedule its end.

        `release` releases a dead worker's leases without waiting for the result.
        """
        self.counts[kind] += 1
        lasts = self.random.uniform(*STOP_SECONDS[kind]) if kind in STOP_SECONDS else 0.0
        if kind == "kill client":
            index = self.random.randrange(len(self.clients))
            victim = self.clients[index]
            self._end(victim)
            if self.random.random() < 0.5:
                for thread in range(self.how.threads):
                    release(f"{victim.name}-{thread}")
            self.clients[index] = self._call()
        elif kind == "kill server":
            index = self.random.randrange(len(self.servers))
            self._end(self.servers[index])
            self._at(self.random.choice(DOWN_SECONDS), partial(self._serve_again, index, place))
        elif kind in ("stop client", "stop server"):
            stopped = self.random.choice(self.clients if kind == "stop client" else self.servers)
            stopped.signal(signal.SIGSTOP)
            self._at(lasts, partial(stopped.signal, signal.SIGCONT))
        elif kind == "sever":
            self.random.choice(self.proxies).sever()
        elif kind == "refuse":
            proxy = self.random.choice(self.proxies)
            proxy.refuse()
            self._at(lasts, proxy.accept)
        elif kind == HOLD:
            self.holders.append(SnapshotHolder(place.url))
            self._at(lasts, self.holders[-1].end)
        else:
            self._break_engine(kind, lasts)

    def _break_engine(self, kind: str, lasts: float) -> None:
        engine = self.site.engine
        assert engine is not None
        if kind == "stop engine":
            engine.freeze()
            self._at(lasts, engine.thaw)
        else:
            engine.kill()
            time.sleep(self.random.choice(DOWN_SECONDS))
            engine.start()
            self.tally.engine_kills += 1

    # -- processes ------------------------------------------------------------------------------------------------

    def _urls(self, ports: Sequence[int]) -> str:
        return ",".join(f"http://127.0.0.1:{port}" for port in ports)

    def _call(self) -> _Process:
        name = f"client-{next(self.names)}"
        is_direct = self.random.random() < DIRECT_SHARE
        ports = list(self.ports if is_direct else (proxy.port for proxy in self.proxies))
        self.random.shuffle(ports)
        arguments = (self.home, name, self.random.random(), self._urls(ports), self.how.threads, self.how.open_it)
        return _Process(self.nursery.start(call_over_http_until_killed, *arguments, name=name), name)

    def _serve(self, index: int, place: FaultStore) -> _Process:
        name = f"server-{next(self.names)}"
        arguments = (self.home, name, place.url, self.ports[index], 0.0, "strict")
        return _Process(self.nursery.start(self.how.serve_it, *arguments, name=name), name)

    def _serve_again(self, index: int, place: FaultStore) -> None:
        if self.servers[index].is_over:
            self.servers[index] = self._serve(index, place)

    def _are_alive(self) -> bool:
        return all(one.is_over or one.process.is_alive() for one in (*self.clients, *self.servers))

    def _end(self, one: _Process) -> None:
        if one.is_over:
            return
        one.is_over = True
        code = self.nursery.kill(one.process)
        self.tally.kills += code == -signal.SIGKILL
        if code != -signal.SIGKILL:
            what = f"{one.name} ended with {code}: {last_line_of_traceback(self.home, one.name)}"
            self.tally.found([Violation("I16", what)], f"round {self.number}")

    def _end_everybody(self) -> None:
        """End the clients, then the proxies' held data, then the servers."""
        self.events.clear()
        for holder in self.holders:
            holder.end()
        if self.site.engine is not None:
            self.site.engine.thaw()
        for client in self.clients:
            self._end(client)
        for proxy in self.proxies:
            proxy.close()
        for server in self.servers:
            self._end(server)

    # -- counts ---------------------------------------------------------------------------------------------------

    def _count_lines(self) -> int:
        """Estimate the answered calls: half the lines of the histories."""
        for path in self.home.glob("*.jsonl"):
            began = self.read.get(path, 0)
            if path.stat().st_size > began:
                with path.open("rb") as file:
                    file.seek(began)
                    data = file.read()
                self.read[path] = began + len(data)
                self.lines += data.count(b"\n")
        return self.lines // 2

    def _count(self, calls: Sequence[HistoryCall]) -> None:
        """Count operations; calls that reached no server are none."""
        done = [call for call in calls if call.outcome != "fail" or call.error != "StoreUnavailableError"]
        self.tally.operations += len(done)
        self.tally.unknown += sum(call.outcome == "unknown" for call in done)
        self.tally.cuts += sum(number for proxy in self.proxies for number in proxy.met.values())
        self.counts.update(f"{verb_of(call)} {verdict_of(call)}" for call in calls)


def verb_of(call: HistoryCall) -> str:
    """Return the verb as a summary counts it."""
    request = call.request
    if request.verb == "lease" and request.ends:
        return "exchange"
    if request.verb == "delete" and any(end.then for end in request.ends):
        return "delete then"
    return request.verb.replace("_", " ")


def verdict_of(call: HistoryCall) -> str:
    """Return the caller's result: done, not done (at least one token was refused), or unknown."""
    return "not done" if call.error == "LeaseLostError" and call.outcome == "ok" else VERDICTS[call.outcome]


def _summary(tally: FaultTally, counts: Mapping[str, int], servers: int) -> str:
    verbs = ", ".join(
        f"{verb} {'/'.join(str(counts.get(f'{verb} {verdict}', 0)) for verdict in VERDICTS.values())}" for verb in VERBS
    )
    kills = ", ".join(f"{kind}s {counts.get(f'kill {kind}', 0)}" for kind in ("server", "client", "engine"))
    stops = ", ".join(f"{kind}s {counts.get(f'stop {kind}', 0)}" for kind in ("server", "client", "engine"))
    held = f"snapshots held {counts[HOLD]}, floors raised {counts['floors raised']}; " if HOLD in counts else ""
    resets = sum(counts.get(kind, 0) for kind in (*RESETS, "severed"))
    stalls = sum(counts.get(kind, 0) for kind in STALLS)
    swallowed = sum(counts.get(kind, 0) for kind in SWALLOWS)
    return (
        f"{servers} server{'s' * (servers != 1)}, {tally.operations} operations (done/not done/unknown: {verbs}); "
        f"kills: {kills}; stops: {stops}; {held}resets {resets}, stalls {stalls}, swallowed answers {swallowed}, "
        f"late requests {counts.get('late', 0)}; {len(tally.violations)} violations"
    )


def progress(line: str) -> None:
    """Print the progress."""
    print(line, file=sys.stderr, flush=True)
