"""What a runtime of containers promises beyond the contract, asked of a private engine."""

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.base.errors import RuntimeUnavailableError, SpawnError
from orchestrator.fleet.exits import Cause, cause_of
from orchestrator.runtimes.docker.container_state import mapping
from orchestrator.runtimes.docker.runtime import DockerRuntime
from tests.bench.containers import measured
from tests.support.docker.bench import CLOCK, STAY, DockerBench, docker_bench, id_of
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.eventually import eventually

HEED = "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done"
IGNORE = "trap '' TERM; echo up; while :; do sleep 600; done"


@pytest.fixture
def bench(docker_engine: PrivateDockerEngine, tmp_path: Path) -> Iterator[DockerBench]:
    with docker_bench(docker_engine, tmp_path) as bench:
        yield bench


def inspected(bench: DockerBench, container: str) -> dict[str, object]:
    with bench.engine.client() as client:
        return dict(client.inspect_container(container))


def test_what_is_beyond_its_memory_is_told_with_limit_and_peak(bench: DockerBench) -> None:
    handle = bench.spawn("a=12345678; while :; do a=$a$a; done", settings={"memory": "8MiB"})
    (ended,) = bench.exits()
    assert (ended.signal, ended.memory_limit_bytes) == (signal.SIGKILL, 8 * 2**20)
    assert ended.out_of_memory == bench.engine.noticed_out_of_memory(id_of(handle))
    if ended.out_of_memory:
        assert ended.memory_peak_bytes == 8 * 2**20
    else:
        assert "perhaps it was out of memory" in ended.reason


def test_a_kill_that_somebody_asked_the_engine_for_is_not_taken_for_want_of_memory(bench: DockerBench) -> None:
    handle = bench.up(memory="32MiB")
    with bench.engine.client() as client:
        client.kill(id_of(handle))
    (ended,) = bench.exits()
    assert (ended.signal, ended.out_of_memory, ended.reason) == (signal.SIGKILL, False, "")


def test_an_end_tells_the_peak_that_was_seen(bench: DockerBench) -> None:
    handle = bench.up(HEED)
    used = eventually(lambda: (u := bench.runtime.usage()[handle.worker]).memory_bytes and u)
    bench.runtime.drain(handle.worker)
    (ended,) = bench.exits()
    assert (ended.code, ended.out_of_memory) == (7, False)
    assert ended.memory_peak_bytes is not None
    assert ended.memory_peak_bytes >= used.memory_bytes


def test_a_container_that_is_removed_by_somebody_else_is_told_as_that(bench: DockerBench) -> None:
    handle = bench.up()
    with bench.engine.client() as client:
        client.remove_container(id_of(handle), force=True)
    (ended,) = bench.exits()
    assert (ended.worker, ended.is_removed, ended.is_stopped) == (handle.worker, True, True)
    assert cause_of(ended, drained=False, overdue=False) == (
        Cause.REMOVED,
        "its container was removed by somebody else",
    )
    assert bench.engine.containers() == []


def test_one_with_a_memory_limit_that_is_removed_is_not_taken_for_one_without_memory(bench: DockerBench) -> None:
    handle = bench.up(memory="32MiB")
    with bench.engine.client() as client:
        client.remove_container(id_of(handle), force=True)
    (ended,) = bench.exits()
    assert (ended.is_removed, ended.out_of_memory, ended.reason) == (True, False, "")


def test_a_container_that_somebody_stops_is_told_with_its_signal_or_code(bench: DockerBench) -> None:
    handle = bench.up(IGNORE)
    with bench.engine.client() as client:
        client.stop(id_of(handle), timeout=1)
    (ended,) = bench.exits()
    assert (ended.code, ended.signal) == (None, signal.SIGKILL)


def test_a_paused_container_is_believed_to_live_and_can_be_ended(bench: DockerBench) -> None:
    handle = bench.up()
    with bench.engine.client() as client:
        client.pause(id_of(handle))
    assert handle.worker in bench.runtime.usage()
    bench.runtime.kill(handle.worker)
    (ended,) = bench.exits()
    assert ended.signal == signal.SIGKILL


def test_a_paused_container_that_is_asked_to_finish_does_so(bench: DockerBench) -> None:
    handle = bench.up(HEED)
    with bench.engine.client() as client:
        client.pause(id_of(handle))
    bench.runtime.drain(handle.worker)
    (ended,) = bench.exits()
    assert ended.code == 7


