"""When a worker has served long enough and a fresh one is to take its place. Pure, but for `resident_bytes`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recycle:
    """Bounds of one worker's life; None: no bound. They are looked at between tasks, never within one."""

    tasks: int | None = None
    memory_bytes: int | None = None
    age_seconds: float | None = None


def recycle_reason(bounds: Recycle, *, tasks: int, memory_bytes: int, age_seconds: float) -> str | None:
    """Which bound is reached, in words, or None."""
    if bounds.tasks is not None and tasks >= bounds.tasks:
        return f"{tasks} tasks done, at most {bounds.tasks}"
    if bounds.age_seconds is not None and age_seconds >= bounds.age_seconds:
        return f"{age_seconds:.1f} s old, at most {bounds.age_seconds:g} s"
    if bounds.memory_bytes is not None and memory_bytes >= bounds.memory_bytes:
        return f"{memory_bytes} bytes resident, at most {bounds.memory_bytes}"
    return None


def resident_bytes() -> int:
    """Resident memory of this process."""
    import psutil  # only a worker with a memory bound pays for the import

    return int(psutil.Process().memory_info().rss)
