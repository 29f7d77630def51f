"""Every condition that `towline doctor` names of engines, made to happen: a walk of the table in the runbook."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from orchestrator.cli.engine_findings import engine_findings
from orchestrator.settings_file import parse
from tests.support.as_another_user import ANOTHER
from tests.support.commands import ROOT, program_environment
from tests.support.docker.engine import TEST_IMAGE, PrivateDockerEngine
from tests.support.docker.slow_engine import slow_engine
from tests.support.docker.swarms import swarm
from tests.support.eventually import eventually
from tests.support.stores.engine_process import EngineUnavailableError

RUNBOOK: Final = ROOT / "docs" / "how-to" / "runbook.md"
CONTAINER: Final = "a" * 64
MOUNTS: Final = "732 700 8:1 /var/lib/docker/containers/{container}/hostname /etc/hostname rw - ext4 /dev/sda1 rw\n"


@dataclass(frozen=True, slots=True)
class TroubleStage:
    """An engine and a folder of settings, in which a condition is brought about."""

    engine: PrivateDockerEngine
    folder: Path

    def settings(self, runtime: str, *, listen: str = "unix:queue.sock", more: str = "") -> str:
        """Return a file with one pool of this runtime."""
        return (
            f'{more}\nstore: "sqlite:///{self.folder}/towline.db"\nserver: {{listen: "{listen}"}}\n'
            "queues: {thumbs: {}}\n"
            f'pools: {{resize: {{queue: thumbs, app: "tasks:app", slo: 30s, runtime: {runtime}}}}}\n'
        )

    def docker(self, more: str = "network: host", *, engine: str = "") -> str:
        """Return a container runtime on the engine."""
        image = "" if "image:" in more else f'image: "{self.engine.image()}", pull: never, '
        return f'{{docker: {{{image}engine: "{engine or self.engine.url}", {more}}}}}'

    def found(self, text: str, *, mounts: Path = Path("/nowhere")) -> list[tuple[str, str]]:
        """Return level and words of each finding, its fix among them."""
        project = parse(text, name="towline.yaml", directory=self.folder)
        return [(one.level, f"{one.found}; {one.fix}") for one in engine_findings(project, mounts_file=mounts)]

    def found_by_another(self, text: str) -> list[tuple[str, str]]:
        """Return the same of the whole `doctor`, run as another user."""
        (self.folder / "towline.yaml").write_text(text)
        module = ["tests.support.as_another_user"] if os.geteuid() == 0 else ["orchestrator"]
        done = subprocess.run(
            [sys.executable, "-m", *module, "doctor", "--json"],
            cwd=self.folder,
            env=program_environment(),
            capture_output=True,
            timeout=120,
            check=False,
        )
        found = json.loads(done.stdout)
        return [(one["level"], f"{one['found']}; {one['fix']}") for one in found]


Found = list[tuple[str, str]]


def _away(stage: TroubleStage) -> Found:
    return stage.found(stage.settings(stage.docker(engine=f"unix://{stage.folder}/none.sock")))


def _slow(stage: TroubleStage) -> Found:
    with slow_engine(stage.engine.socket, stage.folder) as slow:
        return stage.found(stage.settings(stage.docker(engine=slow.url)))


def _without_image(stage: TroubleStage) -> Found:
    fetched = stage.found(stage.settings(stage.docker("image: 'nobody/has:1', network: host")))
    assert [level for level, _ in fetched] == ["ok", "warn"]
    return stage.found(stage.settings(stage.docker("image: 'nobody/has:1', pull: never, network: host")))


def _without_network(stage: TroubleStage) -> Found:
    return stage.found(stage.settings(stage.docker("network: nonet")))


def _without_other_container(stage: TroubleStage) -> Found:
    return stage.found(stage.settings(stage.docker("network: 'container:nobody'")))


def _without_folder(stage: TroubleStage) -> Found:
    return stage.found(stage.settings(stage.docker("network: host, volumes: ['/no/such/folder:/data']")))


def _at_loopback(stage: TroubleStage) -> Found:
    return stage.found(stage.settings(stage.docker("network: none"), listen="127.0.0.1:7878"))


def _with_another_user(stage: TroubleStage) -> Found:
    return stage.found_by_another(stage.settings(stage.docker(f"network: host, user: '{ANOTHER - 1}'")))


def _no_manager(stage: TroubleStage) -> Found:
    return stage.found(stage.settings(f'{{swarm: {{image: a, engine: "{stage.engine.url}", network: host}}}}'))


def _without_leader(stage: TroubleStage) -> Found:
    try:
        with swarm(2) as nodes, nodes.nodes[0].engine.client() as manager:
            second = nodes.nodes[1]
            node = manager.inspect_node(second.id)
            manager.update_node(second.id, node["Version"]["Index"], {**node["Spec"], "Role": "manager"})
            eventually(lambda: manager.inspect_node(second.id).get("ManagerStatus"))
            settings = stage.settings(f'{{swarm: {{image: a, engine: "{nodes.url}", network: host}}}}')
            assert [level for level, _ in stage.found(settings)] == ["ok"]
            nodes.cut(second)
            return eventually(lambda: [one for one in stage.found(settings) if one[0] == "bad"])  # it takes 20 s
    except EngineUnavailableError as error:
        pytest.skip(str(error))


def _without_socket(stage: TroubleStage) -> Found:
    mounts = stage.folder / "mountinfo"
    mounts.write_text(MOUNTS.format(container=CONTAINER))
    return stage.found(stage.settings(stage.docker(engine=f"unix://{stage.folder}/none.sock")), mounts=mounts)


def _without_volume(stage: TroubleStage) -> Found:
    with stage.engine.client() as client:
        host = client.create_host_config(binds=["own-other:/elsewhere"], network_mode="none")
        ours = client.create_container(TEST_IMAGE, ["true"], host_config=host)["Id"]
    mounts = stage.folder / "mountinfo"
    mounts.write_text(MOUNTS.format(container=ours))
    text = stage.settings(stage.docker(), more="supervisor: {state_dir: /var/lib/towline/supervisor}")
    return stage.found(text, mounts=mounts)


CONDITIONS: Final[Mapping[str, Callable[[TroubleStage], Found]]] = {
    "the engine is unavailable, or not ours to ask": _away,
    "it answers slowly": _slow,
    "it has not the image": _without_image,
    "a network is not there": _without_network,
    "the container whose network it shares is not there, or does not run": _without_other_container,
    "a mounted folder or secret is not there": _without_folder,
    "the queue is at a loopback address, which is the container's own": _at_loopback,
    "another `user` than the owner of the server's socket": _with_another_user,
    "a swarm pool, and the engine is no manager": _no_manager,
    "a swarm that has lost its leader": _without_leader,
    "a supervisor in a container, without the engine's socket in it": _without_socket,
    "a supervisor in a container, its state directory on no volume": _without_volume,
}


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield condition, words and level of each row of the runbook's table."""
    section = RUNBOOK.read_text().partition("### doctor: docker")[2].partition("\n### ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) == 4 and cells[0] not in {"condition", "---"}:
            yield cells[0], cells[1].strip("`"), cells[2]


@contextmanager
def _open_folder() -> Iterator[Path]:
    """Make a folder whose path any user may follow, and that another user owns where we are root."""
    with tempfile.TemporaryDirectory(prefix="towline-doctor-") as path:
        folder = Path(path)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def stage(docker_engine: PrivateDockerEngine) -> Iterator[TroubleStage]:
    docker_engine.image()
    with _open_folder() as folder:
        yield TroubleStage(docker_engine, folder)
    docker_engine.remove_containers()


def test_the_table_names_each_condition_that_is_tried_and_no_other() -> None:
    assert {condition for condition, _, _ in rows()} == set(CONDITIONS)


@pytest.mark.parametrize(("condition", "words", "level"), list(rows()))
def test_doctor_says_of_a_condition_what_the_table_says(
    stage: TroubleStage, condition: str, words: str, level: str
) -> None:
    found = CONDITIONS[condition](stage)
    said = [part.strip(" ;:") for part in re.split(r"\.\.\.|\b[A-Z]{3,}\b|300 ms", words)]
    wanted = level.partition(";")[2].strip().partition(" ")[0] or level
    assert [one for one in found if one[0] == wanted and all(part in one[1] for part in said)], found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_an_engine_and_a_state_directory_of_another_user_are_told_as_that(stage: TroubleStage) -> None:
    (stage.folder / ".towline").mkdir(mode=0o700)
    stage.engine.socket.chmod(0o600)
    found = stage.found_by_another(stage.settings(stage.docker()))
    told = [words for level, words in found if level == "bad"]
    assert [words for words in told if "permission denied: add this user to the engine's group" in words]
    (state,) = [words for words in told if f"{stage.folder}/.towline can't be read by this user" in words]
    assert "use the user of its supervisor (root)" in state
