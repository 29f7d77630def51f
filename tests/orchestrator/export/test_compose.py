"""Pools by Compose: what is written is valid there, no value breaks out of it, and what can't be is refused."""

from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from orchestrator.export.compose import SETTINGS_FILE, compose
from orchestrator.export.keda import keda
from orchestrator.export.request import ExportRefusedError
from orchestrator.settings_file import parse
from tests.support.fleet.export_requests import HOSTILE, SETTINGS, a_request
from tests.support.platform_schemas import COMPOSE


def interpolated(text: str) -> str:
    """As Compose reads a value; a variable that is left in it is a mistake here."""
    assert "$" not in text.replace("$$", "")
    return text.replace("$$", "$")


def test_a_compose_file_is_one_that_compose_takes() -> None:
    whole = yaml.safe_load(compose(a_request()).files["compose.yaml"])
    jsonschema_rs.validate(COMPOSE, whole)
    assert set(whole["services"]) == {"towline", "resize"}
    assert set(whole["secrets"]) == {"token-1-admin", "token-2-worker", "token-3-viewer"}
    worker = whole["services"]["resize"]
    told = {k: interpolated(v) for k, v in worker["environment"].items()}
    assert told["TOWLINE_TAGS"] == '["resize", "12:30", "yes"]'
    assert not told.keys() & HOSTILE.keys()
    assert worker["env_file"] == ["resize.env"]
    assert worker["image"] == "thumbs:1"
    assert worker["stop_grace_period"] == "36s"


def test_the_settings_beside_a_compose_file_are_right() -> None:
    text = compose(a_request()).files[SETTINGS_FILE]
    project = parse(text, name=SETTINGS_FILE, directory=Path("/app"))
    docker = project.pools["render"].runtime.docker
    assert docker is not None
    assert (docker.url, docker.network, docker.image) == ("http://towline:7878", "towline", "render:2")
    assert project.pools["resize"].runtime_kind == "external"


def test_a_worker_that_is_exported_is_not_forked_and_that_is_told() -> None:
    forked = SETTINGS.replace("    app: tasks:app\n    runtime: external\n", "    app: tasks:app\n    start: fork\n")
    exported = keda(a_request(forked))
    assert [line for line in exported.warnings if "pools.resize.start" in line and "none is forked" in line]
    (text,) = [text for text in exported.files.values() if "pools:" in text]
    assert "start: fork" not in text
    inside = compose(a_request(forked))
    assert not [line for line in inside.warnings if "none is forked" in line]
    assert parse(inside.files[SETTINGS_FILE], name="f", directory=Path("/app")).pools["resize"].start == "fork"


def test_the_head_of_a_compose_file_tells_how_its_settings_are_read_again() -> None:
    text = compose(a_request()).files["compose.yaml"]
    (line,) = [line for line in text.splitlines() if line.endswith("towline reload")]
    assert line.split() == ["#", "docker", "compose", "exec", "towline", "towline", "reload"]


@pytest.mark.parametrize(
    ("runtime", "told"),
    [("{swarm: {image: a}}", "does not run swarm services"), ("external", "which image?")],
)
def test_what_compose_can_not_run_is_refused(runtime: str, told: str) -> None:
    with pytest.raises(ExportRefusedError, match=told):
        compose(a_request(SETTINGS.replace("runtime: external", f"runtime: {runtime}"), images={}))


def test_a_pool_named_as_the_queues_service_is_refused() -> None:
    with pytest.raises(ExportRefusedError, match="give the pool another name"):
        compose(a_request(SETTINGS.replace("  resize:", "  towline:"), images={"": "a"}))


def of_containers(*pools: str, tokens: str = "token_env: TOWLINE_ADMIN") -> str:
    """Settings of these containers' settings, each a pool's, named p0, p1, ..."""
    named = "".join(
        f"  p{number}: {{queue: q, app: 'tasks:app', slo: 5s, runtime: {{docker: {{image: a, {more}}}}}}}\n"
        for number, more in enumerate(pools)
    )
    return f"server: {{tokens: [{{role: admin, {tokens}}}]}}\nqueues: {{q: {{}}}}\npools:\n{named}"


def exported_volumes(*pools: str) -> list[object]:
    whole = yaml.safe_load(compose(a_request(of_containers(*pools))).files["compose.yaml"])
    jsonschema_rs.validate(COMPOSE, whole)
    return [volume for volume in whole["services"]["towline"]["volumes"] if isinstance(volume, dict)]


