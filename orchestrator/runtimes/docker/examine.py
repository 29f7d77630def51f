"""Looks at an image before the first worker is started from it: is it there, with the program and the folder wanted?

With an init as its first process a container starts even when its program is missing, and an engine makes a missing
working directory itself: so both are looked for in a container that is never started.
"""

import base64
import contextlib
import json
import posixpath
import stat
from collections.abc import Mapping, Sequence
from typing import Final

import docker

from orchestrator.config import PoolSpec
from orchestrator.errors import SpawnError
from orchestrator.runtimes.docker.engine import CALL_SECONDS, Api
from orchestrator.runtimes.docker.state import at

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MAX_LINKS: Final = 16
_FILE_MODE: Final = 0o777
# Go's file modes, as the engine tells them.
_GO_DIRECTORY: Final = 1 << 31
_GO_LINK: Final = 1 << 27


def examine(api: Api, body: Mapping[str, object], pool: PoolSpec) -> None:
    """Raises `SpawnError` when a container with this body could not run its program."""
    host = {**_mapping(body["HostConfig"]), "NetworkMode": "none", "ExtraHosts": []}
    probe = {**body, "HostConfig": host, "Labels": {}}
    probe.pop("WorkingDir", None)
    container = str(api.create_container_from_config(probe, "")["Id"])
    try:
        if pool.cwd is not None and _kind(api, container, pool.cwd) != "folder":
            raise SpawnError(
                f"can't start a worker of pool {pool.name}: its cwd {pool.cwd} is not a folder of its image; "
                f"mend pools.{pool.name}.cwd"
            )
        words = body["Cmd"]
        program = str(words[0]) if isinstance(words, Sequence) and words else ""
        _look_for(api, container, program, pool)
    finally:
        with contextlib.suppress(docker.errors.APIError):
            api.remove_container(container, v=True, force=True)


def _look_for(api: Api, container: str, program: str, pool: PoolSpec) -> None:
    what = f"can't start a worker of pool {pool.name}"
    if "/" in program:
        places = [posixpath.join(pool.cwd or _workdir(api, container), program)]
    else:
        places = [posixpath.join(folder, program) for folder in _path(api, container, pool).split(":") if folder]
    kinds = []
    for place in places:
        kinds.append(_kind(api, container, place))
        if kinds[-1] == "program":
            return
    if "file" in kinds or "folder" in kinds:
        raise SpawnError(
            f"{what}: {program} may not be executed; chmod +x it in the image, or name its interpreter first"
        )
    raise SpawnError(f"{what}: no such command: {program}; give its full path in the image, or put it on its PATH")


def _path(api: Api, container: str, pool: PoolSpec) -> str:
    if "PATH" in pool.env:
        return pool.env["PATH"]
    variables = at(api.inspect_container(container), "Config", "Env")
    for variable in variables if isinstance(variables, Sequence) else ():
        if isinstance(variable, str) and variable.startswith("PATH="):
            return variable.removeprefix("PATH=")
    return DEFAULT_PATH


def _workdir(api: Api, container: str) -> str:
    found = at(api.inspect_container(container), "Config", "WorkingDir")
    return found if isinstance(found, str) and found else "/"


def _kind(api: Api, container: str, path: str) -> str:
    """What is there: a program, another file, a folder, or nothing (""). Links are followed."""
    for _ in range(_MAX_LINKS):
        found = _stat(api, container, path)
        if found is None:
            return ""
        mode, target = found
        if mode & _GO_LINK:
            path = posixpath.join(posixpath.dirname(path), target)
        elif mode & _GO_DIRECTORY:
            return "folder"
        else:
            return "program" if mode & _FILE_MODE & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH) else "file"
    return ""


def _stat(api: Api, container: str, path: str) -> tuple[int, str] | None:
    url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
    answer = api.head(url, params={"path": path}, timeout=CALL_SECONDS)
    told = answer.headers.get("X-Docker-Container-Path-Stat")
    if answer.status_code != 200 or told is None:
        return None
    found = json.loads(base64.b64decode(told))
    return int(found["mode"]), str(found.get("linkTarget", ""))


def _mapping(data: object) -> Mapping[str, object]:
    return data if isinstance(data, Mapping) else {}
