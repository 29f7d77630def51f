"""What an engine tells of containers, and what is made of it: phases, ends, output, use."""

import signal
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from orchestrator.runtime import Usage
from orchestrator.runtimes.docker.container_state import (
    ContainerExit,
    ending_by_code,
    ending_of,
    failed_start,
    known_of,
    nanoseconds,
    phase_of,
)
from orchestrator.runtimes.docker.logs import LogFrames, LogPiece, NoLogError, log_output, parsed
from orchestrator.runtimes.docker.usage import UNKNOWN, groups_of, usage_of

LABELS = {
    "towline.state": "5f2c:/srv",
    "towline.worker": "resize-1",
    "towline.pool": "resize",
    "towline.spec": "d1",
    "towline.spawned_at": "1700000000.5",
}


def inspected(*, code: int, error: str = "", oom: bool = False, memory: int = 0) -> dict[str, object]:
    state = {"Status": "exited", "ExitCode": code, "Error": error, "OOMKilled": oom}
    return {"State": state, "HostConfig": {"Memory": memory}}


@pytest.mark.parametrize(
    ("told", "saw", "ending"),
    [
        pytest.param(inspected(code=0), False, ContainerExit(code=0), id="finished"),
        pytest.param(inspected(code=3), False, ContainerExit(code=3), id="failed"),
        pytest.param(inspected(code=137), False, ContainerExit(signal=9), id="killed"),
        pytest.param(inspected(code=143), False, ContainerExit(signal=15), id="terminated"),
        pytest.param(inspected(code=128), False, ContainerExit(code=128), id="no signal is 0"),
        pytest.param(inspected(code=255), False, ContainerExit(code=255), id="no signal is 127"),
        pytest.param(
            inspected(code=137, oom=True, memory=2**23),
            False,
            ContainerExit(signal=9, out_of_memory=True, memory_limit_bytes=2**23),
            id="out of memory",
        ),
        pytest.param(
            inspected(code=137), True, ContainerExit(signal=9, out_of_memory=True), id="out of memory, by an event"
        ),
        pytest.param(
            inspected(code=1, oom=True),
            False,
            ContainerExit(code=1, reason="one of its processes was killed by the kernel: out of memory"),
            id="only a child was out of memory",
        ),
        pytest.param(
            inspected(code=127, error="no such file"), False, ContainerExit(code=127, reason="no such file"), id="why"
        ),
        pytest.param({}, False, ContainerExit(), id="nothing is told"),
        pytest.param(None, False, ContainerExit(), id="it is gone"),
    ],
)
def test_an_end_is_told_by_code_or_signal_and_memory(told: object, saw: bool, ending: ContainerExit) -> None:
    assert ending_of(told, saw_out_of_memory=saw) == ending


@pytest.mark.parametrize(
    ("told", "was_requested", "reason"),
    [
        pytest.param(
            inspected(code=137, memory=2**23),
            False,
            "no request for it is known: perhaps it was out of memory, with a limit of 8 MiB",
            id="nobody asked for it",
        ),
        pytest.param(inspected(code=137, memory=2**23), True, "", id="somebody asked for it"),
        pytest.param(inspected(code=137), False, "", id="it had no limit"),
        pytest.param(inspected(code=143, memory=2**23), False, "", id="the kernel sends another signal"),
        pytest.param(inspected(code=137, memory=2**23, oom=True), False, "", id="that is known"),
        pytest.param(inspected(code=137, memory=2**23, error="why"), False, "why", id="the engine says why"),
    ],
)
def test_a_kill_that_the_engine_can_not_explain_may_be_want_of_memory(
    told: object, was_requested: bool, reason: str
) -> None:
    assert ending_of(told, was_requested=was_requested).reason == reason


def test_an_end_that_only_an_event_told_has_its_code_and_reason() -> None:
    assert ending_by_code(137, reason="removed") == ContainerExit(signal=signal.SIGKILL, reason="removed")
    assert ending_by_code(None, reason="removed") == ContainerExit(reason="removed")


@pytest.mark.parametrize(
    ("status", "phase"),
    [("created", "created"), ("running", "running"), ("paused", "paused"), ("exited", "ended"), ("dead", "ended")],
)
def test_a_container_is_in_one_of_four_phases(status: str, phase: str) -> None:
    assert phase_of({"State": {"Status": status}}) == phase


def test_a_container_with_all_of_our_labels_is_known() -> None:
    known = known_of({"Id": "c1", "State": "running", "Labels": LABELS})
    assert known is not None
    assert (known.container, known.worker, known.pool, known.spawned_at) == (
        "c1",
        "resize-1",
        "resize",
        1_700_000_000.5,
    )


@pytest.mark.parametrize("missing", [*LABELS])
def test_a_container_without_one_of_our_labels_is_a_strangers(missing: str) -> None:
    labels = {name: text for name, text in LABELS.items() if name != missing}
    known = known_of({"Id": "c1", "State": "running", "Labels": labels})
    assert known is None or missing == "towline.spawned_at"


@pytest.mark.parametrize("told", [None, [], {}, {"Id": 1}, {"Id": "c1", "Labels": None}, {"Id": "c1", "Labels": "x"}])
def test_nonsense_is_nobodys(told: object) -> None:
    assert known_of(told) is None


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ('OCI runtime create failed: exec: "work": executable file not found in $PATH', "no such command: work"),
        ('runc create failed: exec: "work": permission denied', "work may not be executed"),
        ("exec format error", "work is not a program of this host"),
        ("invalid mount config", "invalid mount config"),
    ],
)
def test_a_start_that_failed_is_told_in_words_of_its_owner(message: str, said: str) -> None:
    assert f"pool resize: {said}" in failed_start(message, program="work", pool="resize")