@pytest.mark.parametrize(
    ("engines", "mounted"),
    [
        ([""], [("${DOCKER_SOCKET:-/var/run/docker.sock}", "/var/run/docker.sock")]),
        (['engine: "unix:///run/user/1000/docker.sock"'] * 2, [("/run/user/1000/docker.sock",) * 2]),
        (['engine: "unix:///srv/a $b.sock"'], [("/srv/a $$b.sock",) * 2]),
        (['engine: "tcp://engine:2375", url: "http://queue:7878"'], []),
    ],
)
def test_the_socket_of_each_engine_is_mounted_where_the_settings_look_for_it(
    engines: list[str], mounted: list[tuple[str, str]]
) -> None:
    assert exported_volumes(*engines) == [
        {"type": "bind", "source": source, "target": target} for source, target in mounted
    ]


def test_two_names_of_the_usual_socket_are_one_engine() -> None:
    assert len(exported_volumes("", 'engine: "unix:///run/docker.sock"')) == 2


@pytest.mark.parametrize(
    ("pools", "told"),
    [
        (
            ["", 'engine: "unix:///srv/b.sock"'],
            r"pools\.p1\.runtime\.docker\.engine: another engine than that of pool p0",
        ),
        (['engine: "ssh://ann@host"'], "no ssh and no keys"),
        (['engine: "tcp://127.0.0.1:2375"'], "127.0.0.1 is the supervisor's own container"),
        (['engine: "tcp://engine:2375"'], "does not know towline, the service of the queue: give the pool the url"),
        (["network: none"], "none: the queue is not on this network"),
        (["network: backend"], "backend: the queue is not on this network"),
    ],
)
def test_containers_that_compose_would_not_start_are_refused(pools: list[str], told: str) -> None:
    with pytest.raises(ExportRefusedError, match=told):
        compose(a_request(of_containers(*pools)))


@pytest.mark.parametrize(
    ("pool", "url", "network"),
    [
        ("", "http://towline:7878", "towline"),
        ("network: host", "http://127.0.0.1:7878", "host"),
        ('network: backend, url: "http://queue:1"', "http://queue:1", "backend"),
        ('engine: "tcp://engine:2375", url: "http://queue:1"', "http://queue:1", None),
    ],
)
def test_a_container_is_told_where_it_finds_the_queue(pool: str, url: str, network: str | None) -> None:
    text = compose(a_request(of_containers(pool))).files[SETTINGS_FILE]
    docker = parse(text, name=SETTINGS_FILE, directory=Path("/app")).pools["p0"].runtime.docker
    assert docker is not None
    assert (docker.url, docker.network) == (url, network)


def test_an_engine_elsewhere_is_told_to_get_no_token() -> None:
    pool = 'engine: "tcp://engine:2375", url: "http://queue:1"'
    assert [line for line in compose(a_request(of_containers(pool))).warnings if "is given no token" in line]


def test_the_head_says_what_it_needs_of_the_engine_and_of_compose() -> None:
    environment = compose(a_request(of_containers(""))).files["compose.yaml"].split("services:")[0]
    assert "echo DOCKER_GROUP=$(stat -c %g /var/run/docker.sock) >> .env" in environment
    assert "Needs Compose 2.24" in environment
    files = compose(a_request(of_containers("", tokens="token_file: a"))).files["compose.yaml"].split("services:")[0]
    assert "Needs Compose 2.24" not in files


def test_processes_in_the_container_of_the_supervisor_are_told() -> None:
    told = compose(a_request(SETTINGS.replace("runtime: external", "runtime: process"))).warnings
    assert any("their code must be in its image" in line for line in told)


def test_workers_of_celerys_are_exported_with_their_command_and_their_way_to_stop() -> None:
    celery = SETTINGS.replace('    queue: thumbs\n    tags: [resize, "12:30", "yes"]\n    app: tasks:app\n', CELERY)
    worker = yaml.safe_load(compose(a_request(celery)).files["compose.yaml"])["services"]["resize"]
    command = [interpolated(word) for word in worker["command"]]
    assert command[:8] == ["python3", "-m", "queue_core.kombu.worker", "-A", "proj", "worker", "-Q", "thumbs,a_b"]
    assert command[-1] == "worker.soft_shutdown_timeout=25.5"
    assert (worker["environment"]["REMAP_SIGTERM"], worker["init"]) == ("SIGQUIT", True)
    assert worker["stop_grace_period"] == "36s"


CELERY = "    celery: {app: proj, queues: [thumbs, a_b]}\n"
