"""What any runtime promises of a worker's life and end, asked of real workers. Adoption is beside it."""

import os
import signal
from pathlib import Path
from typing import Final

import pytest

from orchestrator.base.errors import SpawnError
from tests.support.eventually import eventually
from tests.support.fleet.runtime_bench import CLOCK, RuntimeBench, is_running

FINISH: Final = "exit 0"
# An engine keeps no order between what is written to stdout and to stderr within microseconds.
FAIL: Final = "echo about to fail; sleep 0.1; echo the reason >&2; exit 3"
STAY: Final = "echo up; exec sleep 600"
DRAIN: Final = "trap 'kill $!; exit 0' TERM; sleep 600 & echo up; wait"
IGNORE_DRAIN: Final = "trap '' TERM; echo up; while :; do sleep 600; done"
WITH_A_CHILD: Final = "sleep 600 & echo child $!; wait"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_spawned_worker_is_known_by_its_identity_pool_and_settings(bench: RuntimeBench) -> None:
    handle = bench.spawn(STAY)
    pool = bench.pool(["sh", "-c", STAY])
    assert (handle.worker, handle.pool, handle.spec_digest) == ("resize-1", "resize", pool.digest())
    assert handle.worker in bench.runtime.usage()


def test_a_worker_is_told_who_it_is_and_what_its_pool_adds(bench: RuntimeBench) -> None:
    handle = bench.spawn('echo "$TOWLINE_WORKER $TOWLINE_QUEUE $COLOUR"; exit 0', env={"COLOUR": "blue"})
    bench.exits()
    assert bench.output(handle) == "resize-1 thumbs blue\n"


def test_a_workers_name_is_in_its_command_and_variables_where_the_pool_says(bench: RuntimeBench) -> None:
    handle = bench.spawn("echo {worker} of {pool} $OUT; exit 0", env={"OUT": "to {worker}.csv"})
    bench.exits()
    assert bench.output(handle) == "resize-1 of resize to resize-1.csv\n"


