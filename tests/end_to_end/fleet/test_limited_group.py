"""A supervisor inside a control group with real limits: it sees them, and tells what they cost a worker."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cli.commands.overrides import moment
from orchestrator.config.overrides import Expiry, Overrides, ScaleOverride
from orchestrator.runtimes import procfs
from orchestrator.state.directory import StateDir
from tests.soak.empty_source import POOLS
from tests.support.commands import ROOT, program_environment
from tests.support.eventually import eventually

LIMIT_BYTES = 192 << 20
GREEDY = "x = []\nwhile True: x.append(bytearray(1 << 20))"
LOOK = """
import time
from orchestrator.base.clock import Monotonic
from orchestrator.capacity.host import HostMeter
host = HostMeter().measure(now=Monotonic(time.monotonic()))
print(int(host.memory_bytes), int(host.free_memory_bytes), host.cores)
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Folders of one group: one per controller in version 1, one for all in version 2."""

    memory: Path
    cpu: Path

    def command(self, *program: str) -> list[str]:
        """A command that runs a program inside."""
        enter = " && ".join(f"echo $$ > {folder}/cgroup.procs" for folder in {self.memory, self.cpu})
        return ["sh", "-c", f'{enter} && exec "$@"', "sh", *program]


@pytest.fixture
def group() -> Iterator[Group]:
    mounts = Path("/sys/fs/cgroup")
    name = f"towline-test-{os.getpid()}"
    is_v2 = (mounts / "cgroup.controllers").exists()
    found = Group(mounts / name, mounts / name) if is_v2 else Group(mounts / "memory" / name, mounts / "cpu" / name)
    try:
        for folder in {found.memory, found.cpu}:
            folder.mkdir()
        if is_v2:
            (found.memory / "memory.max").write_text(str(LIMIT_BYTES))
            (found.memory / "memory.swap.max").write_text("0")
            (found.cpu / "cpu.max").write_text("50000 100000")
        else:
            (found.memory / "memory.limit_in_bytes").write_text(str(LIMIT_BYTES))
            (found.cpu / "cpu.cfs_period_us").write_text("100000")
            (found.cpu / "cpu.cfs_quota_us").write_text("50000")
    except OSError as error:
        _remove(found)
        pytest.skip(f"needs a control group of its own: {error}")
    try:
        yield found
    finally:
        _remove(found)


def _remove(group: Group) -> None:
    for folder in {group.memory, group.cpu}:
        for _ in range(100):
            try:
                folder.rmdir()
            except FileNotFoundError:
                break
            except OSError:  # somebody is still ending in it
                time.sleep(0.05)
            else:
                break


def test_the_limits_of_its_group_are_what_the_host_has(group: Group) -> None:
    command = group.command(sys.executable, "-c", LOOK)
    told = subprocess.run(command, cwd=ROOT, env=program_environment(), capture_output=True, text=True, check=True)
    memory, free, cores = told.stdout.split()
    assert int(memory) == LIMIT_BYTES
    assert 0 < int(free) < LIMIT_BYTES
    assert float(cores) == 0.5


def test_a_worker_that_the_group_has_no_memory_for_is_told_as_that(group: Group, tmp_path: Path) -> None:
    files = StateDir(tmp_path / "state")
    (group.cpu / ("cpu.max" if group.cpu == group.memory else "cpu.cfs_quota_us")).write_text(
        "max 100000" if group.cpu == group.memory else "-1"
    )
    files.change_overrides(POOLS[0], lambda _: Overrides(ScaleOverride(1, Expiry.after(600.0, moment()))))
    program = [sys.executable, "-m", "tests.soak.empty_source", str(tmp_path), sys.executable, "-c", GREEDY]
    with (tmp_path / "log").open("wb") as log:
        supervisor = subprocess.Popen(
            group.command(*program), cwd=ROOT, env=program_environment(), stdout=log, stderr=log
        )
    try:
        eventually(lambda: files.read_deaths(limit=1), seconds=60)
        death = files.read_deaths(limit=10)[-1]
        assert (death["cause"], death["signal"]) == ("out of memory", signal.SIGKILL)
        assert supervisor.poll() is None
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(timeout=60) == 0
    finally:
        supervisor.kill()
        supervisor.wait()
        for worker in procfs.worker_processes(str(files.path)):
            procfs.signal_exactly(worker, signal.SIGKILL)
