"""SIGKILL at the n-th write or sync of a scripted life of a store, at each point in turn."""

import itertools
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

from queue_core.client.local_calls import LocalQueues
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.unit.service import QueueService
from tests.faults.checker import Violation
from tests.faults.children import Nursery
from tests.faults.fault_vfs import FaultVfs, Meter, MeteredSyncer, kill_at
from tests.faults.history import FileHistory, read_histories
from tests.faults.outcome import FaultBudget, FaultTally
from tests.faults.reopening import CHECKPOINT_PAGES, FILE_NAME, checkpoint_every, reopen_and_check
from tests.faults.workload import StoreCaller, create_queues

TURNS = 45
AT_A_TIME = 2
EVENTS_FILE = "events"


def kills_at_writes(budget: FaultBudget, folder: Path, *, points: int | None = None) -> FaultTally:
    """Kill at as many points as the budget allows, from opening to closing."""
    tally = FaultTally("write")
    deadline = budget.started()
    nursery = Nursery(__name__)
    runs = itertools.count()

    def run(seed: int, event: int) -> tuple[Path, int]:
        home = folder / f"run-{next(runs)}"
        home.mkdir()
        return home, nursery.wait(nursery.start(live, home, seed, event, name=f"store, killed at {event}"))

    def try_point(seed: int, event: int) -> None:
        if deadline.is_over:
            return
        home, code = run(seed, event)
        calls = read_histories(home)
        where = f"seed {seed}, event {event}"
        tally.operations += len(calls)
        tally.kills += code == -signal.SIGKILL
        tally.reopenings += 1
        if code not in (0, -signal.SIGKILL):
            tally.found([Violation("I16", f"the process ended with {code}")], where)
        tally.found(reopen_and_check(home / FILE_NAME, calls, checked=tally.checked), where)
        shutil.rmtree(home)

    for seed in itertools.count(budget.seed):
        home, code = run(seed, 0)
        if code != 0:
            raise RuntimeError(f"the script of seed {seed} does not end by itself: exit code {code}")
        total = int((home / EVENTS_FILE).read_text())
        shutil.rmtree(home)
        wanted = total if points is None else min(points, total)
        events = Random(seed).sample(range(1, total + 1), wanted)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for done in [pool.submit(try_point, seed, event) for event in events]:
                done.result()
        if points is not None or deadline.is_over:
            break
    return tally


def live(home: Path, seed: int, event: int) -> None:
    """In the child: run the script, killed at `event`; with 0 run to the end and return the number of events."""
    meter = Meter(kill_at(event))
    vfs = FaultVfs("counting", meter)
    with checkpoint_every(CHECKPOINT_PAGES), FileHistory(home / "caller.jsonl") as history:
        store = SqliteStore(home / FILE_NAME, vfs=vfs.name, open_syncer=partial(MeteredSyncer, meter))
        queues = LocalQueues(QueueService(store))
        create_queues(queues)
        caller = StoreCaller(queues, history, name="caller", random=Random(seed))
        for _ in range(TURNS):
            caller.turn()
        store.close()
    (home / EVENTS_FILE).write_text(str(meter.events))
