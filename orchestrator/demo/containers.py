"""What the demo needs of Docker: an engine that answers on this machine, an image, and what its pools say of both."""

import json
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import docker
from docker.errors import APIError, DockerException, ImageNotFound
from requests.exceptions import RequestException

from orchestrator.clock import MonotonicClock
from orchestrator.demo.docker_engine import NoEngineError, private_engine, sweep, why_none
from orchestrator.demo.fleet_process import RUN_LABEL, volumes_of
from orchestrator.demo.image import NoImageError, ensure_image, towline_image
from orchestrator.demo.script import TRIAL, slo_for
from orchestrator.errors import RuntimeUnavailableError
from orchestrator.runtimes.docker.engine import DockerEngine

IMAGE: Final = "towline-demo:latest"
LIBRARY: Final = "/towline-library"
"""Where a container finds the modules it reads."""
MEMORY: Final = "256MiB"
MIN_SLO_SECONDS: Final = 15.0
_SHOWN_CHARS: Final = 300
_WORK_SECONDS: Final = 600
"""How long an engine may take to pull an image, or to take one in."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Containers:
    """What the workers of a run are made of: the engine's URL, the image, whom they run as.

    `slo_seconds` is one that pools of them can keep here, without workers that are kept for the time a start takes.
    """

    engine: str
    image: str
    user: str
    slo_seconds: float

    def runtime(self, folder: Path, *, run: str) -> str:
        """The setting `runtime` of the demo's pools."""
        settings = {
            "image": self.image,
            "engine": self.engine,
            "user": self.user,
            "network": "none",  # the queue's socket is all they need
            "read_only": True,
            "memory": MEMORY,
            "pull": "never",
            "labels": {RUN_LABEL: run},
            "volumes": volumes_of(folder, library_folder(), at=LIBRARY),
        }
        return json.dumps({"docker": settings})


def library_folder() -> Path:
    """Python's standard library on this machine."""
    return Path(sysconfig.get_paths()["stdlib"]).resolve()


@contextmanager
def containers(image: str | None, *, clock: MonotonicClock, tell: Tell) -> Iterator[Containers]:
    """An engine and an image on it, for as long as this is open; `tell` hears what is done about them.

    The engine is that of DOCKER_HOST, or the local one. Where none runs and one may be started, one is, and ended
    after. Without `image` one is made from this machine's own Python. Raises `NoEngineError`, `NoImageError`.
    """
    with ExitStack() as stack:
        url = _found()
        if url is None:
            tell("no Docker Engine runs here: starting one for the demo; it goes away with it")
            sweep()
            url = stack.enter_context(private_engine(clock))
        client = docker.APIClient(base_url=url, timeout=_WORK_SECONDS)
        stack.callback(client.close)
        name = _made(client, tell=tell, clock=clock) if image is None else _had(client, image, tell=tell)
        user = _user(client)
        start_seconds = _tried(client, name, user=user, clock=clock)
        slo_seconds = slo_for(start_seconds, least=MIN_SLO_SECONDS)
        tell(f"a container of {name} is ready in {start_seconds:.1f} s; slo {slo_seconds:.0f} s")
        yield Containers(url, name, user, slo_seconds)


def _found() -> str | None:
    """The engine that answers; None when there is none and one can be started. Raises `NoEngineError`."""
    engine = DockerEngine()
    try:
        if engine.socket_path is None:
            raise NoEngineError(f"{engine.url} is an engine of another machine, and the demo shares a folder with it")
        engine.api().ping()
    except RuntimeUnavailableError as error:
        why = why_none()
        if os.environ.get("DOCKER_HOST") or why or Path(engine.socket_path or "").exists():
            also = f"; none can be started either: {why}" if why else ""
            raise NoEngineError(f"{error}{also}") from error
        return None
    finally:
        engine.close()
    return engine.url


def _made(client: docker.APIClient, *, tell: Tell, clock: MonotonicClock) -> str:
    """The image of this machine's own Python. Raises `NoImageError`."""
    if sys.platform != "linux":
        raise NoImageError("an image is made from a Python on Linux only")
    began_at = clock.monotonic()
    tell(f"making the image {IMAGE} from this machine's own Python; nothing is downloaded")
    if ensure_image(client, towline_image(), name=IMAGE):
        tell(f"image {IMAGE} made in {clock.monotonic() - began_at:.0f} s; `docker rmi {IMAGE}` removes it")
    else:
        tell(f"image {IMAGE} is there from before")
    return IMAGE


def _had(client: docker.APIClient, image: str, *, tell: Tell) -> str:
    """The image asked for, pulled where the engine has it not. Raises `NoImageError`."""
    try:
        client.inspect_image(image)
    except ImageNotFound:
        tell(f"pulling the image {image}")
        repository, colon, tag = image.rpartition(":")
        named = (repository, tag) if colon and "/" not in tag else (image, "latest")
        try:
            client.pull(named[0], tag=named[1])
            client.inspect_image(image)
        except (DockerException, RequestException, OSError) as error:
            told = error.explanation if isinstance(error, APIError) and error.explanation else error
            raise NoImageError(f"no image {image} here, and it can't be pulled: {told}") from error
    return image


def _tried(client: docker.APIClient, image: str, *, user: str, clock: MonotonicClock) -> float:
    """How long a container takes until a worker could begin, in seconds. Raises `NoImageError` for one that can't."""
    began_at = clock.monotonic()
    try:
        limits = client.create_host_config(network_mode="none", read_only=True)
        made = client.create_container(image, ["python3", "-c", TRIAL], user=user, entrypoint=[], host_config=limits)
        try:
            client.start(made["Id"])
            code = client.wait(made["Id"])["StatusCode"]
            said = client.logs(made["Id"]).decode(errors="replace").strip()[-_SHOWN_CHARS:]
        finally:
            client.remove_container(made["Id"], force=True, v=True)
    except (DockerException, RequestException, OSError) as error:
        told = error.explanation if isinstance(error, APIError) and error.explanation else error
        raise NoImageError(f"a container of {image} can't be started: {told}") from error
    if code:
        raise NoImageError(f"a container of {image} can't work for the demo, exit code {code}: {said}")
    return clock.monotonic() - began_at


def _user(client: docker.APIClient) -> str:
    """Whom a container runs as so that its files are ours: root, where the engine runs as ourselves."""
    options = client.info().get("SecurityOptions") or []
    if any("name=rootless" in option for option in options):
        return "0:0"
    return f"{os.geteuid()}:{os.getegid()}"
