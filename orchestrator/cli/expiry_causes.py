"""Ends of leases that nobody ended, from their workers' certificates: a worker that hangs can't tell it by itself."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from orchestrator.base.json_fields import mapping_of
from orchestrator.cli.project_file import load_project
from orchestrator.cli.supervisor_calls import supervisor_at, supervisor_url
from orchestrator.settings_file import DEFAULT_FILE, state_of
from queue_core.cli.failure import CommandError
from queue_core.cli.target import TargetOptions
from queue_core.cli.task_story import TaskStory

MAX_DEATHS_READ: Final = 10_000
MAX_WORKERS_ASKED: Final = 20
"""Workers whose certificates a supervisor elsewhere is asked for, at most."""


def expiry_causes(story: TaskStory, where: TargetOptions) -> Mapping[str, str]:
    """Return, by worker, why leases of this task expired, where its supervisor has the worker's certificate."""
    silent = {lease.worker for lease in story.leases if lease.outcome == "expired" and not lease.error and lease.worker}
    if silent and (url := supervisor_url(where["url"], where["file"])) is not None:
        return _elsewhere(sorted(silent)[:MAX_WORKERS_ASKED], url, where)
    path = where["file"] or Path(DEFAULT_FILE)
    if not silent or where["store"] or not path.is_file():
        return {}
    found: dict[str, str] = {}
    with suppress(CommandError):  # no supervisor has run here
        for death in state_of(load_project(path)).read_deaths(limit=MAX_DEATHS_READ):
            worker = str(death.get("worker"))
            if worker in silent and death.get("detail"):
                found.setdefault(worker, _sentence(worker, death))
    return found


def _elsewhere(workers: Sequence[str], url: str, where: TargetOptions) -> Mapping[str, str]:
    """Return the same from a supervisor's API; nothing where it has no certificate, or may not show it."""
    found: dict[str, str] = {}
    with supervisor_at(url, where["token_file"]) as supervisor:
        for worker in workers:
            with suppress(CommandError):
                death = mapping_of(supervisor.get("deaths", worker)["death"])
                if death.get("worker") == worker and death.get("detail"):
                    found[worker] = _sentence(worker, death)
    return found


def _sentence(worker: str, death: Mapping[str, object]) -> str:
    return f"its worker: {death['detail']}; see `towline why-died {worker}`"
