"""Handle a worker's death: release its leases, hold back suspected tasks, and write its death certificate."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, MonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.death_sentences import death_sentence
from orchestrator.fleet.exits import (
    ENDS_WELL,
    HANGS,
    SPARED,
    WITHOUT_FAULT,
    Cause,
    DeathNotice,
    death_notice,
    detail_at_work,
)
from orchestrator.fleet.last_words import HangingCall
from orchestrator.fleet.quarantine import IsolatedTask, Key, SuspectedTask, TaskVerdict, judge_tasks, ledger_of
from orchestrator.fleet.workers import Death
from orchestrator.runtime import Exit
from orchestrator.source import ReleasedTask, WorkSource
from orchestrator.state.directory import StateDir
from queue_core.attempts.redaction import redacted_lines
from queue_core.log import get_logger

log = get_logger()

MAX_UNRELEASED: Final = 10_000
"""Dead workers whose leases still wait to be released; beyond these the oldest are left to expire."""
MAX_READ: Final = 10_000
"""Death certificates read at the start to rebuild the record of tasks that killed workers."""

MAX_CERTIFICATE_TASKS: Final = 100
"""Tasks that one certificate lists; `held_total` counts all of them."""

MAX_LOGGED_TASKS: Final = 10
"""Tasks that the log entry of a death names."""

MAX_READ_PAYLOAD_BYTES: Final = 65_536
"""Bytes of each held task's payload that its worker's last lines are searched for."""

Record: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """A worker's end; `spec` is its pool's, None for a pool that has left the settings.

    `waiting`: suspected tasks of the pool that wait already. `is_stopped`: something other than the supervisor ended
    it. `draining_seconds`: how long before its end it was asked to finish; None when it was not. `ending`: its end in a
    word or two (see `ending_of`). `calls`: those that it ended for, or could not finish (see `at_fault`).
    """

    worker: str
    pool: str
    cause: Cause
    detail: str
    spec: PoolSpec | None = None
    waiting: int = 0
    is_stopped: bool = False
    draining_seconds: float | None = None
    ending: str = Cause.UNKNOWN.value
    calls: tuple[HangingCall, ...] = ()

    @property
    def isolates(self) -> Literal["yes", "no"]:
        """Return whether the pool can start a solo worker for one task: only where we choose the worker's name."""
        kind = self.spec.runtime_kind if self.spec is not None and not self.spec.dry_run else ""
        return "yes" if kind in {"process", "docker", "kubernetes"} else "no"

    @property
    def notice(self) -> DeathNotice:
        """The end as the tasks keep it that the worker held."""
        is_here = self.spec is not None and runs_on_this_host(self.spec)
        return death_notice(self.worker, self.cause, self.detail, ending=self.ending, is_on_this_host=is_here)


@dataclass(slots=True)
class _PostMortem:
    """The post-mortem of one worker, which may take several tries.

    `fates` are judged once; `marks` identify held-back tasks. `returned` are tasks the worker released itself at the
    end of its grace, `spared` those released uncounted, `released` those released for it; `before` are those
    that it held until shortly before: their leases ended while it hung, or it gave them back by itself. `payloads`: of
    the tasks that it held at its end.
    """

    end: WorkerEnd
    fates: Sequence[TaskVerdict] | None = None
    marks: Sequence[str] = ()
    spared: Sequence[ReleasedTask] = ()
    returned: Sequence[ReleasedTask] | None = None
    before: Sequence[ReleasedTask] | None = None
    released: Sequence[ReleasedTask] = ()
    payloads: Sequence[bytes] = ()
    is_certified: bool = False

    @property
    def held(self) -> int:
        """The number of tasks that the worker held at its end."""
        given_back = len(self.returned or ()) + len(self.released)
        return given_back + sum(1 for fate in self.fates or () if fate.verdict != "given back")


