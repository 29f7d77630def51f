"""What is particular to workers that are processes: their logs, their environment, their watchdog."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.base.clock import Monotonic, SystemMonotonicClock
from orchestrator.config.pools import PoolSpec
from orchestrator.fleet.last_words import last_words_of
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest, WorkerHandle
from orchestrator.runtimes import procfs, watchdog
from orchestrator.runtimes.composite import CompositeRuntime
from orchestrator.runtimes.process import STACK_SIGNAL, TASKS_NAME, ProcessRuntime
from orchestrator.runtimes.procfs import WorkerProcess
from orchestrator.runtimes.worker_logs import KEPT_ON_FULL_DISK_BYTES, MAX_LOG_BYTES, WorkerLogs
from queue_core.worker import main as worker_process
from queue_core.worker import respawn
from tests.support.eventually import eventually
from tests.support.fleet.fleet_builders import a_pool
from tests.support.fleet.runtime_bench import exits_of

CLOCK = SystemMonotonicClock()


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[ProcessRuntime]:
    runtime = ProcessRuntime(tmp_path)
    yield runtime
    for worker in runtime.usage():
        runtime.kill(worker)
    runtime.close()


def request_for(pool: PoolSpec, tmp_path: Path) -> SpawnRequest:
    launch = Launch("memory:", str(tmp_path), str(tmp_path / "lock"), 60.0)
    return SpawnRequest("w1", pool, launch.environment("w1", pool))


def shell(script: str) -> PoolSpec:
    return a_pool(app=None, command=["sh", "-c", script])


RECYCLED = f"""
import os, time
if os.fork():
    os.wait()
