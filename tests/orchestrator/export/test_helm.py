"""A chart for Helm: its defaults give the manifests, its values reach where they belong, no text is a template."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from orchestrator.export.helm import helm
from orchestrator.export.incluster import kubernetes
from orchestrator.export.keda import keda
from orchestrator.export.request import ExportRefusedError, ExportRequest
from tests.orchestrator.export.test_incluster import PODS
from tests.support.fleet.export_requests import HOSTILE, SETTINGS, a_request
from tests.support.helm_charts import ChartRefusedError, NoHelmError, objects, rendered

TEMPLATES = {
    "ACTION": "{{ .Values.server.image }}",
    "TRIMMED": "a {{- 1 -}} b",
    "BRACES": "{{{ }}} {{",
    "WORD": "towline-value-0000",
    "COMMENT": "{{/* none */}}",
}
SECRETIVE = SETTINGS.replace("pull: never}", "pull: never, secrets: {key: ./key}}")


def written(request: ExportRequest, folder: Path) -> Path:
    """The chart in a folder."""
    for name, text in helm(request).files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def made(chart: Path, values: Mapping[str, object] | None = None, *, namespace: str = "work") -> dict[str, str]:
    """The templates as Helm renders them."""
    try:
        return rendered(chart, namespace=namespace, values=values)
    except NoHelmError as error:
        pytest.skip(str(error))


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda one: (one["kind"], one["metadata"]["name"]))


def one(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (match,) = [o for o in found if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return match


@pytest.mark.parametrize("text", [SETTINGS, SECRETIVE], ids=["plain", "with a pool's own secrets"])
def test_with_its_defaults_a_chart_is_the_manifests(text: str, tmp_path: Path) -> None:
    request = a_request(text, env={**HOSTILE, **TEMPLATES}, namespace="work", server_image="towline:9")
    (plain,) = keda(request).files.values()
    found = objects(made(written(replace(request, namespace="default"), tmp_path)))
    assert in_order(found) == in_order(list(yaml.safe_load_all(plain)))


def test_its_values_reach_where_they_belong(tmp_path: Path) -> None:
    resources = {"limits": {"cpu": "2"}}
    values = {
        "secrets": "other",
        "server": {"image": "server:2", "storage": "1Gi", "resources": {}},
        "pools": {"resize": {"image": "thumbs:2", "min": 2, "max": 30, "resources": resources}},
    }
    found = objects(made(written(a_request(), tmp_path), values))
    stateful = one(found, "StatefulSet", "towline")["spec"]
    assert stateful["template"]["spec"]["containers"][0]["image"] == "server:2"
    assert stateful["volumeClaimTemplates"][0]["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
    pod = one(found, "Deployment", "towline-resize")["spec"]["template"]["spec"]
    assert (pod["containers"][0]["image"], pod["containers"][0]["resources"]) == ("thumbs:2", resources)
    assert [volume["secret"]["secretName"] for volume in pod["volumes"]] == ["other"]
    scaled = one(found, "ScaledObject", "towline-resize")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, 30)
    rules = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert {rules[side]["policies"][0]["value"] for side in ("scaleUp", "scaleDown")} == {30}
    (target,) = one(found, "TriggerAuthentication", "towline")["spec"]["secretTargetRef"]
    assert target["name"] == "other"
    assert "towline-secrets" not in json.dumps(found)


def test_the_notes_name_the_secrets_and_the_namespace(tmp_path: Path) -> None:
    files = made(written(a_request(SECRETIVE), tmp_path))
    notes = "\n".join(text for path, text in files.items() if path.endswith("NOTES.txt"))
    if not notes:
        pytest.skip("`helm template` prints no notes")
    assert 'token-1-admin="$TOWLINE_ADMIN"' in notes
    assert "kubectl create secret generic towline-render-secrets --namespace work" in notes


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"pools": {"resise": {"image": "a"}}}, id="a pool's name"),
        pytest.param({"pools": {"resize": {"max": 0}}}, id="no worker ever"),
        pytest.param({"server": {"image": ""}}, id="no image"),
    ],
)
def test_a_value_that_means_nothing_is_refused(values: Mapping[str, object], tmp_path: Path) -> None:
    with pytest.raises(ChartRefusedError, match=r"values|schema"):
        made(written(a_request(), tmp_path), values)


def test_a_chart_has_its_own_version_and_a_schema_that_its_defaults_keep() -> None:
    files = helm(a_request(version="1.2.3.dev4")).files
    chart = yaml.safe_load(files["Chart.yaml"])
    assert (chart["apiVersion"], chart["version"], chart["appVersion"]) == ("v2", "1.2.3", "1.2.3.dev4")
    jsonschema_rs.validate(json.loads(files["values.schema.json"]), yaml.safe_load(files["values.yaml"]))


def test_what_a_cluster_can_not_have_is_refused_as_in_manifests() -> None:
    with pytest.raises(ExportRefusedError, match="which image"):
        helm(a_request(SETTINGS.replace("runtime: external", "runtime: process"), images={}))


def test_the_chart_of_pods_is_the_manifests_in_the_releases_namespace(tmp_path: Path) -> None:
    request = a_request(PODS, env={**HOSTILE, **TEMPLATES}, namespace="work", server_image="towline:9")
    (plain,) = kubernetes(request).files.values()
    found = objects(made(written(replace(request, namespace="default"), tmp_path)))
    expected = [each for each in yaml.safe_load_all(plain) if each["kind"] != "Namespace"]
    for each in (*found, *expected):
        if each["metadata"]["name"] == "towline-settings":  # Helm quotes the images
            each["data"] = yaml.safe_load(each["data"]["towline.yaml"])
    assert in_order(found) == in_order(expected)


def test_values_of_the_chart_of_pods_reach_where_they_belong(tmp_path: Path) -> None:
    values = {
        "secrets": "other",
        "workerSecret": "other-worker",
        "server": {"image": "server:2", "resources": {}},
        "pools": {"resize": {"image": "thumbs:2"}},
    }
    found = objects(made(written(a_request(PODS), tmp_path), values))
    pod = one(found, "Deployment", "towline")["spec"]["template"]["spec"]
    assert (pod["containers"][0]["image"], pod["containers"][0]["resources"]) == ("server:2", {})
    (volume,) = [each for each in pod["volumes"] if each["name"] == "secrets"]
    assert [each["secret"]["name"] for each in volume["projected"]["sources"]] == ["other", "other-worker"]
    settings = yaml.safe_load(one(found, "ConfigMap", "towline-settings")["data"]["towline.yaml"])
    assert settings["pools"]["resize"]["runtime"]["kubernetes"]["image"] == "thumbs:2"
