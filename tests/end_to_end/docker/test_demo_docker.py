"""The demo with containers, whole and short; and what it says where it can't be had."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from orchestrator.demo.containers import LIBRARY, library_folder
from orchestrator.demo.docker_engine import why_no_engine
from orchestrator.demo.library import find_modules, moved
from tests.support.commands import Commands, program_environment
from tests.support.docker.engine import PrivateDockerEngine
from tests.support.fleet.demo_outcome import good_outcome


def test_the_demo_with_containers_grows_survives_a_kill_finishes_and_shrinks_to_nothing(
    docker_engine: PrivateDockerEngine, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    done = subprocess.run(
        [*(sys.executable, "-m", "orchestrator", "demo", "--docker", "--image", docker_engine.image()),
         *("--for", "20s", "--json", "--dir", str(folder))],
        cwd=tmp_path,
        env={**program_environment(), "DOCKER_HOST": docker_engine.url},
        capture_output=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    outcome, _ = good_outcome(done, folder)
    assert Path(outcome["report"]).is_file()
    assert docker_engine.containers() == []


def test_where_no_engine_answers_the_demo_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    told = Commands(tmp_path, capsys)("demo", "--docker")
    assert told.code == 69
    assert "nobody.sock" in told.err
    assert "DOCKER_HOST" in told.err


@pytest.mark.parametrize("url", ["tcp://192.0.2.1:2375", "ssh://docker@192.0.2.1"])
def test_an_engine_of_another_machine_is_refused_for_what_it_does_not_share(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", url)
    told = Commands(tmp_path, capsys)("demo", "--docker")
    assert told.code == 69
    assert "another machine" in told.err


def test_an_image_that_cannot_be_had_is_named_with_the_reason(
    docker_engine: PrivateDockerEngine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_engine.url)
    told = Commands(tmp_path, capsys)("demo", "--docker", "--image", "localhost:1/nothing:1")
    assert told.code == 66
    assert "localhost:1/nothing:1" in told.err


def test_an_image_that_cannot_work_is_refused_before_anything_begins(
    docker_engine: PrivateDockerEngine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with docker_engine.client() as client, tarfile.open(tmp_path / "empty.tar", "w") as empty:
        empty.close()
        client.import_image_from_file(str(tmp_path / "empty.tar"), repository="towline-empty", tag="1")
    monkeypatch.setenv("DOCKER_HOST", docker_engine.url)
    told = Commands(tmp_path, capsys)("demo", "--docker", "--image", "towline-empty:1")
    assert told.code == 66
    assert "python3" in told.err
    assert docker_engine.containers() == []


def test_an_image_without_containers_is_a_mistake_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Commands(tmp_path, capsys)("demo", "--image", "thumbs:1").code == 2


def test_a_container_finds_the_modules_where_it_sees_them() -> None:
    modules = dict(moved(find_modules(), library_folder(), to=LIBRARY))
    assert modules["json.decoder"] == Path(LIBRARY, "json/decoder.py")
    assert len(modules) > 300


def test_modules_that_links_bring_in_from_elsewhere_stay_where_they_are(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "lib", tmp_path / "elsewhere.py"
    root.mkdir()
    elsewhere.touch()
    (root / "own.py").touch()
    (root / "linked.py").symlink_to(elsewhere)
    found = moved([("own", root / "own.py"), ("linked", root / "linked.py")], root, to="/there")
    assert found == [("own", Path("/there/own.py"))]


def test_why_no_engine_can_be_started_is_told_in_words_fit_for_a_skip() -> None:
    assert why_no_engine() == "" or why_no_engine().startswith("dockerd: ")
