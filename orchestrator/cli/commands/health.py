"""`towline health`: check whether a queue server and a supervisor are healthy, for probes and scripts."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, Unpack

import click

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.cli.commands.fleet import concerns_in, titled
from orchestrator.cli.project_file import load_project
from orchestrator.cli.store_leader import leader_at
from orchestrator.fleet.figures import DRAINED, figures_of
from orchestrator.settings_file import DEFAULT_FILE, Project, state_of
from orchestrator.supervisor.view import LIVE_SECONDS
from queue_core.cli import exits
from queue_core.cli.commands.health import probe, server_health
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import target_options
from queue_core.cli.output import print_json, print_wrapped
from queue_core.cli.target import Target, TargetOptions, find_server
from queue_core.client.http.probe import is_listening
from queue_core.config.settings import ServerSettings

READY: Final = "/v1/supervisor/readyz"
POOLS: Final = "/v1/pools"
SCHEDULES: Final = "/v1/schedules"

Part = Literal["all", "queue", "supervisor"]


@command(
    "health",
    examples=("towline health", "towline health --part supervisor", "towline health --url unix:///run/towline.sock"),
)
@click.option(
    "--part",
    type=click.Choice(["all", "queue", "supervisor"]),
    default="all",
    show_default=True,
    help="The part that must be healthy; all: the queue server, and the supervisor if there is one.",
)
@target_options
def health(part: Part, as_json: bool, **where: Unpack[TargetOptions]) -> int:  # noqa: FBT001
    """Check that the queue server's store accepts changes and that the supervisor's turns finish.

    The supervisor is looked for at the server's URL, then at supervisor.listen of the settings file, then in its state
    directory on this machine. Exit code 69 when something is unhealthy. Pools that are late, limited by a bound, or
    start no worker are listed with the cause, as are pauses, overrides, and tags of waiting tasks that no pool works
    on, and schedules that get no task, as far as this token may see them; they don't change the exit code.
    """
    report: dict[str, object] = {"status": "ok"}
    target = find_server(**where) if part != "supervisor" or where["url"] else None
    if part != "supervisor":
        assert target is not None
        report |= server_health(target)
        report["schedules"] = _schedules_at(target)
    if part != "queue":
        found = _supervisor(target, where["file"])
        if found is None and part == "supervisor":
            fix = "start it with `towline up` or `towline supervise`; supervisor.listen lets other hosts reach it"
            raise CommandError("no supervisor answers", code=exits.UNAVAILABLE, fix=fix)
        report |= {"supervisor": found} if found else {}
    if as_json:
        print_json(report)
    else:
        for line in _shown(report):
            print_wrapped(line, hang=2)
    return exits.OK


def _supervisor(target: Target | None, file: Path | None) -> dict[str, object] | None:
    """Return the supervisor's health; None when there is no supervisor. Raises `CommandError` when it is unhealthy."""
    if target is not None and target.is_server:
        found = probe(target, READY, what="the supervisor", missing="fine")
        if found is not None:
            return found | _pools_at(target)
    path = file or Path(DEFAULT_FILE)
    project = load_project(file) if path.is_file() else None
    found = None if project is None else _listening(project, target) or _local(project)
    return found or (None if target is None else _registered(target))


def _registered(target: Target) -> dict[str, object] | None:
    """Return what the supervisor that leads the store registered there: its API is out of reach."""
    leader = leader_at(target, token=None)
    if leader is None:
        return None
    known = leader.supervisor
    found: dict[str, object] = {"status": "registered", "phase": known.phase, "url": known.url, "host": known.host}
    return found | {"concerns": [], "states": [], "unserved": []}


def _listening(project: Project, target: Target | None) -> dict[str, object] | None:
    listen = project.supervisor.listen
    if listen is None:
        return None
    url = ServerSettings(listen=listen).url(project.directory)
    if not is_listening(url):
        return None
    there = Target(url, "supervisor.listen", target.token if target else None)
    found = probe(there, READY, what="the supervisor", missing="fine")
    return found and found | _pools_at(there)


