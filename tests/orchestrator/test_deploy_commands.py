"""Every command that a comment of `deploy/` tells a reader to run is run: here, or on an engine where it needs one."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.commands import program_environment
from tests.support.eventually import eventually
from tests.support.fleet.deploy_comments import DEPLOY, TaughtCommand, taught

UP = "towline up --file deploy/towline.yaml"
PATIENCE_SECONDS = 60.0
TOWLINE = [one for one in taught() if one.is_ours]
SYSTEMD = [one for one in taught() if one.text.startswith(("systemctl ", "journalctl "))]
ELSEWHERE = {
    "docker build": "tests/end_to_end/docker/test_deploy_image.py",
    "docker run": "tests/end_to_end/docker/test_deploy_image.py",
    "docker compose": "tests/end_to_end/docker/test_deploy_image.py",
    "promtool test rules": "tests/orchestrator/test_deploy_files.py",
    "python3 -m venv": "tests/end_to_end/packaging/test_wheel.py",
}


def shown(command: TaughtCommand) -> str:
    return f"{command.file}: {command.text}"


def test_every_command_of_a_comment_is_run_by_some_test() -> None:
    everything = taught()
    assert len(everything) > 15
    for one in everything:
        there = [path for start, path in ELSEWHERE.items() if one.text.startswith(start)]
        assert one in TOWLINE or one in SYSTEMD or there, f"{shown(one)}: no test runs it"
        assert all((DEPLOY.parent / path).is_file() for path in there)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the folder beside a running fleet of its settings, started as its comment says."""
    whole = tmp_path_factory.mktemp("deployed")
    (whole / "deploy").mkdir()
    (whole / "files").mkdir()
    (whole / "files" / "one").write_text("a file")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (DEPLOY / "towline.yaml").read_text()
    (whole / "deploy" / "towline.yaml").write_text(text.replace(":7878", f":{port}"))
    shutil.copy(DEPLOY / "tasks.py", whole / "deploy")
    (whole / "deploy" / "names.txt").write_text(f"{whole}/files/one\n")
    program = whole / "bin" / "towline"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m orchestrator "$@"\n')
    program.chmod(0o755)
    assert UP in [one.text for one in TOWLINE]
    with (whole / "up.log").open("wb") as log:
        process = subprocess.Popen(UP.split(), cwd=whole, env=environment(whole), stdout=log, stderr=log)
    try:
        eventually(lambda: run("towline health --file deploy/towline.yaml", whole, whole).returncode == 0, seconds=60)
        yield whole
    finally:
        process.terminate()
        assert process.wait(timeout=PATIENCE_SECONDS) == 0, (whole / "up.log").read_text()


def environment(folder: Path) -> dict[str, str]:
    ours = program_environment()
    return {**ours, "PATH": f"{folder / 'bin'}:{ours.get('PATH', os.defpath)}"}


def run(command: str, folder: Path, where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", command],
        cwd=where,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("command", [one for one in TOWLINE if one.text != UP], ids=shown)
def test_a_command_of_ours_works_as_it_is_written(folder: Path, command: TaughtCommand, tmp_path: Path) -> None:
    """In a container of compose the settings are in the working directory, as in the copy of `deploy`."""
    where = folder / "deploy" if command.inside else folder
    if "deploy" not in command.text and not command.inside:
        where = tmp_path
    done = run((command.inside or command.text).replace("/usr/share", str(folder / "files")), folder, where)
    assert done.returncode == 0, f"{shown(command)}: {done.stdout}{done.stderr}"
    assert done.stdout + done.stderr


@pytest.mark.parametrize("command", SYSTEMD, ids=shown)
def test_a_command_of_systemd_has_its_verb_its_options_and_its_unit(command: TaughtCommand, tmp_path: Path) -> None:
    """Nothing is started: there may be no systemd here that runs. What enables a unit is done, in a folder."""
    program = command.text.split()[0]
    if shutil.which(program) is None:
        pytest.skip(f"{program}: not installed (Debian: apt-get install systemd)")
    units = tmp_path / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    for unit in (DEPLOY / "systemd").glob("*.service"):
        shutil.copy(unit, units)
    if " enable " in command.text:
        done = run(command.text.replace("--now", f"--root={tmp_path}"), tmp_path, tmp_path)
        assert done.returncode == 0, done.stderr
        assert any(units.glob("multi-user.target.wants/*"))
        return
    told = run(f"{command.text} --help", tmp_path, tmp_path)  # it reads its options before it helps
    assert told.returncode == 0, told.stderr
    verb = re.match(r"systemctl (\w+)", command.text)
    assert verb is None or re.search(rf"^  {verb[1]} ", told.stdout, re.MULTILINE)
    assert (units / "towline.service").is_file()
