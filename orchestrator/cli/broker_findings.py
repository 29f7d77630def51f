"""The findings of `towline doctor` about the brokers of Celery fleets: whether each can be read."""

from collections.abc import Iterator

from orchestrator.assembly import celery_fleets
from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.cli.finding import Finding
from orchestrator.config.pools import PoolSpec
from orchestrator.settings_file import Project
from orchestrator.sources.celery.source import CeleryFleets
from queue_core.process.wording import counted, shown_setting

_SLOW_START_SECONDS = 5.0
"""A Celery worker takes 2 to 5 s to start: with a shorter slo a task that meets no worker is late."""


def broker_findings(project: Project | None) -> Iterator[Finding]:
    """Yield the findings of each pool with a Celery source."""
    pools = [pool for pool in project.pools.values() if pool.source is not None] if project is not None else []
    if not pools:
        return
    fleets = celery_fleets()
    try:
        for pool in pools:
            yield from _pool_findings(pool, fleets)
    finally:
        fleets.close()


def _pool_findings(pool: PoolSpec, fleets: CeleryFleets) -> Iterator[Finding]:
    now = SystemMonotonicClock().monotonic()
    try:
        sample = fleets.sample(pool, workers=(), now=now)
    except SourceUnavailableError as error:
        fix = "its size holds until the broker answers: check source.celery.broker and the broker itself"
        yield Finding("brokers", "bad", f"{pool.name}: {error}", fix)
        return
    found = f"{pool.name}: the broker answers, {counted(sample.ready, 'task')} of {pool.queue} ready"
    yield Finding("brokers", "ok", found)
    if pool.workers.min == 0 and pool.slo < _SLOW_START_SECONDS:
        found = f"{pool.name}: its slo of {shown_setting(pool.slo)} is shorter than a Celery worker's start, 2 to 5 s"
        yield Finding("brokers", "warn", found, "keep a worker: `workers: {min: 1}`")
