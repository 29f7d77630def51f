"""Two servers on two hosts, forty workers on a third: a server is killed, then networks are cut, while tasks arrive.

Hosts are network namespaces (`tests.support.netns`). Each worker process has ten slots with a connection each: four
processes hold forty tasks at a time.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from queue_core.client.local_calls import LocalQueues
from queue_core.stores import open_store
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.faults.checker import Violation
from tests.faults.history import read_clocks, read_histories
from tests.faults.outcome import FaultBudget, FaultTally
from tests.faults.reopening import open_and_check
from tests.faults.repaired import Fault, judge
from tests.faults.server_on_host import ServerOnHost
from tests.faults.settings import FaultSettings
from tests.faults.sites import CLOCK_ERROR_MICROSECONDS
from tests.support.eventually import eventually
from tests.support.netns import NamespacesUnavailableError, NetnsHost, hosts
from tests.support.stores import engines
from tests.support.stores.engines import Engine, EngineUnavailableError

WORKERS_PER_SERVER = 2
SLOTS = 10
TASKS_PER_SECOND = 40.0
WORK_SECONDS = 0.25
LEASE_SECONDS = 5.0
SETTLE_SECONDS = 60.0
STOP_SECONDS = 60.0
QUEUE = "first"
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class FaultCourse:
    """The length of each part, in seconds; `after` follows every repair. `cuts_off`: a server, the store."""

    warm_up: float = 5.0
    server_down: float = 2.0
    cut: float = 20.0
    after: float = 15.0
    cuts_off: tuple[str, ...] = ("server", "store")


FULL = FaultCourse()
BRIEF = FaultCourse(warm_up=1.0, server_down=0.5, cut=3.0, after=2.0, cuts_off=("store",))


def two_servers(store: str, budget: FaultBudget, folder: Path, *, course: FaultCourse = FULL) -> FaultTally:
    """Run once for the length of the course, whatever the budget."""
    tally = FaultTally(f"servers-{store}")
    try:
        with ExitStack() as stack:
            home = stack.enter_context(engines.memory_home("towline-servers-"))
            store_host, first, second, clients = stack.enter_context(hosts("store", "a", "b", "clients"))
            engine = stack.enter_context(_an_engine(store, home, store_host))
            _run(tally, engine, (store_host, first, second, clients), folder, course)
    except (EngineUnavailableError, NamespacesUnavailableError) as error:
        tally.skipped = str(error)
    return tally


def _an_engine(store: str, home: Path, host: NetnsHost) -> AbstractContextManager[Engine]:
    if store == "postgresql":
        return engines.postgresql(home, addresses=[host.address], namespace=host.namespace)
    return engines.redis(home, durable=True, addresses=[host.address], namespace=host.namespace)


def _run(
    tally: FaultTally,
    engine: Engine,
    on: tuple[NetnsHost, NetnsHost, NetnsHost, NetnsHost],
    folder: Path,
    course: FaultCourse,
) -> None:
    store_host, first_host, second_host, clients = on
    histories = folder / "history"
    histories.mkdir()
    direct = engine.store_url
    with ExitStack() as stack:
        queues = stack.enter_context(closing(LocalQueues(QueueService(open_store(direct)))))
        queues.put_queue(QueueSpec(QUEUE, lease_seconds=LEASE_SECONDS, retry_min_seconds=0.0, retry_max_seconds=0.0))
        token = secrets.token_urlsafe()
        servers = [ServerOnHost(host, folder, engine.tcp_url, token=token) for host in (first_host, second_host)]
        for server in servers:
            stack.callback(server.kill)
            server.start()
        told = FaultSettings(
            str(histories),
            tuple(server.url for server in servers),
            token,
            QUEUE,
            TASKS_PER_SECOND,
            WORK_SECONDS,
        )
        workers = [
            stack.enter_context(
                _a_worker(clients, told, _urls(servers, index, number), f"worker-{index}-{number}", folder)
            )
            for index in range(len(servers))
            for number in range(WORKERS_PER_SERVER)
        ]
        producer = stack.enter_context(
            _a_process(clients, ["-m", "tests.faults.steady_producer"], told.environment(), folder / "producer.log")
        )
        eventually(lambda: queues.queue(QUEUE).stats().deleted_total > 0, seconds=SETTLE_SECONDS)
        time.sleep(course.warm_up)
        faults = list(_break_everything(tally, servers, store_host, second_host, course))
        _stop(producer, tally)
        eventually(lambda: _is_done(queues), seconds=SETTLE_SECONDS)
        for worker in workers:
            _stop(worker, tally)
    calls = read_histories(histories)
    tally.operations += len(calls)
    tally.unknown += sum(call.outcome == "unknown" for call in calls)
    found = open_and_check(
        partial(open_store, direct),
        calls,
        clock_error=CLOCK_ERROR_MICROSECONDS,
        runners=True,
        checked=tally.checked,
    )
    tally.found(found, "two servers")
    judge(tally, calls, faults)


def _break_everything(
    tally: FaultTally, servers: list[ServerOnHost], store_host: NetnsHost, second_host: NetnsHost, course: FaultCourse
) -> Iterator[Fault]:
    """Inject one fault after another; repair each and leave time to recover."""
    began = read_clocks()
    servers[0].kill()
    tally.kills += 1
    time.sleep(course.server_down)
    servers[0].start()
    yield Fault("server_killed", began, read_clocks())
    time.sleep(course.after)
    for name in course.cuts_off:
        host = second_host if name == "server" else store_host
        began = read_clocks()
        host.cut()
        tally.cuts += 1
        time.sleep(course.cut)
        host.mend()
        yield Fault(f"{name}_cut_off", began, read_clocks())
        time.sleep(course.after)


def _urls(servers: list[ServerOnHost], index: int, number: int) -> str:
    """Return a worker's servers: every other worker knows only its own, the rest can switch to the other one."""
    known = servers[index:] + servers[:index]
    return ",".join(server.url for server in known[: 1 + number % 2])


def _is_done(queues: LocalQueues) -> bool:
    stats = queues.queue(QUEUE).stats()
    return not (stats.ready or stats.in_flight or stats.delayed)


def _a_worker(
    host: NetnsHost, told: FaultSettings, url: str, name: str, folder: Path
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    environment = {
        **told.environment(),
        "TOWLINE_URL": url,
        "TOWLINE_TOKEN": told.token,
        "TOWLINE_WORKER": name,
    }
    app = "tests.faults.steady_worker:app"
    command = ["-m", "orchestrator", "work", app, "--queue", QUEUE, "--concurrency", str(SLOTS)]
    return _a_process(host, command, environment, folder / f"{name}.log")


@contextmanager
def _a_process(
    host: NetnsHost, arguments: list[str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python program on a host; kill it at the end if it still runs."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            host.command([sys.executable, *arguments]),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _stop(process: subprocess.Popen[bytes], tally: FaultTally) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        tally.found([Violation("I18", f"{process.args!r} was not over {STOP_SECONDS} s after SIGTERM")], "two servers")
        return
    if code:
        tally.found([Violation("I18", f"{process.args!r} ended with {code} after SIGTERM")], "two servers")
