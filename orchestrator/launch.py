"""What a worker is told when it starts: who it is, what it works on, and how to know its supervisor. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.config.pools import PoolSpec

BACKSTOP: Final = 1.25
"""The supervisor recycles a worker at its pool's limits of memory and age, replacement first; the worker itself only
this much later. Tasks it counts itself, exactly."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What all workers of one supervisor have in common.

    `url` is the server or store they lease from; `lock` the file a living supervisor holds locked. Both are absolute.
    """

    url: str
    state_dir: str
    lock: str
    orphan_grace_seconds: float
    token: str | None = None

    def environment(self, worker: str, pool: PoolSpec) -> Mapping[str, str]:
        """The variables of one worker. An empty list of tags means any task."""
        environment = {
            "TOWLINE_WORKER": worker,
            "TOWLINE_POOL": pool.name,
            "TOWLINE_SPEC": pool.digest(),
            "TOWLINE_URL": self.url,
            "TOWLINE_QUEUE": pool.queue,
            "TOWLINE_TAGS": json.dumps("untagged" if pool.untagged else list(pool.tags or ())),
            "TOWLINE_APP": pool.app or "",
            "TOWLINE_CONCURRENCY": str(pool.concurrency),
            "TOWLINE_GRACE_SECONDS": f"{pool.grace:g}",
            "TOWLINE_RECYCLE": json.dumps(_recycle(pool)),
            "TOWLINE_SUPERVISOR_LOCK": self.lock,
            "TOWLINE_ORPHAN_GRACE_SECONDS": f"{self.orphan_grace_seconds:g}",
            "TOWLINE_STATE_DIR": self.state_dir,
        }
        if pool.app_folder is not None:
            environment["TOWLINE_APP_FOLDER"] = pool.app_folder
        if self.token is not None:
            environment["TOWLINE_TOKEN"] = self.token
        return environment


def _recycle(pool: PoolSpec) -> dict[str, float]:
    limits = pool.recycle
    told: dict[str, float] = {}
    if limits.tasks is not None:
        told["tasks"] = limits.tasks
    if limits.memory is not None:
        told["memory_bytes"] = int(limits.memory * BACKSTOP)
    if limits.age is not None:
        told["age_seconds"] = limits.age * BACKSTOP
    return told
