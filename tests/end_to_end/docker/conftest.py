"""A site on the private engine, for tests that need nothing else of it."""

from collections.abc import Iterator

import pytest

from tests.support.docker.engine import PrivateDockerEngine
from tests.support.docker.site import DockerSite, docker_site


@pytest.fixture
def site(docker_engine: PrivateDockerEngine) -> Iterator[DockerSite]:
    with docker_site(docker_engine) as site:
        yield site
