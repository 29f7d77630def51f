"""Export a compose file: queue server and supervisor, and a service for each external pool. Pure."""

import json
import math
import re
import shlex
from typing import Final, Literal
from urllib.parse import urlsplit

from orchestrator.config.containers import ContainerSettings
from orchestrator.config.pools import PoolSpec
from orchestrator.export.request import ExportedFiles, ExportRequest, Findings, header, yaml_of
from orchestrator.export.settings import (
    PORT,
    SECRETS_FOLDER,
    STATE_FOLDER,
    ExportedSecret,
    Portable,
    arguments_of,
    check_command,
    check_placeholders,
    check_program,
    environment_of,
    portable,
    variables_of,
)
from orchestrator.settings_file import POOL_VARIABLES

Object = dict[str, object]

QUEUE: Final = "towline"
NETWORK: Final = "towline"
VOLUME: Final = "towline_state"
FILE: Final = "compose.yaml"
SETTINGS_FILE: Final = "towline.compose.yaml"
GRACE_MARGIN_SECONDS: Final = 5
STOP_SECONDS: Final = 60
SOCKET: Final = "/var/run/docker.sock"
_UNIX: Final = "unix://"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

QUEUE_VARIABLES: Final = "towline.env"
"""The variables of the pools whose workers the supervisor starts itself."""


def compose(request: ExportRequest) -> ExportedFiles:
    """Return the compose file and the settings file that it mounts. Raises `ExportRefusedError`."""
    found = Findings(request.document)
    pools = request.project.pools
    roles: list[Literal["worker", "viewer"]] = (
        ["worker"] if any(pool.runtime_kind == "external" for pool in pools.values()) else []
    )
    runtimes = {name: _runtime(pool) for name, pool in pools.items()}
    settings = portable(request, found, runtimes=runtimes, roles=roles)
    for pool in pools.values():
        _check(pool, request, found)
    _check_engines(request, found)
    found.check()
    services: Object = {QUEUE: _queue(request, settings)}
    for pool in pools.values():
        if pool.runtime_kind == "external":
            services[pool.name] = _workers(request, pool, settings)
    # Every name is given, since Compose would put the folder's before it; it has no `name` of its own before 2.
    whole: Object = {
        "services": services,
        "networks": {NETWORK: {"name": NETWORK}},
        "volumes": {"state": {"name": VOLUME}},
    }
    if settings.secrets:
        whole["secrets"] = {one.name: _source(one) for one in settings.secrets}
    return ExportedFiles(
        {
            FILE: header(_how(request, settings)) + yaml_of(whole),
            SETTINGS_FILE: header(["Settings of the compose file beside it."]) + yaml_of(settings.data),
        },
        found.warnings,
        _env_files(request),
    )


def _env_files(request: ExportRequest) -> dict[str, str]:
    """Return an env file with the variables of each service that has some; Compose reads it, no container does."""
    pools = request.project.pools.values()
    files = {}
    if inside := {pool.name: dict(pool.env) for pool in pools if pool.runtime_kind != "external" and pool.env}:
        text = json.dumps(inside).replace("\\\\", "\\u005c").replace("$", "\\u0024")  # what any Compose leaves alone
        files[QUEUE_VARIABLES] = _assignment(POOL_VARIABLES, text)
    for pool in pools:
        if pool.runtime_kind == "external" and pool.env:
            assignments = (_assignment(name, text) for name, text in variables_of(pool).items())
            files[_variables_file(pool)] = "".join(assignments)
    return files


def _variables_file(pool: PoolSpec) -> str:
    return f"{pool.name}.env"


def _assignment(name: str, text: str) -> str:
    """Return a line of an env file: in single quotes, or in double ones where Compose can't read it in single ones.

    In double quotes Compose 1.29 knows no escaped `$`.
    """
    if re.search(r"\r|\\\\|\\'|\\\Z", text) is None:
        escaped = text.replace("'", "\\'")
        return f"{name}='{escaped}'\n"
    escaped = re.sub(r'(["\\$])', r"\\\1", text).replace("\n", "\\n").replace("\r", "\\r")
    return f'{name}="{escaped}"\n'


def _runtime(pool: PoolSpec) -> object:
    """Return the pool's runtime under compose: containers reach the queue by its service's name."""
    if pool.runtime.docker is None:
        return pool.runtime_kind
    docker = pool.runtime.docker.model_dump(mode="json", exclude_defaults=True)
    if not _is_here(pool.runtime.docker):
        return {"docker": docker}
    host = "127.0.0.1" if pool.runtime.docker.network == "host" else QUEUE  # where the port is published
    return {"docker": {"url": f"http://{host}:{PORT}", "network": NETWORK, **docker}}