@pytest.mark.parametrize(
    ("stamp", "found"),
    [
        ("2026-11-22T04:02:53.486004071Z", 1_795_320_173_486_004_071),
        ("2026-11-22T04:02:53.5Z", 1_795_320_173_500_000_000),
        ("2026-11-22T04:02:53Z", 1_795_320_173_000_000_000),
        ("yesterday", None),
        ("", None),
    ],
)
def test_the_engines_instants_are_read_to_the_nanosecond(stamp: str, found: int | None) -> None:
    assert nanoseconds(stamp) == found


HEAD = b"HTTP/1.0 200 OK\r\nServer: Docker\r\n\r\n"
STAMP = b"2026-11-22T04:02:53.000000001Z "
AT = 1_795_320_173_000_000_001


def frame(data: bytes, *, stream: int = 1) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize("step", [1, 2, 7, 1_000])
def test_output_is_split_alike_however_it_arrives(step: int) -> None:
    stream = HEAD + frame(STAMP + b"out\n") + frame(STAMP + b"err\n", stream=2) + frame(STAMP + b"\xff\x00 x\n")
    frames = LogFrames()
    pieces = [piece for i in range(0, len(stream), step) for piece in frames.feed(stream[i : i + step])]
    assert pieces == [LogPiece(AT, b"out\n"), LogPiece(AT, b"err\n"), LogPiece(AT, b"\xff\x00 x\n")]


def test_output_without_a_time_is_kept_as_it_is() -> None:
    assert LogFrames().feed(HEAD + frame(b"plain words\n")) == [LogPiece(0, b"plain words\n")]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 404 Not Found\r\n\r\n{}",
        b"HTTP/1.0\r\n\r\n",
        b"x" * 20_000,
        HEAD + b"\x01\0\0\0\xff\xff\xff\xff",
    ],
)
def test_what_is_no_output_is_refused(answer: bytes) -> None:
    with pytest.raises(NoLogError):
        LogFrames().feed(answer)


def test_a_workers_own_lines_are_read_with_their_task_and_nothing_deep() -> None:
    line = '{"event": "handler.failed", "task": "t1", "worker": "w1", "deep": {"payload": 1}, "seconds": 1.5}'
    assert parsed(line) == {"event": "handler.failed", "task": "t1", "worker": "w1", "seconds": 1.5}


def test_what_a_worker_tells_of_a_task_is_told_with_worker_pool_and_task() -> None:
    with capture_logs() as logs:
        log_output(
            b'{"event": "handler.failed", "level": "error", "task": "t1", "worker": "x"}\n', worker="w1", pool="resize"
        )
        log_output(b"a payload, perhaps\n", worker="w1", pool="resize")
    first, second = logs
    assert (first["event"], first["worker"], first["pool"]) == ("worker.wrote", "w1", "resize")
    assert (first["wrote"], first["task"], first["log_level"]) == ("handler.failed", "t1", "warning")
    assert (second["log_level"], second["line"]) == ("debug", "a payload, perhaps")


@pytest.mark.parametrize("line", ["plain", "{", "[]", '{"event": 1}', '{"other": "x"}', "{" * 5_000])
def test_anything_else_that_a_program_prints_is_a_line_of_text(line: str) -> None:
    assert parsed(line) is None


def test_control_groups_of_version_1_tell_use_and_peak(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text("5:memory:/docker/c1\n3:cpu,cpuacct:/docker/c1\n")
    memory, cpu = tmp_path / "sys/fs/cgroup/memory/docker/c1", tmp_path / "sys/fs/cgroup/cpuacct/docker/c1"
    memory.mkdir(parents=True)
    cpu.mkdir(parents=True)
    (memory / "memory.usage_in_bytes").write_text("5000\n")
    (memory / "memory.max_usage_in_bytes").write_text("9000\n")
    (memory / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 1000\n")
    (cpu / "cpuacct.usage").write_text("1500000000\n")
    groups = groups_of(7, "c1", root=tmp_path)
    assert groups is not None
    assert (groups.usage(), groups.peak_bytes()) == (Usage(4000, 1.5), 9000)
    assert groups_of(7, "c2", root=tmp_path) is None
    assert groups_of(8, "c1", root=tmp_path) is None


def test_control_groups_of_version_2_tell_use_and_peak(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text("0::/system.slice/docker-c1.scope\n")
    group = tmp_path / "sys/fs/cgroup/system.slice/docker-c1.scope"
    group.mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cgroup.controllers").write_text("cpu memory\n")
    (group / "memory.current").write_text("5000\n")
    (group / "memory.peak").write_text("9000\n")
    (group / "memory.stat").write_text("inactive_file 1000\n")
    (group / "cpu.stat").write_text("usage_usec 1500000\n")
    groups = groups_of(7, "c1", root=tmp_path)
    assert groups is not None
    assert (groups.usage(), groups.peak_bytes()) == (Usage(4000, 1.5), 9000)


def test_the_engines_own_figures_stand_in_for_control_groups_elsewhere() -> None:
    log_output = {
        "memory_stats": {"usage": 5000, "stats": {"total_inactive_file": 1000}},
        "cpu_stats": {"cpu_usage": {"total_usage": 1_500_000_000}},
    }
    assert usage_of(log_output) == Usage(4000, 1.5)
    assert usage_of({}) == UNKNOWN
