"""Read a CSV file of arrivals: a row per task, or a row per slot of time with its count."""

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from orchestrator.simulation.workload import ServiceTimes, Workload, WorkloadError, workload_of
from queue_core.process.wording import counted

ARRIVAL: Final = "arrival_s"
SERVICE: Final = "service_s"
COUNT: Final = "count"
TAG: Final = "tag"
MAX_TASKS: Final = 20_000_000
_HEADER_FIX: Final = f"begin the file with `{ARRIVAL},{SERVICE}` (a row per task) or `{COUNT}` (a row per slot)"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The file's rows with their line numbers, and the positions of its columns."""

    name: str
    columns: dict[str, int]
    rows: Iterable[tuple[int, list[str]]]

    def number(self, line: int, row: list[str], column: str) -> float:
        """Return a cell as a number, 0 or more."""
        place = self.columns[column]
        where = f"{self.name}:{line}"
        if place >= len(row):
            raise WorkloadError(
                f"the row has no {column}", where=where, fix=f"write {counted(place + 1, 'column')} or more"
            )
        try:
            value = float(row[place])
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            what = f"{column} must be a number, 0 or more: {row[place][:40]!r}"
            raise WorkloadError(what, where=where, fix=f"correct line {line}, or leave it out")
        return value


def read_arrivals(
    lines: Iterable[str],
    *,
    name: str,
    rng: Random,
    service: ServiceTimes | None,
    slot_seconds: float | None = None,
) -> Workload:
    """Read the tasks of a CSV file with a header; time begins with the first of them.

    Args:
        lines: the file's; empty ones and those that begin with # are skipped.
        name: the file's, for errors.
        service: how long tasks take if the file has no column `service_s`.
        slot_seconds: the length of a slot, for a file of counts; within a slot, arrivals are random.

    Raises `WorkloadError`.
    """
    rows = _opened(lines, name)
    if ARRIVAL in rows.columns:
        return _task_rows(rows, rng, service)
    if slot_seconds is None:
        what = f"a file of counts needs the length of a slot: its columns are {', '.join(rows.columns)}"
        raise WorkloadError(what, where=name, fix="give it, as in --slot 60s")
    if service is None:
        raise WorkloadError("counts do not say how long a task takes", where=name, fix="give it, as in --service 3s")
    return _count_rows(rows, rng, service, slot_seconds)


def _opened(lines: Iterable[str], name: str) -> _Rows:
    kept = ((number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#"))
    first = next(kept, None)
    if first is None:
        raise WorkloadError("the file is empty", where=name, fix=_HEADER_FIX)
    header = [cell.strip().lower() for cell in next(csv.reader([first[1]]), [])]
    columns = {column: place for place, column in enumerate(header)}
    if ARRIVAL not in columns and COUNT not in columns:
        what = f"no column called {ARRIVAL} or {COUNT}: the header is {first[1].strip()[:60]!r}"
        raise WorkloadError(what, where=f"{name}:{first[0]}", fix=_HEADER_FIX)
    return _Rows(name, columns, ((number, next(csv.reader([line]), [])) for number, line in kept))


def _task_rows(rows: _Rows, rng: Random, service: ServiceTimes | None) -> Workload:
    has_service = SERVICE in rows.columns
    if not has_service and service is None:
        what = f"the file has no column {SERVICE}"
        raise WorkloadError(what, where=rows.name, fix="add it, or say how long tasks take, as in --service 3s")
    found: list[tuple[float, float]] = []
    tags: list[str | None] = []
    tag_place = rows.columns.get(TAG)
    for line, row in rows.rows:
        held = rows.number(line, row, SERVICE) if has_service else 0.0
        tags.append(row[tag_place] or None if tag_place is not None and tag_place < len(row) else None)
        found.append((rows.number(line, row, ARRIVAL), held))
        _check_count(len(found), rows.name, line)
    if not found:
        raise WorkloadError("no row below the header", where=rows.name, fix="write a row per task")
    first = min(at for at, _ in found)
    seconds = [held for _, held in found]
    if service is not None and not has_service:
        seconds = service.drawn(len(found), rng)
    tasks = [(at - first, held) for (at, _), held in zip(found, seconds, strict=True)]
    return workload_of(rows.name, tasks, tags=tags)


def _count_rows(rows: _Rows, rng: Random, service: ServiceTimes, slot_seconds: float) -> Workload:
    ready_at: list[float] = []
    for slot, (line, row) in enumerate(rows.rows):
        count = rows.number(line, row, COUNT)
        if not count.is_integer():
            fix = f"correct line {line}"
            raise WorkloadError(f"a count must be a whole number: {count:g}", where=f"{rows.name}:{line}", fix=fix)
        _check_count(len(ready_at) + count, rows.name, line)
        ready_at += [(slot + rng.random()) * slot_seconds for _ in range(int(count))]
    if not ready_at:
        raise WorkloadError("no arrival in any slot", where=rows.name, fix="write a row per slot with its count")
    return workload_of(rows.name, list(zip(ready_at, service.drawn(len(ready_at), rng), strict=True)))


def _check_count(count: float, name: str, line: int) -> None:
    if count > MAX_TASKS:
        what = f"more than {MAX_TASKS:,} tasks"
        raise WorkloadError(what, where=f"{name}:{line}", fix="simulate a part of the time")
