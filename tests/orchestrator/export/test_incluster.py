"""Manifests in which the supervisor starts and stops its workers' Pods: objects a cluster takes, and few rights."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config.kubernetes import WORKER_SECRET
from orchestrator.export.incluster import VARIABLES_FILE, kubernetes
from orchestrator.export.request import ExportedFiles, ExportRefusedError
from orchestrator.runtimes.kubernetes.body import ANCHOR
from orchestrator.settings_file import parse
from tests.support.fleet.export_requests import SETTINGS, a_request

KUBERNETES = "1.31"
PODS = """\
store: {url: "postgresql://towline@db.example/towline", password_env: DB_PASSWORD}
server:
  tokens:
    - {role: admin, token_env: TOWLINE_ADMIN}
    - {role: worker, token_env: TOWLINE_WORKER}
queues:
  thumbs: {lease: 30s}
pools:
  resize:
    queue: thumbs
    app: tasks:app
    slo: 30s
    workers: {min: 0, max: 200}
    runtime:
      kubernetes:
        image: registry.example/thumbs:1.4.2
        memory: 512MiB
        service_account: thumbs
        max_pending: 50
        template: {spec: {containers: [{name: worker, volumeMounts: [{name: scratch, mountPath: /scratch}]}],
                          volumes: [{name: scratch, emptyDir: {}}]}}
