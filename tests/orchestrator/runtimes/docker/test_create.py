"""What an engine is asked to make for a worker, from settings; and what a pool's settings may be."""

from pathlib import Path

import pytest

from orchestrator.base.errors import ConfigError, SpawnError
from orchestrator.config.containers import Volume
from orchestrator.config.pools import parse_pools
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.docker.container_state import at, mapping
from orchestrator.runtimes.docker.create import LOCK_TARGET, HostPaths, container_body, url_and_mounts
from orchestrator.settings_file import parse
from tests.support.fleet.fleet_builders import a_pool

PATHS = HostPaths("5f2c:/srv/.towline", "host1", "/srv/.towline/supervisor.lock", "/srv/.towline/tokens/1")
LAUNCH = Launch("http://queue.example:7878", "/srv/.towline", "/srv/.towline/supervisor.lock", 60.0, token="secret")


def made(
    *, url: str = LAUNCH.url, paths: HostPaths = PATHS, pool: dict[str, object] | None = None, **settings: object
) -> dict[str, object]:
    """The body for a worker of a pool with these settings of containers."""
    spec = a_pool(runtime={"docker": {"image": "thumbs:1", **settings}}, **(pool or {}))
    assert spec.containers is not None
    launch = Launch(url, LAUNCH.state_dir, LAUNCH.lock, 60.0, token=LAUNCH.token)
    request = SpawnRequest("resize-1", spec, launch.environment("resize-1", spec))
    return container_body(request, spec.containers, paths=paths, spawned_at=1_700_000_000.5)


def environment(body: dict[str, object]) -> dict[str, str]:
    variables = body["Env"]
    assert isinstance(variables, list)
    return dict(variable.split("=", 1) for variable in variables)


def mounts(body: dict[str, object]) -> dict[str, tuple[str, str, bool]]:
    """By target: kind, source, and whether it is read-only."""
    found = at(body, "HostConfig", "Mounts")
    assert isinstance(found, list)
    return {one["Target"]: (one["Type"], one["Source"], one["ReadOnly"]) for one in found}


def test_an_app_is_run_by_the_images_python_and_by_no_entrypoint() -> None:
    body = made(python="/opt/bin/python3")
    assert (body["Entrypoint"], body["Cmd"]) == ([], ["/opt/bin/python3", "-m", "queue_core.worker"])


def test_a_command_is_run_as_it_is() -> None:
    assert made(pool={"app": None, "command": ["work", "--fast"]})["Cmd"] == ["work", "--fast"]


def test_a_container_has_its_workers_name_where_its_settings_say() -> None:
    body = made(pool={"app": None, "command": ["work", "{worker}"], "env": {"FOR": "{pool}"}})
    assert body["Cmd"] == ["work", "resize-1"]
    assert environment(body)["FOR"] == "resize"


def test_limits_are_what_the_engine_calls_them_and_leave_no_swap() -> None:
    host = mapping(made(memory="512MiB", cpus=0.5)["HostConfig"])
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (2**29, 2**29, 500_000_000)


def test_it_has_none_of_roots_capabilities_gains_none_and_has_a_bound_on_processes() -> None:
    host = mapping(made()["HostConfig"])
    assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges:true"])
    assert host["PidsLimit"] == 4096
    assert "CapAdd" not in host


@pytest.mark.parametrize(
    ("url", "socket_uid", "settings", "kept"),
    [
        pytest.param("unix:///srv/q.sock", 1000, {}, ["DAC_OVERRIDE"], id="another user's socket"),
        pytest.param("unix:///srv/q.sock", 0, {}, None, id="root's socket"),
        pytest.param("unix:///srv/q.sock", 1000, {"user": "1000"}, None, id="as the socket's user"),
        pytest.param("unix:///srv/q.sock", 1000, {"url": "http://queue:7878"}, None, id="not by the socket"),
        pytest.param("http://queue:7878", 1000, {}, None, id="no socket"),
    ],
)
def test_only_a_root_that_needs_the_socket_of_another_user_may_pass_over_modes(
    url: str, socket_uid: int, settings: dict[str, object], kept: list[str] | None
) -> None:
    paths = HostPaths("5f2c:/srv/.towline", "host1", socket_uid=socket_uid)
    spec = a_pool(runtime={"docker": {"image": "thumbs:1", **settings}})
    assert spec.containers is not None
    request = SpawnRequest("resize-1", spec, Launch(url, "", "", 60.0).environment("resize-1", spec))
    host = mapping(container_body(request, spec.containers, paths=paths, spawned_at=0.0)["HostConfig"])
    assert host.get("CapAdd") == kept


def test_the_engine_never_starts_it_again_nor_removes_it() -> None:
    host = mapping(made()["HostConfig"])
    assert (host["RestartPolicy"], host["AutoRemove"]) == ({"Name": "no", "MaximumRetryCount": 0}, False)


