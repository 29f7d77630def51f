"""The wall clock is set by hours while a supervisor lives, or while none does: nothing that was going on is changed."""

from pathlib import Path

import pytest

from orchestrator.base.clock import ManualMonotonicClock, Monotonic
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.workers import Fleet, RememberedWorker
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.pool import Pool
from orchestrator.supervisor.snapshot import SnapshotWriter, wall_time_in
from orchestrator.supervisor.view import Heartbeat
from tests.support.fleet.fleet_builders import a_fleet, a_pool, a_worker

HOURS = 3_600.0
STEPS = [pytest.param(-26 * HOURS, id="back"), pytest.param(26 * HOURS, id="forth")]


def a_writer(folder: Path, clock: ManualMonotonicClock) -> SnapshotWriter:
    return SnapshotWriter(StateDir(folder), clock=clock, url="memory:", heartbeat=Heartbeat(now=clock.monotonic()))


def managed(fleet: Fleet, spec: PoolSpec) -> Pool:
    return Pool(fleet.pool, spec, fleet)


@pytest.mark.parametrize("step", STEPS)
def test_a_grace_goes_on_whatever_the_clock_was_set_to(tmp_path: Path, step: float) -> None:
    clock = ManualMonotonicClock()
    now = clock.monotonic()
    old = a_worker(
        "old",
        "draining",
        ref="pid:1@2/3",
        deadline_at=Monotonic(now + 20),
        spawned_at=now - 7,
        replaced_by="new",
        leaves_for="its settings changed",
    )
    (tmp_path / "state").mkdir()
    a_writer(tmp_path / "state", clock).update([managed(a_fleet(old), a_pool())], phase="leading")
    clock.advance(5)
    clock.set_wall(step)
    later = a_writer(tmp_path / "state", clock)
    (handle,) = later.roster()
    assert handle.spawned_at == pytest.approx(now - 7, abs=0.2)
    (memory,) = later.memories().values()
    assert (memory.replaced_by, memory.leaves_for) == ("new", "its settings changed")
    assert memory.leaves_by == pytest.approx(now + 20, abs=0.2)


def test_after_a_reboot_the_wall_clock_is_all_there_is(tmp_path: Path) -> None:
    clock = ManualMonotonicClock()
    writer = a_writer(tmp_path, clock)
    writer.update([managed(a_fleet(a_worker("left", ref="pid:1@2/3")), a_pool())], phase="leading")
    shown = StateDir(tmp_path).read_snapshot() or {}
    assert wall_time_in(shown, boot=str(shown["boot"]))
    assert wall_time_in(shown, boot="another") is None
    assert wall_time_in({**shown, "boot": ""}, boot="") is None
    assert writer.memories() == {}


def test_the_next_supervisor_knows_which_workers_were_forked(tmp_path: Path) -> None:
    clock = ManualMonotonicClock()
    writer = a_writer(tmp_path, clock)
    workers = a_fleet(a_worker("forked", ref="pid:1@2/3", is_forked=True), a_worker("executed", ref="pid:2@2/3"))
    writer.update([managed(workers, a_pool())], phase="leading")
    assert {handle.worker: handle.is_forked for handle in writer.roster()} == {"forked": True, "executed": False}


def test_a_snapshot_of_an_earlier_version_is_understood(tmp_path: Path) -> None:
    clock = ManualMonotonicClock()
    worker = {
        "worker": "resize-1",
        "pool": "resize",
        "ref": "pid:1",
        "spec_digest": "d",
        "spawned_at": clock.wall_seconds() - 9,
        "ends_at": clock.wall_seconds() + 9,
        "replaced_by": None,
    }
    StateDir(tmp_path).write_snapshot({"version": 1, "workers": [worker, "nobody", {"worker": 7}]})
    writer = a_writer(tmp_path, clock)
    assert [handle.worker for handle in writer.roster()] == ["resize-1"]
    assert writer.memories() == {"resize-1": RememberedWorker(None, Monotonic(clock.monotonic() + 9))}
