"""`towline doctor`: find what may go wrong on this machine, each finding with a fix."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click

from orchestrator.cli.broker_findings import broker_findings
from orchestrator.cli.commands.doctor_checks import findings
from orchestrator.cli.engine_findings import engine_findings
from orchestrator.cli.finding import Finding
from orchestrator.cli.project_file import load_project
from orchestrator.cli.schedule_findings import schedule_findings
from orchestrator.settings_file import DEFAULT_FILE, Project
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import file_option, json_option
from queue_core.cli.output import echo, print_json, wants_colour

_COLOURS = {"ok": "green", "warn": "yellow", "bad": "red"}


@command(
    "doctor",
    examples=("towline doctor", "towline doctor --celery proj", "towline doctor -f deploy/towline.yaml --json"),
)
@click.option("--celery", "celery_app", metavar="APP", help="Only this app of Celery's, as `celery -A` takes it.")
@file_option
@json_option
def doctor(celery_app: str | None, file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Check Python, SQLite, settings, the store's disk, limits, the clock, server, supervisor, pools, engines and
    clusters.

    Pools that are late, at their max, or start no worker, and schedules that get no task, are listed with the cause.
    The brokers of Celery fleets are read once.
    The last day of the lifecycle log is replayed, to compare each pool with one worker per task.

    Celery apps, with any broker, are imported in a process of their own, and their running workers asked, to
    tell which of their settings lose tasks.

    Of a pool of Pods its cluster is asked whether it would accept one, as a dry run, and what we may do there.

    Doctor changes nothing, with three exceptions: it writes and removes a small file to time the disk, it opens a store
    across a network as `towline up` would, which creates missing tables, and where a pool of containers mounts folders
    it has the engine create a container with them, which is never started and removed at once. Exit code 1 when
    something is bad.
    """
    found = []
    for finding in _project_findings(file) if celery_app is None else _celery_findings(None, app=celery_app):
        found.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        print_json([{"check": f.check, "level": f.level, "found": f.found, "fix": f.fix, "see": f.see} for f in found])
    return exits.NEGATIVE if any(finding.level == "bad" for finding in found) else exits.OK


def _project_findings(file: Path | None) -> Iterator[Finding]:
    project, first = _project(file)
    yield from chain(
        first,
        findings(project, file=file),
        schedule_findings(project, file),
        broker_findings(project),
        engine_findings(project),
        _cluster_findings(project),
        _celery_findings(project),
        _last_day_findings(project),
    )


def _cluster_findings(project: Project | None) -> Iterator[Finding]:
    if project is None or not any(pool.runtime.kubernetes for pool in project.pools.values()):
        return
    from orchestrator.cli.cluster_findings import cluster_findings

    yield from cluster_findings(project)


def _celery_findings(project: Project | None, *, app: str | None = None) -> Iterator[Finding]:
    from orchestrator.cli.celery_apps.reading import celery_findings

    yield from celery_findings(project, app=app)


def _project(file: Path | None) -> tuple[Project | None, list[Finding]]:
    path = file or Path(DEFAULT_FILE)
    if file is None and not path.exists():
        return None, [Finding("settings", "warn", f"no {DEFAULT_FILE} here", "`towline init` writes one")]
    try:
        project = load_project(file)
    except CommandError as error:
        return None, [Finding("settings", "bad", "; ".join(error.lines), error.fix)]
    except OSError as error:
        return None, [Finding("settings", "bad", str(error), "make it readable")]
    notes = [Finding("settings", "warn", note) for note in project.notes]
    return project, [Finding("settings", "ok", f"{path} is valid"), *notes]


def _last_day_findings(project: Project | None) -> Iterator[Finding]:
    if project is None:
        return
        # Importing the simulator takes 0.1 s.
    from orchestrator.cli.commands.doctor_last_day import findings_of_last_day

    yield from findings_of_last_day(project)


def _print(finding: Finding) -> None:
    level = click.style(f"{finding.level:<5}", fg=_COLOURS[finding.level], bold=finding.level == "bad")
    echo(f"{finding.check:<12} {finding.found}", mark=f"{level} ", color=wants_colour())
    if finding.fix:
        echo(f"{'':<19}{finding.fix}")
    if finding.see:
        echo(f"{'':<19}see {finding.see}")
