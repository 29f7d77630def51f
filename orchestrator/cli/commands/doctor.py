"""`towline doctor`: find what may go wrong on this machine, each finding with a fix."""

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import click
import docker

from orchestrator.cli.commands.doctor_checks import Finding, findings
from orchestrator.cli.project_file import load_project
from orchestrator.config.pools import PoolSpec
from orchestrator.errors import RuntimeUnavailableError
from orchestrator.runtimes.docker.container_state import at, text
from orchestrator.runtimes.docker.create import is_out_of_reach, unreachable
from orchestrator.runtimes.docker.engine import DEFAULT_ENGINE, DockerEngine, error_text, translated_errors
from orchestrator.runtimes.docker.own_container import MOUNTS_FILE, not_mounted, our_container, own_container
from orchestrator.settings_file import DEFAULT_FILE, Project, state_of
from queue_core.cli import exits
from queue_core.cli.failure import CommandError
from queue_core.cli.group import command
from queue_core.cli.options import file_option, json_option
from queue_core.cli.output import echo, print_json, wants_colour
from queue_core.config.store_urls import masked

ANSWER_SECONDS = 5.0


def engine_findings(project: Project | None, *, mounts_file: Path = MOUNTS_FILE) -> Iterator[Finding]:
    """Check every engine that a pool of containers needs, and those pools; `mounts_file` has our own mounts."""
    pools = [pool for pool in (project.pools.values() if project else ()) if pool.containers is not None]
    engines: dict[str | None, list[PoolSpec]] = {}
    for pool in pools:
        engines.setdefault(pool.containers.engine if pool.containers else None, []).append(pool)
    for url, served in engines.items():
        state_dir = state_of(project).path if project is not None else Path()
        yield from _engine(url, served, state_dir=state_dir, mounts_file=mounts_file)
    for pool in pools:
        if project is not None:
            yield from _way_to_queue(pool, project.queue_file.server.url(project.directory))


def _engine(url: str | None, pools: list[PoolSpec], *, state_dir: Path, mounts_file: Path) -> Iterator[Finding]:
    names = ", ".join(pool.name for pool in pools)
    engine = None
    try:
        engine = DockerEngine(url)
        with translated_errors(engine.url):
            api = engine.api(seconds=ANSWER_SECONDS)
            info = api.info()
            missing = [pool for pool in pools if pool.runtime_kind == "docker" and not _has_image(engine, pool)]
            own = own_container(api, mounts_file=mounts_file)
    except (RuntimeUnavailableError, docker.errors.DockerException) as error:
        message = error_text(error) if isinstance(error, docker.errors.APIError) else str(error)
        fix = f"start it, or name it by DOCKER_HOST or pools.*.runtime.docker.engine ({DEFAULT_ENGINE} by default)"
        if engine is not None and engine.socket_path is not None and our_container(mounts_file) is not None:
            fix = "mount its socket in this container under the same path, as `towline export --to compose` does"
        yield Finding("docker", "bad", f"{message}; needed by {names}", fix)
        return
    finally:
        if engine is not None:
            engine.close()
    version, driver = text(at(info, "ServerVersion")), text(at(info, "CgroupVersion"))
    yield Finding("docker", "ok", f"{masked(engine.url)} answers: {version}, cgroup v{driver or '?'}; for {names}")
    if own is not None and own.on_host(str(state_dir)) is None and any(pool.runtime_kind == "docker" for pool in pools):
        message = f"no worker of {names} can start: {not_mounted(str(state_dir), own)}"
        yield Finding("docker", "bad", message, "mount a volume there, as `towline export --to compose` does")
    for pool in missing:
        if pool.containers is None:
            continue
        message = f"pool {pool.name}: the engine has no image {pool.containers.image}"
        if pool.containers.pull == "never":
            yield Finding(
                "docker", "bad", f"{message}, and pull is never", "build or load it there, or let it be fetched"
            )
        else:
            yield Finding("docker", "warn", message, "the first start fetches it, and waits so long: fetch it before")


def _has_image(engine: DockerEngine, pool: PoolSpec) -> bool:
    try:
        engine.api(seconds=ANSWER_SECONDS).inspect_image(pool.containers.image if pool.containers else "")
    except docker.errors.NotFound:
        return False
    return True


def _way_to_queue(pool: PoolSpec, server_url: str) -> Iterator[Finding]:
    """Check that a container can reach the queue at the URL it is given."""
    settings = pool.containers
    if settings is None:
        return
    url = settings.url or server_url
    if is_out_of_reach(url, settings):
        yield Finding("docker", "bad", unreachable(url, pool=pool.name), "mend server.listen or the pool's runtime")
    elif url.startswith("unix:") and settings.url is None and settings.user is not None:
        uid = str(os.geteuid())
        if uid != "0" and settings.user.partition(":")[0] != uid:
            message = f"pool {pool.name}: user {settings.user} may not use the server's socket, which is of user {uid}"
            yield Finding("docker", "warn", message, f"give it user: {uid!r}, or let the server listen on an address")


_COLOURS = {"ok": "green", "warn": "yellow", "bad": "red"}


@command("doctor", examples=("towline doctor", "towline doctor -f deploy/towline.yaml --json"))
@file_option
@json_option
def doctor(file: Path | None, as_json: bool) -> int:  # noqa: FBT001
    """Check Python, SQLite, settings, the store's disk, limits, the clock, server, supervisor, pools and engines.

    Pools that are late, at their max, or start no worker are listed with the cause. The last day of the lifecycle log
    is replayed, to compare each pool with one worker per task.

    Doctor changes nothing, with two exceptions: it writes and removes a small file to time the disk, and it opens a
    store across a network as `towline up` would, which creates missing tables. Exit code 1 when something is bad.
    """
    project, first = _project(file)
    found = []
    for finding in chain(first, findings(project, file=file), engine_findings(project), _of_last_day(project)):
        found.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        print_json([{"check": f.check, "level": f.level, "found": f.found, "fix": f.fix, "see": f.see} for f in found])
    return exits.NEGATIVE if any(finding.level == "bad" for finding in found) else exits.OK


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


def _of_last_day(project: Project | None) -> Iterator[Finding]:
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
