"""What the whole session shares."""

from collections.abc import Iterator

import pytest

from tests.support.shared_engines import SharedEngines


@pytest.fixture(scope="session")
def shared_engines() -> Iterator[SharedEngines]:
    """PostgreSQL and Redis, each started when a test first asks for it."""
    with SharedEngines() as shared:
        yield shared
