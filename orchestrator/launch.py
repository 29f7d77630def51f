"""The environment variables of a new worker: its identity, its work, and how it finds its supervisor. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orchestrator.config.pools import PoolSpec

BACKSTOP: Final = 1.25
"""The factor on `recycle.memory` and `recycle.age` at which a worker ends itself, in case its supervisor has not
replaced it at the limit. More than 1, so that the supervisor comes first and can start the replacement beforehand."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings that all workers of one supervisor share.

    `url` is the server or store they lease from, `lock` the file that a living supervisor keeps locked; both absolute.
    `identity` is the id of the folder `state_dir`: another folder may take its place while workers live.
    """

    url: str
    state_dir: str
    lock: str
    orphan_grace_seconds: float
    token: str | None = None
    identity: str = ""

    def environment(self, worker: str, pool: PoolSpec) -> Mapping[str, str]:
        """Return the variables of one worker. An empty list of tags means any task."""
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
        if pool.redact == "off":
            environment["TOWLINE_REDACT"] = "off"
        if pool.celery is not None and pool.celery.namespace:
            environment["TOWLINE_NAMESPACE"] = pool.celery.namespace
        if pool.soft_seconds is not None:
            environment["REMAP_SIGTERM"] = "SIGQUIT"  # on SIGTERM Celery then waits so long, and gives the rest back
        if self.identity:
            environment["TOWLINE_STATE_ID"] = self.identity
        if pool.app_folder is not None:
            environment["TOWLINE_APP_FOLDER"] = pool.app_folder
        if self.token is not None:
            environment["TOWLINE_TOKEN"] = self.token
        return environment


def _recycle(pool: PoolSpec) -> dict[str, float]:
    recycle = pool.recycle
    limits: dict[str, float] = {}
    if recycle.tasks is not None:
        limits["tasks"] = recycle.tasks
    if recycle.memory is not None:
        limits["memory_bytes"] = int(recycle.memory * BACKSTOP)
    if recycle.age is not None:
        limits["age_seconds"] = recycle.age * BACKSTOP
    return limits
