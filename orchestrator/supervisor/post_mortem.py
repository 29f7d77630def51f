"""What is done for a dead worker: its leases are given back, suspects held back, and its death is put on record."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import SourceUnavailableError
from orchestrator.fleet.exits import ENDS_WELL, WITHOUT_FAULT, Cause, detail_at_work
from orchestrator.fleet.quarantine import IsolatedTask, Key, TaskVerdict, judge_tasks, ledger_of
from orchestrator.fleet.workers import Death
from orchestrator.runtime import Exit
from orchestrator.source import ReleasedTask, WorkSource
from orchestrator.state.directory import StateDir

log = structlog.get_logger()

MAX_UNRELEASED: Final = 10_000
MAX_READ: Final = 10_000

MAX_HELD_TOLD: Final = 100
"""Tasks that one certificate names; `held_total` tells how many there were."""

Record: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """A worker that ended, and how; `spec` is its pool's, None for one that is not in the settings any more.

    `waiting`: suspects of the pool that wait already. `is_stopped`: somebody else asked it to end. `asked_seconds`:
    for how long it had been asked to finish; None when it was not.
    """

    worker: str
    pool: str
    cause: Cause
    detail: str
    spec: PoolSpec | None = None
    waiting: int = 0
    is_stopped: bool = False
    asked_seconds: float | None = None

    @property
    def isolates(self) -> Literal["yes", "no"]:
        """Whether a worker can be started in the pool for one task: only where we name what we start."""
        kind = self.spec.runtime_kind if self.spec is not None and not self.spec.dry_run else ""
        return "yes" if kind in {"process", "docker"} else "no"


@dataclass(slots=True)
class _Burial:
    """A dead worker whose tasks are being seen to.

    `fates` are judged once, `marks` are of what was held back; `returned` it gave back itself, as its grace was over.
    """

    end: WorkerEnd
    fates: Sequence[TaskVerdict] | None = None
    marks: Sequence[str] = ()
    spared: Sequence[ReleasedTask] = ()
    returned: Sequence[ReleasedTask] | None = None
    released: Sequence[ReleasedTask] = ()
    is_certified: bool = False

    @property
    def held(self) -> int:
        given_back = len(self.returned or ()) + len(self.released)
        return given_back + sum(1 for fate in self.fates or () if fate.verdict != "given back")


class PostMortems:
    """Dead workers whose leases could not be given back yet wait here until the source answers."""

    def __init__(self, source: WorkSource, files: StateDir, *, clock: MonotonicClock) -> None:
        self._source = source
        self._deaths = files.deaths
        self._clock = clock
        self._ledger = ledger_of(reversed(files.read_deaths(limit=MAX_READ)))
        self._waiting: dict[str, _Burial] = {}
        self._done: dict[str, _Burial] = {}
        self._suspects: list[tuple[str, IsolatedTask]] = []
        self._is_told = False

    def bury(self, ends: Iterable[WorkerEnd]) -> None:
        """See to all that these workers hold, and those before them whose leases the source did not take back."""
        self._waiting.update({end.worker: _Burial(end) for end in ends})
        for worker, burial in list(self._waiting.items()):
            try:
                self._see_to(burial)
            except SourceUnavailableError as error:
                if not self._is_told:
                    log.warning(events.SOURCE_UNAVAILABLE, worker=worker, error=str(error))
                self._is_told = True
                break
            self._is_told = False
            del self._waiting[worker]
            if burial.released:
                log.warning(events.LEASES_RELEASED, worker=worker, tasks=[task.task for task in burial.released])
            self._tell(burial)
            if burial.is_certified:
                self._amend(burial)
            else:
                self._done[worker] = burial
        # Beyond the bound leases are left to expire by themselves.
        for worker in list(self._waiting)[:-MAX_UNRELEASED]:
            del self._waiting[worker]

    def held(self, worker: str) -> int:
        """How many tasks a worker held that was just buried; 0 too while nobody could tell."""
        burial = self._done.get(worker)
        return burial.held if burial else 0

    def take_suspects(self) -> Sequence[tuple[str, IsolatedTask]]:
        """Suspects of the burials since the last call, each with its pool."""
        taken, self._suspects = self._suspects, []
        return taken

    def certify(self, death: Death, ended: Exit) -> None:
        """Put a death on record: why, after how long, holding what, with which last words."""
        burial = self._buried(death.worker)
        tell = log.info if death.cause in ENDS_WELL else log.warning
        tell(
            events.WORKER_REAPED,
            pool=ended.pool,
            worker=death.worker,
            cause=death.cause.value,
            detail=death.detail,
            code=ended.code,
            signal=ended.signal,
            lived_seconds=round(death.lived_seconds, 3),
            held=burial.held,
        )
        self._record(_certificate(death, ended), burial)

    def missing(self, worker: str, *, pool: str) -> None:
        """A worker of an earlier supervisor ended while none was there."""
        detail = "ended while no supervisor was there"
        self.bury([WorkerEnd(worker, pool, Cause.DRAINED, detail)])  # of what, nobody knows: no task is blamed
        burial = self._buried(worker)
        log.warning(
            events.WORKER_REAPED, pool=pool, worker=worker, cause=Cause.UNKNOWN.value, detail=detail, held=burial.held
        )
        self._record({"worker": worker, "pool": pool, "cause": Cause.UNKNOWN.value, "detail": detail}, burial)

    def _see_to(self, burial: _Burial) -> None:
        """Each step may be the one at which the source goes away: then it goes on from there."""
        end = burial.end
        if burial.returned is None and end.asked_seconds is not None and end.spec is not None:
            burial.returned = self._source.given_back_by(end.worker, end.spec, within_seconds=end.asked_seconds)
        if burial.fates is None:
            burial.fates = self._judged(end)
        special = [fate for fate in burial.fates if fate.verdict != "given back"]
        if special and not burial.marks:
            burial.marks = self._source.apply_verdicts(special)
            now = self._clock.monotonic()
            self._suspects += [
                (end.pool, _suspect(fate, mark, now=now))
                for fate, mark in zip(special, burial.marks, strict=True)
                if mark
            ]
        if end.is_stopped and end.cause in WITHOUT_FAULT and end.spec is not None and not burial.spared:
            # Neither the task nor its worker had a part in it: the lease is as if it had never been.
            burial.spared = self._source.give_back(self._source.held_by(end.worker, end.spec))
        burial.released = [*burial.spared, *self._source.release_held_by(end.worker)]

    def _judged(self, end: WorkerEnd) -> Sequence[TaskVerdict]:
        if end.cause in WITHOUT_FAULT or end.spec is None:
            return ()
        held = self._source.held_by(end.worker, end.spec)
        if not held:
            return ()
        self._ledger, fates = judge_tasks(
            self._ledger,
            held,
            worker=end.worker,
            how=detail_at_work(end.cause, end.detail),
            isolates=end.isolates,
            waiting=end.waiting,
            at=self._clock.wall_seconds(),
        )
        return fates

    def _tell(self, burial: _Burial) -> None:
        for fate in burial.fates or ():
            known = {"pool": burial.end.pool, "queue": fate.task.queue, "task": fate.task.task, "tag": fate.task.tag}
            if fate.verdict == "held back":
                log.warning(events.TASK_SUSPECTED, **known, worker=burial.end.worker, deaths=fate.record.deaths)
            elif fate.verdict == "dead":
                log.error(events.TASK_CONDEMNED, **known, worker=burial.end.worker, why=fate.why)

    def _buried(self, worker: str) -> _Burial:
        """What came of it; without an answer of the source so far, the certificate is amended later."""
        burial = (
            self._done.pop(worker, None)
            or self._waiting.get(worker)
            or _Burial(WorkerEnd(worker, "", Cause.UNKNOWN, ""))
        )
        burial.is_certified = True
        return burial

    def _record(self, known: Mapping[str, object], burial: _Burial) -> None:
        held = _held(burial)
        told: dict[str, object] = {"at": round(self._clock.wall_seconds(), 3), **known}
        told |= {"blamed": bool(burial.fates), "held": held[:MAX_HELD_TOLD], "held_total": len(held)}
        if "cause" in known:
            told["held_unknown"] = burial.end.worker in self._waiting
        self._deaths.append(told)

    def _amend(self, burial: _Burial) -> None:
        """What a worker held became known only after its certificate was written."""
        self._record({"worker": burial.end.worker, "amends": True, "held_unknown": False}, burial)


def _held(burial: _Burial) -> list[Record]:
    special = [fate for fate in burial.fates or () if fate.verdict != "given back"]
    known = {fate.task.key: fate for fate in burial.fates or ()}
    return _told_fates(special) + _told_released([*(burial.returned or ()), *burial.released], known)


def _certificate(death: Death, ended: Exit) -> Record:
    """Why a worker ended, after how long, and its last words."""
    told: Record = {
        "worker": death.worker,
        "pool": ended.pool,
        "ref": ended.ref,
        "cause": death.cause.value,
        "detail": death.detail,
        "code": ended.code,
        "signal": ended.signal,
        "lived_seconds": round(death.lived_seconds, 3),
        "failed_start": death.failed_start,
        "memory_peak_bytes": ended.memory_peak_bytes,
        "memory_limit_bytes": ended.memory_limit_bytes,
        "reason": ended.reason,
        "last_lines": list(ended.last_lines),
        "stack": list(ended.stack),
    }
    return told


def _told_fates(fates: Iterable[TaskVerdict]) -> list[Record]:
    """Tasks that were held back, or became dead with their worker."""
    return [
        {
            "queue": fate.task.queue,
            "task": fate.task.task,
            "tag": fate.task.tag,
            "held_seconds": round(fate.task.held_seconds, 3),
            "lease_number": fate.task.lease_number,
            "fate": fate.verdict,
            "deaths": fate.record.deaths,
            "alone": fate.record.solo,
            "hold_seconds": fate.hold_seconds or None,
            "why": fate.why or None,
        }
        for fate in fates
    ]


def _told_released(released: Iterable[ReleasedTask], known: Mapping[Key, TaskVerdict]) -> list[Record]:
    """Tasks that were given back; `known` has the records of those that are."""
    told: list[Record] = []
    for task in released:
        one: Record = {
            "queue": task.queue,
            "task": task.task,
            "tag": task.tag,
            "held_seconds": round(task.held_seconds, 3),
            "lease_number": task.lease_number,
            "fate": "dead" if task.died else "given back",
        }
        fate = known.get((task.queue, task.task))
        if fate is not None:
            one |= {"deaths": fate.record.deaths, "alone": fate.record.solo}
        told.append(one)
    return told


def _suspect(fate: TaskVerdict, mark: str, *, now: Monotonic) -> IsolatedTask:
    not_before, lapses_at = Monotonic(now + fate.pause_seconds), Monotonic(now + fate.hold_seconds)
    return IsolatedTask(fate.task, mark, not_before, lapses_at, fate.record.workers)
