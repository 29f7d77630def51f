"""What is done for a dead worker: its leases are given back at once, and its death is put on record."""

from collections.abc import Iterable, Sequence
from typing import Final

import structlog

from orchestrator import events
from orchestrator.clock import Clock
from orchestrator.errors import SourceUnavailableError
from orchestrator.exits import Cause
from orchestrator.fleet import Death
from orchestrator.journal import Journal
from orchestrator.runtime import Exit
from orchestrator.source import ReleasedTask, WorkSource

log = structlog.get_logger()

MAX_UNRELEASED: Final = 10_000
_QUIET: Final = frozenset({Cause.DRAINED, Cause.FINISHED})


class Morgue:
    """Dead workers whose leases could not be given back yet wait here until the source answers."""

    def __init__(self, source: WorkSource, deaths: Journal, *, clock: Clock) -> None:
        self._source = source
        self._deaths = deaths
        self._clock = clock
        self._unreleased: dict[str, None] = {}
        self._held: dict[str, Sequence[ReleasedTask]] = {}
        self._is_told = False

    def release(self, workers: Iterable[str]) -> None:
        """Give back all that these workers hold, and those before them whose leases the source did not take back."""
        self._unreleased.update(dict.fromkeys(workers))
        for worker in list(self._unreleased):
            try:
                held = self._source.release_held_by(worker)
            except SourceUnavailableError as error:
                if not self._is_told:
                    log.warning(events.SOURCE_UNAVAILABLE, worker=worker, error=str(error))
                self._is_told = True
                break
            self._is_told = False
            del self._unreleased[worker]
            if held:
                log.warning(events.LEASES_RELEASED, worker=worker, tasks=[task.task for task in held])
                self._held[worker] = held
        # Beyond the bound leases are left to expire by themselves.
        for worker in list(self._unreleased)[:-MAX_UNRELEASED]:
            del self._unreleased[worker]

    def certify(self, death: Death, ended: Exit) -> None:
        """Put a death on record: why, after how long, holding what, with which last words."""
        held = self._held.pop(death.worker, ())
        tell = log.info if death.cause in _QUIET else log.warning
        tell(
            events.WORKER_REAPED,
            pool=ended.pool,
            worker=death.worker,
            cause=death.cause.value,
            detail=death.detail,
            code=ended.code,
            signal=ended.signal,
            lived_seconds=round(death.lived_seconds, 3),
            held=len(held),
        )
        self._record(
            worker=death.worker,
            pool=ended.pool,
            ref=ended.ref,
            cause=death.cause.value,
            detail=death.detail,
            code=ended.code,
            signal=ended.signal,
            lived_seconds=round(death.lived_seconds, 3),
            failed_start=death.failed_start,
            held=_told(held),
            last_lines=list(ended.last_lines),
        )

    def missing(self, worker: str, *, pool: str) -> None:
        """A worker of an earlier supervisor ended while none was there."""
        self.release([worker])
        held = self._held.pop(worker, ())
        detail = "ended while no supervisor was there"
        log.warning(
            events.WORKER_REAPED, pool=pool, worker=worker, cause=Cause.UNKNOWN.value, detail=detail, held=len(held)
        )
        self._record(worker=worker, pool=pool, cause=Cause.UNKNOWN.value, detail=detail, held=_told(held))

    def _record(self, **certificate: object) -> None:
        self._deaths.append({"at": round(self._clock.wall_seconds(), 3), **certificate})


def _told(held: Sequence[ReleasedTask]) -> list[dict[str, object]]:
    return [
        {"queue": task.queue, "task": task.task, "tag": task.tag, "held_seconds": round(task.held_seconds, 3)}
        for task in held
    ]
