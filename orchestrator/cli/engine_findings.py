"""Check the engines that pools of containers need, and what those pools would ask of them; each finding has a fix."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import docker

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.cli.finding import Finding
from orchestrator.config.containers import Volume
from orchestrator.config.pools import PoolSpec
from orchestrator.runtimes.docker.container_state import at, text
from orchestrator.runtimes.docker.create import Mount, is_out_of_reach, unreachable
from orchestrator.runtimes.docker.engine import DEFAULT_ENGINE, DockerEngine, EngineApi, error_text, translated_errors
from orchestrator.runtimes.docker.own_container import MOUNTS_FILE, not_mounted, our_container, own_container
from orchestrator.settings_file import Project, state_of
from queue_core.config.store_urls import masked

ANSWER_SECONDS: Final = 5.0
MANAGER_SECONDS: Final = 25.0
"""How long a manager may take to tell of its swarm: one whose leader has just gone waits for a new one for 20 s."""
SLOW_ANSWER_SECONDS: Final = 0.2
"""A call that takes longer makes starts slow: each needs three of them."""
_BUILT_IN: Final = frozenset({"", "none", "host", "bridge", "default"})
"""The networks that every engine has."""
_OTHER_CONTAINER: Final = "container:"


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
            took_seconds = _quickest(api)
            is_of_swarm = any(pool.runtime_kind == "swarm" for pool in pools)
            info = (engine.api(seconds=MANAGER_SECONDS) if is_of_swarm else api).info()
            api = engine.api(seconds=ANSWER_SECONDS)
            own = own_container(api, mounts_file=mounts_file)
            wrong = [finding for pool in pools for finding in _pool(api, pool, engine=engine, info=info)]
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
    if took_seconds > SLOW_ANSWER_SECONDS:
        slow = f"{masked(engine.url)} answers after {took_seconds * 1000:.0f} ms: each start waits for it three times"
        yield Finding("docker", "warn", slow, "run the supervisor on the engine's host, or look at what keeps it busy")
    yield from wrong


def _quickest(api: EngineApi) -> float:
    """Return the time of the quicker of two pings: the first may open a connection."""
    clock, took = SystemMonotonicClock(), []
    for _ in range(2):
        began = clock.monotonic()
        api.ping()
        took.append(clock.monotonic() - began)
    return min(took)


def _pool(api: EngineApi, pool: PoolSpec, *, engine: DockerEngine, info: object) -> Iterator[Finding]:
    if pool.runtime_kind == "swarm":
        yield from _manager(pool, engine=engine, swarm=at(info, "Swarm"))
    else:
        yield from _image(api, pool)
        yield from _folders(api, pool)
    yield from _network(api, pool)


def _manager(pool: PoolSpec, *, engine: DockerEngine, swarm: object) -> Iterator[Finding]:
    """Check that the engine of a swarm pool is a manager of a swarm that has a leader."""
    place, error = masked(engine.url), text(at(swarm, "Error"))
    if at(swarm, "ControlAvailable") is not True:
        state = text(at(swarm, "LocalNodeState")) or "inactive"
        is_worker = state == "active"
        state = "it is a worker of one" if is_worker else f"its state: {state}"
        found = f"pool {pool.name}: the engine at {place} is no manager of a swarm; {state}"
        command = "`docker node promote NODE` on a manager" if is_worker else "`docker swarm init`"
        fix = f"name a manager's: pools.{pool.name}.runtime.swarm.engine, or DOCKER_HOST; or make it one: {command}"
        yield Finding("docker", "bad", found, fix)
    elif error:
        found = f"pool {pool.name}: the swarm of {place} can't be changed: {error.rpartition(' desc = ')[2]}"
        yield Finding("docker", "bad", found, "start its other managers: more than half of them must be there")


def _image(api: EngineApi, pool: PoolSpec) -> Iterator[Finding]:
    if pool.containers is None:
        return
    try:
        api.inspect_image(pool.containers.image)
    except docker.errors.NotFound:
        message = f"pool {pool.name}: the engine has no image {pool.containers.image}"
        if pool.containers.pull == "never":
            fix = "build or load it there, or let it be fetched"
            yield Finding("docker", "bad", f"{message}, and pull is never", fix)
        else:
            yield Finding("docker", "warn", message, "the first start fetches it, and waits so long: fetch it before")


def _network(api: EngineApi, pool: PoolSpec) -> Iterator[Finding]:
    """Check that the pool's network is there, or the container whose network it uses, in the engine's own words."""
    network = (pool.containers.network if pool.containers else None) or ""
    if network in _BUILT_IN:
        return
    other = network.removeprefix(_OTHER_CONTAINER) if network.startswith(_OTHER_CONTAINER) else ""
    try:
        if other:
            is_there = at(api.inspect_container(other), "State", "Running") is True
            message = "" if is_there else f"container {other} does not run"
        else:
            api.inspect_network(network)
            message = ""
    except docker.errors.APIError as error:
        message = error_text(error)
    if message:
        make = "start that container" if other else f"`docker network create {network}`"
        fix = f"{make}, or fix pools.{pool.name}.runtime"
        yield Finding("docker", "bad", f"pool {pool.name}: network {network}: {message}", fix)


def _folders(api: EngineApi, pool: PoolSpec) -> Iterator[Finding]:
    """Have the engine create a container with the folders and files that the pool mounts; it is never started."""
    settings = pool.containers
    if settings is None:
        return
    sources = [volume.source for volume in map(Volume.parse, settings.volumes) if volume.is_path]
    sources += settings.secrets.values()
    mounts = [Mount(source, f"/towline/{number}").body() for number, source in enumerate(sources)]
    if not mounts:
        return
    body = {"Image": settings.image, "Cmd": ["-"], "HostConfig": {"NetworkMode": "none", "Mounts": mounts}}
    try:
        made = api.create_container_from_config(body, "")
        api.remove_container(str(made["Id"]), v=True, force=True)
    except docker.errors.ImageNotFound:
        return  # said above
    except docker.errors.APIError as error:
        fix = f"make it, or fix pools.{pool.name}.runtime"
        yield Finding("docker", "bad", f"pool {pool.name}: {error_text(error)}", fix)


def _way_to_queue(pool: PoolSpec, server_url: str) -> Iterator[Finding]:
    """Check that a container can reach the queue at the URL it is given."""
    settings = pool.containers
    if settings is None:
        return
    url = settings.url or server_url
    if is_out_of_reach(url, settings):
        yield Finding("docker", "bad", unreachable(url, pool=pool.name), "fix server.listen or the pool's runtime")
    elif url.startswith("unix:") and settings.url is None and settings.user is not None:
        uid = str(os.geteuid())
        if uid != "0" and settings.user.partition(":")[0] != uid:
            message = f"pool {pool.name}: user {settings.user} may not use the server's socket, which is of user {uid}"
            yield Finding("docker", "warn", message, f"give it user: {uid!r}, or let the server listen on an address")