class PostMortems:
    """Handles dead workers; those whose leases can't be released yet wait until the source is available."""

    def __init__(self, source: WorkSource, files: StateDir, *, clock: MonotonicClock) -> None:
        self._source = source
        self._deaths = files.deaths
        self._clock = clock
        self._ledger = ledger_of(reversed(files.read_deaths(limit=MAX_READ)))
        self._waiting: dict[str, _PostMortem] = {}
        self._done: dict[str, _PostMortem] = {}
        self._suspected: list[tuple[str, IsolatedTask]] = []
        self._is_logged = False

    def handle(self, ends: Iterable[WorkerEnd]) -> None:
        """Handle these workers' ends, and earlier ones whose leases could not be released yet."""
        self._waiting.update({end.worker: _PostMortem(end) for end in ends})
        for worker, case in list(self._waiting.items()):
            try:
                self._proceed(case)
            except SourceUnavailableError as error:
                if not self._is_logged:
                    log.warning(events.SOURCE_UNAVAILABLE, worker=worker, error=str(error))
                self._is_logged = True
                break
            self._is_logged = False
            del self._waiting[worker]
            if case.released:
                log.warning(events.LEASES_RELEASED, worker=worker, tasks=[task.task for task in case.released])
            self._log_verdicts(case)
            if case.is_certified:
                self._amend(case)
            else:
                self._done[worker] = case
        # Beyond the limit, leases are left to expire.
        for worker in list(self._waiting)[:-MAX_UNRELEASED]:
            del self._waiting[worker]

    def held_tasks(self, worker: str) -> int:
        """Return how many tasks a worker held that was just handled; 0 also while that is unknown."""
        case = self._done.get(worker)
        return case.held if case else 0

    def take_suspected(self) -> Sequence[tuple[str, IsolatedTask]]:
        """Return the suspected tasks found since the last call, each with its pool's name."""
        taken, self._suspected = self._suspected, []
        return taken

    def certify(self, death: Death, ended: Exit) -> None:
        """Log the death and write its certificate: cause, lifetime, held tasks and last output lines."""
        case = self._post_mortem_of(death.worker)
        held = _held(case)
        write = log.info if death.cause in ENDS_WELL else log.warning
        write(
            events.WORKER_REAPED,
            pool=ended.pool,
            worker=death.worker,
            cause=death.cause.value,
            detail=death.detail,
            code=ended.code,
            signal=ended.signal,
            lived_seconds=round(death.lived_seconds, 3),
            held=case.held,
            tasks=_named(held),
            seconds_ago=round(max(0.0, self._clock.monotonic() - ended.at), 3),
            sentence=death_sentence(death.cause, death.detail, held),
        )
        self._record(_certificate(death, ended, case), case)

    def record_missing(self, worker: str, *, pool: str) -> None:
        """Record the end of an earlier supervisor's worker that ended while no supervisor ran."""
        detail = "ended while no supervisor was there"
        self.handle([WorkerEnd(worker, pool, Cause.DRAINED, detail)])  # the cause is unknown: no task is blamed
        case = self._post_mortem_of(worker)
        log.warning(
            events.WORKER_REAPED,
            pool=pool,
            worker=worker,
            cause=Cause.UNKNOWN.value,
            detail=detail,
            held=case.held,
        )
        self._record({"worker": worker, "pool": pool, "cause": Cause.UNKNOWN.value, "detail": detail}, case)

    def _proceed(self, case: _PostMortem) -> None:
        """Continue the post-mortem where it stopped: the source may become unavailable at any call."""
        end = case.end
        if case.returned is None and end.draining_seconds is not None and end.spec is not None:
            case.returned = self._source.given_back_by(end.worker, end.spec, within_seconds=end.draining_seconds)
        if case.before is None:
            named = {call.task for call in end.calls}
            lapsed: Sequence[ReleasedTask] = ()
            if end.cause in HANGS and end.spec is not None:
                lapsed = self._source.lapsed_by(end.worker, end.spec, named=named)
            calls = end.calls if not lapsed else [call for call in end.calls if call.is_deleted]
            case.before = [*lapsed, *_as_released(calls)]
        if case.fates is None:
            case.fates = self._judged(end, () if end.cause in WITHOUT_FAULT else self._held_by(case))
        special = [fate for fate in case.fates if fate.verdict != "given back"]
        if special and not case.marks:
            case.marks = self._source.apply_verdicts(special, end.notice)
            now = self._clock.monotonic()
            self._suspected += [
                (end.pool, _suspect(fate, mark, now=now))
                for fate, mark in zip(special, case.marks, strict=True)
                if mark
            ]
        is_spared = end.cause in SPARED or (end.is_stopped and end.cause in WITHOUT_FAULT)
        if is_spared and end.spec is not None and not case.spared:
            # Neither the task nor its worker is at fault: the lease does not count.
            case.spared = self._source.give_back(self._held_by(case), end.notice)
        case.released = [*case.spared, *self._source.release_held_by(end.worker, end.notice)]

    def _held_by(self, case: _PostMortem) -> Sequence[SuspectedTask]:
        """Return the tasks that a worker held, and note their payloads: its last lines may quote them."""
        end = case.end
        if end.spec is None:
            return ()
        held = self._source.held_by(end.worker, end.spec, payload_bytes=MAX_READ_PAYLOAD_BYTES)
        case.payloads = case.payloads or [task.payload for task in held]
        return [replace(task, payload=b"") for task in held]

    def _judged(self, end: WorkerEnd, held: Sequence[SuspectedTask]) -> Sequence[TaskVerdict]:
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

    def _log_verdicts(self, case: _PostMortem) -> None:
        for fate in case.fates or ():
            known = {
                "pool": case.end.pool,
                "queue": fate.task.queue,
                "task": fate.task.task,
                "tag": fate.task.tag,
            }
            if fate.verdict == "held back":
                log.warning(events.TASK_SUSPECTED, **known, worker=case.end.worker, deaths=fate.record.deaths)
            elif fate.verdict == "dead":
                log.error(events.TASK_CONDEMNED, **known, worker=case.end.worker, why=fate.why)

    def _post_mortem_of(self, worker: str) -> _PostMortem:
        """Return the worker's post-mortem; one that is not complete yet amends its certificate later."""
        case = (
            self._done.pop(worker, None)
            or self._waiting.get(worker)
            or _PostMortem(WorkerEnd(worker, "", Cause.UNKNOWN, ""))
        )
        case.is_certified = True
        return case

    def _record(self, known: Mapping[str, object], case: _PostMortem) -> None:
        held = _held(case)
        record: dict[str, object] = {"at": round(self._clock.wall_seconds(), 3), **known}
        record |= {"blamed": bool(case.fates), "held": held[:MAX_CERTIFICATE_TASKS], "held_total": len(held)}
        if "cause" in known:
            record["held_unknown"] = case.end.worker in self._waiting
        self._deaths.append(record)

    def _amend(self, case: _PostMortem) -> None:
        """Amend a certificate with the held tasks that were unknown when it was written."""
        self._record({"worker": case.end.worker, "amends": True, "held_unknown": False}, case)