def _place(supervisor: object) -> str:
    """Return where a supervisor is that only registered itself: what it does is not known here."""
    match supervisor:
        case {"status": "registered", "url": url, "host": host}:
            return f" at {url}" if url else f" on {host}, without a listener (supervisor.listen)"
    return ""


def _schedules_at(target: Target) -> list[dict[str, object]]:
    """Return the schedules whose ticks are not added, and why; none if the token may not list them."""
    with suppress(CommandError):
        found = probe(target, SCHEDULES, what="the server", missing="fine") or {}
        listed = found.get("schedules")
        return [
            {"schedule": one.get("name"), "trouble": one["trouble"]}
            for one in (listed if isinstance(listed, list) else ())
            if isinstance(one, dict) and one.get("trouble")
        ]
    return []


def _pools_at(target: Target) -> dict[str, object]:
    """Return the problems, states and unserved tags that a supervisor reports; none if the token may not read them."""
    found: dict[str, object] = {}
    with suppress(CommandError):
        found = probe(target, POOLS, what="the supervisor", missing="fine") or {}
    pools = found.get("pools")
    listed = [pool for pool in (pools if isinstance(pools, list) else ()) if isinstance(pool, dict)]
    concerns = [
        {"pool": pool.get("pool"), "kinds": str(pool["concerns"]).split(","), "why": pool.get("concerns_why")}
        for pool in listed
        if pool.get("concerns")
    ]
    states = [
        {"pool": pool.get("pool"), "state": state}
        for pool in listed
        for state in str(pool.get("states") or "").splitlines()
    ]
    return {"concerns": concerns, "states": states, "unserved": found.get("unserved", [])}


def _local(project: Project) -> dict[str, object] | None:
    files = state_of(project)
    if not files.is_supervised():
        return None
    snapshot = files.read_snapshot() or {}
    shown_at, phase = snapshot.get("shown_at"), snapshot.get("phase")
    age_seconds = SystemMonotonicClock().wall_seconds() - shown_at if isinstance(shown_at, int | float) else 0.0
    if age_seconds > LIVE_SECONDS:
        message = f"not well: the supervisor has published nothing for {age_seconds:.0f} s"
        fix = "look at its log; restart it"
        raise CommandError(message, code=exits.UNAVAILABLE, where=str(files.path), fix=fix)
    turn_age_seconds = round(max(0.0, age_seconds), 3)
    return {
        "status": "ok",
        "phase": phase,
        "turn_age_seconds": turn_age_seconds,
        "concerns": concerns_in(snapshot),
        "states": [
            {"pool": pool.pool, "state": state}
            for pool in figures_of(snapshot, now_seconds=0.0).pools
            for state in pool.states
        ],
        "unserved": snapshot.get("unserved", []),
    }


def _shown(report: dict[str, object]) -> Iterator[str]:
    parts: list[str] = []
    concerns: list[dict[str, object]] = []
    if "url" in report:
        parts.append(f"ready: {report['url']} ({report['milliseconds']} ms)")
    match report.get("supervisor"):
        case {"phase": phase, "concerns": list(concerns)}:
            parts.append(f"supervisor: {phase}{_place(report['supervisor'])}")
        case _:
            pass
    yield "; ".join(parts)
    supervisor = report.get("supervisor")
    told = supervisor if isinstance(supervisor, dict) else {}
    if told.get("phase") == "draining":
        yield DRAINED
    for one in told.get("unserved", ()):
        yield f"queue {one['queue']}: {one['sentence']}"
    for one in told.get("states", ()):
        yield f"pool {one['pool']}: {one['state']}"
    schedules = report.get("schedules")
    for one in schedules if isinstance(schedules, list) else ():
        yield f"schedule {one['schedule']}: {one['trouble']}"
    for one in concerns:
        yield f"pool {one['pool']}: {titled(one)}"
