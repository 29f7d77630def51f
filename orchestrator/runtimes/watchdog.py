"""The watchdog process: it outlives a killed supervisor and ends the workers that no other supervisor adopts (ADR 4).

Started by `process.py`; it sleeps on the supervisor's lock and imports as little as it can.
"""

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path

from orchestrator.runtimes import procfs
from orchestrator.runtimes.worker_logs import WorkerLogs

POLL_SECONDS = 1.0
"""Interval between two searches for workers without a supervisor."""
MARGIN_SECONDS = 5.0
"""Time after a worker's own limits before it is killed: workers notice the loss, drain and exit by themselves."""
LOCK_SECONDS = 5.0
"""How long to try to become the watchdog: the previous one may be about to end."""
DEFAULT_ORPHAN_GRACE_SECONDS = 60.0
"""Used where a worker's environment lacks a valid orphan grace."""
DEFAULT_GRACE_SECONDS = 30.0
"""Used where a worker's environment lacks a valid grace."""


def watch(state_dir: str, lock_path: str, identity: str = "") -> None:
    """Return when the supervisor and all workers of `state_dir` are gone, or when another watchdog runs.

    `lock_path` is a file that a living supervisor holds an exclusive lock on; `identity` is the id of the folder: those
    of a folder that took its place have a watchdog of their own.
    """
    own_lock = os.open(os.path.join(state_dir, "warden.lock"), os.O_RDWR | os.O_CREAT, 0o600)  # noqa: PTH118
    if not _takes_lock(own_lock):
        return
    lock = os.open(lock_path, os.O_RDONLY | os.O_CREAT, 0o600)
    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_UN)
        if _end_orphans(state_dir, lock, identity):
            return


def verdict(process: procfs.WorkerProcess, *, lost_seconds: float) -> int | None:
    """Return the signal due to a worker whose supervisor has been gone this long, or None. Pure.

    An `app` worker drains by itself after `orphan_grace`; any other program needs a signal.
    """
    orphan_grace = _seconds(process, "TOWLINE_ORPHAN_GRACE_SECONDS", DEFAULT_ORPHAN_GRACE_SECONDS)
    grace = _seconds(process, "TOWLINE_GRACE_SECONDS", DEFAULT_GRACE_SECONDS)
    if lost_seconds >= orphan_grace + grace + MARGIN_SECONDS:
        return signal.SIGKILL
    if lost_seconds >= orphan_grace and process.leads and not process.environment.get("TOWLINE_APP"):
        return signal.SIGTERM
    return None


def _end_orphans(state_dir: str, lock: int, identity: str) -> bool:
    """Return True when no worker is left, False when a supervisor has taken over."""
    # Counted in sleeps, not read from a clock: a host that was suspended must not end everything on waking.
    lost_seconds = 0.0
    logs = WorkerLogs(Path(state_dir) / "workers")
    signalled: set[int] = set()
    while True:
        processes = procfs.worker_processes(state_dir, identity)
        if not processes:
            return True
        if is_held(lock):
            return False
        due = [(process, verdict(process, lost_seconds=lost_seconds)) for process in processes]
        procfs.kill_together([process for process, number in due if number == signal.SIGKILL])
        for process, number in due:
            if number == signal.SIGTERM and process.pid not in signalled:
                signalled.add(process.pid)
                procfs.signal_exactly(process, number)
        with contextlib.suppress(OSError):
            logs.rotate_all()
        time.sleep(POLL_SECONDS)
        lost_seconds += POLL_SECONDS


def _takes_lock(own_lock: int) -> bool:
    # The previous watchdog may be about to end: it holds the lock a moment longer than its supervisor.
    for _ in range(int(LOCK_SECONDS / POLL_SECONDS)):
        try:
            fcntl.flock(own_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(POLL_SECONDS)
        else:
            return True
    return False


def is_held(lock: int) -> bool:
    """Return whether a living process, supervisor or watchdog, holds the lock of this open file. Raises `OSError`."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


def _seconds(process: procfs.WorkerProcess, name: str, default: float) -> float:
    try:
        return float(process.environment.get(name, default))
    except ValueError:
        return default