"""
FILE_STORE = PODS.replace(
    '{url: "postgresql://towline@db.example/towline", password_env: DB_PASSWORD}', "sqlite:///q.db"
)


def manifests(exported: ExportedFiles) -> list[dict[str, Any]]:
    (text,) = exported.files.values()
    return list(yaml.safe_load_all(text))


def one(objects: list[dict[str, Any]], kind: str, name: str = "towline") -> dict[str, Any]:
    (match,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return match


def made(text: str = PODS, **more: Any) -> list[dict[str, Any]]:
    return manifests(kubernetes(a_request(text, namespace="work", **more)))


def settings_in(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found = yaml.safe_load(one(objects, "ConfigMap", "towline-settings")["data"]["towline.yaml"])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("text", [PODS, FILE_STORE, SETTINGS], ids=["pods", "a file", "of containers"])
def test_every_object_is_one_that_kubernetes_takes(text: str) -> None:
    import kubernetes_validate  # type: ignore[import-untyped]  # takes over a second, in each process that collects

    exported = kubernetes(a_request(text, images={"": "thumbs:1", "resize": "thumbs:2"}))
    for each in [*manifests(exported), *yaml.safe_load_all(exported.private[VARIABLES_FILE])]:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_the_supervisor_has_these_rights_in_its_own_namespace_and_no_others() -> None:
    objects = made()
    assert one(objects, "Role")["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "watch", "delete"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [ANCHOR], "verbs": ["get"]},
    ]
    assert [o["kind"] for o in objects if o["kind"].startswith("ClusterRole")] == []
    assert one(objects, "RoleBinding")["subjects"] == [
        {"kind": "ServiceAccount", "name": "towline", "namespace": "work"}
    ]
    space = one(objects, "Namespace", "work")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_admission_policy_names_the_workers_service_accounts() -> None:
    objects = made()
    policy = one(objects, "ValidatingAdmissionPolicy", "towline-work")["spec"]
    assert policy["matchConditions"][0]["expression"].endswith("== 'system:serviceaccount:work:towline'")
    assert any("['thumbs']" in rule["expression"] for rule in policy["validations"])
    binding = one(objects, "ValidatingAdmissionPolicyBinding", "towline-work")["spec"]
    assert binding == {"policyName": "towline-work", "validationActions": ["Deny"]}


def test_a_shared_store_has_two_replicas_that_roll_and_a_budget() -> None:
    objects = made()
    spec = one(objects, "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    assert one(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert {"name": "state", "emptyDir": {}} in spec["template"]["spec"]["volumes"]


def test_a_file_has_one_supervisor_at_a_time_and_its_claim() -> None:
    objects = made(FILE_STORE)
    spec = one(objects, "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    state = {"name": "state", "persistentVolumeClaim": {"claimName": "towline-state"}}
    assert state in spec["template"]["spec"]["volumes"]
    assert one(objects, "PersistentVolumeClaim", "towline-state")["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert [o for o in objects if o["kind"] == "PodDisruptionBudget"] == []


def test_the_settings_in_the_cluster_are_right_and_have_no_secret(tmp_path: Path) -> None:
    exported = kubernetes(a_request(PODS, images={}, env={"API_KEY": "very secret"}))
    (text,) = exported.files.values()
    assert "very secret" not in text
    data = settings_in(manifests(exported))
    assert data["pools"]["resize"]["runtime"]["kubernetes"] == {
        "image": "registry.example/thumbs:1.4.2",
        "memory": "512MiB",
        "service_account": "thumbs",
        "max_pending": 50,
        "url": "http://towline:7878",
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "worker",
                        "envFrom": [{"secretRef": {"name": "towline-resize-env"}}],
                        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                    }
                ],
                "volumes": [{"name": "scratch", "emptyDir": {}}],
            }
        },
    }
    project = parse(yaml.safe_dump(data), name="towline.yaml", directory=tmp_path)
    assert project.pools["resize"].runtime_kind == "kubernetes"
    secret = yaml.safe_load(exported.private[VARIABLES_FILE])
    assert (secret["metadata"]["name"], secret["stringData"]) == ("towline-resize-env", {"API_KEY": "very secret"})


def test_the_workers_token_is_one_secret_for_the_server_and_the_workers() -> None:
    pod = one(made(), "Deployment")["spec"]["template"]["spec"]
    (volume,) = [each for each in pod["volumes"] if each["name"] == "secrets"]
    own, worker = (each["secret"] for each in volume["projected"]["sources"])
    assert [each["key"] for each in own["items"]] == ["store-password", "token-1-admin"]
    assert (worker["name"], worker["items"]) == (WORKER_SECRET, [{"key": "token", "path": "token-2-worker"}])
    mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "secrets"]
    assert mounts == ["/run/secrets/store-password", "/run/secrets/token-1-admin", "/run/secrets/token-2-worker"]


def test_workers_of_other_runtimes_become_pods() -> None:
    pools = settings_in(made(SETTINGS, images={"resize": "thumbs:2"}))["pools"]
    assert pools["resize"]["runtime"]["kubernetes"]["image"] == "thumbs:2"
    render = pools["render"]["runtime"]["kubernetes"]
    assert (render["image"], render["memory"], render["cpus"], render["cpu_limit"], render["pull"]) == (
        "render:2",
        512 * 2**20,
        0.5,
        0.5,
        "never",
    )


def test_workers_that_others_start_stay_theirs() -> None:
    exported = kubernetes(a_request(SETTINGS, images={}))
    assert settings_in(manifests(exported))["pools"]["resize"]["runtime"] == "external"
    assert any("pools.resize.runtime: external" in warning for warning in exported.warnings)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        pytest.param("max_pending: 50", "namespace: elsewhere", "rights in its own namespace only", id="namespace"),
        pytest.param("max_pending: 50", "context: other", "rights in its own namespace only", id="context"),
    ],
)
def test_what_a_cluster_can_not_have_is_refused_with_its_place(before: str, after: str, why: str) -> None:
    with pytest.raises(ExportRefusedError, match=why):
        made(PODS.replace(before, after))


def test_a_worker_may_be_reached_by_nobody_and_the_queue_by_workers_clients_and_monitoring() -> None:
    objects = made()
    assert one(objects, "NetworkPolicy", "towline-workers")["spec"] == {
        "podSelector": {"matchExpressions": [{"key": "towline.fleet", "operator": "Exists"}]},
        "policyTypes": ["Ingress"],
    }
    (rule,) = one(objects, "NetworkPolicy")["spec"]["ingress"]
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]
    assert len(rule["from"]) == 4


def test_the_comments_name_each_secret_and_the_way_out() -> None:
    (text,) = kubernetes(a_request(PODS, namespace="work")).files.values()
    assert (
        f'kubectl create secret generic {WORKER_SECRET} --namespace work --from-literal=token="$TOWLINE_WORKER"' in text
    )
    assert '--from-literal=store-password="$DB_PASSWORD"' in text
    assert "kubectl delete --filename towline-kubernetes.yaml" in text
