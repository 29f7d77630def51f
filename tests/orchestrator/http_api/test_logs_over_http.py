"""Workers' output over HTTP: bounded answers, a cursor to go on from, and the same gate as for events."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest

from orchestrator.cli.commands.logs import RemoteReader
from orchestrator.http_api import logs
from orchestrator.http_api.listener import FleetListener
from orchestrator.http_api.logs import OutputQuery, shown_output
from orchestrator.http_api.paths import fleet_paths
from orchestrator.state.directory import StateDir
from queue_core.cli import exits
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.base.problems import Problem
from queue_core.verbs.roles import Role
from tests.support.commands import Commands
from tests.support.fleet.fleet_views import a_heartbeat

SECRETS = {role: f"{role.name}-secret-0123456789" for role in (Role.VIEWER, Role.PRODUCER)}


@pytest.fixture
def files(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "state")


@pytest.fixture
def url(files: StateDir) -> Iterator[str]:
    tokens = tuple(AccessToken(role, secret) for role, secret in SECRETS.items())
    listener = FleetListener(ServeOptions(port=0, tokens=tokens), fleet_paths(*a_heartbeat(), files=files))
    listener.start()
    yield listener.url
    listener.stop()


def write(files: StateDir, worker: str, text: str) -> None:
    folder = files.path / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{worker}.log").open("a") as file:
        file.write(text)


def status(url: str, path: str, role: Role | None) -> tuple[int, dict[str, object]]:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=10)
    headers = {} if role is None else {"authorization": f"Bearer {SECRETS[role]}"}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def test_the_last_lines_and_what_is_new_since(files: StateDir, url: str) -> None:
    write(files, "resize-a", "one\ntwo\n")
    reader = RemoteReader(url, token=SECRETS[Role.VIEWER])
    try:
        assert [line.text for line in reader.last("resize", lines=1, since=None).lines] == ["two"]
        reader.follow("resize")
        assert list(reader.new().lines) == []
        write(files, "resize-a", "three\n")
        write(files, "resize-b", "four\n")
        write(files, "other-c", "five\n")
        assert sorted((line.worker, line.text) for line in reader.new().lines) == [
            ("resize-a", "three"),
            ("resize-b", "four"),
        ]
        assert list(reader.new().lines) == []
    finally:
        reader.close()


def test_who_may_read_events_may_read_them(files: StateDir, url: str) -> None:
    write(files, "resize-a", "x\n")
    assert status(url, "/v1/logs", None)[0] == 401
    assert status(url, "/v1/logs", Role.PRODUCER)[0] == 403
    code, told = status(url, "/v1/logs?lines=5", Role.VIEWER)
    assert (code, len(told["lines"])) == (200, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        pytest.param({"name": "nobody"}, 404, id="unknown"),
        pytest.param({"name": "../../etc/passwd"}, 404, id="a path"),
        pytest.param({"lines": "10001"}, 422, id="too many lines"),
        pytest.param({"lines": "x"}, 422, id="no number"),
        pytest.param({"colour": "red"}, 422, id="unknown parameter"),
        pytest.param({"after": "rubbish"}, 400, id="no cursor"),
        pytest.param({"after": "eJyrVirKT0xJVbIyAAAk_wUV"}, 400, id="a cursor of something else"),
    ],
)
def test_what_can_not_be_asked_is_refused(files: StateDir, url: str, asked: dict[str, str], code: int) -> None:
    write(files, "resize-a", "x\n")
    assert status(url, f"/v1/logs?{urlencode(asked)}", Role.VIEWER)[0] == code


def test_an_answer_is_bounded(files: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write(files, "resize-a", "".join(f"{number:09}\n" for number in range(1000)))
    monkeypatch.setattr(logs, "MAX_ANSWER_BYTES", 90)
    assert [line.line for line in shown_output(files, OutputQuery(lines=100)).lines] == [
        f"{n:09}" for n in range(990, 1000)
    ]
    monkeypatch.setattr(logs, "MAX_FOLLOWED", 0)
    with pytest.raises(Problem, match="1 workers have output"):
        shown_output(files, OutputQuery())


def test_before_any_worker_has_written_there_are_no_lines(files: StateDir) -> None:
    first = shown_output(files, OutputQuery())
    assert first.lines == ()
    write(files, "resize-a", "x\n")
    assert [line.line for line in shown_output(files, OutputQuery(after=first.cursor)).lines] == ["x"]


def test_the_command_reads_a_supervisors_output_by_its_url(
    files: StateDir, url: str, towline: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(files, "resize-a", "x\n")
    monkeypatch.setenv("TOWLINE_TOKEN", SECRETS[Role.VIEWER])
    assert towline("logs", "--url", url).out == "resize-a | x\n"
    refused = towline("logs", "nobody", "--url", url)
    assert refused.code == exits.NO_INPUT
    assert "resize-a" in refused.err
    monkeypatch.delenv("TOWLINE_TOKEN")
    assert towline("logs", "--url", url).code == exits.NO_PERMISSION


def test_a_server_without_a_supervisor_has_no_such_path(towline: Commands) -> None:
    listener = FleetListener(ServeOptions(port=0), fleet_paths(*a_heartbeat()))
    listener.start()
    try:
        told = towline("logs", "--url", listener.url)
        assert told.code != exits.OK
        assert "supervisor" in told.err
    finally:
        listener.stop()
