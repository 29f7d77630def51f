"""What Google's compatibility kit asks of a pull queue, through the client for Python, with time in the test's hand.

Each test is ours; the behaviour is the one that the kit's `PullTest`, `PullQueueTest`, `PullQueueAsyncTest`,
`PullQueueBadArgumentsTest` and `StatsTest` describe, with bounds tried on both sides. The kit sleeps; here the clock is
moved.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.google.appengine_kit import Kit, a_kit


@pytest.fixture(params=["memory", "sqlite"])
def kit(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    """The client's queue over each store in turn."""
    with a_kit(request.param, tmp_path, monkeypatch) as kit:
        yield kit