def test_what_is_secret_is_in_files_and_in_nothing_an_engine_shows() -> None:
    body = made(secrets={"key": "/srv/key.pem"})
    assert "secret" not in environment(body).values()
    assert environment(body)["TOWLINE_TOKEN_FILE"] == "/run/secrets/towline-token"
    assert mounts(body)["/run/secrets/towline-token"] == ("bind", "/srv/.towline/tokens/1", True)
    assert mounts(body)["/run/secrets/key"] == ("bind", "/srv/key.pem", True)


def test_a_url_with_a_password_is_in_a_file() -> None:
    paths = HostPaths("5f2c:/srv/.towline", "host1", url="/srv/.towline/tokens/2")
    body = made(url="redis://me:pass-word@store:6379/0", paths=paths)
    assert "pass-word" not in str(body)
    assert environment(body)["TOWLINE_URL_FILE"] == "/run/secrets/towline-url"
    assert mounts(body)["/run/secrets/towline-url"] == ("bind", "/srv/.towline/tokens/2", True)


def test_the_lock_of_its_supervisor_is_seen_and_nothing_marks_it_as_a_process_of_the_host() -> None:
    body = made()
    assert environment(body)["TOWLINE_SUPERVISOR_LOCK"] == LOCK_TARGET
    assert mounts(body)[LOCK_TARGET] == ("bind", "/srv/.towline/supervisor.lock", True)
    assert "TOWLINE_STATE_DIR" not in environment(body)


def test_on_an_engine_elsewhere_there_is_no_lock_and_no_token_to_be_seen() -> None:
    body = made(paths=HostPaths("5f2c:/srv/.towline", "host1"))
    assert mounts(body) == {}
    assert {"TOWLINE_SUPERVISOR_LOCK", "TOWLINE_TOKEN_FILE", "TOWLINE_TOKEN"}.isdisjoint(environment(body))


def test_labels_tell_whose_it_is_beside_those_of_the_settings() -> None:
    labels = mapping(made(labels={"team": "images"})["Labels"])
    assert labels["team"] == "images"
    assert labels["towline.state"] == "5f2c:/srv/.towline"
    assert (labels["towline.worker"], labels["towline.pool"]) == ("resize-1", "resize")
    assert (labels["towline.spawned_at"], labels["towline.orphan_seconds"]) == ("1700000000.500000", "90")


def test_a_root_that_is_read_only_comes_with_an_empty_tmp_unless_something_is_mounted_there() -> None:
    assert mapping(mapping(made(read_only=True)["HostConfig"])["Tmpfs"]).keys() == {"/tmp"}
    assert "Tmpfs" not in mapping(made(read_only=True, volumes=["scratch:/tmp"])["HostConfig"])


def test_a_stop_gives_a_worker_its_grace() -> None:
    body = made(pool={"grace": 45.5}, stop_signal="SIGINT")
    assert (body["StopSignal"], body["StopTimeout"]) == ("SIGINT", 48)


@pytest.mark.parametrize(
    ("text", "mount"),
    [
        ("/srv/data:/data", ("bind", "/srv/data", False)),
        ("/srv/data:/data:ro", ("bind", "/srv/data", True)),
        ("scratch:/data:rw", ("volume", "scratch", False)),
    ],
)
def test_a_volume_is_a_path_of_the_host_or_has_a_name(text: str, mount: tuple[str, str, bool]) -> None:
    assert mounts(made(volumes=[text]))["/data"] == mount


@pytest.mark.parametrize(
    ("url", "settings", "found"),
    [
        pytest.param("http://10.0.0.5:7878", {}, "http://10.0.0.5:7878", id="as it is"),
        pytest.param("http://127.0.0.1:7878", {"network": "host"}, "http://127.0.0.1:7878", id="the host's network"),
        pytest.param("http://127.0.0.1:1", {"network": "container:db"}, "http://127.0.0.1:1", id="another's network"),
        pytest.param("http://127.0.0.1:1", {"url": "http://queue:7878"}, "http://queue:7878", id="its own"),
        pytest.param("unix:///srv/run/q.sock", {}, "unix:///run/towline/queue/q.sock", id="a socket"),
        pytest.param("memory:", {}, "memory:", id="no server"),
    ],
)
def test_a_container_is_told_a_url_that_it_can_reach(url: str, settings: dict[str, object], found: str) -> None:
    spec = a_pool(runtime={"docker": {"image": "thumbs:1", **settings}})
    assert spec.containers is not None
    assert url_and_mounts(url, spec.containers, pool="resize")[0] == found


@pytest.mark.parametrize(
    "url", ["http://localhost:7878", "http://127.0.0.1:1", "https://[::1]:7878", "http://0.0.0.0:1"]
)
def test_a_loopback_of_the_host_is_refused_with_what_to_do(url: str) -> None:
    with pytest.raises(SpawnError, match=r"pool resize can't reach the queue.*unix:/path.*network: host"):
        made(url=url)