open("/proc/self/comm", "w").write({TASKS_NAME!r})
held = b"x" * 100_000_000
open({{path!r}}, "w").close()
time.sleep(3600)
"""


def test_a_worker_that_is_recycled_takes_what_the_process_of_its_handlers_takes(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    path = tmp_path / "is up"
    pool = a_pool(app=None, command=[sys.executable, "-c", RECYCLED.format(path=str(path))])
    runtime.spawn(request_for(pool, tmp_path), now=Monotonic(0.0))
    eventually(path.exists)
    assert runtime.usage()["w1"].memory_bytes > 100_000_000


def own_process(**environment: str) -> WorkerProcess:
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    return WorkerProcess(stat, environment)


def test_a_worker_does_not_inherit_what_the_service_manager_told_its_supervisor(
    runtime: ProcessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    runtime.spawn(request_for(shell('echo "[$NOTIFY_SOCKET]"'), tmp_path), now=CLOCK.monotonic())
    assert runtime.wait_for_exit(timeout_seconds=10)
    (ended,) = runtime.reap(now=CLOCK.monotonic())
    assert ended.last_lines == ("[]",)


def test_a_worker_inherits_no_file_of_its_supervisor(runtime: ProcessRuntime, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), True)
        runtime.spawn(request_for(shell("ls /proc/self/fd"), tmp_path), now=CLOCK.monotonic())
        assert runtime.wait_for_exit(timeout_seconds=10)
        (ended,) = runtime.reap(now=CLOCK.monotonic())
    assert ended.last_lines == ("0", "1", "2", "3")  # 3 is the folder that ls reads


def test_a_worker_that_is_not_our_child_is_adopted_and_its_end_is_seen(tmp_path: Path) -> None:
    # The parent starts a worker and exits, as a supervisor that was killed does.
    environment = dict(request_for(shell("exec sleep 600"), tmp_path).environment)
    parent = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True).returncode = 0"
    subprocess.run([sys.executable, "-c", parent], env={**os.environ, **environment}, check=True)
    runtime = ProcessRuntime(tmp_path)
    (handle,) = runtime.adopt(now=CLOCK.monotonic())
    runtime.kill(handle.worker)
    assert runtime.wait_for_exit(timeout_seconds=10)
    (ended,) = runtime.reap(now=CLOCK.monotonic())
    assert (ended.worker, ended.code, ended.signal) == ("w1", None, None)
    runtime.close()


def test_a_process_of_that_pid_but_another_start_is_never_opened() -> None:
    stat = procfs.read_stat(os.getpid())
    assert stat is not None
    assert procfs.open_exactly(stat.pid, stat.start_ticks + 1) is None
    pidfd = procfs.open_exactly(stat.pid, stat.start_ticks)
    assert pidfd is not None
    os.close(pidfd)


@pytest.mark.parametrize(
    "ref",
    [
        pytest.param("pid:{pid}@{later}/{boot}", id="another process of that pid"),
        pytest.param("pid:{pid}@{ticks}/00000000", id="of an earlier boot of the host"),
        pytest.param("pid:{pid}@{ticks}", id="without its boot"),
        pytest.param("c0ffee", id="of another runtime"),
    ],
)
def test_what_is_not_verifiably_a_remembered_worker_is_not_adopted(
    runtime: ProcessRuntime, tmp_path: Path, ref: str
) -> None:
    with subprocess.Popen(["sleep", "600"], env={}, start_new_session=True) as bystander:
        try:
            stat = procfs.read_stat(bystander.pid)
            assert stat is not None
            named = {"pid": stat.pid, "ticks": stat.start_ticks, "later": stat.start_ticks + 1, "boot": procfs.boot()}
            known = WorkerHandle("w1", "resize", ref.format(**named), "digest", CLOCK.monotonic())
            assert runtime.adopt(remembered=[known], now=CLOCK.monotonic()) == []
        finally:
            bystander.kill()


def test_a_pid_that_became_anothers_after_the_look_is_neither_adopted_nor_touched(
    runtime: ProcessRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = dict(request_for(shell("exec sleep 600"), tmp_path).environment)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        try:
            stat = procfs.read_stat(stranger.pid)
            assert stat is not None
            found = WorkerProcess(stat, environment)
            found.start_ticks -= 1  # the worker had the pid until a moment ago
            monkeypatch.setattr(procfs, "worker_processes", lambda *_: [found])
            assert runtime.adopt(now=CLOCK.monotonic()) == []
            runtime.kill(found.worker)
            assert stranger.poll() is None
            found.start_ticks += 1
            assert [handle.worker for handle in runtime.adopt(now=CLOCK.monotonic())] == [found.worker]
        finally:
            stranger.kill()


def test_a_shell_that_exports_our_variables_is_no_worker(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], env={"TOWLINE_STATE_DIR": str(tmp_path)}) as bystander:
        try:
            eventually(lambda: procfs.environment_of(bystander.pid))
            assert procfs.worker_processes(str(tmp_path)) == []
        finally:
            bystander.kill()


@pytest.mark.parametrize(("identity", "is_ours"), [("here", True), (None, True), ("an earlier folder", False)], ids=str)
def test_a_worker_of_an_earlier_folder_of_the_same_path_is_not_ours(
    tmp_path: Path, identity: str | None, is_ours: bool
) -> None:
    marks = {"TOWLINE_WORKER": "w1", "TOWLINE_POOL": "resize", "TOWLINE_SPEC": "1", "TOWLINE_STATE_DIR": str(tmp_path)}
    marks |= {} if identity is None else {"TOWLINE_STATE_ID": identity}
    with subprocess.Popen(["sleep", "600"], env=marks, start_new_session=True) as worker:
        try:
            eventually(lambda: procfs.worker_processes(str(tmp_path)))
            found = procfs.worker_processes(str(tmp_path), "here")
            assert [process.pid for process in found] == [worker.pid] * is_ours
        finally:
            worker.kill()


def test_only_the_last_lines_are_kept_for_a_death_and_each_is_cut(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    logs.path("w1").write_text("".join(f"{number} {'x' * 600}\n" for number in range(30)))
    lines = logs.last_lines("w1")
    assert len(lines) == 20
    assert lines[-1].startswith("29 x")
    assert {len(line) for line in lines} == {500}
    assert logs.last_lines("unknown") == ()


def test_a_log_that_grew_too_large_is_rotated_while_its_worker_writes_on(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    output = logs.open("w1")
    line = b"line of a worker\n"
    try:
        os.write(output, line * (MAX_LOG_BYTES // len(line)))
        assert logs.rotate(["w1", "unknown"]) == []
        for _ in range(4):
            os.write(output, line * (2 * MAX_LOG_BYTES // len(line)))
            os.utime(output, ns=(5, 7))
            assert logs.rotate(["w1"]) == ["w1"]
        assert logs.path("w1").stat().st_mtime_ns == 7  # ADR 12 reads how far a container's output was heard
        os.write(output, b"after\n")
    finally:
        os.close(output)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * MAX_LOG_BYTES
    before = logs.path_before("w1").read_bytes()
    assert len(before) > 0.9 * MAX_LOG_BYTES
    assert before.replace(line, b"") == b""
    assert logs.last_lines("w1") == ("line of a worker",) * 19 + ("after",)


def test_a_worker_that_writes_much_keeps_two_files_of_its_output_and_that_is_said_once(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    flood = f"head -c {3 * MAX_LOG_BYTES} /dev/zero | tr '\\0' '\\n'"
    worker = shell(f"for round in 1 2 3; do {flood}; sleep 0.2; done; echo end; sleep 600")
    with capture_logs() as logs:
        runtime.spawn(request_for(worker, tmp_path), now=CLOCK.monotonic())
        output = runtime.logs.path("w1")

        def is_small() -> bool:
            runtime.reap(now=CLOCK.monotonic())
            return runtime.logs.last_lines("w1") == ("end",) and output.stat().st_size <= MAX_LOG_BYTES

        eventually(is_small, seconds=30)
    assert output.stat().st_size + runtime.logs.path_before("w1").stat().st_size <= 2 * MAX_LOG_BYTES
    (told,) = [entry for entry in logs if entry["event"] == events.WORKER_OUTPUT_ROTATED]
    assert (told["worker"], told["file"]) == ("w1", str(output))


def test_a_watchdog_rotates_logs_where_there_is_no_supervisor(runtime: ProcessRuntime, tmp_path: Path) -> None:
    runtime.spawn(request_for(shell("sleep 600"), tmp_path), now=CLOCK.monotonic())
    os.truncate(runtime.logs.path("w1"), 3 * MAX_LOG_BYTES)
    on_duty = threading.Thread(target=watchdog.watch, args=(str(tmp_path), str(tmp_path / "supervisor.lock")))
    on_duty.start()
    try:
        eventually(lambda: runtime.logs.path("w1").stat().st_size < MAX_LOG_BYTES)
    finally:
        runtime.kill("w1")
        exits_of(runtime, 1)
        on_duty.join(timeout=10)
    assert not on_duty.is_alive()


def test_a_log_that_fills_the_disk_makes_room_and_keeps_its_end(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    output = logs.open("w1")
    try:
        os.write(output, b"line of a worker\n" * (MAX_LOG_BYTES // 17 + 1))
    finally:
        os.close(output)
    (tmp_path / "w1.log.part").symlink_to("/dev/full")
    assert logs.rotate(["w1"]) == ["w1"]
    text = logs.path("w1").read_text()
    assert KEPT_ON_FULL_DISK_BYTES - 100 < len(text) <= KEPT_ON_FULL_DISK_BYTES
    assert set(text.splitlines()) == {"line of a worker"}


def test_logs_of_the_living_and_of_the_newest_dead_are_kept(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    for number in range(60):
        logs.path(f"w{number}").touch()
        os.utime(logs.path(f"w{number}"), (number, number))
    logs.trim({"w0"})
    left = {path.stem for path in tmp_path.iterdir()}
    assert left == {"w0"} | {f"w{number}" for number in range(10, 60)}


def test_a_log_is_kept_while_its_worker_lives_whichever_runtime_runs_it(tmp_path: Path) -> None:
    """The log of a living worker, once deleted, would be written on unseen and without a bound."""
    made: list[CompositeRuntime] = []
    logs = WorkerLogs(tmp_path / "workers", is_alive=lambda worker: bool(made) and made[0].runs(worker))
    processes = ProcessRuntime(tmp_path, logs=logs)
    composite = CompositeRuntime(processes, {})
    made.append(composite)
    try:
        composite.spawn(request_for(shell("exec sleep 60"), tmp_path), now=CLOCK.monotonic())
        os.utime(logs.path("w1"), (0, 0))
        for number in range(60):
            (tmp_path / "workers" / f"v{number}.log").touch()
        logs.trim(())  # as a runtime of containers does, which knows no processes
        assert logs.path("w1").exists()
        composite.kill("w1")
        exits_of(composite, 1)
        assert not composite.runs("w1")
        logs.trim(())
        assert not logs.path("w1").exists()
    finally:
        composite.close()


@pytest.mark.parametrize(
    ("lost_seconds", "app", "due"),
    [
        pytest.param(9.9, "", None, id="it may come back"),
        pytest.param(10, "", 15, id="another program is asked to finish"),
        pytest.param(10, "tasks:app", None, id="a worker of ours knows by itself"),
        pytest.param(16.9, "", 15, id="within its grace"),
        pytest.param(17, "", 9, id="it had its grace, and a margin"),
        pytest.param(17, "tasks:app", 9, id="a worker of ours that hangs"),
    ],
)
def test_what_is_due_to_an_orphan(lost_seconds: float, app: str, due: int | None) -> None:
    process = own_process(TOWLINE_ORPHAN_GRACE_SECONDS="10", TOWLINE_GRACE_SECONDS="2", TOWLINE_APP=app)
    process.leads = True
    assert watchdog.verdict(process, lost_seconds=lost_seconds) == due


def test_what_an_orphan_started_is_not_asked_but_ended_with_it() -> None:
    process = own_process(TOWLINE_ORPHAN_GRACE_SECONDS="10", TOWLINE_GRACE_SECONDS="2")
    process.leads = False
    assert watchdog.verdict(process, lost_seconds=12) is None
    assert watchdog.verdict(process, lost_seconds=17) == 9


def test_a_watchdog_leaves_when_there_is_nobody_to_watch_over(tmp_path: Path) -> None:
    watchdog.watch(str(tmp_path), str(tmp_path / "supervisor.lock"))
    assert (tmp_path / "warden.lock").exists()


def test_the_signal_for_a_stack_is_the_one_that_a_worker_has_a_handler_for() -> None:
    assert STACK_SIGNAL == worker_process.STACK_SIGNAL


def test_the_process_of_the_handlers_is_looked_for_by_the_name_it_gives_itself() -> None:
    assert TASKS_NAME == respawn.PROCESS_NAME


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell who waits for a core")
def test_workers_that_share_a_core_are_told_to_have_waited_for_it(runtime: ProcessRuntime, tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
    pool = a_pool(app=None, command=[sys.executable, "-c", spin])
    for worker in ("w1", "w2"):
        runtime.spawn(replace(request_for(pool, tmp_path), worker=worker), now=CLOCK.monotonic())
    eventually(lambda: all(used.waited_seconds > 0.05 for used in runtime.usage().values()), seconds=60)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("sh -c 'while :; do :; done' & wait", id="it works"),
        pytest.param("sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; sleep 600", id="it has ended"),
    ],
)
def test_what_a_worker_started_is_counted_in_its_processor_time(
    runtime: ProcessRuntime, tmp_path: Path, script: str
) -> None:
    runtime.spawn(request_for(shell(script), tmp_path), now=CLOCK.monotonic())
    eventually(lambda: runtime.usage()["w1"].cpu_seconds > 0.1, seconds=60)


def test_a_dump_of_its_threads_does_not_hide_what_a_worker_said_before_it(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    frame = '  File "/app/tasks.py", line 10 in resize\n'
    said = '{"event":"lease.lost","task":"_5","handler":"resize","place":"tasks.py:10"}'
    dump = "Current thread 0x00007f61603ffb80 (most recent call first):\n" + frame * 40
    logs.path("w1").write_text(f"begun\n{said}\n{dump}")
    assert logs.last_lines("w1", without_stack=True) == ("begun", said)
    assert logs.last_lines("w1") == ("begun", said)
    assert last_words_of(logs.last_lines("w1", without_stack=True)).condition == (
        "resize runs on without its lease, at tasks.py:10"
    )
