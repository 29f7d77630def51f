"""A pool's settings become the service that its workers are tasks of."""

import pytest

from orchestrator.base.errors import SpawnError
from orchestrator.config.pools import PoolSpec
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.swarm.service import ServiceBody, literal, service_body
from tests.support.fleet.fleet_builders import a_pool

SWARM = {"image": "thumbs:1"}


def a_request(pool: PoolSpec, *, url: str = "http://queue:7878", token: str | None = None) -> SpawnRequest:
    launch = Launch(url, "/srv/.towline", "/srv/.towline/supervisor.lock", 60.0, token=token)
    return SpawnRequest("resize-1", pool, launch.environment("resize-1", pool))


def body_of(pool: PoolSpec, *, url: str, token: str | None = None, state: str = "s") -> ServiceBody:
    settings = pool.runtime.swarm
    assert settings is not None
    return service_body(a_request(pool, url=url, token=token), settings, state=state)


def a_body(
    *, url: str = "http://queue:7878", token: str | None = None, state: str = "s", **settings: object
) -> ServiceBody:
    swarm = settings.pop("swarm", SWARM)
    pool = a_pool(runtime={"swarm": swarm}, **settings)
    return body_of(pool, url=url, token=token, state=state)


def container(body: ServiceBody) -> dict[str, object]:
    found = body.task_template["ContainerSpec"]
    assert isinstance(found, dict)
    return found


def variables(body: ServiceBody) -> dict[str, str]:
    told = container(body)["Env"]
    assert isinstance(told, list)
    return dict(entry.split("=", 1) for entry in told)


def test_a_pool_without_more_is_an_image_that_swarm_never_starts_again() -> None:
    body = a_body(grace="30s")
    assert body.task_template["RestartPolicy"] == {"Condition": "none"}
    assert body.task_template["Resources"] == {"Limits": {"Pids": 4096}}
    assert body.task_template["Placement"] == {"Constraints": []}
    assert "Networks" not in body.task_template
    assert container(body)["Image"] == "thumbs:1"
    assert container(body)["Command"] == ["python3", "-m", "queue_core.worker"]
    assert container(body)["StopGracePeriod"] == 32 * 10**9
    assert container(body)["StopSignal"] == "SIGTERM"


def test_a_worker_has_none_of_roots_capabilities_and_gains_none() -> None:
    assert container(a_body())["CapabilityDrop"] == ["ALL"]
    assert container(a_body())["Privileges"] == {"NoNewPrivileges": True}


def test_a_service_is_found_again_by_its_labels() -> None:
    body = a_body(state="5f2c9a1b:/srv/.towline", swarm={**SWARM, "labels": {"team": "images"}})
    assert body.labels == {
        "team": "images",
        "towline.state": "5f2c9a1b:/srv/.towline",
        "towline.pool": "resize",
        "towline.spec": variables(body)["TOWLINE_SPEC"],
        "towline.service": body.digest,
    }
    # A container that had our state's label would be taken for one of the engine's own.
    assert container(body)["Labels"] == {
        "team": "images",
        "towline.pool": "resize",
        "towline.spec": variables(body)["TOWLINE_SPEC"],
    }


def test_a_worker_is_told_who_it_is_by_swarm() -> None:
    assert variables(a_body())["TOWLINE_WORKER"] == "resize.{{.Task.Slot}}.{{.Task.ID}}"


def test_a_worker_is_told_nothing_of_the_supervisors_host() -> None:
    told = variables(a_body(token="secret", env={"COLOUR": "blue"}))
    assert told.keys().isdisjoint({"TOWLINE_SUPERVISOR_LOCK", "TOWLINE_STATE_DIR", "TOWLINE_TOKEN", "PATH"})
    assert told["COLOUR"] == "blue"
    assert told["TOWLINE_URL"] == "http://queue:7878"


def test_a_token_goes_as_a_secret_and_is_named_by_its_digest() -> None:
    body = a_body(token="secret")
    (secret,) = body.secrets
    assert (secret.file, secret.data) == ("towline-token", "secret")
    assert "secret" not in repr(body).replace("secrets", "").replace("Secret", "")
    assert variables(body)["TOWLINE_TOKEN_FILE"] == "/run/secrets/towline-token"
    assert a_body(token="another").digest != body.digest


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain", "plain"),
        ("{{.Node.ID}}", '{{"{{"}}.Node.ID}}'),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ("{{{", '{{"{{"}}{'),
    ],
)
def test_braces_in_a_value_are_not_taken_for_a_template(text: str, written: str) -> None:
    assert literal(text) == written
    assert variables(a_body(env={"TEXT": text}))["TEXT"] == written


