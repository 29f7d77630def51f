"""Whatever a handler raises costs its task one attempt, and ends it: in workers that are processes, however started."""

from pathlib import Path
from typing import Final, Literal

import pytest

from queue_core.task import QueueSpec
from tests.support.fleet.both_ways import BothWays

RAISED: Final = (
    "ValueError('plain')",
    "hostile('__str__')",
    "hostile('__repr__')",
    "hostile('errors', property)",
    "hostile('__notes__', property)",
    "hostile('__cause__', property)",
    "hostile('__class__', property)",
    "MemoryError()",
    "RecursionError()",
    "SystemExit(3)",
    "SystemExit('bye')",
    "KeyboardInterrupt()",
    "GeneratorExit()",
    "asyncio.CancelledError()",
    "StopIteration(7)",
    "BaseExceptionGroup('all', [KeyboardInterrupt(), SystemExit(1)])",
)
TOP: Final = f"""
import asyncio

class BrokenError(BaseException): ...

def hostile(name, wrap=lambda call: call):
    def call(*_):
        raise BrokenError
    return type("HostileError", (Exception,), {{name: wrap(call)}})()

RAISED = [{", ".join(f"lambda: {each}" for each in RAISED)}]
"""


@pytest.mark.parametrize("start", ["executed", "forked"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_whatever_a_handler_raises_costs_one_attempt_and_no_worker(
    tmp_path: Path, kind: Literal["def", "async def"], start: str
) -> None:
    spec = QueueSpec("q", max_leases=1)
    ways = BothWays(tmp_path, TOP, "note(n)\nraise RAISED[n]()", {}, kind=kind, tasks=len(RAISED), queue=spec)
    left = ways.executed() if start == "executed" else ways.forked()
    assert left.attempts == {str(n): ("raised",) for n in range(len(RAISED))}
    assert sorted(map(int, left.files["notes"].split())) == list(range(len(RAISED)))
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
