"""`towline up` as a program: it serves, sizes, lets in whom its tokens name, and stops in order."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.cli.commands.up import workers_token
from orchestrator.settings_file import parse
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.verbs.roles import Role
from tests.support.commands import program_environment, run_program
from tests.support.eventually import eventually

SETTINGS = """\
store: sqlite:///queue.db
server:
  listen: unix:towline.sock
  tokens:
    - {role: producer, token_env: PRODUCER}
    - {role: worker, token_env: WORKER}
queues:
  thumbs: {lease: 30s, max_leases: 5}
pools:
  resize: {queue: thumbs, app: "tasks:app", slo: 5s, grace: 2s}
"""
TASKS = """\
from queue_core import App
app = App()
@app.task(queue="thumbs")
def resize(task): print("resized", task.text)
"""
SECRETS = {"PRODUCER": "producer-secret-0123456789", "WORKER": "worker-secret-0123456789"}


@contextmanager
def towline_up(folder: Path, *, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", "--json", "--log", "events.jsonl"],
            cwd=folder,
            env=program_environment() | SECRETS | dict(environment or {}),
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: (folder / "towline.sock").exists() or up.poll() is not None, seconds=30)
        yield up
    finally:
        up.terminate()
        up.wait(timeout=30)


def test_a_fleet_behind_tokens_works_and_stops_in_order(tmp_path: Path) -> None:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    (tmp_path / "tasks.py").write_text(TASKS)
    with towline_up(tmp_path) as up:
        refused = run_program("add", "thumbs", "cat", folder=tmp_path)
        assert refused.code == 77
        assert "TOWLINE_TOKEN" in refused.err
        producer = {"TOWLINE_TOKEN": SECRETS["PRODUCER"]}
        assert run_program("add", "thumbs", "cat", folder=tmp_path, environment=producer).code == 0
        assert run_program("purge", "thumbs", "--yes", folder=tmp_path, environment=producer).code == 77
        eventually(lambda: "task.deleted" in (tmp_path / "events.jsonl").read_text(), seconds=30)
        assert "resize" in run_program("pools", folder=tmp_path).out
        up.send_signal(signal.SIGTERM)
        assert up.wait(timeout=30) == 0
    told = [json.loads(line) for line in (tmp_path / "up.log").read_text().splitlines() if line.startswith("{")]
    assert {"server.started", "supervisor.started", "worker.spawned", "supervisor.stopped", "server.stopped"} <= {
        line["event"] for line in told
    }
    assert not any(secret in (tmp_path / "up.log").read_text() for secret in SECRETS.values())


def test_a_worker_finds_its_own_token_and_no_other_secret_of_its_supervisor(tmp_path: Path) -> None:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    (tmp_path / "tasks.py").write_text(
        "import json, os, pathlib\n"
        + TASKS.replace("print(", 'pathlib.Path("found.json").write_text(json.dumps(dict(os.environ))); print(')
    )
    others = {
        "PGPASSWORD": "password-0123456789",
        "TOWLINE_TOKEN_FILE": "/run/secrets/admin",
        "HANDLERS_OWN": "kept",
    }
    with towline_up(tmp_path, environment=others):
        producer = {"TOWLINE_TOKEN": SECRETS["PRODUCER"]}
        assert run_program("add", "thumbs", "cat", folder=tmp_path, environment=producer).code == 0
        eventually(lambda: "task.deleted" in (tmp_path / "events.jsonl").read_text(), seconds=30)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["TOWLINE_TOKEN"] == (tmp_path / ".towline" / "worker.token").read_text().strip()
    assert found["HANDLERS_OWN"] == "kept"
    assert found.keys().isdisjoint({"PRODUCER", "WORKER", "PGPASSWORD", "TOWLINE_TOKEN_FILE"})
    assert set(SECRETS.values()).isdisjoint(found.values())


@pytest.mark.parametrize(
    ("text", "environment", "url", "withheld"),
    [
        pytest.param("{}", {}, "http://127.0.0.1:7878", {"PGPASSWORD"}, id="libpq's, whatever the settings say"),
        pytest.param("{}", {}, "postgresql://me@db/work", set(), id="a store that workers open by that password"),
        pytest.param(
            "store: {url: redis://db, password_env: STORE}\nserver: {tokens: [{role: admin, token_env: ADMIN}]}",
            {},
            "http://127.0.0.1:7878",
            {"ADMIN", "PGPASSWORD", "STORE"},
            id="every name that the settings give",
        ),
        pytest.param(
            "{}",
            {"TOWLINE_STORE": "redis://:pass-word@db"},
            "http://127.0.0.1:7878",
            {"PGPASSWORD", "TOWLINE_STORE"},
            id="a store's URL with a password in it",
        ),
        pytest.param(
            "{}", {"TOWLINE_STORE": "sqlite:///a.db"}, "http://127.0.0.1:7878", {"PGPASSWORD"}, id="one without"
        ),
    ],
)
def test_variables_that_hold_secrets_are_known_from_the_settings(
    text: str, environment: dict[str, str], url: str, withheld: set[str]
) -> None:
    project = parse(text, name="towline.yaml", directory=Path("/srv"))
    assert project.secret_variables(environment, url=url) == {*withheld, "TOWLINE_POOL_VARIABLES"}


def test_tokens_that_leave_the_workers_outside_are_refused(tmp_path: Path) -> None:
    (tmp_path / "towline.yaml").write_text(SETTINGS.replace("    - {role: worker, token_env: WORKER}\n", ""))
    told = run_program("up", folder=tmp_path, environment=SECRETS)
    assert told.code == 78
    assert "role worker or admin" in told.err


def test_a_token_too_short_is_refused_without_being_told(tmp_path: Path) -> None:
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    told = run_program("up", folder=tmp_path, environment={"PRODUCER": "tiny-s3cret", "WORKER": SECRETS["WORKER"]})
    assert told.code == 78
    assert "PRODUCER" in told.err
    assert "16 characters" in told.err
    assert "tiny-s3cret" not in told.err


ADMIN = AccessToken(Role.ADMIN, "admin-secret-0123456789")
WORKER = AccessToken(Role.WORKER, "worker-secret-0123456789")


@pytest.mark.parametrize(
    ("own", "tokens", "given"),
    [
        pytest.param(ADMIN.secret, (ADMIN, WORKER), WORKER.secret, id="that of role worker"),
        pytest.param(ADMIN.secret, (ADMIN,), ADMIN.secret, id="there is none"),
        pytest.param("of another server", (ADMIN, WORKER), "of another server", id="the settings are not the server's"),
        pytest.param(None, (), None, id="no tokens"),
    ],
)
def test_workers_of_a_supervisor_beside_a_server_are_given_the_settings_token_of_their_role(
    own: str | None, tokens: tuple[AccessToken, ...], given: str | None
) -> None:
    options = ServeOptions(host="127.0.0.1", port=7879, tokens=tokens)
    assert workers_token(own, ("http://127.0.0.1:7879", options)) == given
    assert workers_token(own, None) == own