def _is_here(docker: ContainerSettings) -> bool:
    """Return whether the pool's engine is reached by a socket: it is then the one that runs the compose file."""
    return docker.engine is None or docker.engine.startswith(_UNIX)


def _sockets(request: ExportRequest) -> list[tuple[PoolSpec, str]]:
    """Return the pools of containers, each with the socket of its engine."""
    return [
        (pool, (pool.runtime.docker.engine or SOCKET).removeprefix(_UNIX))
        for pool in request.project.pools.values()
        if pool.runtime.docker is not None and _is_here(pool.runtime.docker)
    ]


def _socket(path: str) -> Object:
    """Mount an engine's socket. In the long form a missing one is an error, and no folder is made in its place."""
    source = f"${{DOCKER_SOCKET:-{SOCKET}}}" if path == SOCKET else literal(path)
    return {"type": "bind", "source": source, "target": literal(path)}


def _queue(request: ExportRequest, settings: Portable) -> Object:
    sockets = _sockets(request)
    volumes: list[object] = [f"./{SETTINGS_FILE}:/app/towline.yaml:ro", f"state:{STATE_FOLDER}"]
    service: Object = {
        "image": literal(request.server_image),
        "command": ["up", "--json"],
        "restart": "unless-stopped",
        "stop_grace_period": f"{STOP_SECONDS}s",
        "networks": [NETWORK],
        "ports": [f"127.0.0.1:{PORT}:{PORT}"],
        "volumes": volumes,
        "secrets": [one.name for one in settings.secrets],
        "healthcheck": {
            "test": ["CMD", "towline", "health", "--url", f"http://127.0.0.1:{PORT}"],
            "interval": "10s",
            "timeout": "8s",
            "retries": 3,
            "start_period": "60s",
        },
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108  of the container
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }
    if (token := settings.token("admin", "viewer", "worker")) is not None:  # of commands that are executed in it
        service["environment"] = {"TOWLINE_TOKEN_FILE": f"{SECRETS_FOLDER}/{token.name}"}
    if QUEUE_VARIABLES in _env_files(request):
        service["env_file"] = [QUEUE_VARIABLES]
    if sockets:
        volumes += [_socket(path) for path in dict.fromkeys(path for _, path in sockets)]
        service["group_add"] = ["${DOCKER_GROUP:?the number of the group that owns the engine's socket}"]
    return service


def _workers(request: ExportRequest, pool: PoolSpec, settings: Portable) -> Object:
    token = settings.token("worker")
    environment = dict(environment_of(pool, url=f"http://{QUEUE}:{PORT}"))
    if token is not None:
        environment["TOWLINE_TOKEN_FILE"] = f"{SECRETS_FOLDER}/{token.name}"
    return {
        "image": literal(request.image_of(pool) or ""),
        "entrypoint": [],
        "command": [literal(argument) for argument in arguments_of(pool)],
        "environment": {name: literal(text) for name, text in sorted(environment.items())},
        **({"env_file": [_variables_file(pool)]} if pool.env else {}),
        "depends_on": {QUEUE: {"condition": "service_healthy"}},
        "deploy": {"replicas": max(1, pool.workers.min)},
        "init": True,
        "restart": "unless-stopped",
        "stop_grace_period": f"{math.ceil(pool.grace) + GRACE_MARGIN_SECONDS}s",
        "networks": [NETWORK],
        "secrets": [token.name] if token is not None else [],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }


def _check(pool: PoolSpec, request: ExportRequest, found: Findings) -> None:
    path = ("pools", pool.name)
    if pool.runtime_kind == "swarm":
        why = "compose does not run swarm services: write {docker: ...}, or deploy to the swarm itself"
        found.wrong((*path, "runtime"), why)
    elif pool.runtime_kind == "process":
        message = f"its workers are processes in the container of {QUEUE}: their code must be in its image"
        found.warn((*path, "runtime"), message)
        check_command(pool, found)
    elif pool.runtime.docker is not None:
        _check_way(pool.runtime.docker, (*path, "runtime", "docker"), found)
        check_command(pool, found)
        if pool.runtime.docker.secrets:
            message = "the supervisor's container does not have these files: mount them there under the same paths"
            found.warn((*path, "runtime", "docker", "secrets"), message)
    else:
        check_placeholders(pool, found)
        check_command(pool, found)
        if pool.name == QUEUE:
            found.wrong(path, f"{QUEUE} is the service of queue and supervisor: give the pool another name")
        if request.image_of(pool) is None:
            found.wrong((*path, "runtime"), f"which image? give --image {pool.name}=NAME")
        check_program(pool, found)
        for name, text in pool.env.items():
            if "${" in text:
                found.warn((*path, "env", name), "${ is replaced by Compose 1.29: needs Compose 2")


