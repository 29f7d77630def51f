"""The async client has every verb of the plain one, as coroutines that are written from it."""

import inspect
from pathlib import Path

import pytest

from queue_core.client.asynchronous.client import AsyncQueue, AsyncQueues
from queue_core.client.asynchronous.schedules import AsyncSchedulesVerbs
from queue_core.client.queue import Queue, Queues
from queue_core.client.schedules import Schedules
from tests.support import async_facade

PAIRS = ((Queue, AsyncQueue), (Queues, AsyncQueues), (Schedules, AsyncSchedulesVerbs))
VERBS = [
    (one, other, name)
    for one, other in PAIRS
    for name, _ in inspect.getmembers(one, inspect.isfunction)
    if not name.startswith("_") and name != "queue"
]


@pytest.mark.parametrize("module", async_facade.SOURCES, ids=lambda path: str(path.name))
def test_what_is_committed_is_what_is_written(module: Path) -> None:
    assert module.read_text(encoding="utf-8") == async_facade.written(module)


@pytest.mark.parametrize(("plain", "other", "verb"), VERBS, ids=lambda one: one if isinstance(one, str) else "")
def test_a_verb_is_a_coroutine_with_the_same_arguments(plain: type, other: type, verb: str) -> None:
    made = getattr(other, verb)
    assert inspect.iscoroutinefunction(made)
    assert inspect.signature(made) == inspect.signature(getattr(plain, verb))


def test_schedules_are_a_property_of_both() -> None:
    assert isinstance(inspect.getattr_static(AsyncQueues, "schedules"), property)
