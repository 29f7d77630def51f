"""Every Python that the classifiers name: the wheel is installed with the locked packages, and a function runs."""

import re
import signal
import subprocess
import tomllib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.built_packages import (
    ROOT,
    UNREACHED,
    BuiltPackages,
    NotBuiltError,
    environment_with,
    interpreter_of,
    run_apart,
)
from tests.support.eventually import eventually

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = [found[1] for one in PROJECT["classifiers"] if (found := re.fullmatch(r".* :: Python :: (3\.\d+)", one))]
WARNINGS = re.compile(r".*/(?:queue_core|orchestrator)/.*Warning: .*")
"""What Python says of our own lines: a call that the next version will not have, or a fork beside threads."""


@pytest.fixture(scope="module")
def environments(packages: BuiltPackages, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[Path]]:
    """An environment for each Python that is here; they are filled beside each other, as each waits for the index."""
    folder = tmp_path_factory.mktemp("pythons")
    with ThreadPoolExecutor() as threads:
        return {
            version: threads.submit(environment_with, packages.wheel, python, version=version, folder=folder / version)
            for version in VERSIONS
            if (python := interpreter_of(version)) is not None
        }


def test_the_classifiers_begin_with_the_oldest_python_and_leave_none_out() -> None:
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"
    assert [int(version.partition(".")[2]) for version in VERSIONS] == list(range(11, 11 + len(VERSIONS)))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_function_runs_on_it(version: str, environments: dict[str, Future[Path]], tmp_path: Path) -> None:
    if version not in environments:
        pytest.skip(f"Python {version} is not here: neither in PATH nor of pyenv or uv")
    try:
        python = environments[version].result()
    except NotBuiltError as error:
        if any(words in str(error) for words in UNREACHED):
            pytest.skip("the package index is out of reach")
        raise
    towline = python.parent / "towline"

    def run(*command: str | Path) -> str:
        told = run_apart(command, folder=tmp_path, PYTHONWARNINGS="default")
        assert told.returncode == 0, told.stdout + told.stderr
        assert WARNINGS.findall(told.stderr) == []
        return told.stdout

    run(towline, "init")
    settings = tmp_path / "towline.yaml"
    settings.write_text(settings.read_text().replace("listen: 127.0.0.1:7878", "listen: unix:queue.sock", 1))
    with (tmp_path / "said.txt").open("w") as said:
        up = subprocess.Popen(
            [towline, "up"], cwd=tmp_path, stdout=said, stderr=said, env={"PYTHONWARNINGS": "default"}
        )
        try:
            eventually((tmp_path / "queue.sock").exists, seconds=60)
            assert "added" in run(python, "tasks.py", "cat.jpg")
            eventually(lambda: '"task.deleted"' in (tmp_path / "events.jsonl").read_text(), seconds=60)
        finally:
            up.send_signal(signal.SIGTERM)
            code = up.wait(60)
    told = (tmp_path / "said.txt").read_text()
    assert code == 0, told
    assert WARNINGS.findall(told) == []
