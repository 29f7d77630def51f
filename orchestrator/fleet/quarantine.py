"""Find the tasks that kill their workers, and decide what happens to the tasks of a dead worker. Pure (ADR 14).

A task that was held at several deaths is suspected: it is held back from all workers and run alone, in a solo worker
started for it. Only a task that was alone when its worker died can become dead by that, so tasks that merely shared the
worker survive.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final, Literal

from orchestrator.base.clock import Monotonic
from orchestrator.base.values import value

SUSPECT_DEATHS: Final = 2
"""Deaths at which a task must have been held to be suspected; with a single lease left, one is enough."""
MAX_SOLO_DEATHS: Final = 5
"""Deaths alone in a worker after which a task becomes dead, in a queue without `max_leases`."""
HOLD_SECONDS: Final = 120.0
"""How long a suspected task is held back for its solo worker; if none comes, any worker may lease it again."""
HOLD_SECONDS_PER_PLACE: Final = 10.0
"""Added to the hold for each suspected task of the pool that waits already."""
MAX_HOLD_SECONDS: Final = 900.0
MIN_HOLD_LEFT_SECONDS: Final = 5.0
"""Hold that must be left for a solo worker to be started: it has to come up before the hold ends."""
SOLO_RETRIES_AT_ONCE: Final = 3
"""Deaths alone after which there is a growing pause before the next try: something the task needs may be missing."""
MAX_PAUSE_SECONDS: Final = 30.0
SOLO_SHARE: Final = 8
"""At most one in this many workers of a pool is a solo worker; one is always allowed."""
MAX_KNOWN: Final = 10_000
MAX_WORKERS_KNOWN: Final = 8
FORGOTTEN_SECONDS: Final = 72 * 3600.0
"""Age after which a death no longer counts against a task."""
SOLO_MARK: Final = ".alone."
"""The part of a worker's name that marks it as a solo worker."""

Verdict = Literal["given back", "held back", "dead"]
"""The outcome for a task whose worker died: given back, with its lease counted; held back to run alone; or dead."""

Key = tuple[str, str]
"""The identity of a task across leases: its queue and its name."""


@value
class SuspectedTask:
    """A task that a dead worker holds. `max_leases` is its own bound or its queue's; None if there is none.

    `payload`: as much of it as was asked for.
    """

    queue: str
    task: str
    tag: str | None
    held_seconds: float
    lease_number: int
    max_leases: int | None
    token: str = field(repr=False, default="")
    payload: bytes = field(repr=False, default=b"")

    @property
    def key(self) -> Key:
        return self.queue, self.task

    @property
    def leases_left(self) -> int | None:
        """The number of leases that it may still get after this one; None if unbounded."""
        return None if self.max_leases is None else max(0, self.max_leases - self.lease_number)


@value
class DeathRecord:
    """The deaths of workers at which a task was held, and how many of them with no other task in the worker (`solo`).

    `at` is the time of the last one, in seconds since the epoch; `workers` are the workers that died last.
    """

    deaths: int = 0
    solo: int = 0
    at: float = 0.0
    workers: tuple[str, ...] = ()


NO_RECORD: Final = DeathRecord()


@value
class DeathLedger:
    """The death records of tasks, the oldest first."""

    records: Mapping[Key, DeathRecord] = field(default_factory=dict)

    def of(self, key: Key, *, at: float) -> DeathRecord:
        """Return a task's record; an empty one if there is none or it is too old."""
        known = self.records.get(key, NO_RECORD)
        return known if at - known.at < FORGOTTEN_SECONDS else NO_RECORD

    def after(self, keys: Iterable[Key], *, worker: str, at: float) -> "DeathLedger":
        """Return the ledger after the death of a worker that held these tasks."""
        together = list(dict.fromkeys(keys))
        records = dict(self.records)
        for key in together:
            known = self.of(key, at=at)
            records.pop(key, None)
            records[key] = DeathRecord(
                known.deaths + 1,
                known.solo + (len(together) == 1),
                at,
                (*known.workers, worker)[-MAX_WORKERS_KNOWN:],
            )
        for key in list(records)[: max(0, len(records) - MAX_KNOWN)]:
            del records[key]
        return DeathLedger(records)


