"""Measure containers' usage: from this host's control groups if the engine runs here, else from the engine.

Reading a control group takes microseconds; the engine takes one or two milliseconds per container, in a thread.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from orchestrator.base.values import value
from orchestrator.runtime import Usage
from orchestrator.runtimes.docker.container_state import at

UNKNOWN: Final = Usage(0, 0.0)
"""Usage of a container that was not measured yet."""


@value
class ControlGroups:
    """The folders of a container's control groups, version 1 or 2; the same folder twice for version 2."""

    memory: Path
    cpu: Path
    is_v2: bool

    def usage(self) -> Usage | None:
        """Return its current usage, without memory that the kernel can drop at once; None when it is gone."""
        used = _number(self.memory / ("memory.current" if self.is_v2 else "memory.usage_in_bytes"))
        if used is None:
            return None
        dropped = _field(self.memory / "memory.stat", "inactive_file" if self.is_v2 else "total_inactive_file")
        if self.is_v2:
            seconds = _field(self.cpu / "cpu.stat", "usage_usec") / 1e6
        else:
            seconds = (_number(self.cpu / "cpuacct.usage") or 0) / 1e9
        return Usage(max(0, used - dropped), seconds)

    def peak_bytes(self) -> int | None:
        """Return its peak memory so far; None where the kernel does not record it."""
        return _number(self.memory / ("memory.peak" if self.is_v2 else "memory.max_usage_in_bytes"))


def groups_of(pid: int, container: str, *, root: Path = Path("/")) -> ControlGroups | None:
    """Return the control groups of a container's first process.

    None when that pid is not of this container, as when the engine runs on another host.
    """
    paths = {}
    for line in _text(root / f"proc/{pid}/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if container in path:
            paths.update(dict.fromkeys(controllers.split(","), path.strip("/")))
    mounts = root / "sys/fs/cgroup"
    if (mounts / "cgroup.controllers").exists() and "" in paths:
        folder = mounts / paths[""]
        return ControlGroups(folder, folder, is_v2=True) if folder.is_dir() else None
    if "memory" not in paths or "cpuacct" not in paths:
        return None
    memory, cpu = mounts / "memory" / paths["memory"], mounts / "cpuacct" / paths["cpuacct"]
    return ControlGroups(memory, cpu, is_v2=False) if memory.is_dir() else None


def usage_of(stats_answer: Mapping[str, object]) -> Usage:
    """Return the usage from the engine's answer to `stats`."""
    used = at(stats_answer, "memory_stats", "usage")
    stats = at(stats_answer, "memory_stats", "stats")
    dropped = at(stats, "total_inactive_file") or at(stats, "inactive_file")
    nanoseconds = at(stats_answer, "cpu_stats", "cpu_usage", "total_usage")
    if not isinstance(used, int) or not isinstance(nanoseconds, int):
        return UNKNOWN
    return Usage(max(0, used - (dropped if isinstance(dropped, int) else 0)), nanoseconds / 1e9)


def peak_of(stats_answer: Mapping[str, object]) -> int | None:
    """Return the peak memory from the engine's answer to `stats`."""
    peak = at(stats_answer, "memory_stats", "max_usage")
    return peak if isinstance(peak, int) and peak else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _field(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, amount = line.partition(" ")
        if key == name and amount.isdecimal():
            return int(amount)
    return 0