@pytest.mark.parametrize("has_init", [True, False])
def test_a_shell_that_heeds_no_signal_as_first_process_is_ended_by_a_kill(
    bench: DockerBench, *, has_init: bool
) -> None:
    handle = bench.up("echo up; sleep 600; echo never", init=has_init)
    bench.runtime.drain(handle.worker)
    if not has_init:  # the kernel keeps a first process from signals that it has no handler for
        bench.runtime.kill(handle.worker)
    (ended,) = bench.exits()
    assert ended.signal == (signal.SIGTERM if has_init else signal.SIGKILL)


def test_a_stop_signal_of_its_own_asks_it_to_finish(bench: DockerBench) -> None:
    handle = bench.up("trap 'exit 9' INT; echo up; while :; do sleep 0.1; done", stop_signal="SIGINT")
    bench.runtime.drain(handle.worker)
    (ended,) = bench.exits()
    assert ended.code == 9


def test_an_adopted_worker_is_asked_by_its_own_stop_signal(bench: DockerBench) -> None:
    handle = bench.up("trap 'exit 9' INT; echo up; while :; do sleep 0.1; done", stop_signal="SIGINT")
    bench.reopen()
    assert [found.worker for found in bench.adopt(handle)] == [handle.worker]
    bench.runtime.drain(handle.worker)
    (ended,) = bench.exits()
    assert ended.code == 9


def test_an_adopted_worker_is_heard_from_where_its_log_ends(bench: DockerBench) -> None:
    handle = bench.spawn("for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.2; done")
    eventually(lambda: "line 2" in bench.output(handle))
    bench.reopen()
    bench.adopt(handle)
    bench.exits()
    assert bench.output(handle).splitlines() == [f"line {i}" for i in range(1, 9)]


def test_containers_of_a_fleet_are_adopted_by_whoever_leads_and_let_go_without_being_touched(
    docker_engine: PrivateDockerEngine, tmp_path: Path
) -> None:
    def opened(name: str) -> DockerBench:
        folder = tmp_path / name
        runtime = DockerRuntime(folder, engine=docker_engine.url, fleet=lambda: "one fleet")
        return DockerBench(docker_engine, folder, runtime)

    first, second = opened("first"), opened("second")
    with closing(first.runtime), closing(second.runtime):
        handle = first.up()
        assert second.runtime.adopt_own(now=CLOCK.monotonic()) == []
        assert second.adopt() == [replace(handle, spawned_at=second.runtime._registry.all()[0].handle.spawned_at)]
        first.runtime.let_go([handle.worker])
        first.runtime.kill(handle.worker)
        first.runtime._review()  # what it no longer leads is no container to remove
        assert list(second.runtime.usage()) == [handle.worker]
        assert inspected(second, id_of(handle))["State"]["Running"]  # type: ignore[index]
        assert [found.worker for found in first.adopt()] == [handle.worker]  # it leads again
        second.runtime.let_go([handle.worker])
        first.runtime.kill(handle.worker)
        assert [ended.worker for ended in first.exits()] == [handle.worker]
        assert second.reap() == []


def test_a_container_of_another_fleet_is_left_alone(docker_engine: PrivateDockerEngine, tmp_path: Path) -> None:
    with docker_bench(docker_engine, tmp_path / "first") as bench:
        bench.up()
        runtime = DockerRuntime(tmp_path / "second", engine=docker_engine.url, fleet=lambda: "another fleet")
        with closing(runtime):
            assert runtime.adopt(now=CLOCK.monotonic()) == []


def test_one_that_ended_unseen_is_told_with_its_cause_and_last_lines(bench: DockerBench) -> None:
    handle = bench.up("echo up; sleep 0.5; echo last words; exit 5")
    bench.reopen()
    eventually(lambda: not inspected(bench, id_of(handle))["State"]["Running"])  # type: ignore[index]
    assert [found.worker for found in bench.adopt(handle)] == [handle.worker]
    (ended,) = bench.exits()
    assert (ended.code, ended.last_lines) == (5, ("up", "last words"))
    eventually(lambda: bench.engine.containers() == [])


