"""Which tasks are suspected of ending the workers that hold them, and what becomes of what a dead worker held. Pure.

A task that was held at several deaths is a suspect: it is held back from everybody, and runs alone, in a worker that is
started for it. Only a task that was alone when its worker died may become dead by it, so that one that ends its worker
takes nobody along who merely shared it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final, Literal

from orchestrator.clock import Monotonic
from orchestrator.values import value

SUSPECT_DEATHS: Final = 2
"""A task that was there at so many deaths is a suspect; one with a single lease left, at the first."""
MAX_SOLO_DEATHS: Final = 5
"""Where a queue has no `max_leases`, a task becomes dead when its worker died so many times with nothing else in it."""
HOLD_SECONDS: Final = 120.0
"""How long a suspect is held back for the worker that is started for it: if none comes, anybody may lease it again."""
HOLD_SECONDS_PER_PLACE: Final = 10.0
MAX_HOLD_SECONDS: Final = 900.0
MIN_HOLD_LEFT_SECONDS: Final = 5.0
"""A worker is started only for a suspect that is held back for as long as this still."""
SOLO_RETRIES_AT_ONCE: Final = 3
"""After more deaths alone than these there is a pause before the next: what it needs may be away, or too little."""
MAX_PAUSE_SECONDS: Final = 30.0
SOLO_SHARE: Final = 8
"""One of so many workers of a pool runs a suspect, at a time; one may in any case."""
MAX_KNOWN: Final = 10_000
MAX_WORKERS_KNOWN: Final = 8
FORGOTTEN_SECONDS: Final = 72 * 3600.0
"""A death of so long ago says nothing of a task any more."""
SOLO_MARK: Final = ".alone."
"""In the name of a worker that is there for one task."""

Verdict = Literal["given back", "held back", "dead"]
"""What becomes of a task whose worker died: given back, the lease charged as ever; held back to run alone; dead."""

Key = tuple[str, str]
"""A task for all time: its queue and its name."""


@value
class SuspectedTask:
    """A task that a dead worker holds. `max_leases` is its bound, its own or its queue's; None: there is none."""

    queue: str
    task: str
    tag: str | None
    held_seconds: float
    lease_number: int
    max_leases: int | None
    token: str = field(repr=False, default="")

    @property
    def key(self) -> Key:
        return self.queue, self.task

    @property
    def leases_left(self) -> int | None:
        """Leases that it may still get after this one."""
        return None if self.max_leases is None else max(0, self.max_leases - self.lease_number)


@value
class DeathRecord:
    """Deaths of workers that a task was held at; `alone`: with no other task in the worker. `at` is of the last one, in
    seconds since the epoch; `workers` are the last of the dead."""

    deaths: int = 0
    alone: int = 0
    at: float = 0.0
    workers: tuple[str, ...] = ()


NO_RECORD: Final = DeathRecord()


@value
class DeathLedger:
    """What is known of tasks that were held at deaths, the longest known first."""

    records: Mapping[Key, DeathRecord] = field(default_factory=dict)

    def of(self, key: Key, *, at: float) -> DeathRecord:
        """A task's record, as far as it still says something."""
        known = self.records.get(key, NO_RECORD)
        return known if at - known.at < FORGOTTEN_SECONDS else NO_RECORD

    def noted(self, keys: Iterable[Key], *, worker: str, at: float) -> "DeathLedger":
        """The same after one more death, of a worker that held these."""
        together = list(dict.fromkeys(keys))
        records = dict(self.records)
        for key in together:
            known = self.of(key, at=at)
            records.pop(key, None)
            records[key] = DeathRecord(
                known.deaths + 1,
                known.alone + (len(together) == 1),
                at,
                (*known.workers, worker)[-MAX_WORKERS_KNOWN:],
            )
        for key in list(records)[: max(0, len(records) - MAX_KNOWN)]:
            del records[key]
        return DeathLedger(records)


@value
class TaskVerdict:
    """What is to become of one task of a dead worker's, and its record with this death.

    `hold_seconds`: for so long it is held back. `charge`: whether the lease counts. `why`: the reason it is dead for.
    """

    task: SuspectedTask
    verdict: Verdict
    record: DeathRecord
    charge: Literal["counted", "uncounted"] = "counted"
    hold_seconds: float = 0.0
    pause_seconds: float = 0.0
    why: str = ""


@value
class IsolatedTask:
    """A task that is held back to run alone. `mark` is its source's name for it, with which a worker is named, and
    `workers` are those that died while they held it.

    No worker is started for it before `not_before`; from `lapses_at` on anybody may lease it.
    """

    task: SuspectedTask
    mark: str
    not_before: Monotonic
    lapses_at: Monotonic
    workers: tuple[str, ...] = ()


