"""Load the whole settings file for commands: text, environment and flags; failures become `CommandError`."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.base.errors import ReloadRefusedError
from orchestrator.settings_file import DEFAULT_FILE, Project, effective, overrides_of, parse_at
from orchestrator.supervisor.reload import ReloadedSettings
from queue_core.cli.failure import CommandError
from queue_core.cli.settings_file import read_text, settings_failure
from queue_core.client.queue import Queues
from queue_core.config.reloading import with_credentials_of
from queue_core.config.settings import Override
from queue_core.config.yaml_document import DocumentError
from queue_core.errors import QueueError
from queue_core.schedules.book import schedule_json
from queue_core.task import QueueSpec

Renewal = Callable[[Project], Callable[[], None]]
"""Reads the tokens and certificates of settings, and returns what has a listener take them up.

Raises `CommandError` or `OSError` for such as can't be used.
"""


def load_project(file: Path | None, *, flags: tuple[Override, ...] = ()) -> Project:
    """Load the project from `file`, by default ./towline.yaml. Raises `CommandError` that lists every mistake."""
    path = file or Path(DEFAULT_FILE)
    text = read_text(path)
    try:
        return parse_at(text, path, overrides=[*overrides_of(os.environ), *flags])
    except DocumentError as error:
        raise settings_failure(error, path) from None


def pools_loader(
    file: Path | None,
    *,
    flags: tuple[Override, ...],
    started_with: Project,
    queues: Queues,
    renewal: Renewal | None = None,
) -> Callable[[], ReloadedSettings]:
    """Return a function that reads the pools again for a reload; mistakes raise `ReloadRefusedError`.

    Settings outside `pools` stay as in `started_with` until the next start, except that new queues are made in
    `queues`, and tokens and certificates are taken up.

    Args:
        renewal: of the listener; None: there is none.
    """
    in_force = started_with

    def load() -> ReloadedSettings:
        try:
            project = load_project(file, flags=flags)
        except CommandError as error:
            raise ReloadRefusedError(error.lines) from None
        except OSError as error:
            raise ReloadRefusedError([str(error)]) from None
        return ReloadedSettings(project.pools, finish=lambda: finish(project))

    def finish(project: Project) -> ReloadedSettings:
        nonlocal in_force
        take_up = _renewed(project, renewal)
        new = [spec for spec in project.queue_file.specs() if spec.name not in in_force.queue_file.queues]
        made = _made(queues, new)
        take_up()
        in_force = _with_queues(in_force, project, made)
        if renewal is not None:
            in_force = replace(in_force, queue_file=with_credentials_of(in_force.queue_file, project.queue_file))
        schedules = [schedule_json(one) for one in project.schedules]
        return ReloadedSettings(project.pools, _changed_beside(in_force, project), made, schedules)

    return load


def _made(queues: Queues, specs: Sequence[QueueSpec]) -> tuple[str, ...]:
    """Make the queues that don't exist yet and return their names. Raises `ReloadRefusedError`."""
    made: list[str] = []
    known: set[str] | None = None
    for spec in specs:
        try:
            known = {one.name for one in queues.queues()} if known is None else known
            if spec.name not in known:
                queues.put_queue(spec)
                made.append(spec.name)
        except QueueError as error:
            raise ReloadRefusedError([f"queues.{spec.name}: can't be made: {error}"]) from None
    return tuple(made)


def _with_queues(in_force: Project, read: Project, names: Collection[str]) -> Project:
    """Return the settings in force after these queues of the file were made."""
    before = in_force.queue_file
    made = {name: read.queue_file.queues[name] for name in names}
    return replace(in_force, queue_file=before.model_copy(update={"queues": {**before.queues, **made}}))


def _renewed(project: Project, renewal: Renewal | None) -> Callable[[], None]:
    """Read the tokens and certificates. Raises `ReloadRefusedError`."""
    if renewal is None:
        return lambda: None
    try:
        return renewal(project)
    except CommandError as error:
        raise ReloadRefusedError(error.lines) from None
    except OSError as error:
        raise ReloadRefusedError([f"{error.filename}: {error.strerror}" if error.filename else str(error)]) from None


def _changed_beside(before: Project, after: Project) -> tuple[str, ...]:
    """Return the names of changed settings outside the pools; not their values, which may be secret."""
    old, new = (
        {path: value for path, value, _ in effective(project) if not path.startswith(("pools.", "schedules"))}
        for project in (before, after)
    )
    return tuple(path for path in dict.fromkeys([*old, *new]) if old.get(path) != new.get(path))
