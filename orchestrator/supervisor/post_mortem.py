"""Handle a worker's death: release its leases, hold back suspected tasks, and write its death certificate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic, MonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import SourceUnavailableError
from orchestrator.fleet.exits import ENDS_WELL, WITHOUT_FAULT, Cause, at_work
from orchestrator.fleet.quarantine import Key, Suspect, SuspectVerdict, judged, ledger_of
from orchestrator.fleet.workers import Death
from orchestrator.runtime import Exit
from orchestrator.source import ReleasedTask, WorkSource
from orchestrator.state.directory import StateDir

log = structlog.get_logger()

MAX_UNRELEASED: Final = 10_000
"""Dead workers whose leases still wait to be released; beyond these the oldest are left to expire."""
MAX_READ: Final = 10_000
"""Death certificates read at the start to rebuild the record of tasks that killed workers."""

MAX_HELD_TOLD: Final = 100
"""Tasks that one certificate lists; `held_total` counts all of them."""

Record: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """A worker's end; `spec` is its pool's, None for a pool that has left the settings.

    `waiting`: suspected tasks of the pool that wait already. `is_stopped`: something other than the supervisor ended
    it. `asked_seconds`: how long before its end it was asked to finish; None when it was not.
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
        """Whether the pool can start a solo worker for one task: only where we choose the worker's name."""
        kind = self.spec.runtime_kind if self.spec is not None and not self.spec.dry_run else ""
        return "yes" if kind in {"process", "docker"} else "no"


@dataclass(slots=True)
class _Burial:
    """The post-mortem of one worker, which may take several tries.

    `fates` are judged once; `marks` identify held-back tasks. `returned` are tasks the worker released itself at the
    end of its grace, `spared` those released uncounted, `released` those released for it.
    """

    end: WorkerEnd
    fates: Sequence[SuspectVerdict] | None = None
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
    """Handles dead workers; those whose leases can't be released yet wait until the source is available."""

    def __init__(self, source: WorkSource, files: StateDir, *, clock: MonotonicClock) -> None:
        self._source = source
        self._deaths = files.deaths
        self._clock = clock
        self._ledger = ledger_of(reversed(files.read_deaths(limit=MAX_READ)))
        self._waiting: dict[str, _Burial] = {}
        self._done: dict[str, _Burial] = {}
        self._suspects: list[tuple[str, Suspect]] = []
        self._is_told = False

    def bury(self, ends: Iterable[WorkerEnd]) -> None:
        """Handle these workers' ends, and earlier ones whose leases could not be released yet."""
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
        # Beyond the limit, leases are left to expire.
        for worker in list(self._waiting)[:-MAX_UNRELEASED]:
            del self._waiting[worker]

    def held(self, worker: str) -> int:
        """Return how many tasks a worker held that was just handled; 0 also while that is unknown."""
        burial = self._done.get(worker)
        return burial.held if burial else 0

    def take_suspects(self) -> Sequence[tuple[str, Suspect]]:
        """Return the suspected tasks found since the last call, each with its pool's name."""
        taken, self._suspects = self._suspects, []
        return taken

    def certify(self, death: Death, ended: Exit) -> None:
        """Log the death and write its certificate: cause, lifetime, held tasks and last output lines."""
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
        """Record the end of an earlier supervisor's worker that ended while no supervisor ran."""
        detail = "ended while no supervisor was there"
        self.bury([WorkerEnd(worker, pool, Cause.DRAINED, detail)])  # the cause is unknown: no task is blamed
        burial = self._buried(worker)
        log.warning(
            events.WORKER_REAPED, pool=pool, worker=worker, cause=Cause.UNKNOWN.value, detail=detail, held=burial.held
        )
        self._record({"worker": worker, "pool": pool, "cause": Cause.UNKNOWN.value, "detail": detail}, burial)

    def _see_to(self, burial: _Burial) -> None:
        """Continue the post-mortem where it stopped: the source may become unavailable at any call."""
        end = burial.end
        if burial.returned is None and end.asked_seconds is not None and end.spec is not None:
            burial.returned = self._source.given_back_by(end.worker, end.spec, within_seconds=end.asked_seconds)
        if burial.fates is None:
            burial.fates = self._judged(end)
        special = [fate for fate in burial.fates if fate.verdict != "given back"]
        if special and not burial.marks:
            burial.marks = self._source.settle(special)
            now = self._clock.monotonic()
            self._suspects += [
                (end.pool, _suspect(fate, mark, now=now))
                for fate, mark in zip(special, burial.marks, strict=True)
                if mark
            ]
        if end.is_stopped and end.cause in WITHOUT_FAULT and end.spec is not None and not burial.spared:
            # Neither the task nor its worker is at fault: the lease does not count.
            burial.spared = self._source.give_back(self._source.held_by(end.worker, end.spec))
        burial.released = [*burial.spared, *self._source.release_held_by(end.worker)]

    def _judged(self, end: WorkerEnd) -> Sequence[SuspectVerdict]:
        if end.cause in WITHOUT_FAULT or end.spec is None:
            return ()
        held = self._source.held_by(end.worker, end.spec)
        if not held:
            return ()
        self._ledger, fates = judged(
            self._ledger,
            held,
            worker=end.worker,
            how=at_work(end.cause, end.detail),
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
        """Return the worker's post-mortem; one that is not complete yet amends its certificate later."""
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
        """Amend a certificate with the held tasks that were unknown when it was written."""
        self._record({"worker": burial.end.worker, "amends": True, "held_unknown": False}, burial)


def _held(burial: _Burial) -> list[Record]:
    special = [fate for fate in burial.fates or () if fate.verdict != "given back"]
    known = {fate.task.key: fate for fate in burial.fates or ()}
    return _told_fates(special) + _told_released([*(burial.returned or ()), *burial.released], known)


def _certificate(death: Death, ended: Exit) -> Record:
    """Return the certificate's part that describes the worker's end."""
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


def _told_fates(fates: Iterable[SuspectVerdict]) -> list[Record]:
    """Return records of the tasks that were held back, or became dead."""
    return [
        {
            "queue": fate.task.queue,
            "task": fate.task.task,
            "tag": fate.task.tag,
            "held_seconds": round(fate.task.held_seconds, 3),
            "lease_number": fate.task.lease_number,
            "fate": fate.verdict,
            "deaths": fate.record.deaths,
            "alone": fate.record.alone,
            "hold_seconds": fate.hold_seconds or None,
            "why": fate.why or None,
        }
        for fate in fates
    ]


def _told_released(released: Iterable[ReleasedTask], known: Mapping[Key, SuspectVerdict]) -> list[Record]:
    """Return records of the tasks that were released; `known` has the verdicts of suspected ones."""
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
            one |= {"deaths": fate.record.deaths, "alone": fate.record.alone}
        told.append(one)
    return told


def _suspect(fate: SuspectVerdict, mark: str, *, now: Monotonic) -> Suspect:
    not_before, lapses_at = Monotonic(now + fate.pause_seconds), Monotonic(now + fate.hold_seconds)
    return Suspect(fate.task, mark, not_before, lapses_at, fate.record.workers)