def test_of_a_socket_its_folder_is_seen_as_a_server_makes_another_when_it_is_started_again() -> None:
    assert mounts(made(url="unix:///srv/run/q.sock"))["/run/towline/queue"] == ("bind", "/srv/run", True)


def test_the_hosts_name_is_made_known_only_to_who_asks_for_it() -> None:
    host = mapping(made(url="http://host.docker.internal:7878")["HostConfig"])
    assert host["ExtraHosts"] == ["host.docker.internal:host-gateway"]
    assert "ExtraHosts" not in mapping(made()["HostConfig"])


# -- settings -----------------------------------------------------------------------------------------------------

POOL = {"queue": "thumbs", "app": "tasks:app", "slo": "30s"}


def mistakes_in(settings: object, **others: object) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        parse_pools({"resize": {**POOL, **others, "runtime": settings}})
    return {".".join(map(str, mistake.path[2:])): mistake.message for mistake in raised.value.problems}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"memory": "5MiB"}, {"runtime.docker.memory": "must be at least 6MiB: 5MiB"}),
        ({"cpus": "two"}, {"runtime.docker.cpus": "'two': write a number of processors such as 2 or 0.5"}),
        ({"cpus": 0}, {"runtime.docker.cpus": "must be more than 0: 0"}),
        (
            {"volumes": ["data"]},
            {"runtime.docker.volumes.0": "'data': write SOURCE:/TARGET or SOURCE:/TARGET:ro, as in ./data:/data:ro"},
        ),
        ({"imag": "x"}, {"runtime.docker.imag": "unknown setting, did you mean 'image'?"}),
        ({"pull": "often"}, {"runtime.docker.pull": "must be 'missing', 'always' or 'never': often"}),
        (
            {"labels": {"towline.pool": "x"}},
            {
                "runtime.docker.labels.towline.pool": "towline.pool: labels that begin with towline. are the "
                "supervisor's own; name it otherwise"
            },
        ),
    ],
)
def test_a_mistake_in_a_container_says_what_the_value_and_the_fix(
    settings: dict[str, object], said: dict[str, str]
) -> None:
    assert mistakes_in({"docker": {"image": "thumbs:1", **settings}}) == said


@pytest.mark.parametrize("settings", [{}, {"docker": {"image": "a"}, "swarm": {"image": "a"}}, 7, None])
def test_a_worker_is_one_thing(settings: object) -> None:
    (said,) = mistakes_in(settings).values()
    assert said.endswith(
        "write process, external, {docker: {image: NAME}}, {swarm: {image: NAME}} or {kubernetes: {image: NAME}}"
    )


def test_a_containers_cwd_is_a_path_in_its_image() -> None:
    assert mistakes_in({"docker": {"image": "a"}}, cwd="src") == {
        "cwd": "src: a container's cwd is a path in its image: begin it with /"
    }


def test_another_image_or_limit_is_another_digest_and_scaling_is_not() -> None:
    one = a_pool(runtime={"docker": {"image": "thumbs:1"}})
    assert a_pool(runtime={"docker": {"image": "thumbs:2"}}).digest() != one.digest()
    assert a_pool(runtime={"docker": {"image": "thumbs:1", "memory": "1GiB"}}).digest() != one.digest()
    assert a_pool(runtime={"docker": {"image": "thumbs:1"}}, slo=5.0).digest() == one.digest()
    assert a_pool(runtime="process").digest() == a_pool().digest()


def test_what_a_container_sees_of_the_host_lies_beside_the_file(tmp_path: Path) -> None:
    text = """
    queues: {thumbs: {max_leases: 3}}
    pools:
      resize:
        queue: thumbs
        app: tasks:app
        slo: 30s
        runtime: {docker: {image: a, volumes: ["./in:/in:ro", "named:/x"], secrets: {key: keys/key.pem}}}
    """
    pool = parse(text, name="towline.yaml", directory=tmp_path).pools["resize"]
    assert pool.cwd is None
    assert pool.containers is not None
    assert pool.containers.volumes == (f"{tmp_path}/in:/in:ro", "named:/x")
    assert pool.containers.secrets == {"key": f"{tmp_path}/keys/key.pem"}


def test_a_volume_reads_back_as_it_was_written() -> None:
    for text in ("/a:/b", "/a:/b:ro", "name:/b"):
        assert Volume.parse(text).written() == text


def test_a_socket_in_the_image_is_left_as_it_is() -> None:
    spec = a_pool(runtime={"docker": {"image": "a", "url": "unix:///run/q.sock"}})
    assert spec.containers is not None
    assert url_and_mounts("http://127.0.0.1:1", spec.containers, pool="resize") == ("unix:///run/q.sock", [])
