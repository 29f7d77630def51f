"""Whatever a handler raises costs its task one attempt, and ends it: in workers that are processes, however started."""

import sys
from pathlib import Path
from typing import Literal

import pytest

from queue_core.task import QueueSpec
from queue_core.worker.lifecycle import EXIT_INTERNAL, EXIT_OK
from tests.support.fleet.both_ways import BothWays
from tests.support.fleet.odd_exceptions import ALL


@pytest.mark.parametrize("start", ["executed", "forked"])
@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_whatever_a_handler_raises_costs_one_attempt_and_no_worker(
    tmp_path: Path, kind: Literal["def", "async def"], start: str, concurrency: int
) -> None:
    spec = QueueSpec("q", max_leases=1)
    top = "from tests.support.fleet.odd_exceptions import raise_all"
    count = len(ALL) + len(ALL) % 2  # as many for each of the two workers
    body = f"note(n)\nraise_all(min(n, {len(ALL) - 1}))"
    ways = BothWays(tmp_path, top, body, {}, kind=kind, tasks=count, queue=spec, concurrency=concurrency)
    left = ways.executed() if start == "executed" else ways.forked()
    named = {n: ALL[min(n, len(ALL) - 1)] for n in range(count)}
    assert {named[n]: left.attempts.get(str(n)) for n in range(count)} == dict.fromkeys(named.values(), ("raised",))
    assert sorted(map(int, left.files["notes"].split())) == list(range(count))
    assert (left.codes, left.tasks_left) == ((0, 0), 0)


@pytest.mark.parametrize("start", ["executed", "forked"])
def test_memory_that_is_not_there_costs_one_attempt(tmp_path: Path, start: str) -> None:
    """With real errors of the interpreter: no memory, no stack."""
    body = "import asyncio\nawait asyncio.sleep(0)\nif n % 2:\n    bytearray(1 << 62)\ndef deep():\n    deep()\ndeep()"
    spec = QueueSpec("q", max_leases=1)
    ways = BothWays(tmp_path, "", body, {}, kind="async def", queue=spec)
    left = ways.executed() if start == "executed" else ways.forked()
    assert left.attempts == {str(n): ("raised",) for n in range(4)}
    assert left.codes == (0, 0)


FILLS = """
import resource
kept = None
class FullError(Exception):
    def __str__(self):
        return "it is full"
def fill():
    global kept
    with open("/proc/self/statm") as file:
        bound = int(file.read().split()[0]) * resource.getpagesize() + (4 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    size = 1 << 20
    while size >= 16:
        try:
            while True:
                kept = (kept, bytearray(size))
        except MemoryError:
            size //= 4
"""
"""A handler that leaves its process not a byte more than it has, and keeps it."""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of an address space is Linux's")
@pytest.mark.parametrize("start", ["executed", "forked"])
@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(("error", "concurrency"), [("MemoryError", 1), ("FullError", 2)])
def test_a_handler_that_keeps_all_memory_costs_one_attempt_and_its_worker_ends(
    tmp_path: Path, kind: Literal["def", "async def"], start: str, error: str, concurrency: int
) -> None:
    spec = QueueSpec("q", max_leases=1)
    body = f"fill()\nraise {error}"
    ways = BothWays(tmp_path, FILLS, body, {}, kind=kind, tasks=2, queue=spec, concurrency=concurrency)
    left = ways.executed() if start == "executed" else ways.forked()
    assert left.attempts == {str(n): ("raised",) for n in range(2)}
    assert set(left.codes) <= {EXIT_OK, EXIT_INTERNAL}


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of an address space is Linux's")
@pytest.mark.parametrize("start", ["executed", "forked"])
def test_a_handler_that_returns_with_all_memory_leaves_no_worker_that_does_nothing(tmp_path: Path, start: str) -> None:
    ways = BothWays(tmp_path, FILLS, "fill()", {}, tasks=2)
    left = ways.executed() if start == "executed" else ways.forked()
    assert set(left.codes) <= {EXIT_OK, EXIT_INTERNAL}