def test_a_workers_name_in_a_value_is_the_one_that_swarm_gives_it() -> None:
    body = a_body(app=None, command=["run", "{pool}"], env={"A": "{{x}}-{worker}", "B": "{pool}"})
    assert container(body)["Command"] == ["run", "resize"]
    assert variables(body)["A"] == '{{"{{"}}x}}-' + variables(body)["TOWLINE_WORKER"]
    assert variables(body)["B"] == "resize"


def test_every_setting_of_a_container_reaches_swarm() -> None:
    body = a_body(
        app=None,
        command=["python", "commands/work.py"],
        cwd="/work",
        swarm={
            **SWARM,
            "memory": "64MiB",
            "cpus": 0.5,
            "network": "backend",
            "volumes": ["/srv/data:/data:ro", "cache:/cache"],
            "secrets": {"key": "thumbs-key"},
            "user": "1000:1000",
            "read_only": True,
            "init": False,
            "stop_signal": "SIGINT",
            "constraints": ["node.labels.disk==ssd"],
            "url": "https://queue.internal:7878",
        },
    )
    made = container(body)
    limits = {"MemoryBytes": 64 * 2**20, "NanoCPUs": 500_000_000, "Pids": 4096}
    assert body.task_template["Resources"] == {"Limits": limits}
    assert body.task_template["Networks"] == [{"Target": "backend"}]
    assert body.task_template["Placement"] == {"Constraints": ["node.labels.disk==ssd"]}
    assert made["Mounts"] == [
        {"Type": "bind", "Source": "/srv/data", "Target": "/data", "ReadOnly": True},
        {"Type": "volume", "Source": "cache", "Target": "/cache", "ReadOnly": False},
        {"Type": "tmpfs", "Target": "/tmp"},
    ]
    assert (made["User"], made["Dir"], made["ReadOnly"], made["Init"]) == ("1000:1000", "/work", True, False)
    assert (made["Command"], made["StopSignal"]) == (["python", "commands/work.py"], "SIGINT")
    assert [(secret.name, secret.file, secret.data) for secret in body.secrets] == [("thumbs-key", "key", None)]
    assert variables(body)["TOWLINE_URL"] == "https://queue.internal:7878"


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"url": "http://elsewhere:7878"}, id="another queue"),
        pytest.param({"env": {"COLOUR": "blue"}}, id="another variable"),
        pytest.param({"swarm": {"image": "thumbs:2"}}, id="another image"),
        pytest.param({"grace": "31s"}, id="another grace"),
        pytest.param({"swarm": {**SWARM, "secrets": {"key": "thumbs-key"}}}, id="another secret"),
    ],
)
def test_workers_that_are_told_something_else_are_of_another_service(changed: dict[str, object]) -> None:
    assert a_body(**changed).digest != a_body().digest  # type: ignore[arg-type]
    assert a_body(**changed).name(1) != a_body().name(1)  # type: ignore[arg-type]


def test_bounds_and_slo_change_no_service() -> None:
    assert a_body(slo="1s", workers={"max": 5}) == a_body()


def test_two_state_directories_never_share_a_service() -> None:
    assert a_body(state="one").name(1) != a_body(state="two").name(1)


def test_a_name_fits_swarm_whatever_the_pool_is_called() -> None:
    pool = a_pool(name="a" * 23 + "-" + "b" * 39, runtime={"swarm": SWARM})
    body = body_of(pool, url="http://queue:7878")
    assert body.name(1) == f"towline-{body.stem.split('-')[1]}-{'a' * 23}-{body.digest}"
    assert len(body.name(99)) <= 63


def test_a_queue_that_no_container_could_reach_is_refused() -> None:
    with pytest.raises(SpawnError, match="its own loopback"):
        a_body(url="http://127.0.0.1:7878")
    assert a_body(url="http://127.0.0.1:7878", swarm={**SWARM, "network": "host"})