def test_a_token_is_in_a_file_and_not_in_what_an_engine_shows(bench: DockerBench) -> None:
    show = "cat $TOWLINE_TOKEN_FILE; echo; cat /run/secrets/other; exec sleep 600"
    other = bench.state_dir / "other"
    other.write_text("another secret\n")
    pool = bench.pool(show, settings={"secrets": {"other": str(other)}})
    handle = bench.start(pool, token="a-token-of-workers")
    eventually(lambda: bench.output(handle) == "a-token-of-workers\nanother secret\n", seconds=20)
    told = json.dumps(inspected(bench, id_of(handle)))
    assert "a-token-of-workers" not in told
    assert "another secret" not in told


def test_a_password_in_the_queues_url_is_in_a_file(bench: DockerBench) -> None:
    handle = bench.start(bench.pool("cat $TOWLINE_URL_FILE; echo; exec sleep 600"), url="redis://me:pass-word@store/0")
    eventually(lambda: bench.output(handle) == "redis://me:pass-word@store/0\n", seconds=20)
    assert "pass-word" not in json.dumps(inspected(bench, id_of(handle)))


def test_a_container_knows_whether_its_supervisor_lives_whoever_it_runs_as(bench: DockerBench) -> None:
    handle = bench.spawn("id -u; cat $TOWLINE_SUPERVISOR_LOCK && echo readable", settings={"user": "4711:4711"})
    bench.exits()
    assert bench.output(handle) == "4711\nreadable\n"


def test_a_root_has_no_capability_gains_none_and_can_not_fill_the_host_with_processes(bench: DockerBench) -> None:
    handle = bench.up("cat /proc/self/status; echo up; exec sleep 600")
    told = bench.output(handle).split()
    none = "0" * 16
    assert [told[told.index(name) + 1] for name in ("CapEff:", "CapBnd:", "NoNewPrivs:")] == [none, none, "1"]
    host = mapping(inspected(bench, id_of(handle))["HostConfig"])
    assert host["PidsLimit"] == 4096


def test_a_root_that_is_read_only_has_a_tmp_to_write_in(bench: DockerBench) -> None:
    script = "echo no > /file || echo refused; echo yes > /tmp/file && cat /tmp/file"
    handle = bench.spawn(script, settings={"read_only": True, "user": "4711:4711"})
    bench.exits()
    assert "refused" in bench.output(handle)
    assert "yes\n" in bench.output(handle)  # before or after what went to the other stream


def test_an_image_that_is_missing_and_must_not_be_fetched_is_refused_by_name(bench: DockerBench) -> None:
    with pytest.raises(SpawnError, match="no image nobody/has:1, and pull is never"):
        bench.spawn(STAY, settings={"image": "nobody/has:1", "pull": "never"})


def test_an_image_that_is_fetched_is_waited_for_and_one_that_cannot_be_is_refused(bench: DockerBench) -> None:
    settings = {"image": "127.0.0.1:1/nobody/has:1"}
    with pytest.raises(RuntimeUnavailableError, match="has:1 is being pulled"):
        bench.spawn(STAY, settings=settings)

    def outcome() -> str:
        try:
            bench.spawn(STAY, settings=settings)
        except RuntimeUnavailableError:
            return ""
        except SpawnError as error:
            return str(error)
        raise AssertionError("nobody has this image")

    assert "127.0.0.1:1/nobody/has:1 can't be pulled" in eventually(outcome, seconds=30)


def test_a_mount_whose_source_is_missing_is_refused(bench: DockerBench) -> None:
    with pytest.raises(SpawnError, match="/nowhere"):
        bench.spawn(STAY, settings={"volumes": ["/nowhere/at/all:/data"]})


def test_a_loopback_address_that_no_container_can_reach_is_refused(bench: DockerBench) -> None:
    with pytest.raises(SpawnError, match="its own loopback"):
        bench.start(bench.pool(STAY), url="http://127.0.0.1:7878")


def test_more_containers_are_no_more_threads(docker_engine: PrivateDockerEngine, tmp_path: Path) -> None:
    few = measured(docker_engine, tmp_path / "few", count=1)
    more = measured(docker_engine, tmp_path / "more", count=4)
    assert more.threads - more.threads_before <= 9
    assert (few.adopted, more.adopted, more.ended) == (1, 4, 4)
