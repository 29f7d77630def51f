"""A disk that is full for a while, and one that can't sync: failed calls change nothing, acknowledged ones are kept."""

import contextlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random

from queue_core.client.local_calls import LocalQueues
from queue_core.errors import QueueError, StoreFullError, StoreUnavailableError
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.unit.service import QueueService
from tests.faults.checker import Violation
from tests.faults.disk import SURVIVALS
from tests.faults.fault_vfs import FaultVfs, Meter, full_between, planned_failures, quiet_driver
from tests.faults.history import HistoryCall, MemoryHistory, NumberedHistory
from tests.faults.outcome import Deadline, FaultBudget, FaultTally
from tests.faults.power_vfs import PowerDisk, PowerSyncer, PowerVfs, materialise
from tests.faults.reopening import CHECKPOINT_PAGES, FILE_NAME, checkpoint_every, reopen_and_check
from tests.faults.workload import StoreCaller, create_queues

TURNS = 25
TURNS_WITH_SPACE_AGAIN = 10
MAX_FULL_EVENTS = 60
LAST_EVENT = 500
THREADS = 3
FOR_EVER = 1 << 30


def failing_disks(budget: FaultBudget, folder: Path, *, points: int | None = None) -> FaultTally:
    """Alternate a full disk and a failing sync, at seeded points, until the budget or `points` is used."""
    tally = FaultTally("disk")
    deadline = budget.started()
    number = 0
    while not deadline.is_over and (points is None or number < points):
        home = folder / f"disk-{number}"
        home.mkdir()
        scenario = full_for_a_while if number % 2 else unable_to_sync
        scenario(tally, home, f"{budget.seed}/{number}", deadline)
        shutil.rmtree(home)
        number += 1
    return tally


def full_for_a_while(tally: FaultTally, home: Path, seed: str, deadline: Deadline) -> None:
    """Fail every write between two events; every failure is `StoreFullError`, and afterwards everything works."""
    random = Random(seed)
    first = random.randrange(1, LAST_EVENT)
    last = first + random.randrange(MAX_FULL_EVENTS)
    meter = Meter(full_between(first, last))
    history = MemoryHistory()
    where = f"seed {seed}, full from event {first} to {last}"
    vfs = FaultVfs(f"full-{seed}", meter, counts_syncs=False)
    try:
        with ExitStack() as stack:
            stack.enter_context(planned_failures())
            stack.enter_context(checkpoint_every(CHECKPOINT_PAGES))
            queues = _opened_despite(stack, home, vfs, meter, last)
            caller = StoreCaller(queues, history, name="caller", random=random)
            for _ in range(TURNS):
                try:
                    caller.turn()
                except StoreFullError:
                    tally.disk_errors += 1
            meter.events = max(meter.events, last)
            for _ in range(TURNS_WITH_SPACE_AGAIN):
                caller.turn()
    except QueueError as error:
        tally.found([Violation("I16", f"{type(error).__name__}: {error}")], where)
    finally:
        vfs.unregister()
    calls = history.calls()
    tally.operations += len(calls)
    tally.reopenings += 1
    tally.found(reopen_and_check(home / FILE_NAME, calls, checked=tally.checked), where)


def _opened_despite(stack: ExitStack, home: Path, vfs: FaultVfs, meter: Meter, last: int) -> LocalQueues:
    """Open the store and its queues; if the disk is full meanwhile, retry once there is space."""
    for attempt in ("full", "with space"):
        try:
            queues = LocalQueues(QueueService(SqliteStore(home / FILE_NAME, vfs=vfs.name, driver=quiet_driver())))
        except StoreFullError:
            if attempt == "with space":
                raise
            meter.events = max(meter.events, last)
            continue
        stack.callback(queues.close)
        break
    try:
        create_queues(queues)
    except StoreFullError:
        meter.events = max(meter.events, last)
        create_queues(queues)
    return queues


def unable_to_sync(tally: FaultTally, home: Path, seed: str, deadline: Deadline, *, heeding: bool = True) -> None:
    """Fail some syncs of the log or the file, then cut the power.

    Linux drops what it could not write, so a later successful sync proves nothing: after a failed sync the store must
    acknowledge nothing until it is opened again.

    Args:
        heeding: False hides the failure from the store, to prove that this driver notices.
    """
    random = Random(seed)
    history = MemoryHistory()
    failing = threading.Event()
    first_failing_event = random.randrange(150, 2500)
    fails = random.choice((1, 1, 2, FOR_EVER))

    def on_event(number: int) -> None:
        if number >= first_failing_event and not failing.is_set():
            failing.set()
            disk.fail_syncs(fails)

    disk = PowerDisk(on_event)
    live = home / "live"
    materialise({}, live)
    where = f"seed {seed}, {fails} syncs fail from event {first_failing_event}"
    with ExitStack() as stack:
        vfs = PowerVfs(f"failing-{seed}", disk)
        stack.callback(vfs.unregister)
        stack.enter_context(planned_failures())
        stack.enter_context(checkpoint_every(CHECKPOINT_PAGES))
        open_syncer = partial(PowerSyncer if heeding else HeedlessSyncer, disk)
        store = SqliteStore(live / FILE_NAME, vfs=vfs.name, driver=quiet_driver(), open_syncer=open_syncer)
        stack.callback(store.close)
        queues = LocalQueues(QueueService(store))
        create_queues(queues)
        callers = [
            StoreCaller(
                queues, NumberedHistory(history, number), name=f"caller-{number}", random=Random(random.random())
            )
            for number in range(THREADS)
        ]
        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(_work_on, caller, failing, deadline) for caller in callers]:
                done.result()
        wreck = disk.wreck()
    calls = history.calls()
    tally.cuts += 1
    tally.operations += len(calls)
    tally.disk_errors += sum(call.outcome == "unknown" for call in calls)
    tally.found(_acknowledged_after_failure(calls), where)
    tally.reopenings += 2
    tally.found(reopen_and_check(live / FILE_NAME, calls, checked=tally.checked), f"{where}, power stays on")
    survival = random.choice(SURVIVALS)
    materialise(wreck.materialise(survival, random), home / "after")
    found = reopen_and_check(home / "after" / FILE_NAME, calls, checked=tally.checked)
    tally.found(found, f"{where}, then a power cut ({survival})")


def _work_on(caller: StoreCaller, failing: threading.Event, deadline: Deadline) -> None:
    """Call verbs until some time after the failure, ignoring unavailability."""
    left = TURNS
    while left and not deadline.is_over:
        left -= failing.is_set()
        try:
            caller.turn()
        except StoreFullError:
            raise
        except StoreUnavailableError:
            continue


class HeedlessSyncer(PowerSyncer):
    """A faulty syncer: it goes on after a failure as if nothing had happened."""

    def sync(self) -> None:
        """See `Syncer.sync`."""
        with contextlib.suppress(OSError):
            super().sync()


def _acknowledged_after_failure(calls: list[HistoryCall]) -> list[Violation]:
    failed = [call.answered.ns for call in calls if call.outcome == "unknown" and call.answered is not None]
    if not failed:
        return []
    return [
        Violation("I1", f"{call.request.verb} was acknowledged after a sync had failed")
        for call in calls
        if call.outcome == "ok" and call.invoked.ns > min(failed) and _changed_something(call)
    ]


def _changed_something(call: HistoryCall) -> bool:
    """Return whether the answer promises a change: "nothing to lease" does not."""
    return call.request.verb != "lease" or bool(call.answer.leases or call.request.ends)
