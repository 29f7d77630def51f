"""The findings of `towline doctor` about schedules: those whose ticks are not added, and why."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.finding import Finding
from orchestrator.settings_file import Project
from queue_core.cli.failure import CommandError
from queue_core.cli.target import TargetOptions, opened
from queue_core.clock import MICROSECONDS
from queue_core.errors import QueueError
from queue_core.process.wording import counted, shown_clock

LATELY_SECONDS: Final = 86_400.0
"""How long ago a tick was missed that is still told."""


def schedule_findings(project: Project | None, file: Path | None) -> Iterator[Finding]:
    """Yield the schedules that get no tasks; none where nothing answers, or where there are no schedules."""
    if project is None:
        return
    where: TargetOptions = {"url": None, "store": None, "token_file": None, "file": file}
    try:
        with opened(makes_queues=False, **where) as (queues, _):
            found = queues.schedules.list()
    except (CommandError, QueueError):
        return  # the checks of the store and of the server say why
    known = {one.name for one in found}
    now_seconds = SystemMonotonicClock().wall_seconds()
    wrong = 0
    for one in found:
        if one.trouble:
            wrong += 1
            yield Finding("schedules", "bad", f"{one.name}: {one.trouble}", "`towline schedules` lists all")
        elif one.last_missed is not None and now_seconds - one.last_missed / MICROSECONDS < LATELY_SECONDS:
            wrong += 1
            last = shown_clock(one.last_missed / MICROSECONDS, now_seconds=now_seconds)
            missed = f"ticks of it were missed and not added, the last that of {last} (catch_up: {one.catch_up})"
            fix = "catch_up: last, or all, adds what is missed; `towline schedules run NAME` adds a task now"
            yield Finding("schedules", "warn", f"{one.name}: {missed}", fix)
    for name in project.queue_file.schedules:
        if name not in known:
            wrong += 1
            said = f"{name}: no supervisor has read it yet, so nothing adds its tasks"
            yield Finding("schedules", "warn", said, "start one, `towline up`, or `towline reload` the one that runs")
    if found and not wrong:
        yield Finding("schedules", "ok", f"{counted(len(found), 'schedule')}, and no tick is overdue")
