"""When the supervisor writes its snapshot: commands must not show a fleet at rest that no longer is."""

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.base.clock import ManualMonotonicClock
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.pool import Pool, WorkerFailure
from orchestrator.supervisor.snapshot import IDLE_SNAPSHOT_SECONDS, SnapshotWriter
from orchestrator.supervisor.view import Heartbeat
from tests.support.fleet.fleet_builders import a_decision, a_fleet, a_pool, a_sample


@pytest.fixture
def clock() -> ManualMonotonicClock:
    return ManualMonotonicClock()


@pytest.fixture
def writer(tmp_path: Path, clock: ManualMonotonicClock) -> SnapshotWriter:
    return SnapshotWriter(StateDir(tmp_path), clock=clock, url="memory:", heartbeat=Heartbeat(now=clock.monotonic()))


def _idle() -> Pool:
    pool = Pool("resize", a_pool(), a_fleet())
    pool.sample, pool.decision = a_sample(ready=0), a_decision(current=0, target=0)
    return pool


def _shown(writer: SnapshotWriter) -> object:
    return writer.snapshot["pools"]["resize"]  # type: ignore[index]


def test_a_fleet_that_is_idle_is_written_rarely(writer: SnapshotWriter, clock: ManualMonotonicClock) -> None:
    pool = _idle()
    writer.update([pool], phase="leading")
    before = writer.snapshot
    clock.advance(IDLE_SNAPSHOT_SECONDS - 0.5)
    writer.update([pool], phase="leading")
    assert writer.snapshot is before
    clock.advance(0.5)
    writer.update([pool], phase="leading")
    assert writer.snapshot is not before


@pytest.mark.parametrize("news", ["ready", "wanted", "failure"])
def test_what_happens_to_an_idle_pool_is_written_at_once(
    writer: SnapshotWriter, clock: ManualMonotonicClock, news: str
) -> None:
    pool = _idle()
    writer.update([pool], phase="leading")
    before = _shown(writer)
    clock.advance(0.1)
    if news == "ready":
        pool.sample = a_sample(ready=1)
    elif news == "wanted":
        pool.decision = a_decision(current=0, target=1)
    else:
        pool.last_failure = WorkerFailure(clock.monotonic(), "no such image")
    writer.update([pool], phase="leading")
    assert _shown(writer) != before


def test_a_second_failure_with_the_same_reason_is_written_at_once(
    writer: SnapshotWriter, clock: ManualMonotonicClock
) -> None:
    pool = _idle()
    pool.last_failure = WorkerFailure(clock.monotonic(), "no such image")
    writer.update([pool], phase="leading")
    before = _shown(writer)
    clock.advance(0.3)
    pool.last_failure = replace(pool.last_failure, at=clock.monotonic())
    writer.update([pool], phase="leading")
    assert _shown(writer) != before
