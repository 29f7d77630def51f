"""The Pod that a worker is made as: what the settings, the template and the supervisor have in it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.errors import SpawnError
from orchestrator.launch import Launch
from orchestrator.runtime import SpawnRequest
from orchestrator.runtimes.kubernetes.body import PodMarks, merged, pod_body, pod_name
from tests.support.fleet.fleet_builders import a_pool

VERSIONS = ["1.31", "1.32", "1.33", "1.34", "1.35", "1.36"]
FLEET = "0b1c7f9e-8d1a-4a57-9d5e-5a1f0c7e1a11"
URL = "http://towline.fleet.svc:7878"


def a_request(
    *, url: str = URL, token: str | None = None, pool: dict[str, Any] | None = None, **settings: Any
) -> SpawnRequest:
    spec = a_pool(app="tasks:app", runtime={"kubernetes": {"image": "thumbs:1", **settings}}, **(pool or {}))
    launch = Launch(url, "/srv/.towline", "/srv/.towline/lock", 60.0, token=token, identity="5f2c9a1b")
    return SpawnRequest("resize-7f3k2q", spec, launch.environment("resize-7f3k2q", spec))


def a_body(
    *, url: str = URL, token: str | None = None, pool: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    request = a_request(url=url, token=token, pool=pool, **settings)
    known = request.pool.runtime.kubernetes
    assert known is not None
    marks = PodMarks(pod_name(request.worker), FLEET, "0a1b2c3d", 1_700_000_000.0)
    return dict(pod_body(request, known, marks))


def worker_of(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = [one for one in pod["spec"]["containers"] if one["name"] == "worker"]
    assert isinstance(found, dict)
    return found


def environment_of(pod: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in worker_of(pod)["env"]}


EVERYTHING: dict[str, Any] = {
    "memory": "512MiB",
    "cpus": 0.5,
    "cpu_limit": 2,
    "gpus": 1,
    "service_account": "thumbs",
    "secrets": {"api-key": "thumbs/api-key"},
    "pull_secrets": ["registry"],
    "priority_class": "batch",
    "node_selector": {"disk": "ssd"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "labels": {"team": "media"},
    "template": {
        "metadata": {"annotations": {"example.com/why": "because"}},
        "spec": {
            "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "containers": [{"name": "worker", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"towline.pool": "resize"}},
                }
            ],
        },
    },
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("settings", [{}, EVERYTHING], ids=["an image alone", "every setting"])
def test_the_apiserver_of_each_version_accepts_the_pod(version: str, settings: dict[str, Any]) -> None:
    import kubernetes_validate  # type: ignore[import-untyped]  # takes over a second, in each process that collects

    kubernetes_validate.validate(a_body(token="s3cret", **settings), version, strict=True)


def test_a_pod_is_known_by_its_labels_and_belongs_to_the_fleets_anchor() -> None:
    metadata = a_body()["metadata"]
    assert metadata["name"] == "towline-resize-7f3k2q"
    assert metadata["labels"]["towline.fleet"] == FLEET
    assert metadata["labels"]["towline.worker"] == "resize-7f3k2q"
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ConfigMap", "towline-fleet", FLEET)
    assert (owner["controller"], owner["blockOwnerDeletion"]) == (True, False)


def test_a_pod_has_no_finalizer_and_is_never_restarted_by_others() -> None:
    """kueue#13830, argo-workflows#12952; prefect#12988, #16256: one party retries."""
    pod = a_body(template={"metadata": {"finalizers": ["example.com/keep"]}, "spec": {"restartPolicy": "Always"}})
    assert "finalizers" not in pod["metadata"]
    assert pod["spec"]["restartPolicy"] == "Never"


def test_autoscalers_are_told_to_leave_a_worker_from_its_creation_on() -> None:
    """autoscaler#3300, karpenter#70; a Karpenter that does not know durations takes "4h" for unprotected."""
    notes = a_body()["metadata"]["annotations"]
    assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert notes["karpenter.sh/do-not-disrupt"] == "true"
    assert "karpenter.sh/do-not-disrupt" not in a_body(protect="never")["metadata"]["annotations"]


def test_a_token_and_a_password_are_keys_of_a_secret_and_never_variables() -> None:
    pod = a_body(url="postgresql://towline:pa55@db/queue", token="s3cret")
    assert "s3cret" not in str(pod)
    assert "pa55" not in str(pod)
    known = environment_of(pod)
    assert known["TOWLINE_TOKEN_FILE"] == "/run/secrets/towline-token"
    assert known["TOWLINE_URL_FILE"] == "/run/secrets/towline-url"
    (volume,) = pod["spec"]["volumes"]
    assert [one["secret"]["name"] for one in volume["projected"]["sources"]] == ["towline-worker", "towline-worker"]