def test_a_worker_runs_in_the_directory_of_its_pool(bench: RuntimeBench, tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    handle = bench.spawn("pwd", cwd=str(folder))
    bench.exits()
    assert bench.output(handle).strip() == str(folder)


def test_a_worker_that_finishes_is_told_once_with_exit_code_0(bench: RuntimeBench) -> None:
    handle = bench.spawn(FINISH)
    (ended,) = bench.exits()
    assert (ended.worker, ended.ref, ended.code, ended.signal) == (handle.worker, handle.ref, 0, None)
    assert bench.runtime.reap(now=CLOCK.monotonic()) == []


def test_an_exit_code_and_the_last_words_are_told(bench: RuntimeBench) -> None:
    bench.spawn(FAIL)
    (ended,) = bench.exits()
    assert (ended.code, ended.signal, ended.out_of_memory) == (3, None, False)
    assert ended.last_lines == ("about to fail", "the reason")


def test_a_worker_ended_from_outside_is_told_with_its_signal(bench: RuntimeBench) -> None:
    handle = bench.spawn(STAY)
    os.kill(bench.pid_of(handle), signal.SIGKILL)
    (ended,) = bench.exits()
    assert (ended.code, ended.signal, ended.out_of_memory) == (None, signal.SIGKILL, False)


def test_a_drained_worker_finishes_by_itself(bench: RuntimeBench) -> None:
    handle = bench.spawn(DRAIN)
    eventually(lambda: "up" in bench.output(handle))
    bench.runtime.drain(handle.worker)
    (ended,) = bench.exits()
    assert (ended.code, ended.signal) == (0, None)


def test_a_kill_ends_a_worker_that_ignores_a_drain(bench: RuntimeBench) -> None:
    handle = bench.spawn(IGNORE_DRAIN)
    eventually(lambda: "up" in bench.output(handle))
    bench.runtime.drain(handle.worker)
    bench.runtime.kill(handle.worker)
    (ended,) = bench.exits()
    assert ended.signal == signal.SIGKILL


def test_a_kill_ends_everything_the_worker_started(bench: RuntimeBench) -> None:
    handle = bench.spawn(WITH_A_CHILD)
    child = bench.child_of(handle)
    bench.runtime.kill(handle.worker)
    bench.exits()
    eventually(lambda: not is_running(child))


def test_a_kill_ends_a_worker_before_it_sees_its_child_end(bench: RuntimeBench) -> None:
    handle = bench.spawn(WITH_A_CHILD.replace("wait", "wait; echo published"))
    child = bench.child_of(handle)
    bench.runtime.kill(handle.worker)
    bench.exits()
    eventually(lambda: not is_running(child))
    assert "published" not in bench.output(handle)


def test_nothing_a_dead_worker_started_stays_behind(bench: RuntimeBench) -> None:
    handle = bench.spawn(WITH_A_CHILD)
    child = bench.child_of(handle)
    os.kill(bench.pid_of(handle), signal.SIGKILL)
    bench.exits()
    eventually(lambda: not is_running(child))


def test_a_command_that_does_not_exist_is_refused_with_its_name(bench: RuntimeBench) -> None:
    with pytest.raises(SpawnError, match="no such command: no-such-program"):
        bench.start(bench.pool(["no-such-program"]))
    assert bench.runtime.usage() == {}


def test_a_file_that_may_not_be_executed_is_refused(bench: RuntimeBench, tmp_path: Path) -> None:
    script = tmp_path / "plain.txt"
    script.write_text("not a program\n")
    with pytest.raises(SpawnError, match="may not be executed"):
        bench.start(bench.pool([str(script)]))


def test_a_working_directory_that_is_missing_is_refused_by_its_own_name(bench: RuntimeBench, tmp_path: Path) -> None:
    with pytest.raises(SpawnError, match=r"fix pools\.resize\.cwd"):
        bench.spawn(STAY, cwd=str(tmp_path / "missing"))


def test_verbs_on_an_unknown_worker_have_no_effect(bench: RuntimeBench) -> None:
    bench.runtime.drain("nobody")
    bench.runtime.kill("nobody")
    assert bench.runtime.reap(now=CLOCK.monotonic()) == []


def test_waiting_for_an_exit_ends_early_when_woken(bench: RuntimeBench) -> None:
    bench.spawn(STAY)
    bench.runtime.wake()
    assert bench.runtime.wait_for_exit(timeout_seconds=600) is False


def test_waiting_for_an_exit_ends_with_the_exit(bench: RuntimeBench) -> None:
    bench.spawn(FINISH)
    assert bench.runtime.wait_for_exit(timeout_seconds=60) is True


def test_waiting_for_an_exit_ends_when_the_time_is_up(bench: RuntimeBench) -> None:
    bench.spawn(STAY)
    assert bench.runtime.wait_for_exit(timeout_seconds=0) is False


def test_usage_tells_memory_and_processor_time(bench: RuntimeBench) -> None:
    handle = bench.spawn("while :; do :; done")
    used = eventually(lambda: (u := bench.runtime.usage()[handle.worker]).cpu_seconds > 0 and u)
    assert 100_000 < used.memory_bytes < 100_000_000


def test_nothing_is_left_open_by_workers_that_came_and_went(bench: RuntimeBench) -> None:
    first = bench.spawn(FINISH)
    bench.exits()
    eventually(lambda: bench.kind.is_gone(first))
    before = open_descriptors()
    for _ in range(10):
        bench.spawn(FINISH)
    bench.exits(10)
    eventually(lambda: open_descriptors() <= before)


def test_a_collected_worker_is_no_zombie(bench: RuntimeBench) -> None:
    handle = bench.spawn(FINISH)
    bench.exits()
    eventually(lambda: bench.kind.is_gone(handle))