def runs_on_this_host(pool: PoolSpec) -> bool:
    """Return whether a pool's workers run on the supervisor's host for certain."""
    docker = pool.runtime.docker
    return pool.runtime_kind == "process" or (docker is not None and docker.engine is None)


def _held(case: _PostMortem) -> list[Record]:
    special = [fate for fate in case.fates or () if fate.verdict != "given back"]
    known = {fate.task.key: fate for fate in case.fates or ()}
    released = _released_records([*(case.returned or ()), *case.released], known)
    how = "lease ended" if case.end.cause in HANGS else "given back"
    records = _suspect_records(special) + released
    listed = {(one["queue"], one["task"]) for one in records}
    before = [task for task in case.before or () if (task.queue, task.task) not in listed]
    return records + _released_records(before, {}, fate=how)


def _named(held: Sequence[Record]) -> list[Record]:
    return [{name: one[name] for name in ("queue", "task", "fate")} for one in held[:MAX_LOGGED_TASKS]]


def _certificate(death: Death, ended: Exit, case: _PostMortem) -> Record:
    """Return the certificate's part that describes the worker's end."""
    return {
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
        "memory_own_bytes": ended.memory_own_bytes,
        "memory_limit_bytes": ended.memory_limit_bytes,
        "forked": ended.is_forked,
        "reason": ended.reason,
        "last_lines": _last_lines(ended, case),
        "stack": list(ended.stack),
    }


def _last_lines(ended: Exit, case: _PostMortem) -> list[str]:
    """Return the end of a worker's output as the certificate keeps it: what it printed was not redacted."""
    spec = case.end.spec
    if spec is not None and spec.redact == "off":
        return list(ended.last_lines)
    environment = os.environ if spec is None else {**os.environ, **spec.env}
    return list(redacted_lines(ended.last_lines, case.payloads, environment=environment))


def _suspect_records(fates: Iterable[TaskVerdict]) -> list[Record]:
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
            "alone": fate.record.solo,
            "hold_seconds": fate.hold_seconds or None,
            "why": fate.why or None,
        }
        for fate in fates
    ]


def _as_released(calls: Iterable[HangingCall]) -> list[ReleasedTask]:
    """Return the tasks of calls that hung as the worker named them, where the queue no longer knows their leases."""
    return [
        ReleasedTask(call.queue, call.task, call.tag, call.seconds, call.lease_number, deleted=call.is_deleted)
        for call in calls
    ]


def _released_records(
    released: Iterable[ReleasedTask], known: Mapping[Key, TaskVerdict], *, fate: str = "given back"
) -> list[Record]:
    """Return records of the tasks that were released; `known` has the verdicts of suspected ones."""
    records: list[Record] = []
    for task in released:
        one: Record = {
            "queue": task.queue,
            "task": task.task,
            "tag": task.tag,
            "held_seconds": round(task.held_seconds, 3),
            "lease_number": task.lease_number,
            "fate": "dead" if task.died else "deleted" if task.deleted else fate,
        }
        verdict = known.get((task.queue, task.task))
        if verdict is not None:
            one |= {"deaths": verdict.record.deaths, "alone": verdict.record.solo}
        records.append(one)
    return records


def _suspect(fate: TaskVerdict, mark: str, *, now: Monotonic) -> IsolatedTask:
    not_before, lapses_at = Monotonic(now + fate.pause_seconds), Monotonic(now + fate.hold_seconds)
    return IsolatedTask(fate.task, mark, not_before, lapses_at, fate.record.workers)
