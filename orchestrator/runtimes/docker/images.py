"""Make pools' images ready: pull them as their pull policy says, and check once that they can run the worker.

A pull can take minutes and runs in a thread of its own; until then the pool waits, with that reason.
"""

import base64
import contextlib
import json
import posixpath
import stat
import threading
from collections.abc import Mapping, Sequence
from typing import Final

import docker

from orchestrator.base import events
from orchestrator.base.errors import RuntimeUnavailableError, SpawnError
from orchestrator.config.containers import ContainerSettings
from orchestrator.config.pools import PoolSpec
from orchestrator.runtimes.docker.container_state import at, mapping
from orchestrator.runtimes.docker.engine import CALL_SECONDS, DockerEngine, EngineApi, error_text, translated_errors
from queue_core.log import get_logger

log = get_logger()

PULL_SECONDS: Final = 600.0
"""How long an engine may be silent during a pull."""
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH of an image that sets none."""
_MAX_LINKS: Final = 16
_FILE_MODE: Final = 0o777
# Go's file modes, which the engine reports.
_GO_DIRECTORY: Final = 1 << 31
_GO_LINK: Final = 1 << 27


def check_image(api: EngineApi, body: Mapping[str, object], pool: PoolSpec) -> None:
    """Raise `SpawnError` if a container with this body could not run its program."""
    host = {**mapping(body["HostConfig"]), "NetworkMode": "none", "ExtraHosts": []}
    probe = {**body, "HostConfig": host, "Labels": {}}
    probe.pop("WorkingDir", None)
    container = str(api.create_container_from_config(probe, "")["Id"])
    try:
        if pool.cwd is not None and _kind(api, container, pool.cwd) != "folder":
            raise SpawnError(
                f"can't start a worker of pool {pool.name}: its cwd {pool.cwd} is not a folder of its image; "
                f"fix pools.{pool.name}.cwd"
            )
        words = body["Cmd"]
        program = str(words[0]) if isinstance(words, Sequence) and words else ""
        _check_program(api, container, program, pool)
    finally:
        with contextlib.suppress(docker.errors.APIError):
            api.remove_container(container, v=True, force=True)


def _check_program(api: EngineApi, container: str, program: str, pool: PoolSpec) -> None:
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


def _path(api: EngineApi, container: str, pool: PoolSpec) -> str:
    if "PATH" in pool.env:
        return pool.env["PATH"]
    variables = at(api.inspect_container(container), "Config", "Env")
    for variable in variables if isinstance(variables, Sequence) else ():
        if isinstance(variable, str) and variable.startswith("PATH="):
            return variable.removeprefix("PATH=")
    return DEFAULT_PATH


def _workdir(api: EngineApi, container: str) -> str:
    found = at(api.inspect_container(container), "Config", "WorkingDir")
    return found if isinstance(found, str) and found else "/"


def _kind(api: EngineApi, container: str, path: str) -> str:
    """Return what a path is: "program", another "file", a "folder", or "" for nothing. Follows links."""
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


def _stat(api: EngineApi, container: str, path: str) -> tuple[int, str] | None:
    url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
    answer = api.head(url, params={"path": path}, timeout=CALL_SECONDS)
    header = answer.headers.get("X-Docker-Container-Path-Stat")
    if answer.status_code != 200 or header is None:
        return None
    found = json.loads(base64.b64decode(header))
    return int(found["mode"]), str(found.get("linkTarget", ""))


class Images:
    """The images of one engine. `prepare` belongs to one thread."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._examined: set[str] = set()
        self._pulls: dict[str, _Pull] = {}

    def prepare(self, api: EngineApi, pool: PoolSpec, settings: ContainerSettings, body: Mapping[str, object]) -> None:
        """Make sure that this pool's workers can be started.

        Raises `SpawnError` when they can't, and `RuntimeUnavailableError` while their image is pulled.
        """
        if pool.digest() in self._examined:
            return
        image = settings.image
        if settings.pull == "always" or not _is_there(api, image):
            if settings.pull == "never":
                raise SpawnError(
                    f"can't start a worker of pool {pool.name}: the engine has no image {image}, and pull is never"
                )
            self._fetched(image, pool.name)
        check_image(api, body, pool)
        self._examined.add(pool.digest())
        self._pulls.pop(image, None)

    def knows(self, pool: PoolSpec) -> bool:
        """Return whether a pool of these settings was prepared; any thread may call it."""
        return pool.digest() in self._examined

    def check_again(self, pool: PoolSpec) -> None:
        """Check the pool's image again at the next start: the engine no longer has it."""
        self._examined.discard(pool.digest())

    def _fetched(self, image: str, pool: str) -> None:
        pull = self._pulls.get(image)
        if pull is None:
            pull = self._pulls[image] = _Pull(self._engine, image)
        if not pull.is_over.is_set():
            raise RuntimeUnavailableError(f"its image {image} is being pulled")
        if pull.error:
            del self._pulls[image]
            raise SpawnError(f"can't start a worker of pool {pool}: its image {image} can't be pulled: {pull.error}")


class _Pull:
    """A pull of one image."""

    def __init__(self, engine: DockerEngine, image: str) -> None:
        self.is_over = threading.Event()
        self.error = ""
        self._engine = engine
        self._image = image
        log.info(events.IMAGE_PULLED, image=image, state="begun")
        threading.Thread(target=self._pull, name="docker-pull", daemon=True).start()

    def _pull(self) -> None:
        name = self._image if ":" in self._image.rpartition("/")[2] or "@" in self._image else f"{self._image}:latest"
        try:
            with translated_errors(self._engine.url):
                self._engine.api(seconds=PULL_SECONDS).pull(name)
        except docker.errors.APIError as error:
            self.error = error_text(error)
        except RuntimeUnavailableError as error:
            self.error = str(error)
        finally:
            log.info(events.IMAGE_PULLED, image=self._image, state=self.error or "done")
            self.is_over.set()


def _is_there(api: EngineApi, image: str) -> bool:
    try:
        api.inspect_image(image)
    except docker.errors.NotFound:
        return False
    return True
