"""What `towline doctor` says of engines and of the containers that pools would have."""

from pathlib import Path

import pytest

from orchestrator.cli.engine_findings import engine_findings
from orchestrator.cli.finding import Finding
from orchestrator.settings_file import Project, parse
from tests.support.docker.engine import TEST_IMAGE, PrivateDockerEngine


def a_project(tmp_path: Path, runtime: str, *, listen: str = "unix:/srv/run/queue.sock", more: str = "") -> Project:
    text = f"""
    {more}
    server: {{listen: "{listen}"}}
    queues: {{thumbs: {{max_leases: 3}}}}
    pools: {{resize: {{queue: thumbs, app: "tasks:app", slo: 30s, runtime: {runtime}}}}}
    """
    return parse(text, name="towline.yaml", directory=tmp_path)


ENGINES_FILE = "8:1 /var/lib/docker/containers/{container}/hostname /etc/hostname rw - ext4 /dev/sda1 rw\n"


def found_in(project: Project) -> list[Finding]:
    return list(engine_findings(project))


def test_processes_need_no_engine(tmp_path: Path) -> None:
    assert found_in(a_project(tmp_path, "process")) == []


def test_an_engine_that_is_not_there_is_bad_and_says_who_needs_it(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    (found, *_) = found_in(a_project(tmp_path, f'{{docker: {{image: a, engine: "{url}", url: "http://queue:1"}}}}'))
    assert (found.check, found.level) == ("docker", "bad")
    assert f"{url} can't be reached: No such file or directory; needed by resize" in found.found


@pytest.mark.parametrize(
    ("image", "pull", "level"),
    [(TEST_IMAGE, "never", None), ("nobody/has:1", "missing", "warn"), ("nobody/has:1", "never", "bad")],
)
def test_an_engine_that_answers_is_asked_for_the_image(
    docker_engine: PrivateDockerEngine, tmp_path: Path, image: str, pull: str, level: str | None
) -> None:
    settings = f'{{docker: {{image: "{image}", pull: {pull}, engine: "{docker_engine.url}", network: host}}}}'
    first, *others = found_in(a_project(tmp_path, settings))
    assert (first.check, first.level) == ("docker", "ok")
    assert [other.level for other in others] == ([level] if level else [])


def test_a_queue_on_a_loopback_address_is_out_of_reach(tmp_path: Path) -> None:
    settings = f'{{docker: {{image: a, engine: "unix://{tmp_path}/none.sock"}}}}'
    found = found_in(a_project(tmp_path, settings, listen="127.0.0.1:7878"))
    assert [one.level for one in found] == ["bad", "bad"]
    assert "pool resize can't reach the queue at http://127.0.0.1:7878" in found[1].found


@pytest.mark.parametrize(("volume", "level"), [("own-state:/var/lib/towline", None), ("own-other:/elsewhere", "bad")])
def test_a_state_directory_that_containers_can_not_be_given_is_bad(
    docker_engine: PrivateDockerEngine, tmp_path: Path, volume: str, level: str | None
) -> None:
    with docker_engine.client() as client:
        host = client.create_host_config(binds=[volume], network_mode="none")
        ours = client.create_container(TEST_IMAGE, ["true"], host_config=host)["Id"]
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"732 700 {ENGINES_FILE.format(container=ours)}")
    settings = f'{{docker: {{image: "{TEST_IMAGE}", pull: never, engine: "{docker_engine.url}", network: host}}}}'
    project = a_project(tmp_path, settings, more="supervisor: {state_dir: /var/lib/towline/supervisor}")
    first, *others = engine_findings(project, mounts_file=mounts)
    assert (first.check, first.level) == ("docker", "ok")
    assert [other.level for other in others] == ([level] if level else [])
    for other in others:
        assert other.found.startswith("no worker of resize can start: containers need /var/lib/towline/supervisor")
        assert ours[:12] in other.found


def test_a_socket_that_is_not_in_our_container_is_told_to_be_mounted(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"732 700 {ENGINES_FILE.format(container='a' * 64)}")
    settings = f'{{docker: {{image: a, engine: "unix://{tmp_path}/none.sock", network: host}}}}'
    (found,) = engine_findings(a_project(tmp_path, settings), mounts_file=mounts)
    assert (found.level, "mount its socket in this container" in found.fix) == ("bad", True)
    (found,) = engine_findings(a_project(tmp_path, settings), mounts_file=tmp_path / "none")
    assert "DOCKER_HOST" in found.fix


@pytest.mark.parametrize(
    ("settings", "told", "fix"),
    [
        pytest.param("network: nonet", "network nonet not found", "`docker network create nonet`", id="no network"),
        pytest.param(
            "network: 'container:nobody'", "No such container: nobody", "start that container", id="no other container"
        ),
        pytest.param(
            "network: host, volumes: ['/no/such/folder:/data']",
            "bind source path does not exist: /no/such/folder",
            "make it",
            id="no folder",
        ),
    ],
)
def test_what_an_engine_would_refuse_is_bad_in_its_own_words(
    docker_engine: PrivateDockerEngine, tmp_path: Path, settings: str, told: str, fix: str
) -> None:
    given = f'{{docker: {{image: "{docker_engine.image()}", engine: "{docker_engine.url}", {settings}}}}}'
    first, found, *_ = found_in(a_project(tmp_path, given))
    assert (first.level, found.level) == ("ok", "bad")
    assert told in found.found
    assert fix in found.fix


def test_an_engine_that_is_no_manager_is_bad_for_a_swarm_pool(
    docker_engine: PrivateDockerEngine, tmp_path: Path
) -> None:
    first, found = found_in(
        a_project(tmp_path, f'{{swarm: {{image: a, engine: "{docker_engine.url}", network: host}}}}')
    )
    assert (first.level, found.level) == ("ok", "bad")
    assert (
        f"pool resize: the engine at {docker_engine.url} is no manager of a swarm; its state: inactive" in found.found
    )
    assert "pools.resize.runtime.swarm.engine" in found.fix
    assert "`docker swarm init`" in found.fix
