"""Measure the memory and CPU of this host or container, in all and free. It decides nothing."""

import math
import os
from pathlib import Path
from typing import Final

import psutil

from orchestrator.base.clock import Monotonic
from orchestrator.capacity.allocation import HostCapacity

MEASURE_SECONDS: Final = 1.0
"""The shortest interval between two measurements; earlier calls get the last one."""
SETTLED_SECONDS: Final = 5.0
"""The time constant of the mean CPU in use: a single measurement may fall between two tasks."""

UNKNOWN_HOST: Final = HostCapacity(math.inf, math.inf, math.inf, math.inf)
"""The capacity of a host that can't be measured: it limits no pool."""
_UNLIMITED_BYTES: Final = 1 << 60  # version 1 says "no limit" with a number near 2**63


class HostMeter:
    """Measure the host at most once a second. Belongs to one thread."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        """Read `proc` and `sys` below `root`."""
        self._root = root
        self._groups = _Groups(root)
        self._host: HostCapacity | None = None
        self._measured_at = Monotonic(float("-inf"))
        self._by_host, self._by_group = _CoresInUse(), _CoresInUse()

    def memory_limit_bytes(self) -> int | None:
        """Return the tightest memory limit of our control groups; None without one."""
        return min((int(limit) for limit, _ in self._groups.memory()), default=None)

    def measure(self, *, now: Monotonic) -> HostCapacity:
        """Return the capacity: the tighter of the host's and that of every control group around us."""
        if self._host is not None and now < self._measured_at + MEASURE_SECONDS:
            return self._host
        elapsed = now - self._measured_at
        try:
            memory, times = psutil.virtual_memory(), psutil.cpu_times()
        except OSError:  # such as no descriptor left: the last measurement stays
            return self._host or UNKNOWN_HOST
        self._measured_at = now
        total, free = float(memory.total), float(memory.available)
        for limit, used in self._groups.memory():
            total, free = min(total, limit), min(free, max(0.0, limit - used))
        cores = float(len(os.sched_getaffinity(0)))
        all_cores = float(psutil.cpu_count() or cores)
        free_cores = max(0.0, all_cores - self._by_host.after(_busy(times), elapsed))
        quota = self._groups.cores()
        if quota < cores:
            cores = quota
            free_cores = min(free_cores, max(0.0, quota - self._by_group.after(self._groups.cpu_seconds(), elapsed)))
        self._host = HostCapacity(total, free, cores, min(cores, free_cores))
        return self._host


class _CoresInUse:
    """The cores in use: a decaying mean from cumulative CPU seconds; 0 before there are two measurements."""

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._cores: float | None = None

    def after(self, seconds: float, elapsed: float) -> float:
        """Return the mean, `elapsed` seconds after the previous measurement."""
        before, self._seconds = self._seconds, seconds
        if before is not None and 0 < elapsed < math.inf:
            rate = max(0.0, seconds - before) / elapsed
            weight = 1.0 - math.exp(-elapsed / SETTLED_SECONDS)
            self._cores = rate if self._cores is None else self._cores + weight * (rate - self._cores)
        return self._cores or 0.0


def _busy(times: object) -> float:
    """Return the busy seconds of all cores."""
    names = ("user", "system", "nice", "irq", "softirq", "steal")
    return math.fsum(getattr(times, name, 0.0) for name in names)


class _Groups:
    """The control groups of this process, version 2 or 1, from the innermost to the visible root."""

    def __init__(self, root: Path) -> None:
        mounts = root / "sys/fs/cgroup"
        self._v2 = (mounts / "cgroup.controllers").exists()
        paths = dict(_own_groups(root / "proc/self/cgroup"))
        if self._v2:
            self._memory = self._cpu = self._usage = _upwards(mounts, paths.get("", "/"))
        else:
            self._memory = _upwards(mounts / "memory", paths.get("memory", "/"))
            self._cpu = _upwards(mounts / "cpu", paths.get("cpu", "/"))
            self._usage = _upwards(mounts / "cpuacct", paths.get("cpuacct", "/"))

    def memory(self) -> list[tuple[float, float]]:
        """Return the limit and the use of each limited group, in bytes, without cache that can be dropped at once."""
        limit_name = "memory.max" if self._v2 else "memory.limit_in_bytes"
        used_name = "memory.current" if self._v2 else "memory.usage_in_bytes"
        dropped = "inactive_file" if self._v2 else "total_inactive_file"
        limits = []
        for group in self._memory:
            limit, used = _number(group / limit_name), _number(group / used_name)
            if limit is not None and used is not None and limit < _UNLIMITED_BYTES:
                limits.append((limit, max(0.0, used - _field(group / "memory.stat", dropped))))
        return limits

    def cores(self) -> float:
        """Return the tightest quota, in cores; infinite without one."""
        quotas = [math.inf]
        for group in self._cpu:
            if self._v2:
                words = _text(group / "cpu.max").split()
                quota, period = (words[0], words[1]) if len(words) > 1 else ("max", "")
            else:
                quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
            if quota.isdecimal() and period.isdecimal() and int(period):
                quotas.append(int(quota) / int(period))
        return min(quotas)

    def cpu_seconds(self) -> float:
        """Return the CPU seconds that our own group has used so far; 0 if unknown."""
        for group in self._usage:
            if self._v2:
                used = _field(group / "cpu.stat", "usage_usec") / 1e6
            else:
                used = (_number(group / "cpuacct.usage") or 0.0) / 1e9
            if used:
                return used
        return 0.0


def _own_groups(path: Path) -> list[tuple[str, str]]:
    """Return each controller's group; version 2 has one group for all, under the name ""."""
    groups = []
    for line in _text(path).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        groups += [(controller, group) for controller in controllers.split(",")]
    return groups


def _upwards(mount: Path, group: str) -> list[Path]:
    """Return the group's folder and its parents. In a container the path may be the host's: then it is the mount."""
    own = mount / group.strip("/")
    if not own.is_dir():
        return [mount]
    folders = [own]
    while folders[-1] != mount:
        folders.append(folders[-1].parent)
    return folders


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> float | None:
    text = _text(path)
    return float(text) if text.isdecimal() else None


def _field(path: Path, name: str) -> float:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return float(value)
    return 0.0
