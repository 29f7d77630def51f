"""The engine's view of a container as values: its labels, its phase, and how it ended. Pure."""

import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

from orchestrator.base.values import value

STATE_LABEL: Final = "towline.state"
FLEET_LABEL: Final = "towline.fleet"
"""The id of the store's fleet, the same for all supervisors of the store: whoever leads adopts its containers."""
WORKER_LABEL: Final = "towline.worker"
POOL_LABEL: Final = "towline.pool"
SPEC_LABEL: Final = "towline.spec"
SPAWNED_AT_LABEL: Final = "towline.spawned_at"
"""Seconds since the epoch."""
HOST_LABEL: Final = "towline.host"
APP_LABEL: Final = "towline.app"
STOP_SIGNAL_LABEL: Final = "towline.stop_signal"
ORPHAN_GRACE_LABEL: Final = "towline.orphan_grace"
"""Seconds that an `app` worker runs on without a supervisor."""
ORPHAN_LABEL: Final = "towline.orphan_seconds"
"""Seconds after which a container without a supervisor may be killed: its orphan grace and its grace."""

Phase = Literal["created", "running", "paused", "ended"]

_PHASES: Final[Mapping[str, Phase]] = {
    "created": "created",
    "running": "running",
    "restarting": "running",
    "paused": "paused",
    "removing": "ended",
    "exited": "ended",
    "dead": "ended",
}
REMOVED_STATES: Final = frozenset({"removing", "dead"})
"""The states of a container that is being removed, `dead` where that failed half-way."""
_MIB: Final = 2**20
_SIGNAL_BASE: Final = 128
_MAX_SIGNAL: Final = 64
_MAX_REASON_CHARS: Final = 500


@value
class KnownContainer:
    """A supervisor's container, read from its labels. `spawned_at` is in seconds since the epoch.

    `host` identifies the supervisor's host; `orphan_seconds` is how long the container may run without a supervisor.
    """

    container: str
    state: str
    worker: str
    pool: str
    spec_digest: str
    spawned_at: float
    phase: Phase
    host: str = ""
    orphan_seconds: float = 0.0


@value
class ContainerExit:
    """How a container ended. Either `code` or `signal` is set, or neither when that is unknown.

    `is_removed`: it is being removed, or gone.
    """

    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    memory_limit_bytes: int | None = None
    reason: str = ""
    is_removed: bool = False


def known_of(listed: object) -> KnownContainer | None:
    """Read one entry of the engine's list of containers; None when it lacks some of our labels."""
    labels = mapping(at(listed, "Labels"))
    names = (STATE_LABEL, WORKER_LABEL, POOL_LABEL, SPEC_LABEL, SPAWNED_AT_LABEL)
    state, worker, pool, digest, spawned = (text(labels.get(name)) for name in names)
    container = text(at(listed, "Id"))
    if not (container and state and worker and pool and digest):
        return None
    phase = _PHASES.get(text(at(listed, "State")), "running")
    host, orphan_seconds = text(labels.get(HOST_LABEL)), _seconds(text(labels.get(ORPHAN_LABEL)))
    return KnownContainer(container, state, worker, pool, digest, _seconds(spawned), phase, host, orphan_seconds)


def phase_of(inspected: object) -> Phase:
    """Return a container's phase from its inspection."""
    state = at(inspected, "State")
    return _PHASES.get(text(at(state, "Status")), "running")


def pid_of(inspected: object) -> int:
    """Return the pid of the container's first process on the engine's host; 0 when it has none."""
    pid = at(inspected, "State", "Pid")
    return pid if isinstance(pid, int) else 0


def stop_signal_of(inspected: object) -> str:
    """Return the signal that asks the container to finish."""
    return text(at(inspected, "Config", "StopSignal")) or "SIGTERM"


def memory_limit_of(inspected: object) -> int | None:
    """Return the container's memory limit in bytes; None without one."""
    limit = at(inspected, "HostConfig", "Memory")
    return limit if isinstance(limit, int) and limit > 0 else None


def ending_of(inspected: object, *, saw_out_of_memory: bool = False, was_requested: bool = True) -> ContainerExit:
    """Return how a container ended, from its inspection; `saw_out_of_memory`: the engine sent an `oom` event.

    `was_requested`: a signal was, or may have been, requested through the engine. If not, a SIGKILL may be the
    kernel's for lack of memory, which an engine may fail to notice when the whole container ends with it.

    An engine reports a signal as 128 + its number, as a shell does: a program that exits with such a code by itself is
    indistinguishable.
    """
    state = at(inspected, "State")
    code = at(state, "ExitCode")
    ran_out = saw_out_of_memory or at(state, "OOMKilled") is True
    ending = ending_by_code(code if isinstance(code, int) else None)
    reason = text(at(state, "Error"))[:_MAX_REASON_CHARS]
    is_fatal = ran_out and ending.signal == signal.SIGKILL
    if ran_out and not is_fatal and not reason:
        reason = "one of its processes was killed by the kernel: out of memory"
    limit = memory_limit_of(inspected)
    is_removed = text(at(state, "Status")) in REMOVED_STATES
    if limit is not None and ending.signal == signal.SIGKILL and not (ran_out or was_requested or reason or is_removed):
        within = f"with a limit of {limit / _MIB:,.0f} MiB"
        reason = f"no request for it is known: perhaps it was out of memory, {within}"
    return ContainerExit(ending.code, ending.signal, is_fatal, limit, reason, is_removed)


def ending_by_code(code: int | None, *, reason: str = "") -> ContainerExit:
    """Return how a container ended, from its exit code alone."""
    if code is None:
        return ContainerExit(reason=reason)
    if _SIGNAL_BASE < code <= _SIGNAL_BASE + _MAX_SIGNAL:
        return ContainerExit(signal=code - _SIGNAL_BASE, reason=reason)
    return ContainerExit(code=code, reason=reason)


def failed_start(message: str, *, program: str, pool: str) -> str:
    """Return why an engine could not start a container, as a message for the pool's owner."""
    lower = message.lower()
    what = f"can't start a worker of pool {pool}"
    if "executable file not found" in lower or (f'exec: "{program.lower()}"' in lower and "no such file" in lower):
        return f"{what}: no such command: {program}; give its path in the image"
    if "permission denied" in lower and "exec" in lower:
        return f"{what}: {program} may not be executed; chmod +x it in the image, or name its interpreter first"
    if "exec format error" in lower:
        return f"{what}: {program} is not a program of this host; give it a #! line, or name its interpreter first"
    return f"{what}: {message[:_MAX_REASON_CHARS]}"


def nanoseconds(stamp: str) -> int | None:
    """Parse the engine's time stamp 2026-11-22T04:02:53.486004071Z to nanoseconds since the epoch; None if invalid."""
    whole, _, rest = stamp.rstrip("Z").partition(".")
    try:
        seconds = int(datetime.fromisoformat(f"{whole}+00:00").timestamp())
        return seconds * 1_000_000_000 + int(rest[:9].ljust(9, "0") or 0)
    except ValueError:
        return None


def at(data: object, *path: str) -> object:
    """Return the value under these keys; None when there is none."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def mapping(data: object) -> Mapping[str, object]:
    """Return `data` if it is a mapping, else an empty one."""
    return data if isinstance(data, Mapping) else {}


def text(data: object) -> str:
    """Return `data` if it is text, else ""."""
    return data if isinstance(data, str) else ""


def _seconds(written: str) -> float:
    try:
        return float(written)
    except ValueError:
        return 0.0
