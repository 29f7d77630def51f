"""What a host or a container has and has free, from files as the kernel writes them."""

from pathlib import Path

import psutil
import pytest

from orchestrator.base.clock import Monotonic
from orchestrator.capacity.host import HostMeter

MIB = 2**20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


V2 = {
    "proc/self/cgroup": "0::/towline/inner",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory",
    "sys/fs/cgroup/towline/memory.max": str(512 * MIB),
    "sys/fs/cgroup/towline/memory.current": str(300 * MIB),
    "sys/fs/cgroup/towline/memory.stat": f"anon 1\ninactive_file {100 * MIB}\nactive_file 7",
    "sys/fs/cgroup/towline/cpu.max": "50000 100000",
    "sys/fs/cgroup/towline/inner/memory.max": "max",
    "sys/fs/cgroup/towline/inner/memory.current": str(200 * MIB),
    "sys/fs/cgroup/towline/inner/cpu.max": "max 100000",
    "sys/fs/cgroup/towline/inner/cpu.stat": "usage_usec 1000000\nuser_usec 1",
}
V1 = {
    "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": str(512 * MIB),  # a container sees its own group as the root
    "sys/fs/cgroup/memory/memory.usage_in_bytes": str(300 * MIB),
    "sys/fs/cgroup/memory/memory.stat": f"cache 1\ntotal_inactive_file {100 * MIB}",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/cpuacct/cpuacct.usage": "1000000000",
}


@pytest.mark.parametrize(
    ("files", "usage", "spent"),
    [
        pytest.param(V2, "sys/fs/cgroup/towline/inner/cpu.stat", "usage_usec 1500000", id="version-2"),
        pytest.param(V1, "sys/fs/cgroup/cpuacct/cpuacct.usage", "1500000000", id="version-1"),
    ],
)
def test_a_container_has_what_its_groups_leave_it(
    tmp_path: Path, files: dict[str, str], usage: str, spent: str
) -> None:
    write(tmp_path, files)
    meter = HostMeter(root=tmp_path)
    host = meter.measure(now=Monotonic(100.0))
    assert (host.memory_bytes, host.free_memory_bytes) == (512 * MIB, 312 * MIB)
    assert host.cores == 0.5
    write(tmp_path, {usage: spent})  # half a second of CPU in two: a quarter of a core
    assert meter.measure(now=Monotonic(102.0)).free_cores <= 0.25


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({}, id="no-groups"),
        pytest.param(
            {**V2, "sys/fs/cgroup/towline/memory.max": "max", "sys/fs/cgroup/towline/cpu.max": "max 100000"}, id="v2"
        ),
        pytest.param(
            {
                **V1,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            },
            id="v1",
        ),
    ],
)
def test_without_limits_it_is_the_whole_host(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, files)
    host = HostMeter(root=tmp_path).measure(now=Monotonic(100.0))
    assert host.memory_bytes == psutil.virtual_memory().total
    assert 0 < host.free_memory_bytes <= host.memory_bytes
    assert host.cores >= 1


def test_a_host_is_looked_at_once_a_second_at_most(tmp_path: Path) -> None:
    write(tmp_path, V2)
    meter = HostMeter(root=tmp_path)
    first = meter.measure(now=Monotonic(100.0))
    write(tmp_path, {"sys/fs/cgroup/towline/memory.current": str(400 * MIB)})
    assert meter.measure(now=Monotonic(100.9)) is first
    assert meter.measure(now=Monotonic(101.0)).free_memory_bytes == 212 * MIB


def test_this_very_host_can_be_looked_at() -> None:
    meter = HostMeter()
    meter.measure(now=Monotonic(100.0))
    host = meter.measure(now=Monotonic(110.0))
    assert 0 <= host.free_cores <= host.cores
    assert not host.is_pressed or host.free_memory_bytes < host.memory_bytes / 10


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        pytest.param(V2, 512 * MIB, id="version-2"),
        pytest.param(V1, 512 * MIB, id="version-1"),
        pytest.param({"proc/self/cgroup": "0::/"}, None, id="none"),
    ],
)
def test_the_tightest_memory_limit_around_us_is_told(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    write(tmp_path, files)
    assert HostMeter(root=tmp_path).memory_limit_bytes() == limit