def _check_engines(request: ExportRequest, found: Findings) -> None:
    """Refuse a second engine: only one runs the compose file, and has its network and its volumes."""
    here = [(pool, path.replace("/var/run/", "/run/", 1)) for pool, path in _sockets(request)]
    for pool, path in here[1:]:
        if path != here[0][1]:
            why = (
                f"another engine than that of pool {here[0][0].name}: only the one that runs {FILE} has its network "
                "and its volumes; name the same, or make this pool's runtime external"
            )
            found.wrong(("pools", pool.name, "runtime", "docker", "engine"), why)


def _check_way(docker: ContainerSettings, path: tuple[str, ...], found: Findings) -> None:
    """Check that the supervisor's container reaches the pool's engine, and the pool's containers the queue."""
    if not _is_here(docker):
        where = urlsplit(docker.engine or "")
        if where.scheme == "ssh":
            why = f"the supervisor's container has no ssh and no keys: name the socket of the engine that runs {FILE}"
            found.wrong((*path, "engine"), why)
        elif where.hostname in _LOOPBACK:
            why = f"{where.hostname} is the supervisor's own container there: name unix:///PATH, the engine's socket"
            found.wrong((*path, "engine"), why)
        elif docker.url is None:
            why = (
                f"an engine elsewhere does not know {QUEUE}, the service of the queue: give the pool the url at which "
                "its containers find it"
            )
            found.wrong((*path, "engine"), why)
        else:
            why = (
                "an engine elsewhere is given no token: make it one of the pool's secrets, named by TOWLINE_TOKEN_FILE"
            )
            found.warn((*path, "engine"), why)
    elif docker.url is None and docker.network not in (None, "host", NETWORK):
        why = (
            f"{docker.network}: the queue is not on this network: leave it out, or give the pool a url that is reached"
        )
        found.wrong((*path, "network"), why)


def _source(secret: ExportedSecret) -> Object:
    if secret.env is not None:
        return {"environment": secret.env}
    path = secret.file or ""
    return {"file": literal(path if path.startswith(("/", ".")) else f"./{path}")}


def literal(text: str) -> str:
    """Escape `$`, which compose would take for a variable."""
    return text.replace("$", "$$")


def _how(request: ExportRequest, settings: Portable) -> list[str]:
    lines = [
        "Queue and supervisor, and the workers of pools with `runtime: external`. Compose 1.29, or 2.24 and later.",
        "From `towline export --to compose`; change the settings file and export again rather than this file.",
        *_how_to_the_engine(request),
        "",
        f"  docker compose --file {FILE} up --detach",
        f"  docker compose exec {QUEUE} towline pools",
        "",
        f"After exporting again with --force; prints what changed, or why {SETTINGS_FILE} is refused:",
        f"  docker compose exec {QUEUE} towline reload",
    ]
    needed = [one for one in settings.secrets if one.env is not None]
    if needed:
        names = ", ".join(f"{one.env}" for one in needed)
        lines += ["", f"In the environment, or in a file .env beside this one: {names}. Needs Compose 2.24."]
    if variables := _env_files(request):
        lines += ["", f"The values of the pools' variables, for you alone to read: {', '.join(variables)}."]
    files = [one for one in settings.secrets if one.file is not None]
    if files:
        lines += ["", f"Beside this file: {', '.join(shlex.quote(str(one.file)) for one in files)}."]
    external = [pool.name for pool in request.project.pools.values() if pool.runtime_kind == "external"]
    if external:
        message = "Compose does not scale these: read how many workers there should be, and set the number."
        lines += ["", message, f"  docker compose exec {QUEUE} towline pools"]
        lines += [f"  docker compose up --detach --no-recreate --scale {name}=N" for name in external]
    return lines


def _how_to_the_engine(request: ExportRequest) -> list[str]:
    """Return what has to be done once, before all else: every command of Compose asks for the variable."""
    sockets = [*dict.fromkeys(path for _, path in _sockets(request))]
    if not sockets:
        return []
    named = " (or DOCKER_SOCKET)" if SOCKET in sockets else ""
    message = (
        f"The engine that runs this file starts the containers of pools. Mounted: {', '.join(sockets)}{named}. Once:"
    )
    return ["", message, f"  echo DOCKER_GROUP=$(stat -c %g {shlex.quote(sockets[0])}) >> .env"]
