"""Pools on Cloud Run: valid there and for CREMA; a worker ends in time; what can not be is refused with its place."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from orchestrator.export.crema import crema, flaws_of
from orchestrator.export.request import CloudRunPlace, ExportRefusedError, ExportRequest
from orchestrator.settings_file import parse
from tests.support.cloud_run_schemas import CREMA, cloud_run, crema_problems
from tests.support.commands import Commands
from tests.support.fleet.export_requests import HOSTILE, SETTINGS, a_request

SHARED = SETTINGS.replace(
    "store: sqlite:///queue.db", "store: {url: postgresql://towline@db/towline, password_env: DB_PASSWORD}"
)
PLACE = CloudRunPlace("my-project", "europe-west1", "https://towline-abc.run.app")


def a_cloud_request(text: str = SHARED, place: CloudRunPlace = PLACE) -> ExportRequest:
    return a_request(text, cloud_run=place, server_image="towline:9")


def written(request: ExportRequest) -> dict[str, Any]:
    """The files as values."""
    return {name: yaml.safe_load(text) for name, text in crema(request).files.items()}


def test_cloud_run_takes_the_service_and_every_pool() -> None:
    files = written(a_cloud_request())
    jsonschema_rs.validate(cloud_run("Service"), files["server.yaml"])
    for name in ("resize", "render"):
        pool = files[f"pool-{name}.yaml"]
        jsonschema_rs.validate(cloud_run("WorkerPool"), pool)
        assert (pool["apiVersion"], pool["kind"]) == ("run.googleapis.com/v1", "WorkerPool")


def test_the_schemas_refuse_what_is_unknown_there() -> None:
    files = written(a_cloud_request())
    files["pool-resize.yaml"]["spec"]["replicas"] = 3
    files["crema.yaml"]["spec"]["scaledObjects"][0]["metadata"] = {"name": "resize"}
    files["crema.yaml"]["spec"]["scaledObjects"][0]["spec"]["pollingInterval"] = 5
    for schema, name in ((cloud_run("WorkerPool"), "pool-resize.yaml"), (CREMA, "crema.yaml")):
        with pytest.raises(jsonschema_rs.ValidationError):
            jsonschema_rs.validate(schema, files[name])


def test_crema_follows_the_supervisors_number_of_each_pool() -> None:
    config = written(a_cloud_request())["crema.yaml"]
    jsonschema_rs.validate(CREMA, config)
    assert list(crema_problems(config)) == []
    resize, _ = (one["spec"] for one in config["spec"]["scaledObjects"])
    assert resize["scaleTargetRef"]["name"] == "projects/my-project/locations/europe-west1/workerpools/towline-resize"
    assert (resize["minReplicaCount"], resize["maxReplicaCount"]) == (0, 20)
    (trigger,) = resize["triggers"]
    assert trigger["metadata"]["url"] == "https://towline-abc.run.app/v1/pools/resize/stats"
    assert trigger["metadata"]["valueLocation"] == "desired_workers"
    # It carries the bounds over only beside a behaviour, and would wait 300 s before it scales down without ours.
    behavior = resize["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert {behavior[side]["stabilizationWindowSeconds"] for side in ("scaleUp", "scaleDown")} == {0}
    (authentication,) = config["spec"]["triggerAuthentications"]
    (secret,) = authentication["spec"]["gcpSecretManager"]["secrets"]
    assert secret == {"parameter": "token", "id": "towline-token-3-viewer", "version": "latest"}


def test_the_settings_and_the_service_speak_of_the_same_secrets() -> None:
    files = crema(a_cloud_request()).files
    project = parse(files["towline.yaml"], name="towline.yaml", directory=Path("/etc/towline"))
    store = project.queue_file.store
    read = {store.password_env, *(token.token_env for token in project.queue_file.server.tokens)}
    (container,) = yaml.safe_load(files["server.yaml"])["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"]}
    assert set(given) == read
    assert given["TOWLINE_TOKEN_2_WORKER"] == {"name": "towline-token-2-worker", "key": "latest"}
    assert project.queue_file.server.tokens[1].email == "worker@example.com"
    assert {pool.runtime_kind for pool in project.pools.values()} == {"external"}


def test_a_log_file_is_left_out_since_it_would_fill_the_memory() -> None:
    exported = crema(a_cloud_request(f"log: events.jsonl\n{SHARED}"))
    assert "log" not in yaml.safe_load(exported.files["towline.yaml"])
    assert [one for one in exported.warnings if "log: is not exported" in one]


def test_a_worker_gives_back_its_tasks_before_cloud_run_kills_it() -> None:
    text = SHARED.replace("slo: 5s", "slo: 5s\n    grace: 3s")
    exported = crema(a_cloud_request(text))
    grace = {}
    for name in ("resize", "render"):
        (container,) = yaml.safe_load(exported.files[f"pool-{name}.yaml"])["spec"]["template"]["spec"]["containers"]
        grace[name] = {one["name"]: one.get("value") for one in container["env"]}["TOWLINE_GRACE_SECONDS"]
    assert grace == {"resize": "8", "render": "3"}
    assert [one for one in exported.warnings if "pools.resize.grace: 30.5 s are 8 s here" in one]
    assert not [one for one in exported.warnings if "pools.render.grace" in one]


def test_a_worker_is_told_all_as_it_was_written_since_cloud_run_expands_nothing() -> None:
    files = written(a_cloud_request())
    (container,) = files["pool-resize.yaml"]["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    told = {"TOWLINE_POOL": "resize", "TOWLINE_URL": PLACE.server_url, "TOWLINE_APP": "tasks:app"}
    assert environment.items() >= told.items()
    values = crema(a_cloud_request()).private
    assert {name: values[f"variables/resize/{name}"] for name in HOSTILE} == HOSTILE
    assert [name for name in HOSTILE if environment[name]["secretKeyRef"]["name"] != f"towline-resize-{name}"] == []
    assert environment["TOWLINE_TOKEN"] == {"secretKeyRef": {"name": "towline-token-2-worker", "key": "latest"}}
    (render,) = files["pool-render.yaml"]["spec"]["template"]["spec"]["containers"]
    assert render["command"] == ["/usr/bin/env", "--do=$HOME %i 'x'", "two\nlines"]
    assert render["resources"]["limits"] == {"cpu": "1", "memory": "512Mi"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param(SETTINGS, "store: sqlite: an instance on Cloud Run loses its disk", id="a file"),
        pytest.param(SHARED.replace("  resize:", "  resize-:", 1), "no name on Cloud Run", id="no name"),
        pytest.param(SHARED.replace("runtime: external", "runtime: process", 1), "which image?", id="no image"),
        pytest.param("queues: {thumbs: {}}", "no pools to scale", id="no pools"),
    ],
)
def test_what_cloud_run_can_not_have_is_refused_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ExportRefusedError) as refused:
        crema(a_request(text, cloud_run=PLACE, images={}))
    assert any(told in line for line in refused.value.lines), refused.value.lines
    assert all(line.startswith("towline.yaml:") for line in refused.value.lines)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        pytest.param(CloudRunPlace(), ["--project", "--region", "--server-url"], id="nothing"),
        pytest.param(replace(PLACE, project="My Project"), ["--project"], id="a title"),
        pytest.param(replace(PLACE, region="Belgium"), ["--region"], id="a country"),
        pytest.param(replace(PLACE, server_url="http://queue"), ["--server-url"], id="not encrypted"),
        pytest.param(PLACE, [], id="all"),
    ],
)
def test_a_place_that_can_not_be_meant_is_told_by_option(place: CloudRunPlace, told: list[str]) -> None:
    assert [flaw.partition(":")[0] for flaw in flaws_of(place)] == told


def test_the_command_asks_for_the_place_before_it_reads_anything(towline: Commands) -> None:
    told = towline("export", "--to", "crema", "-f", "missing.yaml", "--region", "europe-west1")
    assert told.code == 2
    assert "--project" in told.err
    assert "--region" not in told.err.replace("Usage:", "")


def test_the_command_writes_all_files_and_the_way_to_use_them(towline: Commands) -> None:
    (towline.folder / "towline.yaml").write_text(SHARED)
    place = ("--project", "my-project", "--region", "europe-west1", "--server-url", PLACE.server_url)
    told = towline("export", "--to", "crema", "--image", "resize=thumbs:1", *place, "--json")
    assert told.code == 0, told.err
    assert isinstance(told.json, dict)
    files = told.json["files"]
    assert list(files) == ["towline.yaml", "server.yaml", "pool-resize.yaml", "pool-render.yaml", "crema.yaml"]
    head = files["server.yaml"].partition("apiVersion")[0]
    assert 'printf %s "$DB_PASSWORD" | gcloud secrets create' in head
    assert all(name in head for name in files)
    assert json.dumps(files).count("thumbs:1") == 1
