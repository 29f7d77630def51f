"""What runs as one worker of a pool, told the same as a supervisor would tell it. Pure."""

from collections.abc import Mapping
from typing import Final

from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch

PYTHON: Final = "python3"
APP_MODULE: Final = "queue_core.worker"
# A worker that others start names itself, and misses no supervisor.
_NOT_TOLD: Final = frozenset(
    {
        "TOWLINE_WORKER",
        "TOWLINE_SPEC",
        "TOWLINE_SUPERVISOR_LOCK",
        "TOWLINE_ORPHAN_GRACE_SECONDS",
        "TOWLINE_STATE_DIR",
        "TOWLINE_TOKEN",
    }
)


def arguments_of(pool: PoolSpec) -> list[str]:
    """The worker's program in a container."""
    settings = pool.containers
    return list(pool.command or (settings.python if settings else PYTHON, "-m", APP_MODULE))


def environment_of(pool: PoolSpec, *, url: str) -> Mapping[str, str]:
    """A worker's variables: the pool's own, then what it works on."""
    told = Launch(url, "", "", 0.0).environment("", pool)
    return {**pool.env, **{name: text for name, text in told.items() if name not in _NOT_TOLD and text}}


def bounds_of(pool: PoolSpec) -> tuple[int, int]:
    """The least and the most workers at any hour of its schedule."""
    low, high = pool.workers.min, pool.workers.max
    for window in pool.schedule:
        least, most = window.workers.min, window.workers.max
        low = min(bound for bound in (low, least, most) if bound is not None)
        high = high if most is None else max(high, most)
    return low, high
