"""Docker for the demo: an engine on this machine, an image, and the pools' settings for both."""

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
from orchestrator.demo.docker_engine import NoEngineError, private_engine, sweep, why_no_engine
from orchestrator.demo.fleet_process import RUN_LABEL, volumes_of
from orchestrator.demo.image import NoImageError, ensure_image, towline_image
from orchestrator.demo.script import TRIAL, slo_for
from orchestrator.errors import RuntimeUnavailableError
from orchestrator.runtimes.docker.engine import DockerEngine

IMAGE: Final = "towline-demo:latest"
LIBRARY: Final = "/towline-library"
"""The folder in a container that holds the modules to read."""
MEMORY: Final = "256MiB"
MIN_SLO_SECONDS: Final = 15.0
_SHOWN_CHARS: Final = 300
_WORK_SECONDS: Final = 600
"""How long an engine may take to pull or load an image."""

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ContainerSetup:
    """The engine's URL, the image and the user of a run's workers.

    `slo_seconds` can be kept by pools of these containers without spare workers for the time a start takes.
    """

    engine: str
    image: str
    user: str
    slo_seconds: float

    def runtime(self, folder: Path, *, run: str) -> str:
        """Return the setting `runtime` of the demo's pools."""
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
    """Return the folder of Python's standard library on this machine."""
    return Path(sysconfig.get_paths()["stdlib"]).resolve()


@contextmanager
def container_setup(image: str | None, *, clock: MonotonicClock, notify: Notify) -> Iterator[ContainerSetup]:
    """Provide an engine with an image while the context is open; `notify` is called with progress messages.

    The engine is that of DOCKER_HOST, or the local one. If none runs and one may be started, it is started and stopped
    again at the end. Without `image` one is built from this machine's Python. Raises `NoEngineError`, `NoImageError`.
    """
    with ExitStack() as stack:
        url = _found()
        if url is None:
            notify("no Docker Engine runs here: starting one for the time of the demo")
            sweep()
            url = stack.enter_context(private_engine(clock))
        client = docker.APIClient(base_url=url, timeout=_WORK_SECONDS)
        stack.callback(client.close)
        name = _made(client, notify=notify, clock=clock) if image is None else _had(client, image, notify=notify)
        user = _user(client)
        start_seconds = _tried(client, name, user=user, clock=clock)
        slo_seconds = slo_for(start_seconds, least=MIN_SLO_SECONDS)
        notify(f"a container of {name} is ready in {start_seconds:.1f} s; slo {slo_seconds:.0f} s")
        yield ContainerSetup(url, name, user, slo_seconds)


def _found() -> str | None:
    """Return the URL of an answering engine; None when there is none but one can be started. Raises `NoEngineError`."""
    engine = DockerEngine()
    try:
        if engine.socket_path is None:
            raise NoEngineError(f"{engine.url} is on another machine, but the demo shares a folder with its engine")
        engine.api().ping()
    except RuntimeUnavailableError as error:
        why = why_no_engine()
        if os.environ.get("DOCKER_HOST") or why or Path(engine.socket_path or "").exists():
            reason = f"; none can be started either: {why}" if why else ""
            raise NoEngineError(f"{error}{reason}") from error
        return None
    finally:
        engine.close()
    return engine.url


def _made(client: docker.APIClient, *, notify: Notify, clock: MonotonicClock) -> str:
    """Build the image from this machine's Python and return its name. Raises `NoImageError`."""
    if sys.platform != "linux":
        raise NoImageError("an image can be made from a Python on Linux only")
    began_at = clock.monotonic()
    notify(f"making the image {IMAGE} from this machine's own Python; nothing is downloaded")
    if ensure_image(client, towline_image(), name=IMAGE):
        notify(f"image {IMAGE} made in {clock.monotonic() - began_at:.0f} s; `docker rmi {IMAGE}` removes it")
    else:
        notify(f"image {IMAGE} exists already")
    return IMAGE


def _had(client: docker.APIClient, image: str, *, notify: Notify) -> str:
    """Return the given image's name, after pulling it if the engine lacks it. Raises `NoImageError`."""
    try:
        client.inspect_image(image)
    except ImageNotFound:
        notify(f"pulling the image {image}")
        repository, colon, tag = image.rpartition(":")
        named = (repository, tag) if colon and "/" not in tag else (image, "latest")
        try:
            client.pull(named[0], tag=named[1])
            client.inspect_image(image)
        except (DockerException, RequestException, OSError) as error:
            message = error.explanation if isinstance(error, APIError) and error.explanation else error
            raise NoImageError(f"no image {image} here, and it can't be pulled: {message}") from error
    return image


def _tried(client: docker.APIClient, image: str, *, user: str, clock: MonotonicClock) -> float:
    """Return how long a container takes to start, in seconds. Raises `NoImageError` when it can't work."""
    began_at = clock.monotonic()
    try:
        limits = client.create_host_config(network_mode="none", read_only=True)
        made = client.create_container(image, ["python3", "-c", TRIAL], user=user, entrypoint=[], host_config=limits)
        try:
            client.start(made["Id"])
            code = client.wait(made["Id"])["StatusCode"]
            output = client.logs(made["Id"]).decode(errors="replace").strip()[-_SHOWN_CHARS:]
        finally:
            client.remove_container(made["Id"], force=True, v=True)
    except (DockerException, RequestException, OSError) as error:
        message = error.explanation if isinstance(error, APIError) and error.explanation else error
        raise NoImageError(f"a container of {image} can't be started: {message}") from error
    if code:
        raise NoImageError(f"a container of {image} can't work for the demo, exit code {code}: {output}")
    return clock.monotonic() - began_at


def _user(client: docker.APIClient) -> str:
    """Return the user under which a container's files belong to us: root for a rootless engine."""
    options = client.info().get("SecurityOptions") or []
    if any("name=rootless" in option for option in options):
        return "0:0"
    return f"{os.geteuid()}:{os.getegid()}"
