"""No exported file has a secret of the settings in it, and nobody is given a token with more rights than it needs."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from orchestrator.export.compose import SETTINGS_FILE, compose
from orchestrator.export.crema import crema
from orchestrator.export.helm import helm
from orchestrator.export.keda import keda
from orchestrator.export.request import CloudRunPlace, ExportedFiles, ExportRequest
from orchestrator.export.systemd import systemd
from tests.support.fleet.export_requests import SETTINGS, a_request

VARIABLES = {
    "STRIPE_KEY": "secret-one",
    "DB_PASSWORD": "secret-two",
    "DATABASE_URL": "postgresql://ann:secret-three@db/x",
    "EXTRA": "--password secret-four",
    "CDN": "Zx81secret5Zx81Zx81",
    "LEVEL": "info",
    "REGION": "eu-west-1",
}
SECRET = ["CDN", "DATABASE_URL", "DB_PASSWORD", "EXTRA", "STRIPE_KEY"]
PLACE = CloudRunPlace("my-project", "europe-west1", "https://queue.example")
EXTERNAL = SETTINGS.split("  render:")[0]
ON_CLOUD_RUN = EXTERNAL.replace("sqlite:///queue.db", "postgresql://u@db/x").replace("    grace: 30.5s\n", "")
PLATFORMS: dict[str, tuple[Callable[[ExportRequest], ExportedFiles], str]] = {
    "keda": (keda, EXTERNAL),
    "helm": (helm, EXTERNAL),
    "crema": (crema, ON_CLOUD_RUN),
    "compose": (compose, EXTERNAL),
    "systemd": (systemd, EXTERNAL),
}


def exported(platform: str, text: str = "", **more: Any) -> ExportedFiles:
    export, settings = PLATFORMS[platform]
    return export(a_request(text or settings, env=VARIABLES, cloud_run=PLACE, **more))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_exported_file_has_the_value_of_a_variable_that_may_be_secret(platform: str) -> None:
    files = exported(platform)
    for text in files.files.values():
        assert [part for part in ("secret-", "Zx81secret5") if part in text] == []
    whole = "\n".join(files.files.values())
    assert [name for name in SECRET if name not in whole] == []
    assert "eu-west-1" in whole
    assert [line for line in files.warnings if "pools.resize.env" in line and ", ".join(SECRET) in line]


def test_processes_under_compose_inherit_what_may_be_secret_from_their_supervisor() -> None:
    text = EXTERNAL.replace("runtime: external", "runtime: process")
    files = exported("compose", text)
    assert [one for one in files.files.values() if "secret-" in one or "Zx81secret5" in one] == []
    given = yaml.safe_load(files.files["compose.yaml"])["services"]["towline"]["environment"]
    assert {name: given[name] for name in SECRET} == {
        name: f"${{{name}:?a variable of pool resize}}" for name in SECRET
    }
    kept = yaml.safe_load(files.files[SETTINGS_FILE])["pools"]["resize"]["env"]
    assert sorted(kept) == ["LEVEL", "REGION"]
    assert [line for line in files.warnings if "pools.resize.env" in line and ", ".join(SECRET) in line]


def test_variables_of_containers_that_may_be_secret_are_named() -> None:
    text = EXTERNAL.replace("runtime: external", "runtime: {docker: {image: shop}}")
    (line,) = [line for line in exported("compose", text).warnings if "pools.resize.env" in line]
    assert ", ".join(SECRET) in line
    assert "runtime.docker.secrets" in line


def test_a_command_with_a_secret_is_told() -> None:
    command = EXTERNAL.replace("    app: tasks:app\n", "    command: [/bin/work, --password, hunter2]\n")
    for platform in ("keda", "compose", "systemd"):
        (line,) = [line for line in exported(platform, command).warnings if "pools.resize.command" in line]
        assert "hunter2" not in line


def of_admin_alone(platform: str) -> str:
    text = PLATFORMS[platform][1]
    begin, end = text.index("    - {role: worker"), text.index("queues:")
    return text[:begin] + text[end:]


def test_workers_under_compose_have_a_token_of_their_own_role() -> None:
    files = exported("compose", of_admin_alone("compose"))
    whole = yaml.safe_load(files.files["compose.yaml"])
    assert whole["secrets"]["token-2-worker"] == {"environment": "TOWLINE_WORKER_TOKEN"}
    assert whole["services"]["resize"]["secrets"] == ["token-2-worker"]
    tokens = yaml.safe_load(files.files[SETTINGS_FILE])["server"]["tokens"]
    assert [token["role"] for token in tokens] == ["admin", "worker"]
    assert [line for line in files.warnings if "TOWLINE_WORKER_TOKEN" in line]


def test_a_token_that_is_added_comes_from_where_the_first_one_does() -> None:
    text = of_admin_alone("compose").replace("token_env: TOWLINE_ADMIN", "token_file: secrets/admin.token")
    files = exported("compose", text)
    whole = yaml.safe_load(files.files["compose.yaml"])
    assert whole["secrets"]["token-2-worker"] == {"file": "./secrets/worker.token"}
    assert [line for line in files.warnings if "secrets/worker.token" in line]
    assert "Needs Compose 2.24" not in files.files["compose.yaml"]


def test_the_scaler_asks_with_a_viewers_token_and_workers_with_theirs() -> None:
    objects = list(yaml.safe_load_all(exported("keda", of_admin_alone("keda")).files["towline-keda.yaml"]))
    (scaler,) = [one for one in objects if one["kind"] == "TriggerAuthentication"]
    assert [one["key"] for one in scaler["spec"]["secretTargetRef"]] == ["token-3-viewer"]
    (worker,) = [one for one in objects if one["kind"] == "Deployment"]
    assert "token-2-worker" in str(worker)
    assert "token-1-admin" not in str(worker)
    cloud = exported("crema", of_admin_alone("crema")).files
    assert "towline-token-3-viewer" in cloud["crema.yaml"]
    assert "towline-token-2-worker" in cloud["pool-resize.yaml"]


def test_variables_of_a_pod_come_from_a_secret_of_its_pool() -> None:
    text = exported("keda").files["towline-keda.yaml"]
    (worker,) = [one for one in yaml.safe_load_all(text) if one["kind"] == "Deployment"]
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one}
    assert given == {name: {"name": "towline-resize-env", "key": name} for name in SECRET}
    assert "kubectl create secret generic towline-resize-env" in text
    assert '--from-literal=STRIPE_KEY="$STRIPE_KEY"' in text
