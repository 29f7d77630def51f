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
    assert {k: interpolated(v) for k, v in worker["environment"].items()}.items() >= HOSTILE.items()
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


def test_processes_in_the_container_of_the_supervisor_are_told() -> None:
    told = compose(a_request(SETTINGS.replace("runtime: external", "runtime: process"))).warnings
    assert any("their code must be in its image" in line for line in told)
