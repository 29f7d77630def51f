"""The checks of `towline doctor` about containers: is the engine there, has it the images, do they reach the queue?"""

import os
from collections.abc import Iterator

import docker

from orchestrator.cli.checkup import Finding
from orchestrator.config import PoolSpec
from orchestrator.errors import RuntimeUnavailableError
from orchestrator.project import Project
from orchestrator.runtimes.docker.create import is_out_of_reach, unreachable
from orchestrator.runtimes.docker.engine import DEFAULT_ENGINE, DockerEngine, answering, explained
from orchestrator.runtimes.docker.state import at, text
from queue_core.stores.urls import masked

ANSWER_SECONDS = 5.0


def engine_findings(project: Project | None) -> Iterator[Finding]:
    """Of every engine that a pool of containers needs, and of those pools; nothing without such a pool."""
    pools = [pool for pool in (project.pools.values() if project else ()) if pool.containers is not None]
    engines: dict[str | None, list[PoolSpec]] = {}
    for pool in pools:
        engines.setdefault(pool.containers.engine if pool.containers else None, []).append(pool)
    for url, served in engines.items():
        yield from _engine(url, served)
    for pool in pools:
        if project is not None:
            yield from _way_to_queue(pool, project.queue_file.server.url(project.directory))


def _engine(url: str | None, pools: list[PoolSpec]) -> Iterator[Finding]:
    names = ", ".join(pool.name for pool in pools)
    engine = None
    try:
        engine = DockerEngine(url)
        with answering(engine.url):
            api = engine.api(seconds=ANSWER_SECONDS)
            info = api.info()
            missing = [pool for pool in pools if pool.runtime_kind == "docker" and not _has_image(engine, pool)]
    except (RuntimeUnavailableError, docker.errors.DockerException) as error:
        told = explained(error) if isinstance(error, docker.errors.APIError) else str(error)
        fix = f"start it, or name it by DOCKER_HOST or pools.*.runtime.docker.engine ({DEFAULT_ENGINE} by default)"
        yield Finding("docker", "bad", f"{told}; needed by {names}", fix)
        return
    finally:
        if engine is not None:
            engine.close()
    version, driver = text(at(info, "ServerVersion")), text(at(info, "CgroupVersion"))
    yield Finding("docker", "ok", f"{masked(engine.url)} answers: {version}, cgroup v{driver or '?'}; for {names}")
    for pool in missing:
        if pool.containers is None:
            continue
        told = f"pool {pool.name}: the engine has no image {pool.containers.image}"
        if pool.containers.pull == "never":
            yield Finding("docker", "bad", f"{told}, and pull is never", "build or load it there, or let it be fetched")
        else:
            yield Finding("docker", "warn", told, "the first start fetches it, and waits so long: fetch it before")


def _has_image(engine: DockerEngine, pool: PoolSpec) -> bool:
    try:
        engine.api(seconds=ANSWER_SECONDS).inspect_image(pool.containers.image if pool.containers else "")
    except docker.errors.NotFound:
        return False
    return True


def _way_to_queue(pool: PoolSpec, server_url: str) -> Iterator[Finding]:
    """Whether a container would find the queue where it is told that it is."""
    settings = pool.containers
    if settings is None:
        return
    url = settings.url or server_url
    if is_out_of_reach(url, settings):
        yield Finding("docker", "bad", unreachable(url, pool=pool.name), "mend server.listen or the pool's runtime")
    elif url.startswith("unix:") and settings.url is None and settings.user is not None:
        uid = str(os.geteuid())
        if uid != "0" and settings.user.partition(":")[0] != uid:
            told = f"pool {pool.name}: user {settings.user} may not use the server's socket, which is of user {uid}"
            yield Finding("docker", "warn", told, f"give it user: {uid!r}, or let the server listen on an address")
