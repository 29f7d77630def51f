"""Read the arrivals given to `simulate` and `backtest`; unusable ones fail the command."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final

from orchestrator.settings_file import Project
from orchestrator.simulation.workload import ServiceTimes, WorkloadError
from orchestrator.simulation.workloads.arrival_file import read_arrivals
from orchestrator.simulation.workloads.lifecycle_log import LogFilter, RecordedTasks, read_lifecycle
from queue_core.cli import exits
from queue_core.cli.failure import CommandError

STDIN: Final = "-"
BYTE_ORDER_MARK: Final = "\ufeff"
"""Spreadsheets write this before the first column's name."""


def log_files(project: Project) -> list[Path]:
    """Return the existing files of a project's lifecycle log, oldest first: the rotated one, then the current one."""
    if project.queue_file.log is None:
        return []
    log = project.directory / project.queue_file.log
    return [path for path in (log.with_name(f"{log.name}.1"), log) if path.exists()]


@contextmanager
def as_command_error() -> Iterator[None]:
    """Turn errors about unusable arrivals into a `CommandError`."""
    try:
        yield
    except WorkloadError as error:
        raise CommandError(str(error), code=exits.BAD_DATA, where=error.where, fix=error.fix) from None
    except UnicodeDecodeError as error:
        raise CommandError(
            f"not a text file: {error.reason}", code=exits.BAD_DATA, fix="give CSV or JSON lines, in UTF-8"
        ) from None


def read_files(
    paths: Sequence[Path],
    *,
    rng: Random,
    service: ServiceTimes | None,
    slot_seconds: float | None,
    wanted: LogFilter,
    since: float = -math.inf,
) -> RecordedTasks:
    """Read the arrivals of one CSV file, or of one lifecycle log in one or more files, oldest first."""
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    with as_command_error():
        lines = chain.from_iterable(_lines(path) for path in paths)
        first = next(lines, "").removeprefix(BYTE_ORDER_MARK)
        everything = chain([first], lines) if first else iter(())
        if first.lstrip().startswith("{"):
            return read_lifecycle(everything, name=name, rng=rng, wanted=wanted, since=since)
        if len(paths) > 1:
            raise WorkloadError("several files make one lifecycle log, not one CSV file", where=name, fix="give one")
        workload = read_arrivals(everything, name=name, rng=rng, service=service, slot_seconds=slot_seconds)
    return RecordedTasks(workload)


def _lines(path: Path) -> Iterator[str]:
    if str(path) == STDIN:
        yield from sys.stdin
        return
    with path.open(encoding="utf-8-sig") as file:
        yield from file
