"""How much memory and CPU this host, or the container we are in, has and has free. Only looks, decides nothing."""

import math
import os
from pathlib import Path
from typing import Final

import psutil

from orchestrator.capacity.allocation import HostCapacity
from orchestrator.clock import Monotonic

MEASURE_SECONDS: Final = 1.0
SETTLED_SECONDS: Final = 5.0
"""CPU in use is a mean over about that long: a single look may fall between two tasks."""

UNKNOWN_HOST: Final = HostCapacity(math.inf, math.inf, math.inf, math.inf)
"""Nobody is held back by what can't be told."""
_UNLIMITED_BYTES: Final = 1 << 60  # version 1 says "no limit" with a number near 2**63


class HostMeter:
    """Looks at the host at most once a second. Belongs to one thread."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        """`root` is where proc and sys are found."""
        self._root = root
        self._groups = _Groups(root)
        self._host: HostCapacity | None = None
        self._measured_at = Monotonic(float("-inf"))
        self._by_host, self._by_group = _CoresInUse(), _CoresInUse()

    def memory_limit_bytes(self) -> int | None:
        """The tightest limit of the control groups around us; None without one."""
        return min((int(limit) for limit, _ in self._groups.memory()), default=None)

    def measure(self, *, now: Monotonic) -> HostCapacity:
        """What there is, and what is free: the tighter of the host's and of every control group around us."""
        if self._host is not None and now < self._measured_at + MEASURE_SECONDS:
            return self._host
        elapsed = now - self._measured_at
        try:
            memory, times = psutil.virtual_memory(), psutil.cpu_times()
        except OSError:  # no descriptor left, say: what was known goes on
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
    """Cores in use, from CPU seconds so far: a mean that forgets. None before there are two looks: nothing."""

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._cores: float | None = None

    def after(self, seconds: float, elapsed: float) -> float:
        """Learn how many there are `elapsed` seconds after the look before."""
        before, self._seconds = self._seconds, seconds
        if before is not None and 0 < elapsed < math.inf:
            rate = max(0.0, seconds - before) / elapsed
            weight = 1.0 - math.exp(-elapsed / SETTLED_SECONDS)
            self._cores = rate if self._cores is None else self._cores + weight * (rate - self._cores)
        return self._cores or 0.0


def _busy(times: object) -> float:
    """Seconds that all cores together have worked."""
    names = ("user", "system", "nice", "irq", "softirq", "steal")
    return math.fsum(getattr(times, name, 0.0) for name in names)


class _Groups:
    """The control groups that we are in, version 2 or 1, from the innermost to the root of what we can see."""

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
        """Of each group that is limited: the limit and what is used, in bytes, without what can be dropped at once."""
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
        """The tightest quota, in cores; endless without one."""
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
        """CPU seconds that our own group has used so far; 0 where that is not told."""
        for group in self._usage:
            if self._v2:
                used = _field(group / "cpu.stat", "usage_usec") / 1e6
            else:
                used = (_number(group / "cpuacct.usage") or 0.0) / 1e9
            if used:
                return used
        return 0.0


def _own_groups(path: Path) -> list[tuple[str, str]]:
    """Each controller's group; version 2 has one for all, named by nothing."""
    groups = []
    for line in _text(path).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        groups += [(controller, group) for controller in controllers.split(",")]
    return groups


def _upwards(mount: Path, group: str) -> list[Path]:
    """The group's folder and those around it. In a container the group may be told as the host calls it: then the
    mount itself is ours."""
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
