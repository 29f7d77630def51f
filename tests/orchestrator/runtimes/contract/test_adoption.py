"""What any runtime promises of workers that an earlier supervisor left: whom it adopts, and whom it lets be."""

import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.runtimes import procfs
from tests.support.eventually import eventually
from tests.support.fleet.runtime_bench import CLOCK, RuntimeBench, is_running

FINISH: Final = "exit 0"
STAY: Final = "echo up; exec sleep 600"
WITH_A_CHILD: Final = "sleep 600 & echo child $!; wait"
HIDDEN: Final = "echo up; exec env -i sleep 600"
HIDDEN_WITH_A_CHILD: Final = "sleep 600 & echo child $!; exec env -i sleep 600"


def test_workers_left_running_are_adopted_as_they_are(bench: RuntimeBench) -> None:
    left = bench.spawn(STAY)
    bench.reopen()
    (found,) = bench.runtime.adopt(now=CLOCK.monotonic())
    assert (found.worker, found.pool, found.ref, found.spec_digest) == (
        left.worker,
        left.pool,
        left.ref,
        left.spec_digest,
    )
    assert abs(found.spawned_at - left.spawned_at) < 1.0
    assert is_running(bench.pid_of(left))


def test_an_adopted_worker_is_told_of_when_it_ends(bench: RuntimeBench) -> None:
    left = bench.spawn(STAY)
    bench.reopen()
    bench.runtime.adopt(now=CLOCK.monotonic())
    bench.runtime.kill(left.worker)
    (ended,) = bench.exits()
    assert ended.worker == left.worker


def test_a_remembered_worker_that_hides_its_marks_is_adopted_all_the_same(bench: RuntimeBench) -> None:
    left = bench.spawn(HIDDEN)
    eventually(lambda: bench.output(left) == "up\n" and not procfs.environment_of(bench.pid_of(left)))
    bench.reopen()
    if not bench.kind.is_marked_outside:
        assert bench.runtime.adopt(now=CLOCK.monotonic()) == []
    (found,) = bench.runtime.adopt(remembered=[left], now=CLOCK.monotonic())
    assert replace(found, spawned_at=left.spawned_at) == left
    assert bench.runtime.adopt(remembered=[left], now=CLOCK.monotonic()) == []
    bench.runtime.kill(left.worker)
    assert [ended.worker for ended in bench.exits()] == [left.worker]


def test_what_a_remembered_worker_that_hides_its_marks_has_started_is_left_to_it(bench: RuntimeBench) -> None:
    left = bench.spawn(HIDDEN_WITH_A_CHILD)
    child = bench.child_of(left)
    eventually(lambda: not procfs.environment_of(bench.pid_of(left)))
    bench.reopen()
    (found,) = bench.runtime.adopt(remembered=[left], now=CLOCK.monotonic())
    assert found.worker == left.worker
    assert is_running(child)
    bench.runtime.kill(left.worker)
    bench.exits()
    eventually(lambda: not is_running(child))


def test_a_remembered_worker_that_is_gone_is_not_adopted(bench: RuntimeBench) -> None:
    left = bench.spawn(FINISH)
    bench.exits()
    bench.reopen()
    assert bench.runtime.adopt(remembered=[left], now=CLOCK.monotonic()) == []


def test_a_worker_is_adopted_once(bench: RuntimeBench) -> None:
    bench.spawn(STAY)
    assert bench.runtime.adopt(now=CLOCK.monotonic()) == []
    bench.reopen()
    assert len(bench.runtime.adopt(now=CLOCK.monotonic())) == 1
    assert bench.runtime.adopt(now=CLOCK.monotonic()) == []


def test_workers_of_another_state_are_left_alone(bench: RuntimeBench, tmp_path: Path) -> None:
    bench.spawn(STAY)
    with closing(bench.kind.make(tmp_path / "another")) as stranger:
        assert stranger.adopt(now=CLOCK.monotonic()) == []


def test_what_is_left_of_a_worker_that_died_unseen_is_ended(bench: RuntimeBench) -> None:
    left = bench.spawn(WITH_A_CHILD)
    child = bench.child_of(left)
    bench.reopen()
    os.kill(bench.pid_of(left), signal.SIGKILL)
    eventually(lambda: bench.kind.has_died(left))
    assert bench.runtime.adopt(now=CLOCK.monotonic()) == []
    eventually(lambda: not is_running(child))
