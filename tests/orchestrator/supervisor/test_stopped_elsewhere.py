"""Workers that somebody else asks to end: why they ended, and that their tasks are given back as if never leased."""

from pathlib import Path

import pytest

from orchestrator.base.clock import ManualMonotonicClock, Monotonic
from orchestrator.fleet.exits import Cause, cause_of
from orchestrator.runtime import Exit
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.post_mortem import PostMortems, WorkerEnd
from tests.support.fleet.fakes import FakeSource
from tests.support.fleet.fleet_builders import a_pool


@pytest.mark.parametrize(
    ("code", "signal", "drained", "cause"),
    [
        pytest.param(0, None, False, Cause.DRAINED, id="it finished"),
        pytest.param(143, None, False, Cause.DRAINED, id="a shell tells SIGTERM"),
        pytest.param(None, 15, False, Cause.DRAINED, id="it heeds SIGTERM by ending"),
        pytest.param(None, 9, False, Cause.OVERDUE, id="it was ended before it had finished"),
        pytest.param(1, None, False, Cause.CRASHED, id="it crashed on the way"),
        pytest.param(0, None, True, Cause.DRAINED, id="we had asked it, too"),
    ],
)
def test_a_worker_that_somebody_else_stopped_is_no_worker_that_failed(
    code: int | None, signal: int | None, drained: bool, cause: Cause
) -> None:
    ended = Exit("w", "p", "docker:1", Monotonic(1.0), code=code, signal=signal, is_stopped=True)
    told, detail = cause_of(ended, drained=drained, overdue=False)
    assert told is cause
    assert ("somebody else" in detail) == (not drained and cause is not Cause.CRASHED)


def test_memory_that_runs_out_while_a_worker_is_stopped_is_the_cause_all_the_same() -> None:
    ended = Exit("w", "p", "docker:1", Monotonic(1.0), signal=9, out_of_memory=True, is_stopped=True)
    assert cause_of(ended, drained=False, overdue=False)[0] is Cause.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("cause", "is_stopped", "settled"),
    [
        pytest.param(Cause.OVERDUE, True, [("t1", "not counted"), ("t2", "not counted")], id="stopped"),
        pytest.param(Cause.OVERDUE, False, [], id="ended by us, which counts"),
        pytest.param(Cause.CRASHED, True, [], id="crashed meanwhile, which counts"),
    ],
)
def test_tasks_of_a_stopped_worker_are_given_back_without_counting_their_leases(
    tmp_path: Path, cause: Cause, is_stopped: bool, settled: list[tuple[str, str]]
) -> None:
    source = FakeSource()
    source.held["w"] = ["t1", "t2"]
    post_mortems = PostMortems(source, StateDir(tmp_path), clock=ManualMonotonicClock())
    post_mortems.handle([WorkerEnd("w", "resize", cause, "detail", a_pool(), is_stopped=is_stopped)])
    assert post_mortems.held_tasks("w") == 2
    assert [fate for fate in source.settled if fate[1] == "not counted"] == settled
