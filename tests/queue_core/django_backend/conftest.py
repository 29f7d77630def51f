"""A Django site, set up once a process, and queues in memory for its backend."""

import os
from collections.abc import Iterator

import django
import pytest

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.queue_core.django_backend.site_settings"
django.setup()

from queue_core.django import use_queues  # noqa: E402  Django's API needs its settings
from queue_core.testing import MemoryQueues  # noqa: E402


@pytest.fixture
def queues() -> Iterator[MemoryQueues]:
    """Queues in memory, with a clock of their own."""
    opened = MemoryQueues()
    with use_queues(opened):
        yield opened
