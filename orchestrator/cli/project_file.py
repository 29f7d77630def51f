"""Reads the whole settings file for commands: the text, the environment, the flags; failures as people meet them."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from orchestrator.config import PoolSpec
from orchestrator.errors import ReloadRefusedError
from orchestrator.project import DEFAULT_FILE, Project, parse
from orchestrator.state import StateDir
from queue_core.cli.failure import CommandError
from queue_core.cli.settings_file import bad_file, read_text
from queue_core.config import Override, environment_overrides
from queue_core.yaml_text import DocumentError

FLEET_VARIABLES: Final = {
    ("supervisor", "state_dir"): "TOWLINE_STATE_DIR",
    ("supervisor", "orphan_grace"): "TOWLINE_ORPHAN_GRACE",
    ("supervisor", "listen"): "TOWLINE_SUPERVISOR_LISTEN",
}


def load_project(file: Path | None, *, flags: tuple[Override, ...] = ()) -> Project:
    """The project of `file`, by default of ./towline.yaml. Raises `CommandError` with every mistake."""
    path = file or Path(DEFAULT_FILE)
    text = read_text(path)
    try:
        return parse(text, name=str(path), directory=path.parent.absolute(), overrides=[*_overrides(), *flags])
    except DocumentError as error:
        raise bad_file(error, path) from None


def pools_loader(file: Path | None, *, flags: tuple[Override, ...]) -> Callable[[], Mapping[str, PoolSpec]]:
    """Reads the pools anew, for a reload; the file was right before, so now every mistake is only told."""

    def load() -> Mapping[str, PoolSpec]:
        try:
            return load_project(file, flags=flags).pools
        except CommandError as error:
            raise ReloadRefusedError(error.lines) from None
        except OSError as error:
            raise ReloadRefusedError([str(error)]) from None

    return load


def state_of(project: Project) -> StateDir:
    """The supervisor's folder."""
    return StateDir(project.directory / project.supervisor.state_dir)


def _overrides() -> list[Override]:
    given = [Override(path, os.environ[name], name) for path, name in FLEET_VARIABLES.items() if os.environ.get(name)]
    return [*environment_overrides(os.environ), *given]
