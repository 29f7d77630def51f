"""A private Docker Engine for tests, with an image of this machine's Python (`tests.support.docker.dockerd`).

It is started, killed, restarted and frozen like every private server of the tests, and leaves nothing behind.
"""

import contextlib
import json
import math
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import docker
from docker.errors import DockerException

from tests.support.docker import dockerd
from tests.support.docker.dockerd import NoEngineError, engine_command, new_home, socket_path
from tests.support.docker.image import Image, NoImageError, ensure_image
from tests.support.docker.images import BASE_IMAGE, TEST_IMAGE, base_image, image_for_tests
from tests.support.eventually import eventually
from tests.support.stores.engine_process import Engine, EngineLaunch, EngineUnavailableError

__all__ = ["BASE_IMAGE", "TEST_IMAGE", "EngineUnavailableError", "PrivateDockerEngine", "docker_engine"]

CLIENT_TIMEOUT_SECONDS = 60


class PrivateDockerEngine(Engine):
    """A private dockerd. `url` is its DOCKER_HOST; its containers go on while it is killed."""

    def __init__(self, launch: EngineLaunch) -> None:
        url = f"unix://{socket_path(launch.home)}"
        super().__init__(launch, url=url, tcp_url="", socket_url=url, host="", port=0)
        self._images: set[str] = set()

    @property
    def socket(self) -> Path:
        """The path of its socket."""
        return socket_path(self.home)

    @contextmanager
    def client(self) -> Iterator[docker.APIClient]:
        """Open the SDK's low-level client, closed at the end. Raises `EngineUnavailableError` if the engine has ended.

        The SDK would leave a socket open that it could not connect, which fails a later test.
        """
        if self.process.poll() is not None:
            raise EngineUnavailableError(f"docker ended by itself with {self.process.returncode}: {self.last_words()}")
        client = docker.APIClient(base_url=self.url, timeout=CLIENT_TIMEOUT_SECONDS)
        try:
            yield client
        finally:
            client.close()

    def ensure_running(self) -> None:
        """Start it again if it ended by itself; its last words are then in the report of the next test that fails."""
        if self.process.poll() is not None:
            print(f"docker ended by itself with {self.process.returncode}: {self.last_words()}")  # noqa: T201
            self.start()

    def start(self, *, wait: bool = True) -> None:
        """See `Engine.start`: its images and containers are kept."""
        dockerd.forget_pids(self.home)
        super().start(wait=wait)

    @contextmanager
    def live_restore(self, *, wanted: bool) -> Iterator[None]:
        """Make containers go on, or not, while the engine is away; not for an engine started with the flag."""
        self._set(live_restore=wanted)
        try:
            yield
        finally:
            self._set(live_restore=False)

    def _set(self, *, live_restore: bool) -> None:
        dockerd.config_path(self.home).write_text(json.dumps({"live-restore": live_restore}))
        self.process.send_signal(signal.SIGHUP)
        with self.client() as client:
            eventually(lambda: client.info()["LiveRestoreEnabled"] == live_restore)

    def logs(self, container: str) -> str:
        """Return all that a container wrote."""
        with self.client() as client:
            return str(client.logs(container).decode(errors="replace"))

    def noticed_out_of_memory(self, container: str) -> bool:
        """Return whether the engine reported the OOM kill; a busy one may miss it."""
        with self.client() as client:
            now = datetime.fromisoformat(client.info()["SystemTime"]).timestamp()
            told = client.events(
                since=1, until=math.ceil(now), decode=True, filters={"container": container, "event": "oom"}
            )
            return any(told)

    def image(self) -> str:
        """Return the test image's name; the first call builds it, in about 8 s. Raises `EngineUnavailableError`."""
        if TEST_IMAGE not in self._images:
            self._ensured(TEST_IMAGE, image_for_tests())
        return TEST_IMAGE

    def base_image(self) -> str:
        """Return an image with Python, pip and a shell for `ARG BASE_IMAGE`. Raises `EngineUnavailableError`.

        A build that needs PyPI must use `network_mode="host"`.
        """
        if BASE_IMAGE not in self._images:
            with base_image() as image:
                self._ensured(BASE_IMAGE, image)
        return BASE_IMAGE

    def containers(self, *, everyone: bool = True) -> list[str]:
        """Return the names of its containers; with `everyone` also of ended ones."""
        with self.client() as client:
            return sorted(found["Names"][0].lstrip("/") for found in client.containers(all=everyone))

    def remove_containers(self) -> None:
        """Remove every container by force."""
        with self.client() as client:
            for found in client.containers(all=True, quiet=True):
                with contextlib.suppress(DockerException):
                    client.remove_container(found["Id"], force=True, v=True)

    def processes(self) -> int:
        """Return how many processes run in its containers, according to the kernel."""
        return dockerd.containers_of(self.home)

    def _ensured(self, name: str, image: Image) -> None:
        with self.client() as client:
            try:
                ensure_image(client, image, name=name)
            except NoImageError as error:
                raise EngineUnavailableError(f"docker: {error}") from error
        self._images.add(name)


@contextmanager
def docker_engine(
    *, parent: Path | None = None, live_restore: bool = False, has_network: bool = False, options: Sequence[str] = ()
) -> Iterator[PrivateDockerEngine]:
    """Run a private Docker Engine in its own folder.

    Args:
        parent: where that folder is made; the temporary files by default. Its path must be short.
        live_restore: containers go on while the engine is away, as long as it lives.
        has_network: containers have a bridge, in a network namespace without access to any other; else their network is
            `none` or `host`.
        options: further arguments of its command line.

    Raises `EngineUnavailableError`.
    """
    if reason := dockerd.why_no_engine():
        raise EngineUnavailableError(reason)
    dockerd.sweep(parent)
    try:
        home = new_home(parent)
    except NoEngineError as error:
        raise EngineUnavailableError(str(error)) from error
    lasting = ["--live-restore"] if live_restore else []
    command = engine_command(home, options=[*lasting, *options], has_network=has_network)
    with contextlib.ExitStack() as stack:
        stack.callback(dockerd.end_leftovers, home)
        if has_network:
            command = [*stack.enter_context(_namespace(home.name.removeprefix("towline-"))), *command]
        launch = EngineLaunch("dockerd", command, home, lambda: dockerd.answers(home))
        engine = PrivateDockerEngine(launch)
        stack.callback(_end, engine)
        engine.start()
        yield engine


def _end(engine: PrivateDockerEngine) -> None:
    """Remove the containers first: the engine waits 10 s and more for each that ignores SIGTERM."""
    engine.thaw()
    if dockerd.answers(engine.home):
        with contextlib.suppress(DockerException, OSError):
            engine.remove_containers()
    engine.stop()


@contextmanager
def _namespace(name: str) -> Iterator[list[str]]:
    """Make a network namespace with only loopback; yield the command prefix that enters it.

    `ip netns exec` is not used: it hides /sys/fs/cgroup.
    """
    ip, nsenter = shutil.which("ip"), shutil.which("nsenter")
    if ip is None or nsenter is None:
        raise EngineUnavailableError("docker: ip or nsenter is missing (Debian: apt-get install iproute2 util-linux)")
    made = subprocess.run([ip, "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        raise EngineUnavailableError(f"docker: no network namespace: {made.stderr.strip()}")
    try:
        subprocess.run([ip, "-n", name, "link", "set", "lo", "up"], check=True, capture_output=True)
        yield [nsenter, f"--net=/run/netns/{name}"]
    finally:
        subprocess.run([ip, "netns", "del", name], check=False, capture_output=True)
