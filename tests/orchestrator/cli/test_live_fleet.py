"""`pools`, `workers` and `top` show the figures of now, from a store or a server, or say how old theirs are."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from orchestrator.base.clock import SystemMonotonicClock
from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.paths import fleet_paths
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from queue_core.verbs.roles import Role
from tests.support.commands import Commands
from tests.support.fleet.fleet_views import a_heartbeat

SETTINGS = """\
store: sqlite:///queue.db
server: {listen: "unix:none.sock"}
queues: {thumbs: {}}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 30s, workers: {max: 4}}
"""
Json = dict[str, object]


@pytest.fixture
def towline(towline: Commands) -> Commands:
    """A project whose supervisor published one starting worker, 99 ready tasks, and nothing since."""
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    files = StateDir(towline.folder / ".towline")
    files.path.mkdir()
    files.write_snapshot(a_snapshot())
    return towline


def a_snapshot(*, url: str = "http://127.0.0.1:1") -> Json:
    now = SystemMonotonicClock().wall_seconds()
    worker = {"worker": "resize-abc", "pool": "resize", "state": "starting", "since": now, "spawned_at": now}
    settings = {"queue": "thumbs", "tags": [], "slo_seconds": 30.0, "settings_max": 4, "settings_min": 0}
    pool = {"current": 1, "target": 1, "settings": settings, "sample": {"ready": 99, "cursor": 0}}
    return {"phase": "leading", "url": url, "shown_at": now, "pools": {"resize": pool}, "workers": [worker]}


def fill(url: str) -> None:
    """Three tasks, of which the worker has done one and holds one."""
    queues = open_queues(url)
    queues.put_queue(QueueSpec("thumbs"))
    queue = queues.queue("thumbs")
    queue.add([NewTask(b"x", name=f"cat-{number}") for number in range(3)])
    queue.delete(queue.lease(worker="resize-abc"))
    queue.lease(worker="resize-abc")
    queues.close()


def a_row(out: str, name: str) -> list[str]:
    """The words of the first line that begins with `name`."""
    return next(line.split() for line in out.splitlines() if line.startswith(name))


def check_figures(towline: Commands, *where: str) -> None:
    """The three commands show one ready task, and a worker that is busy with the second and has done the first."""
    told = towline("pools", *where, "--json").json
    pool = cast("dict[str, dict[str, Json]]", told)["pools"]["resize"]
    assert cast("Json", pool["sample"])["ready"] == 1
    assert cast("Json", told)["age_seconds"] == 0
    assert a_row(towline("pools", *where).out, "resize")[:6] == ["resize", "1", "1", "1", "1", "1"]
    row = a_row(towline("workers", *where).out, "resize-abc")
    assert row[2] == "busy"
    assert row[row.index("cat-1") + 1] == "1"  # DONE
    shown = towline("top", "--once", *where).out
    assert "1 worker: 1 busy; 1 ready, 1 in flight" in shown
    assert a_row(shown, "resize-abc")[2] == "busy"


def test_a_store_is_asked_where_no_server_answers(towline: Commands) -> None:
    fill(f"sqlite:///{towline.folder}/queue.db")
    check_figures(towline)
    told = towline("pools")
    assert "no supervisor is running: task counts are current, workers and targets" in told.err
    with StateDir(towline.folder / ".towline").locked():
        assert towline("pools").err == ""


def test_the_server_of_the_supervisor_is_asked_first(towline: Commands) -> None:
    server = ServerThread(MemoryStore(), ServeOptions(port=0))
    url = server.start()
    try:
        fill(url)
        StateDir(towline.folder / ".towline").write_snapshot(a_snapshot(url=url))
        check_figures(towline)
    finally:
        server.stop()


@pytest.fixture
def served(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with queues and a supervisor's API, as `towline up` has; and a folder without any settings."""
    paths = fleet_paths(*a_heartbeat(), files=StateDir(towline.folder / ".towline"))
    server = ServerThread(MemoryStore(), ServeOptions(port=0), extensions=paths)
    url = server.start()
    elsewhere = towline.folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    yield url
    server.stop()


def test_a_fleet_elsewhere_is_shown_by_its_url(towline: Commands, served: str) -> None:
    fill(served)
    check_figures(towline, "--url", served)


