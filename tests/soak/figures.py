"""The resources of one process, according to the kernel, and whether a series of samples is flat."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.runtimes import procfs


@dataclass(frozen=True, slots=True)
class Look:
    """One sample of a supervisor without workers. `zombies` are its unreaped children."""

    starts: int
    memory_bytes: int
    descriptors: int
    threads: int
    zombies: int


def look_at(pid: int, *, starts: int) -> Look:
    """Sample a process. Raises `OSError` when it is gone."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    return Look(
        starts,
        int(status["VmRSS"].split()[0]) * 1024,
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        int(status["Threads"]),
        len(zombies_of(pid)),
    )


def zombies_of(parent: int) -> list[int]:
    """Return the unreaped children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] == "Z" and int(fields[1]) == parent:
            found.append(int(entry.name))
    return found


def bytes_a_start(looks: Sequence[Look]) -> float:
    """Return the slope of memory over starts, by least squares: bytes that each start leaves behind."""
    mean_starts = sum(look.starts for look in looks) / len(looks)
    mean_bytes = sum(look.memory_bytes for look in looks) / len(looks)
    spread = sum((look.starts - mean_starts) ** 2 for look in looks)
    if not spread:
        return 0.0
    return sum((look.starts - mean_starts) * (look.memory_bytes - mean_bytes) for look in looks) / spread


def is_alive(pid: int) -> bool:
    """Return whether the process runs."""
    stat = procfs.read_stat(pid)
    return stat is not None and stat.is_alive
