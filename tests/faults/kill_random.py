"""SIGKILL at random: producers and workers on one file, killed at any time and replaced under a new identity."""

import itertools
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random

from queue_core.client.local_calls import LocalQueues
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.faults.checker import Violation
from tests.faults.children import Nursery
from tests.faults.history import FileHistory, read_histories
from tests.faults.outcome import Deadline, FaultBudget, FaultTally
from tests.faults.recorded import release_worker
from tests.faults.reopening import CHECKPOINT_PAGES, FILE_NAME, checkpoint_every, reopen_and_check
from tests.faults.workload import LIMITED_QUEUES, QUEUES, StoreCaller, create_queues

ROLES = ("producer", "worker", "worker", "worker")
ROUND_SECONDS = 3.0
MAX_LIFE_SECONDS = 0.25


def kills_at_random(budget: FaultBudget, folder: Path, *, limited: bool = False) -> FaultTally:
    """Run rounds on fresh files; at the end of each, kill all callers and check the file against the histories.

    Args:
        limited: queues and tags have limits.
    """
    tally = FaultTally("limits" if limited else "kill")
    deadline = budget.started()
    nursery = Nursery(__name__)
    number = 0
    while not deadline.is_over:
        home = folder / f"round-{number}"
        home.mkdir()
        seed = f"{budget.seed}/{number}"
        until = Deadline(time.monotonic() + min(ROUND_SECONDS, deadline.left_seconds))
        specs = LIMITED_QUEUES[number % len(LIMITED_QUEUES)] if limited else QUEUES
        _round(tally, nursery, home, until, seed, specs)
        calls = read_histories(home)
        tally.operations += len(calls)
        tally.reopenings += 1
        tally.found(reopen_and_check(home / FILE_NAME, calls, checked=tally.checked), f"seed {seed}")
        shutil.rmtree(home)
        number += 1
    return tally


@dataclass(slots=True)
class _Child:
    process: ForkServerProcess
    name: str
    role: str


def _round(
    tally: FaultTally, nursery: Nursery, home: Path, until: Deadline, seed: str, specs: Sequence[QueueSpec]
) -> None:
    random = Random(seed)
    numbers = itertools.count(1)
    with ExitStack() as stack:
        stack.enter_context(_prepared(home, specs, held_open=random.random() < 0.5))
        limited = specs is not QUEUES
        children: list[_Child] = []

        def spawn(role: str) -> None:
            name = f"{role}-{next(numbers)}"
            process = nursery.start(call_until_killed, home, name, role, random.random(), limited, name=name)
            children.append(_Child(process, name, role))
            tally.reopenings += 1

        def end(child: _Child) -> None:
            children.remove(child)
            code = nursery.kill(child.process)
            tally.kills += code == -signal.SIGKILL
            if code != -signal.SIGKILL:
                tally.found([Violation("I16", f"{child.name} ended with {code}")], f"seed {seed}")

        for role in ROLES:
            spawn(role)
        with FileHistory(home / "supervisor.jsonl") as history:
            calls = itertools.count(1)
            while not until.is_over:
                time.sleep(random.uniform(0.005, MAX_LIFE_SECONDS))
                child = random.choice(children)
                end(child)
                if random.random() < 0.5:
                    with _opened(home) as queues:
                        release_worker(queues, child.name, history=history, numbers=calls)
                spawn(child.role)
        while children:
            end(children[0])


def call_until_killed(home: Path, name: str, role: str, seed: float, limited: bool) -> None:
    """In the child: call verbs forever."""
    with checkpoint_every(CHECKPOINT_PAGES), FileHistory(home / f"{name}.jsonl") as history, _opened(home) as queues:
        caller = StoreCaller(queues, history, name=name, random=Random(seed), role=role, limited=limited)
        while True:
            caller.turn()


@contextmanager
def _prepared(home: Path, specs: Sequence[QueueSpec], *, held_open: bool) -> Iterator[None]:
    """Make the file; while it is held open here, no killed process is the last to have it open."""
    with ExitStack() as stack:
        with ExitStack() as making:
            create_queues((stack if held_open else making).enter_context(_opened(home)), specs)
        yield


@contextmanager
def _opened(home: Path) -> Iterator[LocalQueues]:
    queues = LocalQueues(QueueService(SqliteStore(home / FILE_NAME)))
    try:
        yield queues
    finally:
        queues.close()