def test_a_server_without_a_supervisor_says_so(towline: Commands, served: str) -> None:
    server = ServerThread(MemoryStore(), ServeOptions(port=0))
    url = server.start()
    try:
        told = towline("pools", "--url", url)
    finally:
        server.stop()
    assert told.code == 69
    assert "this server has no supervisor" in told.err


def test_old_figures_say_how_old_they_are_and_why(towline: Commands) -> None:
    with StateDir(towline.folder / ".towline").locked():
        told = towline("pools")
        assert a_row(told.out, "resize")[4] == "99"
        assert "data is " in told.err
        assert "no such store" in told.err
        assert "data is " in towline("top", "--once").out
        assert cast("Json", towline("workers", "--json").json)["age_seconds"] != 0
    assert not (towline.folder / "queue.db").exists(), "a command that shows made a store"
    assert "no supervisor is running: data is" in towline("pools").err


def test_process_ids_are_told_while_a_supervisor_vouches_for_them(towline: Commands) -> None:
    snapshot = a_snapshot()
    process, container = cast("list[Json]", snapshot["workers"])[0] | {"pid": 4711}, {"worker": "resize-in-docker"}
    files = StateDir(towline.folder / ".towline")
    files.write_snapshot(snapshot | {"workers": [process, container]})
    refused = towline("workers", "--pids")
    assert (refused.code, refused.out) == (69, "")
    assert "may be those of other processes by now" in refused.err
    with files.locked():
        assert towline("workers", "--pids").out == "4711\n"
        assert towline("workers", "--pids", "--json").code == 2


def test_a_token_that_is_missing_is_named(towline: Commands) -> None:
    server = ServerThread(
        MemoryStore(), ServeOptions(port=0, tokens=(AccessToken(Role.VIEWER, "a-secret-0123456789"),))
    )
    url = server.start()
    try:
        StateDir(towline.folder / ".towline").write_snapshot(a_snapshot(url=url))
        assert "set TOWLINE_TOKEN, or give --token-file" in " ".join(towline("pools").err.split())
    finally:
        server.stop()


def test_times_are_iso_8601_for_programs(towline: Commands) -> None:
    for words, path in ((("workers",), ("workers", 0, "since")), (("top", "--once"), ("shown_at",))):
        value = towline(*words, "--json").json
        for name in path:
            value = value[name]  # type: ignore[index]
        assert datetime.fromisoformat(cast("str", value)).tzinfo is UTC


def test_the_fleet_over_http_needs_a_token_and_has_no_line_of_a_worker(tmp_path: Path, towline: Commands) -> None:
    files = StateDir(tmp_path / "state")
    token = AccessToken(Role.VIEWER, "viewer-secret-0123456789")
    listener = FleetListener(ServeOptions(port=0, tokens=(token,)), fleet_paths(*a_heartbeat(), files=files))
    url = listener.start()
    (tmp_path / "token").write_text(token.secret)
    where = ("--url", url, "--token-file", str(tmp_path / "token"))
    try:
        assert "published nothing yet" in towline("workers", *where).err
        files.path.mkdir()
        files.write_snapshot(a_snapshot())
        files.deaths.append({"worker": "resize-old", "cause": "crashed", "detail": "code 1", "last_lines": ["secret"]})
        assert towline("workers", "--url", url).code != 0
        told = towline("workers", *where, "--json")
        assert cast("dict[str, list[Json]]", told.json)["deaths"][0]["cause"] == "crashed"
        assert "secret" not in told.out
    finally:
        listener.stop()


def test_workers_lists_those_that_failed_and_none_that_finished_when_asked(towline: Commands) -> None:
    files = StateDir(towline.folder / ".towline")
    files.path.mkdir(exist_ok=True)
    files.write_snapshot(a_snapshot())
    files.deaths.append({"worker": "resize-old", "pool": "resize", "cause": "crashed", "detail": "exit code 1"})
    for number in range(9):
        files.deaths.append({"worker": f"resize-{number}", "pool": "resize", "cause": "drained"})
    told = cast("dict[str, list[Json]]", towline("workers", "--json").json)
    assert [one["worker"] for one in told["deaths"]] == ["resize-old"]
