"""Images of pools: there before a worker is started from them, fetched where their pull policy says so, looked at once.

Fetching can take minutes and is done by a thread of its own; until then the pool waits, with the reason told.
"""

import threading
from collections.abc import Mapping
from typing import Final

import docker
import structlog

from orchestrator import events
from orchestrator.config import PoolSpec
from orchestrator.containers import ContainerSettings
from orchestrator.errors import RuntimeUnavailableError, SpawnError
from orchestrator.runtimes.docker.engine import Api, DockerEngine, answering, explained
from orchestrator.runtimes.docker.examine import examine

log = structlog.get_logger()

PULL_SECONDS: Final = 600.0
"""How long an engine may be silent while it fetches an image."""


class Images:
    """What is known of the images of one engine. `prepare` belongs to one thread."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._examined: set[str] = set()
        self._pulls: dict[str, _Pull] = {}

    def prepare(self, api: Api, pool: PoolSpec, settings: ContainerSettings, body: Mapping[str, object]) -> None:
        """Make sure that this pool's workers can be started.

        Raises `SpawnError` when they can't, and `RuntimeUnavailableError` while their image is fetched.
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
        examine(api, body, pool)
        self._examined.add(pool.digest())
        self._pulls.pop(image, None)

    def missing(self, pool: PoolSpec) -> None:
        """An image that was there is gone: look again at the next start."""
        self._examined.discard(pool.digest())

    def _fetched(self, image: str, pool: str) -> None:
        pull = self._pulls.get(image)
        if pull is None:
            pull = self._pulls[image] = _Pull(self._engine, image)
        if not pull.is_over.is_set():
            raise RuntimeUnavailableError(f"its image {image} is being fetched")
        if pull.error:
            del self._pulls[image]
            raise SpawnError(f"can't start a worker of pool {pool}: its image {image} can't be fetched: {pull.error}")


class _Pull:
    """One image on its way."""

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
            with answering(self._engine.url):
                self._engine.api(seconds=PULL_SECONDS).pull(name)
        except docker.errors.APIError as error:
            self.error = explained(error)
        except RuntimeUnavailableError as error:
            self.error = str(error)
        finally:
            log.info(events.IMAGE_PULLED, image=self._image, state=self.error or "done")
            self.is_over.set()


def _is_there(api: Api, image: str) -> bool:
    try:
        api.inspect_image(image)
    except docker.errors.NotFound:
        return False
    return True
