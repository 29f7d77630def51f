"""Every command about a supervisor, by its `--url`, from a folder without settings: against one real `towline up`."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import pytest

from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.task import NewTask
from tests.support.commands import CommandResult, Commands, program_environment
from tests.support.eventually import eventually

Json = dict[str, object]
SECRETS: Final = {role: f"{role}-secret-0123456789" for role in ("viewer", "operator", "admin")}
SETTINGS: Final = """\
store: sqlite:///queue.db
server:
  listen: 127.0.0.1:0
  tokens:
    - {role: admin, token_env: ADMIN}
    - {role: operator, email: ops@example.com, token_env: OPERATOR}
    - {role: viewer, token_env: VIEWER}
queues: {thumbs: {max_leases: 5}}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 1s, start: exec, workers: {min: 1, max: 3}}
"""
TASKS: Final = """\
import os
import time
from queue_core.worker.app import App
app = App()
@app.task(queue="thumbs")
def resize(task):
    print("\\x1b[31mresized\\x1b[0m", task.name, flush=True)
@app.task(queue="thumbs", tag="crash")
def crash(task):
    os.kill(os.getpid(), 9)
@app.task(queue="thumbs", tag="hang")
def hang(task):
    while not os.path.exists("go"):
        time.sleep(0.02)
"""


@dataclass(frozen=True, slots=True)
class RunningUp:
    """A `towline up` on the loopback."""

    folder: Path
    url: str
    process: subprocess.Popen[bytes]

    @property
    def files(self) -> StateDir:
        return StateDir(self.folder / ".towline")

    def logged(self, event: str) -> list[Json]:
        lines = (self.folder / "up.log").read_text().splitlines()
        return [one for line in lines if line.startswith("{") and (one := json.loads(line))["event"] == event]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("up")
    (folder / "towline.yaml").write_text(SETTINGS)
    (folder / "tasks.py").write_text(TASKS)
    environment = program_environment() | {
        "ADMIN": "admin-secret-0123456789",
        "OPERATOR": SECRETS["operator"],
        "VIEWER": SECRETS["viewer"],
    }
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", "--json"],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )
    found = RunningUp(folder, "", process)
    try:
        url = eventually(lambda: (found.files.read_snapshot() or {}).get("url"), seconds=30)
        found = RunningUp(folder, str(url), process)
        eventually(lambda: (found.files.read_snapshot() or {}).get("phase") == "leading", seconds=30)
        queues = open_queues(found.url, token="admin-secret-0123456789")
        queues.queue("thumbs").add([NewTask(b"x", name="cat-1"), NewTask(b"x", name="bad-1", tag="crash")])
        eventually(lambda: found.files.read_deaths(limit=1), seconds=30)
        queues.close()
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@dataclass(frozen=True, slots=True)
class Caller:
    """Commands with the URL and the token of a role, in a folder of their own."""

    commands: Commands
    up: RunningUp
    role: str

    def __call__(self, *words: str) -> CommandResult:
        token = self.commands.folder / f"{self.role}.token"
        token.write_text(SECRETS[self.role])
        return self.commands(*words, "--url", self.up.url, "--token-file", str(token))


@pytest.fixture
def operator(towline: Commands, up: RunningUp) -> Caller:
    return Caller(towline, up, "operator")


@pytest.fixture
def viewer(towline: Commands, up: RunningUp) -> Caller:
    return Caller(towline, up, "viewer")


@pytest.mark.parametrize(
    "words",
    [
        ("scale", "resize", "2"),
        ("scale", "resize", "--reset"),
        ("pause", "--pool", "resize"),
        ("resume", "--pool", "resize"),
        ("pause", "thumbs"),
        ("pools", "resize", "--finish-by", "2h"),
        ("drain",),
        ("undrain",),
        ("reload",),
        ("drain", "resize-abcdef"),
        ("replace", "resize"),
    ],
    ids=" ".join,
)
def test_a_viewer_gives_no_order(viewer: Caller, up: RunningUp, words: tuple[str, ...]) -> None:
    told = viewer(*words)
    assert told.code == 77
    assert "operator" in told.err
    assert up.files.read_overrides() == {} and not up.files.is_drained()


def test_a_pool_is_scaled_and_told_so_and_its_log_says_by_whom(operator: Caller, up: RunningUp) -> None:
    told = operator("scale", "resize", "2", "--for", "30m")
    assert (told.code, told.out, told.err) == (0, "resize: scaled to 2 by hand, for 30 min more\n", "")
    operator("pause", "--pool", "resize", "--changes", "down")
    assert operator("pools", "resize", "--finish-by", "2h").out.endswith("to be done in 2 h\n")
    assert operator("resume", "--pool", "resize").code == 0
    told = operator("scale", "resize", "--reset", "--json")
    assert told.json == {"pool": "resize", "alive": True, "orders": {}}
    acted = eventually(lambda: up.logged("operator.acted"))
    assert {one["by"] for one in acted} == {"ops@example.com"}
    assert [one["action"] for one in acted][:2] == ["scale", "pause"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(("scale", "resize", "99"), 65, "99 workers are more than max 3 of pool resize", id="beyond max"),
        pytest.param(("scale", "resise", "2"), 66, "did you mean 'resize'", id="another pool"),
        pytest.param(("scale", "resize", "two"), 2, "is no number of workers", id="no number"),
        pytest.param(("why-died", "nobody"), 66, "no death of a worker 'nobody' is on record", id="no death"),
        pytest.param(("why", "resise"), 66, "did you mean 'resize'", id="nothing to explain"),
    ],
)
def test_a_refusal_says_the_same_as_on_the_host(operator: Caller, words: tuple[str, ...], code: int, said: str) -> None:
    told = operator(*words)
    assert told.code == code
    assert said in " ".join(told.err.split())


def test_why_tells_the_same_as_on_the_host(
    viewer: Caller, up: RunningUp, towline: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = viewer("why", "resize")
    assert there.code == 0
    assert "start: workers are not forked: start is exec" in there.out
    assert "the last " in there.out
    record = cast("Json", viewer("why", "resize", "--full", "--json").json)
    assert record["inputs"] is not None
    at = str(cast("list[Json]", record["decisions"])[0]["at"])
    assert viewer("why", "resize", "--at", "0s", "--json").code == 0
    monkeypatch.chdir(up.folder)
    monkeypatch.setenv("TOWLINE_TOKEN", SECRETS["viewer"])
    here = cast("Json", towline("why", "resize", "--full", "--json").json)
    assert (str(cast("list[Json]", here["decisions"])[0]["at"]), here.keys()) == (at, record.keys())


def test_a_task_tells_the_same_as_on_the_host(
    viewer: Caller, up: RunningUp, towline: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = viewer("why", "thumbs/bad-1", "--json")
    monkeypatch.chdir(up.folder)
    monkeypatch.setenv("TOWLINE_TOKEN", SECRETS["viewer"])
    here = towline("why", "thumbs/bad-1", "--json")
    assert (there.code, cast("Json", there.json).keys()) == (0, cast("Json", here.json).keys())
    assert "SIGKILL" in viewer("why", "thumbs/bad-1").out


def test_a_death_is_listed_and_explained_with_what_became_of_its_task(viewer: Caller) -> None:
    listed = viewer("why-died", "--pool", "resize")
    assert "signalled: ended by SIGKILL, holding 1 task" in listed.out
    assert viewer("why-died", "--pool", "other").out == ""
    deaths = cast("dict[str, list[Json]]", viewer("why-died", "--json").json)["deaths"]
    told = viewer("why-died", str(deaths[-1]["worker"]))
    assert told.code == 0
    assert "thumbs/bad-1 [crash]" in told.out
    assert "next:" in told.out
    record = cast("Json", viewer("why-died", str(deaths[-1]["worker"]), "--json").json)
    assert record["not_looked_up"] is None


def test_the_fleet_and_what_it_writes_are_shown(viewer: Caller) -> None:
    assert "resize" in viewer("pools").out
    assert "resize" in viewer("workers").out
    assert "resize" in viewer("top", "--once").out
    told = viewer("logs", "resize")
    assert "\\x1b[31mresized" in told.out
    assert "\x1b[31m" not in told.out
    assert "cat-1" in viewer("events").out


def test_a_reload_is_answered_with_what_changed(operator: Caller, up: RunningUp) -> None:
    assert "no pool's settings changed" in operator("reload").out
    settings = up.folder / "towline.yaml"
    before = settings.read_text()
    draft = up.folder / "draft.yaml"
    draft.write_text(before.replace("resize: {", "resise: {queue: nowhere"))
    draft.replace(settings)
    told = operator("reload")
    assert told.code == 78
    assert "the supervisor continues with its old settings" in " ".join(told.err.split())
    draft.write_text(before)
    draft.replace(settings)
    assert operator("reload", "--json").json == {
        "reloaded": True,
        "changes": [],
        "queues": [],
        "schedules": [],
        "next_start": [],
    }


def test_a_host_is_drained_until_no_worker_is_left_and_has_workers_again(operator: Caller, up: RunningUp) -> None:
    told = operator("drain", "--wait", "20s")
    assert (told.code, told.out) == (0, f"{socket.gethostname()} is drained: no worker is left\n")
    assert up.files.is_drained()
    told = operator("undrain", "--json")
    assert cast("Json", told.json)["drained"] is False
    assert not up.files.is_drained()


def test_a_worker_that_hangs_is_killed_by_name_and_its_task_runs_again(up: RunningUp, towline: Commands) -> None:
    operator, admin = (Caller(towline, up, role) for role in ("operator", "admin"))
    queues = open_queues(up.url, token=SECRETS["admin"])
    queue = queues.queue("thumbs")
    queue.add([NewTask(b"x", name="hang-1", tag="hang")])
    name = eventually(lambda: _holder(admin, "hang-1"), seconds=30)
    told = Caller(towline, up, "viewer")("workers", "--stack", name)
    assert (told.code, bool(re.search(r'tasks.py", line 1[34] in hang', told.out))) == (0, True), told.out
    assert Caller(towline, up, "viewer")("workers", "--stack", "resize").code == 66
    refused = operator("kill", name)
    assert (refused.code, "of one of these roles: admin" in " ".join(refused.err.split())) == (77, True)
    told = admin("kill", name, "--wait", "20s")
    assert told.code == 0
    assert "its task runs again at once" in " ".join(told.out.split())
    assert told.out.endswith(f"{name} is gone\n")
    (death,) = [one for one in up.files.read_deaths(limit=100) if one["worker"] == name]
    assert (death["cause"], death["detail"]) == ("killed", "killed by a caller of role admin")
    assert "killed by a caller of role admin" in admin("why-died", name).out
    again = eventually(lambda: (found := _holder(admin, "hang-1")) != name and found, seconds=30)
    assert queue.peek(names=["hang-1"]).tasks[0].leases == 1, "the lease of the killed worker does not count"
    told = operator("drain", again, "--json")
    assert cast("Json", told.json)["holds"] == 1
    assert _state_of(admin, again) in {"busy", "draining"}, "it finishes what it holds"
    (up.folder / "go").touch()
    eventually(lambda: again not in {one["worker"] for one in _workers(admin)}, seconds=30)
    assert not queue.peek(names=["hang-1"]).tasks
    queues.close()


def test_all_workers_of_a_pool_are_replaced(operator: Caller, up: RunningUp) -> None:
    before = eventually(lambda: {str(one["worker"]) for one in _workers(operator)}, seconds=30)
    told = operator("replace", "resize")
    assert (told.code, "replaced, new before old; none is cut" in " ".join(told.out.split())) == (0, True)
    eventually(lambda: (now := {str(one["worker"]) for one in _workers(operator)}) and not now & before, seconds=30)
    assert up.logged("pool.replaced")[-1]["by"] == "ops@example.com"
    told = operator("replace", "resise")
    assert (told.code, "did you mean 'resize'" in told.err) == (66, True)


def _workers(caller: Caller) -> list[Json]:
    return cast("dict[str, list[Json]]", caller("workers", "--json").json)["workers"]


def _holder(caller: Caller, task: str) -> str:
    """Return the worker that holds a task; "" while none does."""
    held = {str(task["task"]): one for one in _workers(caller) for task in cast("list[Json]", one.get("tasks") or [])}
    return str(held[task]["worker"]) if task in held else ""


def _state_of(caller: Caller, worker: str) -> object:
    return next((one["state"] for one in _workers(caller) if one["worker"] == worker), None)


def test_a_token_that_is_missing_is_asked_for(towline: Commands, up: RunningUp) -> None:
    told = towline("drain", "--url", up.url)
    assert told.code == 77
    assert "TOWLINE_TOKEN" in told.err
    assert "is it running?" in towline("drain", "--url", "http://127.0.0.1:1").err


def test_the_environment_names_the_supervisor_where_there_is_no_settings_file(
    towline: Commands, up: RunningUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWLINE_URL", up.url)
    monkeypatch.setenv("TOWLINE_TOKEN", SECRETS["operator"])
    assert towline("resume", "--pool", "resize").code == 0
    (towline.folder / "towline.yaml").write_text(SETTINGS)
    assert towline("resume", "--pool", "resise").code == 66
    assert [path.name for path in towline.folder.iterdir()] == ["towline.yaml"]


def test_a_supervisor_is_found_by_its_host(operator: Caller, up: RunningUp, monkeypatch: pytest.MonkeyPatch) -> None:
    host = socket.gethostname()
    told = operator("scale", "resize", "2", "--host", host)
    assert (told.code, told.out) == (0, "resize: scaled to 2 by hand, for 1 h more\n")
    operator("scale", "resize", "--reset", "--host", host)
    told = operator("why", "resize", "--host", f"{host}x")
    assert told.code == 66
    assert f"did you mean '{host}'" in " ".join(told.err.split())
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    told = operator("pools", "--host", host)
    assert told.code == 69
    assert "listens only for programs on that host" in " ".join(told.err.split())


def test_the_settings_in_force_are_shown_without_secrets(viewer: Caller) -> None:
    told = cast("list[Json]", viewer("config", "--json").json)
    by_name = {one["setting"]: one for one in told}
    assert by_name["pools.resize.workers.max"]["value"] == 3
    assert "towline.yaml:10" in str(by_name["pools.resize.workers.max"]["origin"])
    assert "admin-secret" not in json.dumps(told)
