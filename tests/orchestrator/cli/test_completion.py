"""What Tab offers: names that the running server knows, in the form of each shell; and nothing where none runs."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator.cli import COMPLETE_VARIABLE, command
from orchestrator.cli.command_line.completion import FLAGS, NAMED_PLACES, place_of
from orchestrator.http_api.paths import fleet_paths
from orchestrator.state.directory import StateDir
from queue_core.client.connect import open_queues
from queue_core.server.base.options import AccessToken, ServeOptions
from queue_core.server.server import ServerThread
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import NewTask, QueueSpec
from queue_core.verbs.roles import Role
from tests.support.commands import Commands, program_environment
from tests.support.fleet.fleet_views import a_heartbeat

TOKEN = "a-token-of-32-characters-or-more"
SETTINGS = """\
server: {{listen: "{listen}", tokens: [{{role: admin, token_env: TOWLINE_TOKEN}}]}}
queues: {{thumbs: {{}}}}
"""
EVIL = ("$(touch owned)", "a b", "`id`", "x;y")


@pytest.fixture
def towline(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """A server with two queues on a socket beside the settings, and a supervisor's state folder."""
    monkeypatch.setenv("TOWLINE_TOKEN", TOKEN)
    path = towline.folder / "q.sock"
    options = ServeOptions(socket_path=path, tokens=(AccessToken(Role.ADMIN, TOKEN),))
    server = ServerThread(MemoryStore(), options, extensions=fleet_paths(*a_heartbeat()))
    server.start()
    queues = open_queues(f"unix:{path}", token=TOKEN)
    for name in ("thumbs", "mail"):
        queues.put_queue(QueueSpec(name))
    queues.queue("thumbs").add([NewTask(b"", name="cat-1", tag="resize"), NewTask(b"", tag="crop")])
    queues.queue("mail").add([NewTask(b"", name=name) for name in ("letter",)])
    queues.queue("mail").add([NewTask(b"", tag=tag) for tag in EVIL])
    queues.close()
    (towline.folder / "towline.yaml").write_text(SETTINGS.format(listen="unix:q.sock"))
    files = StateDir(towline.folder / ".towline")
    files.path.mkdir()
    files.write_snapshot({"pools": {}, "workers": [{"worker": "resize-7f3k2q"}]})
    for worker in ("resize-old", "resize-late"):
        files.deaths.append({"worker": worker, "cause": "signalled"})
    yield towline
    server.stop()


def completed(towline: Commands, line: str, monkeypatch: pytest.MonkeyPatch, *, shell: str = "bash") -> list[str]:
    """What a shell is told at the end of `line`."""
    words = line.split(" ")
    monkeypatch.setenv(COMPLETE_VARIABLE, f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words) - 1))
    told = towline()
    assert (told.code, told.err) == (0, "")
    return told.out.splitlines()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        pytest.param("towline add ", ["mail", "thumbs"], id="queues"),
        pytest.param("towline add th", ["thumbs"], id="a queue begun"),
        pytest.param("towline add --lines ", ["mail", "thumbs"], id="after a flag"),
        pytest.param("towline peek -f towline.yaml ", ["mail", "thumbs"], id="after an option's value"),
        pytest.param("towline events --queue ", ["mail", "thumbs"], id="an option's queue"),
        pytest.param("towline peek thumbs --named ", ["_2", "cat-1"], id="tasks of the queue"),
        pytest.param("towline peek thumbs --tag ", ["crop", "resize"], id="tags of the queue"),
        pytest.param("towline events --task l", ["letter"], id="a task of any queue"),
        pytest.param("towline why cat", ["cat-1"], id="a task"),
        pytest.param("towline why r", ["resize"], id="a pool or a task"),
        pytest.param("towline scale ", ["resize"], id="pools"),
        pytest.param("towline pause --pool ", ["resize"], id="an option's pool"),
        pytest.param("towline logs ", ["resize", "resize-7f3k2q"], id="pools and workers"),
        pytest.param("towline why-died ", ["resize-late", "resize-old"], id="dead workers"),
        pytest.param("towline peek mail --tag ", [], id="tags that a shell would run"),
    ],
)
def test_names_are_those_of_the_server(
    towline: Commands, monkeypatch: pytest.MonkeyPatch, line: str, names: list[str]
) -> None:
    assert completed(towline, line, monkeypatch) == [f"plain,{name}" for name in names]


