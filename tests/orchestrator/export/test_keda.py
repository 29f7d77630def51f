"""Pools on Kubernetes: what is written is valid there, no value breaks out of it, and what can't be is refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.export.keda import keda
from orchestrator.export.kubernetes import literal
from orchestrator.export.request import ExportedFiles, ExportRefusedError
from orchestrator.settings_file import parse
from tests.support.fleet.export_requests import HOSTILE, SETTINGS, a_request
from tests.support.platform_schemas import KEDA

KUBERNETES = "1.31"
LEAKY = "store: postgresql://a:hunter22@h/d"
BARE = "queues: {thumbs: {}}\npools: {resize-: {queue: thumbs, runtime: external, slo: 5s}}"


def manifests(exported: ExportedFiles) -> list[dict[str, Any]]:
    (text,) = exported.files.values()
    return list(yaml.safe_load_all(text))


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """As Kubernetes reads a value or an argument: `$$` is `$`, `$(NAME)` a variable's value or, of none, itself.

    Source: `expansion.Expand` of Kubernetes (third_party/forked/golang/expansion/expand.go).
    """
    found, at = "", 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            found, at = found + text[at], at + 1
        elif text[at + 1] == "$":
            found, at = found + "$", at + 2
        elif text[at + 1] == "(" and (end := text.find(")", at)) >= 0:
            name = text[at + 2 : end]
            found, at = found + variables.get(name, f"$({name})"), end + 1
        else:
            found, at = found + text[at : at + 2], at + 2
    return found


def started(container: Mapping[str, Any], made: ExportedFiles) -> tuple[dict[str, str], list[str]]:
    """A container's variables, each of which may name those before it, and its command, which may name all.

    A value of a Secret is taken as it is.
    """
    secrets = {one["metadata"]["name"]: one["stringData"] for one in values_of(made)}
    variables: dict[str, str] = {}
    for variable in container["env"]:
        if "value" in variable:
            variables[variable["name"]] = expanded(variable["value"], variables)
        else:
            place = variable["valueFrom"]["secretKeyRef"]
            variables[variable["name"]] = secrets[place["name"]][place["key"]]
    return variables, [expanded(argument, variables) for argument in container["command"]]


def values_of(made: ExportedFiles) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(made.private["towline-variables.yaml"]))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *(
            ("$$", "$"),
            ("$", "$"),
            ("$(A)", "1"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$(B)", "$(B)"),
            ("$(A", "$(A"),
        ),
        *(("a$b", "a$b"), ("$A", "$A"), ("${A}", "${A}"), ("$$$", "$$"), ("$()", "$()"), ("$(A)$(A)", "11")),
    ],
)
def test_the_rules_of_kubernetes_are_these(written: str, read: str) -> None:
    assert expanded(written, {"A": "1"}) == read


def test_every_object_is_one_that_kubernetes_and_keda_take() -> None:
    import kubernetes_validate  # type: ignore[import-untyped]  # takes over a second, in each process that collects

    objects = manifests(keda(a_request()))
    kinds = [o["kind"] for o in objects]
    for o in [*objects, *values_of(keda(a_request()))]:
        if o["kind"] in KEDA:
            jsonschema_rs.validate(KEDA[o["kind"]], o)
        else:
            kubernetes_validate.validate(o, KUBERNETES, strict=True)
    assert set(kinds) == {
        "ConfigMap",
        "StatefulSet",
        "Service",
        "NetworkPolicy",
        "TriggerAuthentication",
        "Deployment",
        "ScaledObject",
        "PodDisruptionBudget",
    }
    assert kinds.count("Deployment") == 2


def test_keda_is_sent_to_the_pools_own_numbers_with_the_observers_token() -> None:
    objects = manifests(keda(a_request(namespace="work")))
    scaled = one(objects, "ScaledObject", "towline-resize")["spec"]
    assert scaled["scaleTargetRef"]["name"] == "towline-resize"
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (0, 20)
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["url"] == "http://towline.work.svc:7878/v1/pools/resize/stats"
    assert trigger["metadata"]["valueLocation"] == "desired_workers"
    (target,) = one(objects, "TriggerAuthentication", "towline")["spec"]["secretTargetRef"]
    assert target == {"parameter": "token", "name": "towline-secrets", "key": "token-3-viewer"}


def test_a_worker_is_told_what_a_supervisor_would_tell_it() -> None:
    made = keda(a_request())
    objects = manifests(made)
    pod = one(objects, "Deployment", "towline-resize")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment, command = started(container, made)
    assert command == ["python3", "-m", "queue_core.worker"]
    assert pod["terminationGracePeriodSeconds"] == 36
    assert (
        environment.items()
        >= {
            "TOWLINE_POOL": "resize",
            "TOWLINE_URL": "http://towline:7878",
            "TOWLINE_QUEUE": "thumbs",
            "TOWLINE_TAGS": '["resize", "12:30", "yes"]',
            "TOWLINE_APP": "tasks:app",
            "TOWLINE_GRACE_SECONDS": "30.5",
            "TOWLINE_TOKEN_FILE": "/run/towline/token-2-worker",
            **HOSTILE,
        }.items()
    )
    assert not environment.keys() & {"TOWLINE_WORKER", "TOWLINE_SUPERVISOR_LOCK", "TOWLINE_TOKEN"}
    render = one(objects, "Deployment", "towline-render")["spec"]["template"]["spec"]
    assert started(render["containers"][0], made)[1] == ["/usr/bin/env", "--do=$HOME %i 'x'", "two\nlines"]
    assert render["containers"][0]["resources"]["limits"] == {"memory": "536870912", "cpu": "500m"}
    assert render["securityContext"]["runAsUser"] == 1000


DOLLARS = (
    *("$", "$$", "$$$", "a$", "$a", "$(HOME)", "$$(HOME)", "$$$(HOME)", "price: $$5", "${HOME}", "$(HOME", "$()", "$)"),
    *(
        "$(A)",
        "$(A)$(A)",
        "$$(A)$",
        "$($(A))",
        "$(TOWLINE_URL)",
        "\u00e9$\u00e9",
        "$\n$(A)",
        "$ (A)",
        "\\$(A)",
        "%(A)s",
    ),
)


@pytest.mark.parametrize("text", DOLLARS)
def test_every_dollar_reaches_the_worker_as_it_was_written(text: str) -> None:
    pool = {"queue": "q", "command": ["run", text], "slo": "30s", "runtime": "external"}
    tokens = [{"role": "admin", "token_env": "TOWLINE_ADMIN"}]
    settings = json.dumps({"server": {"tokens": tokens}, "queues": {"q": {}}, "pools": {"p": pool}})
    made = keda(a_request(settings, images={"p": "image"}, env={"A": "1", "PRICE": text}))
    (container,) = one(manifests(made), "Deployment", "towline-p")["spec"]["template"]["spec"]["containers"]
    environment, command = started(container, made)
    assert (environment["PRICE"], environment["A"], command) == (text, "1", ["run", text])


@given(text=st.text(st.sampled_from("$()A{}\u00e9 "), max_size=12))
def test_any_text_is_read_as_it_was_escaped(text: str) -> None:
    assert expanded(literal(text), {"A": "1", "": "2"}) == text


def test_selectors_find_the_pods_they_are_for_and_no_others() -> None:
    objects = manifests(keda(a_request()))
    pods = {
        o["metadata"]["name"]: o["spec"]["template"]["metadata"]["labels"]
        for o in objects
        if o["kind"] in {"Deployment", "StatefulSet"}
    }

    def found(selector: dict[str, str]) -> list[str]:
        return [name for name, labels in pods.items() if selector.items() <= labels.items()]

    for pool in ("towline-resize", "towline-render"):
        for selector in (
            one(objects, "Deployment", pool)["spec"]["selector"],
            one(objects, "PodDisruptionBudget", pool)["spec"]["selector"],
        ):
            assert found(selector["matchLabels"]) == [pool]
    assert found(one(objects, "Service", "towline")["spec"]["selector"]) == ["towline"]


def test_the_settings_in_the_cluster_are_right_and_say_where_state_and_secrets_are() -> None:
    text = one(manifests(keda(a_request())), "ConfigMap", "towline-settings")["data"]["towline.yaml"]
    project = parse(text, name="towline.yaml", directory=Path("/etc/towline"))
    assert project.store == "sqlite:////var/lib/towline/queue.db"
    assert project.queue_file.server.listen == "0.0.0.0:7878"
    assert [token.token_file for token in project.queue_file.server.tokens] == [
        "/run/secrets/token-1-admin",
        "/run/secrets/token-2-worker",
        "/run/secrets/token-3-viewer",
    ]
    assert project.queue_file.server.tokens[1].email == "worker@example.com"
    assert project.supervisor.state_dir == "/var/lib/towline/supervisor"
    assert {pool.runtime_kind for pool in project.pools.values()} == {"external"}
    assert project.pools["resize"].env == {}


def test_a_file_on_a_volume_is_told_as_what_it_is() -> None:
    warnings = keda(a_request()).warnings
    assert [line for line in warnings if line.startswith("towline.yaml:1:1: store:") and "postgresql" in line]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param("store: sqlite:///queue.db", LEAKY, "store: the URL contains a password", id="password"),
        pytest.param("runtime: external", "runtime: process", "pools.resize.runtime: which image?", id="no image"),
        pytest.param("  resize:", f"  {'r' * 56}:", "at most 55 characters", id="name too long"),
        pytest.param("  resize:", "  resize-:", "not end in -", id="no DNS label"),
        pytest.param("    app: tasks:app\n", "", "pools.resize: what runs", id="nothing to run"),
    ],
)
def test_what_a_cluster_can_not_have_is_refused_with_its_place(before: str, after: str, told: str) -> None:
    request = a_request(SETTINGS.replace(before, after, 1), images={})
    with pytest.raises(ExportRefusedError) as refused:
        keda(request)
    assert any(told in line for line in refused.value.lines), refused.value.lines
    assert all(line.startswith("towline.yaml:") for line in refused.value.lines)
    assert "hunter22" not in str(refused.value)


def test_every_reason_is_told_at_once() -> None:
    with pytest.raises(ExportRefusedError) as refused:
        keda(a_request(BARE, images={}))
    told = "\n".join(refused.value.lines)
    assert all(word in told for word in ("server.tokens", "not a valid Kubernetes name", "which image?", "what runs"))


def test_without_pools_there_is_nothing_to_scale() -> None:
    with pytest.raises(ExportRefusedError, match="no pools to scale"):
        keda(a_request("queues: {thumbs: {}}"))


def test_what_does_not_come_along_is_told() -> None:
    text = SETTINGS.replace("pull: never}", 'pull: never, volumes: ["./a:/a"], network: net, stop_signal: SIGINT}')
    text = text.replace('"1000:1000"', "alice")
    told = "\n".join(keda(a_request(text)).warnings)
    assert all(f"runtime.docker.{name}:" in told for name in ("volumes", "network", "stop_signal", "user"))