def test_a_worker_has_no_lock_of_a_host_and_knows_its_node() -> None:
    pod = a_body()
    known = environment_of(pod)
    assert known["TOWLINE_WORKER"] == "resize-7f3k2q"
    assert known["TOWLINE_URL"] == URL
    assert not {"TOWLINE_SUPERVISOR_LOCK", "TOWLINE_STATE_DIR", "TOWLINE_TOKEN"} & known.keys()
    node = next(one for one in worker_of(pod)["env"] if one["name"] == "TOWLINE_NODE")
    assert node["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_a_pod_fits_a_restricted_namespace_and_mounts_no_token() -> None:
    pod = a_body()
    spec, worker = pod["spec"], worker_of(pod)
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert worker["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_memory_is_request_and_limit_and_processors_are_a_request_alone() -> None:
    assert worker_of(a_body(memory="512MiB", cpus=0.5))["resources"] == {
        "requests": {"memory": "536870912", "cpu": "500m"},
        "limits": {"memory": "536870912"},
    }
    assert worker_of(a_body(gpus={"resource": "amd.com/gpu", "count": 2}))["resources"]["limits"] == {
        "amd.com/gpu": "2"
    }


def test_the_kubelets_kill_comes_after_the_workers_own_end() -> None:
    assert a_body(pool={"grace": "90s"})["spec"]["terminationGracePeriodSeconds"] == 95


def test_a_worker_leaves_a_silent_node_after_the_pools_patience_and_bears_other_taints() -> None:
    spot = {"key": "spot", "operator": "Exists"}
    tolerations = a_body(tolerations=[spot], node_patience="45s")["spec"]["tolerations"]
    assert [one["tolerationSeconds"] for one in tolerations if "tolerationSeconds" in one] == [45, 45]
    assert spot in tolerations


def test_the_settings_win_over_the_template_and_what_is_ours_is_not_the_templates() -> None:
    template = {
        "metadata": {"name": "mine", "labels": {"towline.fleet": "another", "team": "media"}, "ownerReferences": [{}]},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "worker",
                    "image": "other:1",
                    "command": ["sleep"],
                    "args": ["600"],
                    "env": [{"name": "TOWLINE_URL", "value": "http://elsewhere"}, {"name": "COLOUR", "value": "blue"}],
                    "resources": {"limits": {"memory": "1Gi", "ephemeral-storage": "1Gi"}},
                    "securityContext": {"runAsUser": 1000},
                },
                {"name": "helper", "image": "helper:1"},
            ],
        },
    }
    pod = a_body(template=template, memory="512MiB")
    worker = worker_of(pod)
    assert pod["metadata"]["name"] == "towline-resize-7f3k2q"
    assert pod["metadata"]["labels"]["towline.fleet"] == FLEET
    assert pod["metadata"]["labels"]["team"] == "media"
    assert len(pod["metadata"]["ownerReferences"]) == 1
    assert pod["spec"]["terminationGracePeriodSeconds"] == 35
    assert (worker["image"], worker["command"]) == ("thumbs:1", ["python3", "-m", "queue_core.worker"])
    assert "args" not in worker
    assert environment_of(pod)["TOWLINE_URL"] == URL
    assert environment_of(pod)["COLOUR"] == "blue"
    assert worker["resources"]["limits"] == {"memory": "536870912", "ephemeral-storage": "1Gi"}
    assert worker["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsUser": 1000,
    }
    assert [one["name"] for one in pod["spec"]["containers"]] == ["worker", "helper"]


def test_dollar_signs_are_what_the_settings_say_and_nothing_is_expanded() -> None:
    pod = a_body(pool={"env": {"PRICE": "$(HOME) costs $5"}})
    assert environment_of(pod)["PRICE"] == "$$(HOME) costs $$5"


@pytest.mark.parametrize("url", ["http://127.0.0.1:7878", "unix:///run/towline.sock", "sqlite:///towline.db"])
def test_a_queue_that_no_pod_reaches_is_refused_before_a_pod_is_made(url: str) -> None:
    with pytest.raises(SpawnError, match="can't reach the queue"):
        a_body(url=url)


def test_a_name_is_a_dns_label_also_of_a_worker_with_one_task() -> None:
    long = "a" * 48
    for worker in (
        "resize-7f3k2q",
        "resize-7f3k2q.alone.5f2c9a1b",
        f"{long}-7f3k2q",
        f"{long}-7f3k2q.alone.0123456789",
    ):
        name = pod_name(worker)
        assert len(name) <= 63
        assert name.strip("abcdefghijklmnopqrstuvwxyz0123456789-") == ""
        assert name[-1] != "-"


VALUES = st.recursive(
    st.integers(0, 9) | st.text("ab", max_size=2),
    lambda inner: st.dictionaries(st.sampled_from(["x", "y", "env", "tolerations"]), inner, max_size=3),
    max_leaves=6,
)
MAPPINGS = st.dictionaries(st.sampled_from(["x", "y", "z"]), VALUES, max_size=3)


@given(base=MAPPINGS, over=MAPPINGS)
def test_a_merge_keeps_what_is_not_named_has_all_that_is_and_is_repeatable(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    found = merged(base, over)
    assert found.keys() == base.keys() | over.keys()
    assert {key: found[key] for key in base.keys() - over.keys()} == {
        key: base[key] for key in base.keys() - over.keys()
    }
    assert merged(found, over) == found
    assert merged(base, {}) == base


def test_named_entries_are_merged_and_null_removes() -> None:
    base = {"containers": [{"name": "a", "x": 1}, {"name": "b"}], "gone": 1, "command": ["one", "two"]}
    over = {"containers": [{"name": "c"}, {"name": "a", "y": 2}], "gone": None, "command": ["three"]}
    assert merged(base, over) == {
        "containers": [{"name": "a", "x": 1, "y": 2}, {"name": "b"}, {"name": "c"}],
        "command": ["three"],
    }