@pytest.mark.parametrize(
    ("shell", "told"),
    [
        pytest.param("bash", "plain,thumbs", id="bash"),
        pytest.param("zsh", "plain\nthumbs\n_", id="zsh"),
        pytest.param("fish", "plain,thumbs", id="fish"),
    ],
)
def test_each_shell_is_told_in_its_own_form(
    towline: Commands, monkeypatch: pytest.MonkeyPatch, shell: str, told: str
) -> None:
    assert "\n".join(completed(towline, "towline stats th", monkeypatch, shell=shell)) == told
    assert "--json" in "\n".join(completed(towline, "towline stats --j", monkeypatch, shell=shell))
    assert "scale" in "\n".join(completed(towline, "towline sc", monkeypatch, shell=shell))


@pytest.mark.parametrize("line", ["towline add ", "towline scale ", "towline why ", "towline peek q --named "])
@pytest.mark.parametrize("settings", [None, "server: {listen: 'unix:none.sock'}", "server: [", "- 1"])
def test_without_a_server_nothing_is_offered_and_nothing_said(
    towline: Commands, monkeypatch: pytest.MonkeyPatch, line: str, settings: str | None
) -> None:
    path = towline.folder / "towline.yaml"
    path.unlink()
    if settings is not None:
        path.write_text(settings)
    monkeypatch.setenv("TOWLINE_URL", "http://127.0.0.1:1")
    assert completed(towline, line, monkeypatch) == []


def test_a_server_that_does_not_answer_offers_nothing(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("TOWLINE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert completed(towline, "towline add ", monkeypatch) == []
        assert completed(towline, "towline why ", monkeypatch) == []


def test_a_token_that_is_refused_offers_nothing(towline: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWLINE_TOKEN", "another-token-of-32-characters-at-least")
    told = completed(towline, "towline add ", monkeypatch)
    assert [line for line in told if "token.refused" not in line] == []  # the log of the server in this process


def test_the_places_of_names_are_those_of_the_commands() -> None:
    group = command()
    for name, places in NAMED_PLACES.items():
        made = group.get_command(click.Context(group), name)
        assert made is not None
        arguments = [parameter for parameter in made.params if isinstance(parameter, click.Argument)]
        assert len(places.arguments) <= len(arguments), name
        options = {opt: parameter for parameter in made.params for opt in parameter.opts}
        assert set(places.options) <= set(options), name
        for option in places.options:
            assert not getattr(options[option], "is_flag", False), (name, option)


def test_options_that_take_no_value_are_known() -> None:
    """A word after any other option is its value, and only the command knows what may stand there."""
    group = command()
    for name in NAMED_PLACES:
        made = group.get_command(click.Context(group), name)
        assert made is not None
        for parameter in made.params:
            for option in parameter.opts:
                if option in (*FLAGS, *NAMED_PLACES[name].flags):
                    assert getattr(parameter, "is_flag", False), (name, option)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        pytest.param(["add"], "queues", id="the first"),
        pytest.param(["add", "thumbs"], None, id="a payload"),
        pytest.param(["lease", "--count"], None, id="an option's value that is no name"),
        pytest.param(["lease", "--count", "3"], "queues", id="after it"),
        pytest.param(["pause", "--pool"], "pools", id="an option's name"),
        pytest.param(["nothing"], None, id="no command"),
        pytest.param([], None, id="a command"),
    ],
)
def test_a_place_is_found_by_the_words_before_it(words: list[str], place: str | None) -> None:
    assert place_of(words, "") == place


def test_a_tab_imports_no_settings_model(towline: Commands) -> None:
    program = (
        "import sys; from orchestrator.cli import main; code = main([]);"
        "heavy = {'pydantic', 'rich', 'uvicorn', 'starlette', 'docker', 'psutil', 'structlog'} & set(sys.modules);"
        "print(sorted(heavy), file=sys.stderr); sys.exit(code or bool(heavy))"
    )
    environment = program_environment() | {
        COMPLETE_VARIABLE: "bash_complete",
        "COMP_WORDS": "towline add ",
        "COMP_CWORD": "2",
        "TOWLINE_TOKEN": TOKEN,
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=towline.folder,
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [b"plain,mail", b"plain,thumbs"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is absent")
def test_bash_completes_with_the_script_it_is_given(towline: Commands, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "towline"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m orchestrator "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(towline completion bash)"; COMP_WORDS=(towline stats th); COMP_CWORD=2;'
        '_towline_completion towline th stats; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = program_environment() | {"TOWLINE_TOKEN": TOKEN}
    environment["PATH"] = f"{program.parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=towline.folder,
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == (b"thumbs\n", b"")
