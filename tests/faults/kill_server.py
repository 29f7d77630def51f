"""SIGKILL of the server, the supervisor and its workers while callers go on over HTTP; then a graceful stop."""

import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from random import Random

from queue_core.client.http_calls import HttpQueues
from queue_core.errors import StoreError
from tests.faults.checker import Violation
from tests.faults.history import FileHistory, Invoked, RequestedCall, read_clocks, read_histories
from tests.faults.outcome import Deadline, FaultBudget, FaultTally
from tests.faults.reopening import reopen_and_check
from tests.faults.towline_process import TowlineProcess
from tests.faults.workload import StoreCaller, create_queues

ROUND_SECONDS = 6.0
MAX_PAUSE_SECONDS = 0.4
IDLE_SECONDS = 20.0
UNREACHABLE_PAUSE_SECONDS = 0.02


def kills_of_servers(budget: FaultBudget, folder: Path) -> FaultTally:
    """Alternate rounds of `towline up` with workers and of `towline serve` with callers that use every verb.

    In some rounds the callers share one client, in others each has its own.
    """
    tally = FaultTally("server")
    deadline = budget.started()
    number = 0
    while not deadline.is_over:
        home = folder / f"round-{number}"
        home.mkdir()
        (home / "history").mkdir()
        until = Deadline(time.monotonic() + min(ROUND_SECONDS, deadline.left_seconds))
        with tempfile.TemporaryDirectory(prefix="tl-") as sockets, ExitStack() as stack:
            process = TowlineProcess(home, Path(sockets) / "s", command="serve" if number % 2 else "up")
            stack.callback(process.end_everything)
            _round(tally, process, home, until, seed=f"{budget.seed}/{number}")
        shutil.rmtree(home)
        number += 1
    return tally


def _round(tally: FaultTally, process: TowlineProcess, home: Path, until: Deadline, *, seed: str) -> None:
    random = Random(seed)
    where = f"seed {seed}, towline {process.command}"
    process.start()
    tally.reopenings += 1
    shares_client = random.random() < 0.5
    queues = HttpQueues(process.url)
    stop = threading.Event()
    roles = ("producer", "producer") if process.command == "up" else ("producer", "worker", "worker")
    with ExitStack() as stack:
        stack.callback(queues.close)
        create_queues(queues)
        names = [f"{role}-{number}" for number, role in enumerate(roles)]
        histories = [stack.enter_context(FileHistory(home / "history" / f"{name}.jsonl")) for name in names]
        supervisor = stack.enter_context(FileHistory(home / "history" / "killer.jsonl"))
        callers = []
        for name, role, history in zip(names, roles, histories, strict=True):
            client = queues if shares_client else stack.enter_context(closing(HttpQueues(process.url)))
            callers.append(StoreCaller(client, history, name=name, random=Random(random.random()), role=role))
        with ThreadPoolExecutor(len(callers)) as pool:
            working = [pool.submit(_call_on, caller, stop) for caller in callers]
            try:
                _kill_on(tally, process, supervisor, random, until)
            finally:
                stop.set()
            for done in working:
                done.result()
        if process.command == "up":
            _wait_until_idle(queues)
    if process.command == "up":
        tally.found([Violation("I18", what) for what in process.stop()], where)
    process.end_everything()
    calls = read_histories(home / "history")
    killed = {call.request.worker for call in calls if call.request.verb == "release_worker"}
    where += "".join(f", {exit_} unasked" for exit_ in process.unasked_exits(killed))
    tally.operations += len(calls)
    tally.reopenings += 1
    tally.found(
        reopen_and_check(process.store_path, calls, runners=process.command == "up", checked=tally.checked), where
    )


def _call_on(caller: StoreCaller, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            caller.turn()
        except StoreError:
            stop.wait(UNREACHABLE_PAUSE_SECONDS)


def _kill_on(tally: FaultTally, process: TowlineProcess, history: FileHistory, random: Random, until: Deadline) -> None:
    number = 0
    while not until.is_over:
        time.sleep(random.uniform(0.05, MAX_PAUSE_SECONDS))
        workers = process.workers()
        if workers and random.random() < 0.6:
            victim = random.choice(workers)
            number += 1
            # The supervisor may release its leases at any time from now on.
            history.write(Invoked(number, read_clocks(), RequestedCall("release_worker", worker=victim.worker)))
            tally.kills += process.kill_worker(victim)
            continue
        process.kill()
        tally.kills += 1
        time.sleep(random.uniform(0.0, 0.1))
        process.start()
        tally.reopenings += 1


def _wait_until_idle(queues: HttpQueues) -> None:
    """Wait until the workers only wait for delays; a remaining backlog is late, not lost."""
    deadline = Deadline(time.monotonic() + IDLE_SECONDS)
    while not deadline.is_over:
        with suppress(StoreError):
            stats = queues.queue("first").stats()
            if not stats.ready and not stats.in_flight:
                return
        time.sleep(UNREACHABLE_PAUSE_SECONDS)