def judge_tasks(
    ledger: DeathLedger,
    held: Sequence[SuspectedTask],
    *,
    worker: str,
    how: str,
    isolates: Literal["yes", "no"],
    waiting: int,
    at: float,
) -> tuple[DeathLedger, tuple[TaskVerdict, ...]]:
    """What becomes of the tasks that a worker held when it died of what may have been one of them.

    Args:
        how: the worker's end in words: "ended by SIGSEGV".
        isolates: whether a worker can be started for one task in this pool.
        waiting: suspects of the pool that wait already.
        at: seconds since the epoch.
    """
    after = ledger.noted((task.key for task in held), worker=worker, at=at)
    fates = []
    for task in held:
        record = after.of(task.key, at=at)
        fate = _verdict(task, record, is_only_one=len(held) == 1, isolates=isolates)
        if fate.verdict == "dead":
            fate = TaskVerdict(task, "dead", record, why=reason(record, how=how, worker=worker))
        elif fate.verdict == "held back":
            pause = (
                min(MAX_PAUSE_SECONDS, 2.0 ** (record.alone - SOLO_RETRIES_AT_ONCE))
                if record.alone > SOLO_RETRIES_AT_ONCE
                else 0.0
            )
            hold = min(MAX_HOLD_SECONDS, HOLD_SECONDS + HOLD_SECONDS_PER_PLACE * waiting) + pause
            fate = TaskVerdict(task, "held back", record, fate.charge, hold, pause)
            waiting += 1
        fates.append(fate)
    return after, tuple(fates)


def _verdict(
    task: SuspectedTask, record: DeathRecord, *, is_only_one: bool, isolates: Literal["yes", "no"]
) -> TaskVerdict:
    left = task.leases_left
    is_over = left == 0 if left is not None else record.alone >= MAX_SOLO_DEATHS
    if is_only_one and is_over:
        return TaskVerdict(task, "dead", record)
    if isolates == "no":
        return TaskVerdict(task, "given back", record)
    if left == 0:  # in company: the last lease is given once more, and alone
        return TaskVerdict(task, "held back", record, "uncounted")
    if record.deaths >= SUSPECT_DEATHS or left == 1:
        return TaskVerdict(task, "held back", record)
    return TaskVerdict(task, "given back", record)


def reason(record: DeathRecord, *, how: str, worker: str) -> str:
    """Why a task is dead that ended its workers."""
    times = "" if record.deaths <= 1 else f" {record.deaths} times"
    return f"its worker died{times} while it ran, last: {how} (worker {worker})"


def still_held(line: Iterable[IsolatedTask], *, now: Monotonic) -> tuple[IsolatedTask, ...]:
    """Those of a line that are held back for long enough still."""
    return tuple([one for one in line if one.lapses_at - now > MIN_HOLD_LEFT_SECONDS])


def cleared_by(culprit: IsolatedTask, line: Iterable[IsolatedTask]) -> tuple[IsolatedTask, ...]:
    """Those of a line who were held at no other deaths than one that ended its worker alone: it was not them."""
    return tuple([one for one in line if one.workers and set(one.workers) <= set(culprit.workers)])


def reserved(line: Sequence[IsolatedTask], *, running: int) -> int:
    """Places that a pool leaves free while suspects wait; where some are `running`, theirs are the next ones'."""
    return 1 if line and not running else 0


def next_to_start(
    line: Sequence[IsolatedTask], *, most: int, taken: int, alone: int, now: Monotonic
) -> tuple[IsolatedTask, ...]:
    """For whom a worker is to be started now, of a pool with `taken` of its `most` workers, `alone` of them with a
    suspect: that is a few of them at a time, as the others are for those who did nothing."""
    most = max(0, min(most - taken, max(1, most // SOLO_SHARE) - alone))
    return tuple([one for one in line if now >= one.not_before][:most])


def solo_worker_name(suspect: IsolatedTask, *, identity: str) -> str:
    """What the worker is called that is started for a suspect: by it the queue knows whom to give the task to."""
    return f"{identity}{SOLO_MARK}{suspect.mark}"


def is_solo_worker(worker: str) -> bool:
    """Whether a worker is there for one task."""
    return SOLO_MARK in worker


def ledger_of(deaths: Iterable[Mapping[str, object]]) -> DeathLedger:
    """The ledger as the certificates tell it, oldest first; what can't be read is passed over."""
    ledger = DeathLedger()
    for death in deaths:
        held, at = death.get("held"), death.get("at")
        if not death.get("blamed") or not isinstance(held, list) or not isinstance(at, int | float):
            continue
        keys = [
            (one["queue"], one["task"])
            for one in held
            if isinstance(one, dict) and isinstance(one.get("queue"), str) and isinstance(one.get("task"), str)
        ]
        ledger = ledger.noted(keys, worker=str(death.get("worker")), at=float(at))
    return ledger
