"""A supervisor in a container: where the engine finds its files, told by that container's own mounts."""

from pathlib import Path

import docker
import pytest

from orchestrator.base.errors import SpawnError
from orchestrator.runtimes.docker.create import LOCK_TARGET, SECRETS_TARGET, TOKEN_SECRET
from orchestrator.runtimes.docker.engine import DockerEngine
from orchestrator.runtimes.docker.own_container import (
    ContainerMount,
    OwnContainer,
    OwnPlaces,
    container_in,
    own_container,
    placed,
)
from tests.support.docker.engine import TEST_IMAGE, PrivateDockerEngine

ID = "4cac5bf518d5130e1747862ad91db14ad35a84eee5be1a2499f0e9192eb45541"
V1 = f"""\
700 650 0:60 / / rw,relatime - overlay overlay rw
720 700 8:1 /var/lib/docker/volumes/towline_state/_data /var/lib/towline rw - ext4 /dev/sda1 rw
731 700 8:1 /var/lib/docker/containers/{ID}/resolv.conf /etc/resolv.conf rw,relatime - ext4 /dev/sda1 rw
732 700 8:1 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw,relatime - ext4 /dev/sda1 rw
"""
HOST = f"""\
25 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
90 25 0:50 / /var/lib/docker/containers/{ID}/mounts/shm rw - tmpfs shm rw
"""
PODMAN = """\
732 700 0:30 /containers/overlay-containers/abc/userdata/hostname /etc/hostname rw - tmpfs tmpfs rw
"""
OWN = OwnContainer(
    ID,
    (
        ContainerMount("/var/lib/towline", "/volumes/state/_data"),
        ContainerMount("/var/lib/towline/run", "/srv/run"),
        ContainerMount("/plugin", ""),
        ContainerMount("/app/towline.yaml", "/home/ann/towline.yaml"),
    ),
)


@pytest.mark.parametrize(
    ("mountinfo", "found"), [(V1, ID), (HOST, None), (PODMAN, None), ("", None), ("cut off", None), ("1 2 3 4\n", None)]
)
def test_the_mounts_of_a_process_tell_its_container(mountinfo: str, found: str | None) -> None:
    assert container_in(mountinfo) == found


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("/var/lib/towline/supervisor/supervisor.lock", "/volumes/state/_data/supervisor/supervisor.lock"),
        ("/var/lib/towline", "/volumes/state/_data"),
        ("/var/lib/towline/run/queue.sock", "/srv/run/queue.sock"),
        ("/app/towline.yaml", "/home/ann/towline.yaml"),
        ("/var/lib/towline-other/x", None),
        ("/plugin/x", None),
        ("/tmp/x", None),
    ],
)
def test_a_file_is_where_the_nearest_mount_has_it(inside: str, outside: str | None) -> None:
    assert OWN.on_host(inside) == outside


def a_body(*mounts: tuple[str, str]) -> dict[str, object]:
    listed = [{"Type": "bind", "Source": source, "Target": target, "ReadOnly": True} for source, target in mounts]
    return {"Image": "a", "HostConfig": {"Init": True, "Mounts": listed}}


def test_our_own_files_are_moved_and_those_of_the_settings_are_not() -> None:
    body = a_body(("/var/lib/towline/lock", LOCK_TARGET), ("/var/lib/towline/data", "/data"))
    host = placed(body, OWN)["HostConfig"]
    assert host == a_body(("/volumes/state/_data/lock", LOCK_TARGET), ("/var/lib/towline/data", "/data"))["HostConfig"]
    assert placed(body, None) == body


def test_a_file_on_no_mount_is_refused_with_what_to_do() -> None:
    with pytest.raises(SpawnError, match=r"containers need /tmp/token, .* container 4cac5bf518d5: give that .* volume"):
        placed(a_body(("/tmp/token", f"{SECRETS_TARGET}/{TOKEN_SECRET}")), OWN)


def test_an_engine_tells_the_mounts_of_its_own_containers_and_not_of_others(
    docker_engine: PrivateDockerEngine, tmp_path: Path
) -> None:
    file = tmp_path / "mountinfo"
    engine = DockerEngine(docker_engine.url)
    try:
        with docker_engine.client() as client:
            made = a_container(client, tmp_path)
            file.write_text(V1.replace(ID, made))
            own = own_container(engine.api(), mounts_file=file)
            volume = client.inspect_volume("own-state")["Mountpoint"]
        assert own is not None
        assert own.on_host("/var/lib/towline/lock") == f"{volume}/lock"
        assert own.on_host("/srv/x") == f"{tmp_path}/x"
        file.write_text(V1)
        assert own_container(engine.api(), mounts_file=file) is None
        file.write_text(HOST)
        assert own_container(engine.api(), mounts_file=file) is None
        assert own_container(engine.api(), mounts_file=tmp_path / "none") is None
    finally:
        engine.close()


def test_on_a_host_a_body_stays_as_it_is(docker_engine: PrivateDockerEngine) -> None:
    engine = DockerEngine(docker_engine.url)
    try:
        body = a_body(("/srv/lock", LOCK_TARGET))
        assert OwnPlaces().placed(engine.api(), body) == body
    finally:
        engine.close()


def a_container(client: docker.APIClient, folder: Path) -> str:
    """A container as a supervisor would have it, with a volume and a folder of the host; it never starts."""
    host = client.create_host_config(binds=["own-state:/var/lib/towline", f"{folder}:/srv"], network_mode="none")
    return str(client.create_container(TEST_IMAGE, ["true"], host_config=host)["Id"])
