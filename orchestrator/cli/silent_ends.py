"""What a worker's certificate says of a lease that nobody ended: a worker that hangs can't tell it by itself."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from orchestrator.cli.project_file import load_project
from orchestrator.settings_file import DEFAULT_FILE, state_of
from queue_core.cli.failure import CommandError
from queue_core.cli.task_story import TaskStory

MAX_DEATHS_READ: Final = 10_000


def silent_ends(story: TaskStory, file: Path | None) -> Mapping[str, str]:
    """Return, by worker, why a lease of this task expired: of the workers whose certificates are in the state folder."""
    silent = {lease.worker for lease in story.leases if lease.outcome == "expired" and not lease.error and lease.worker}
    path = file or Path(DEFAULT_FILE)
    if not silent or not path.is_file():
        return {}
    found: dict[str, str] = {}
    with suppress(CommandError):  # no supervisor has run here
        for death in state_of(load_project(path)).read_deaths(limit=MAX_DEATHS_READ):
            worker = str(death.get("worker"))
            if worker in silent and death.get("detail"):
                found.setdefault(worker, f"its worker: {death['detail']}; see `towline why-died {worker}`")
    return found
