"""Power cuts under several threads: the store must reopen on any mixture of unsynced data."""

import itertools
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from queue_core.client.local_calls import LocalQueues
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.stores.sqlite.wal import NoSyncer, OpenSyncer
from queue_core.unit.service import QueueService
from tests.faults.disk import SURVIVALS, Wreck
from tests.faults.history import MemoryHistory, NumberedHistory
from tests.faults.outcome import Deadline, FaultBudget, FaultTally
from tests.faults.power_vfs import PowerDisk, PowerSyncer, PowerVfs, materialise
from tests.faults.reopening import CHECKPOINT_PAGES, FILE_NAME, checkpoint_every, reopen_and_check
from tests.faults.workload import StoreCaller, create_queues

CALLERS_PER_STORE = 2
CREATION_EVENTS = 90
MEAN_EVENTS_BETWEEN_CUTS = 120
CUTS_PER_ROUND = 30
MAX_ROUND_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Cut:
    """The disk at one moment, and the length of the history by then."""

    event: int
    wreck: Wreck
    history_lines: int


def power_cuts(budget: FaultBudget, folder: Path, *, cuts: int | None = None, syncing: bool = True) -> FaultTally:
    """Cut the power again and again until the budget or the number of cuts is used up.

    Args:
        syncing: False removes the store's syncs, to prove that this driver notices.
    """
    tally = FaultTally("power")
    deadline = budget.started()
    number = 0
    while not deadline.is_over and (cuts is None or tally.cuts < cuts):
        wanted = CUTS_PER_ROUND if cuts is None else min(CUTS_PER_ROUND, cuts - tally.cuts)
        _round(tally, deadline, folder, seed=f"{budget.seed}/{number}", cuts=wanted, syncing=syncing)
        number += 1
    return tally


def _round(tally: FaultTally, deadline: Deadline, folder: Path, *, seed: str, cuts: int, syncing: bool) -> None:
    random = Random(seed)
    live = folder / "live"
    materialise({}, live)
    history = MemoryHistory()
    found = _run_until_cut(live, history, random, cuts=cuts, syncing=syncing, deadline=deadline)
    tally.operations += len(history.calls())
    for cut in found:
        tally.cuts += 1
        calls = history.calls(first_lines=cut.history_lines)
        for survival in random.sample(SURVIVALS, 2):
            where = f"seed {seed}, event {cut.event}, {survival}"
            materialise(cut.wreck.materialise(survival, random), folder / "after")
            tally.reopenings += 1
            tally.found(reopen_and_check(folder / "after" / FILE_NAME, calls, checked=tally.checked), where)
        if deadline.is_over:
            break
    shutil.rmtree(live)


def _run_until_cut(
    live: Path, history: MemoryHistory, random: Random, *, cuts: int, syncing: bool, deadline: Deadline
) -> list[Cut]:
    """Let callers work until enough cuts were taken; the power is never really off, so one run yields all cuts."""
    due = _cut_events(random, cuts)
    taken: list[Cut] = []
    enough = threading.Event()

    def on_event(number: int) -> None:
        if number in due:
            taken.append(Cut(number, disk.wreck(), len(history)))
            if len(taken) == len(due):
                enough.set()

    pauses = Random(random.random())
    disk = PowerDisk(on_event, lambda: time.sleep(pauses.choice((0.0, 0.0002, 0.002))))
    until = Deadline(time.monotonic() + min(MAX_ROUND_SECONDS, max(0.5, deadline.left_seconds)))
    open_syncer: OpenSyncer = partial(PowerSyncer, disk) if syncing else NoSyncer
    with ExitStack() as stack:
        vfs = PowerVfs(f"power-{id(disk)}", disk)
        stack.callback(vfs.unregister)
        stack.enter_context(checkpoint_every(CHECKPOINT_PAGES))
        stores = random.choice((1, 2))
        callers: list[StoreCaller] = []
        for store_number in range(stores):
            store = SqliteStore(live / FILE_NAME, vfs=vfs.name, open_syncer=open_syncer)
            stack.callback(store.close)
            queues = LocalQueues(QueueService(store))
            create_queues(queues)
            for thread in range(CALLERS_PER_STORE):
                name = f"caller-{store_number}-{thread}"
                callers.append(
                    StoreCaller(
                        queues, NumberedHistory(history, len(callers)), name=name, random=Random(random.random())
                    )
                )
        with ThreadPoolExecutor(len(callers)) as pool:
            for done in [pool.submit(_work, caller, enough, until) for caller in callers]:
                done.result()
    return taken


def _work(caller: StoreCaller, enough: threading.Event, until: Deadline) -> None:
    try:
        while not enough.is_set() and not until.is_over:
            caller.turn()
    except BaseException:
        enough.set()
        raise


def _cut_events(random: Random, cuts: int) -> set[int]:
    """Return the events to cut at; a third of them while the file and its log are first filled."""
    early = random.sample(range(1, CREATION_EVENTS), min(cuts // 3, CREATION_EVENTS - 1))
    gaps = [random.randrange(1, 2 * MEAN_EVENTS_BETWEEN_CUTS) for _ in range(cuts - len(early))]
    return {*early, *(CREATION_EVENTS + event for event in itertools.accumulate(gaps))}