@value
class TaskVerdict:
    """The verdict on one task of a dead worker, and its record including this death.

    `hold_seconds`: how long it is held back. `charge`: whether the lease counts. `why`: the reason it is dead for.
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
    """A suspected task that is held back to run alone.

    `mark` is its source's name for it and part of its solo worker's name; `workers` died while they held it. No worker
    is started for it before `not_before`; from `lapses_at` on any worker may lease it.
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
    """Return the ledger with this death, and the verdicts on the tasks that the worker held.

    Args:
        how: the worker's end in words: "ended by SIGSEGV".
        isolates: whether this pool can start solo workers.
        waiting: the number of suspected tasks of the pool that wait already.
        at: seconds since the epoch.
    """
    after = ledger.after((task.key for task in held), worker=worker, at=at)
    verdicts = []
    for task in held:
        record = after.of(task.key, at=at)
        verdict = _verdict(task, record, is_only_one=len(held) == 1, isolates=isolates)
        if verdict.verdict == "dead":
            verdict = TaskVerdict(task, "dead", record, why=reason(record, how=how, worker=worker))
        elif verdict.verdict == "held back":
            over = record.solo - SOLO_RETRIES_AT_ONCE
            pause = min(MAX_PAUSE_SECONDS, 2.0**over) if over > 0 else 0.0
            hold = min(MAX_HOLD_SECONDS, HOLD_SECONDS + HOLD_SECONDS_PER_PLACE * waiting) + pause
            verdict = TaskVerdict(task, "held back", record, verdict.charge, hold, pause)
            waiting += 1
        verdicts.append(verdict)
    return after, tuple(verdicts)


def _verdict(
    task: SuspectedTask, record: DeathRecord, *, is_only_one: bool, isolates: Literal["yes", "no"]
) -> TaskVerdict:
    left = task.leases_left
    is_over = left == 0 if left is not None else record.solo >= MAX_SOLO_DEATHS
    if is_only_one and is_over:
        return TaskVerdict(task, "dead", record)
    if isolates == "no":
        return TaskVerdict(task, "given back", record)
    if left == 0:  # it shared its worker: it gets its last lease once more, alone
        return TaskVerdict(task, "held back", record, "uncounted")
    if record.deaths >= SUSPECT_DEATHS or left == 1:
        return TaskVerdict(task, "held back", record)
    return TaskVerdict(task, "given back", record)


def reason(record: DeathRecord, *, how: str, worker: str) -> str:
    """Return the reason for which a task that killed its workers is dead."""
    times = "" if record.deaths <= 1 else f" {record.deaths} times"
    return f"its worker died{times} while it ran, last: {how} (worker {worker})"


def still_held(waiting: Iterable[IsolatedTask], *, now: Monotonic) -> tuple[IsolatedTask, ...]:
    """Return the tasks whose hold lasts long enough to start a worker for them."""
    return tuple([task for task in waiting if task.lapses_at - now > MIN_HOLD_LEFT_SECONDS])


def cleared_by(culprit: IsolatedTask, waiting: Iterable[IsolatedTask]) -> tuple[IsolatedTask, ...]:
    """Return the tasks that are no longer suspected, as each death they were held at is explained by the culprit."""
    return tuple([task for task in waiting if task.workers and set(task.workers) <= set(culprit.workers)])


def reserved(waiting: Sequence[IsolatedTask], *, running: int) -> int:
    """Return the number of places that a pool keeps free for solo workers: one, unless one is running already."""
    return 1 if waiting and not running else 0


def next_to_start(
    waiting: Sequence[IsolatedTask], *, most: int, taken: int, solo: int, now: Monotonic
) -> tuple[IsolatedTask, ...]:
    """Return the tasks for which to start a solo worker now: a few at a time, as other work needs workers too.

    The pool has `taken` of its `most` workers, `solo` of them solo workers.
    """
    most = max(0, min(most - taken, max(1, most // SOLO_SHARE) - solo))
    return tuple([task for task in waiting if now >= task.not_before][:most])


def solo_worker_name(task: IsolatedTask, *, identity: str) -> str:
    """Return the name of the solo worker for a task: the queue leases the task only to that name."""
    return f"{identity}{SOLO_MARK}{task.mark}"


def is_solo_worker(worker: str) -> bool:
    """Return whether a worker was started for one suspected task."""
    return SOLO_MARK in worker


def ledger_of(deaths: Iterable[Mapping[str, object]]) -> DeathLedger:
    """Rebuild the ledger from death certificates, the oldest first; entries that can't be read are skipped."""
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
        ledger = ledger.after(keys, worker=str(death.get("worker")), at=float(at))
    return ledger
