"""What a dead process leaves behind: how much memory it had at its peak."""

import os
import resource
import sys
from pathlib import Path

from orchestrator.base.clock import Monotonic, SystemMonotonicClock
from orchestrator.runtime import Exit, SpawnRequest
from orchestrator.runtimes.process import ProcessRuntime
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool

CLOCK = SystemMonotonicClock()


def the_end_of(program: str, *, folder: Path, is_seen: bool = False) -> Exit:
    """Run a program as a worker to its end; `is_seen`: its usage was looked at before it was let go on."""
    runtime = ProcessRuntime(folder)
    try:
        pool = a_pool(app=None, command=[sys.executable, "-c", program])
        request = SpawnRequest("w1", pool, {"TOWLINE_WORKER": "w1", "TOWLINE_POOL": "resize", "TOWLINE_SPEC": "s"})
        runtime.spawn(request, now=Monotonic(0.0))
        if is_seen:
            eventually((folder / "ready").exists)
            assert runtime.usage()["w1"].memory_bytes > 0
            (folder / "go").touch()
        ended: list[Exit] = []
        eventually(lambda: ended.extend(runtime.reap(now=CLOCK.monotonic())) or ended)
        return ended[0]
    finally:
        runtime.close()


def test_a_worker_with_more_memory_than_its_supervisor_ever_had_is_known_by_its_peak(tmp_path: Path) -> None:
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = ours + (64 << 20)
    ended = the_end_of(
        f"x = bytearray({size}); x[::4096] = b'x' * len(x[::4096]); raise SystemExit(3)", folder=tmp_path
    )
    assert ended.code == 3
    assert ended.memory_peak_bytes is not None
    assert size <= ended.memory_peak_bytes < size + (64 << 20)


def test_a_small_worker_that_nobody_looked_at_has_no_peak_rather_than_its_supervisors(tmp_path: Path) -> None:
    assert the_end_of("pass", folder=tmp_path).memory_peak_bytes is None


def test_a_small_worker_is_known_by_what_was_seen_of_it(tmp_path: Path) -> None:
    program = (
        f"import pathlib, time; here = pathlib.Path({os.fspath(tmp_path)!r}); (here / 'ready').touch()\n"
        "while not (here / 'go').exists(): time.sleep(0.01)"
    )
    peak = the_end_of(program, folder=tmp_path, is_seen=True).memory_peak_bytes
    assert peak is not None
    assert 1 << 20 < peak < 200 << 20
