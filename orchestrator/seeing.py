"""A look at a pool's work; and, where others start its workers, at who of them is there."""

from collections.abc import Mapping, Sequence

import structlog

from orchestrator import events
from orchestrator.clock import Monotonic
from orchestrator.config import PoolSpec
from orchestrator.errors import SourceUnavailableError
from orchestrator.exits import Cause
from orchestrator.managed import ManagedPool
from orchestrator.metrics import QueueSample
from orchestrator.rollcall import RollCall, roll_call
from orchestrator.source import Asked, WorkSource

log = structlog.get_logger()


def look_ahead(
    source: WorkSource, pools: Sequence[tuple[ManagedPool, PoolSpec]], *, now: Monotonic
) -> Mapping[str, QueueSample | SourceUnavailableError]:
    """Look at the work of several pools at once, where that says all; see `look_at` for the others."""
    asked = [
        Asked(spec, pool.fleet.workers.keys(), pool.ahead_seconds(spec))
        for pool, spec in pools
        if spec.runtime_kind != "external"
    ]
    return source.samples(asked, now=now) if asked else {}


def look_at(
    source: WorkSource,
    pool: ManagedPool,
    spec: PoolSpec,
    *,
    now: Monotonic,
    ahead: QueueSample | SourceUnavailableError | None = None,
) -> QueueSample:
    """The pool's work, or what a look `ahead` told of it.

    The fleet is brought up to date with who came and left, where only the queue tells of that.
    Raises `SourceUnavailableError`, with nothing changed.
    """
    if isinstance(ahead, SourceUnavailableError):
        raise ahead
    if ahead is not None:
        return ahead
    ahead_seconds = pool.ahead_seconds(spec)
    if spec.runtime_kind != "external":
        return source.sample(spec, workers=pool.fleet.workers.keys(), ahead_seconds=ahead_seconds, now=now)
    present = source.present(spec)
    names = {*pool.fleet.workers, *(one.worker for one in present)}
    sample = source.sample(spec, workers=names, ahead_seconds=ahead_seconds, now=now)
    called = roll_call(pool.fleet, present, sample, spec=spec, now=now)
    _tell(pool, called)
    pool.fleet = called.fleet
    return sample


def _tell(pool: ManagedPool, called: RollCall) -> None:
    for worker in called.came:
        log.info(events.WORKER_CAME, pool=pool.name, worker=worker)
    pool.tally.starts += called.answers
    for gone in called.gone:
        cause = Cause.DRAINED if gone.released else Cause.UNKNOWN
        pool.tally.died(cause, failed_start=False)
        lived_seconds = round(gone.lived_seconds, 3)
        log.info(
            events.WORKER_LEFT, pool=pool.name, worker=gone.worker, released=gone.released, lived_seconds=lived_seconds
        )
