"""Pools for others to run: what is written is valid there, no value breaks out of it, and what can't be is refused."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from orchestrator.export.compose import SETTINGS_FILE, compose
from orchestrator.export.keda import keda
from orchestrator.export.request import Exported, ExportRefusedError, Request
from orchestrator.export.systemd import systemd
from orchestrator.export.text import yaml_of
from orchestrator.project import parse
from queue_core.yaml_text import read_document
from tests.support.commands import Commands
from tests.support.platform_schemas import COMPOSE, KEDA

KUBERNETES = "1.31"
LEAKY = "store: postgresql://a:hunter22@h/d"
BARE = "queues: {thumbs: {}}\npools: {resize-: {queue: thumbs, runtime: external, slo: 5s}}"
HOSTILE = {
    "LINES": "one\n- two: {three}\r\n\ttabbed # no comment",
    "QUOTES": "\"double\" 'single' `back` \\ %n %i ${HOME} $HOME $(HOME) $$",
    "LIKE_YES": "yes",
    "LIKE_NUMBER": "0o17",
    "LIKE_TIME": "12:30",
    "LIKE_NULL": "null",
    "UNICODE": "naïve ☃ \u0085 \u2028 end",
    "EMPTY": "",
    "DOCUMENT": "---\n...\n&a *a !!python/object:os.system\n",
}
SETTINGS = """\
store: sqlite:///queue.db
server:
  tokens:
    - {role: admin, token_env: TOWLINE_ADMIN}
    - {role: worker, token_env: TOWLINE_WORKER, email: worker@example.com}
    - {role: viewer, token_file: "secrets/viewer's token"}
queues:
  thumbs: {lease: 30s, max_leases: 5}
pools:
  resize:
    queue: thumbs
    tags: [resize, "12:30", "yes"]
    app: tasks:app
    runtime: external
    slo: 30s
    grace: 30.5s
    workers: {min: 1, max: 8}
    schedule: [{cron: "0 8 * * *", for: 2h, workers: {min: 0, max: 20}}]
    recycle: {tasks: 100}
  render:
    queue: thumbs
    untagged: true
    command: [/usr/bin/env, "--do=$HOME %i 'x'", "two\\nlines"]
    runtime: {docker: {image: "render:2", memory: 512MiB, cpus: 0.5, user: "1000:1000", read_only: true, pull: never}}
    slo: 5s
"""


def a_request(
    text: str = SETTINGS, *, images: Mapping[str, str] | None = None, env: Mapping[str, str] = HOSTILE, **more: Any
) -> Request:
    """The settings as they would be exported, with `env` in both pools."""
    data = yaml.safe_load(text)
    for pool in (data.get("pools") or {}).values():
        pool["env"] = dict(env)
    whole = yaml_of(data)
    project = parse(whole, name="towline.yaml", directory=Path("/srv/thumbs"))
    document = read_document(whole, name="towline.yaml")
    given = {"resize": "thumbs:1"} if images is None else images
    return Request(project, document, images=given, **more)


def manifests(exported: Exported) -> list[dict[str, Any]]:
    (text,) = exported.files.values()
    return list(yaml.safe_load_all(text))


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


def unquoted(text: str) -> str:
    """As Kubernetes reads a value: $$( is $( and stands for itself."""
    return text.replace("$$(", "$(")


# -- Kubernetes ---------------------------------------------------------------------------------------------------


def test_every_object_is_one_that_kubernetes_and_keda_take() -> None:
    objects = manifests(keda(a_request()))
    kinds = [o["kind"] for o in objects]
    for o in objects:
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
    objects = manifests(keda(a_request()))
    pod = one(objects, "Deployment", "towline-resize")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {v["name"]: unquoted(v["value"]) for v in container["env"]}
    assert container["command"] == ["python3", "-m", "queue_core.worker"]
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
    assert render["containers"][0]["command"] == ["/usr/bin/env", "--do=$HOME %i 'x'", "two\nlines"]
    assert render["containers"][0]["resources"]["limits"] == {"memory": "536870912", "cpu": "500m"}
    assert render["securityContext"]["runAsUser"] == 1000


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
    assert project.pools["resize"].env == HOSTILE


def test_a_file_on_a_volume_is_told_as_what_it_is() -> None:
    warnings = keda(a_request()).warnings
    assert [line for line in warnings if line.startswith("towline.yaml:1:1: store:") and "postgresql" in line]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        pytest.param("store: sqlite:///queue.db", LEAKY, "store: the URL has a password", id="password"),
        pytest.param("runtime: external", "runtime: process", "pools.resize.runtime: which image?", id="no image"),
        pytest.param("  resize:", f"  {'r' * 56}:", "at most 55 characters", id="name too long"),
        pytest.param("  resize:", "  resize-:", "the last no -", id="no DNS label"),
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
    assert all(word in told for word in ("server.tokens", "no name for Kubernetes", "which image?", "what runs"))


def test_without_pools_there_is_nothing_to_scale() -> None:
    with pytest.raises(ExportRefusedError, match="nothing to scale"):
        keda(a_request("queues: {thumbs: {}}"))


def test_what_does_not_come_along_is_told() -> None:
    text = SETTINGS.replace("pull: never}", 'pull: never, volumes: ["./a:/a"], network: net, stop_signal: SIGINT}')
    text = text.replace('"1000:1000"', "alice")
    told = "\n".join(keda(a_request(text)).warnings)
    assert all(f"runtime.docker.{name}:" in told for name in ("volumes", "network", "stop_signal", "user"))


# -- Compose ------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("runtime", "told"),
    [("{swarm: {image: a}}", "runs no services of a swarm"), ("external", "which image?")],
)
def test_what_compose_can_not_run_is_refused(runtime: str, told: str) -> None:
    with pytest.raises(ExportRefusedError, match=told):
        compose(a_request(SETTINGS.replace("runtime: external", f"runtime: {runtime}"), images={}))


def test_a_pool_named_as_the_queues_service_is_refused() -> None:
    with pytest.raises(ExportRefusedError, match="name the pool otherwise"):
        compose(a_request(SETTINGS.replace("  resize:", "  towline:"), images={"": "a"}))


def test_processes_in_the_container_of_the_supervisor_are_told() -> None:
    told = compose(a_request(SETTINGS.replace("runtime: external", "runtime: process"))).warnings
    assert any("their code must be in its image" in line for line in told)


# -- systemd ------------------------------------------------------------------------------------------------------


def units(request: Request, folder: Path) -> list[Path]:
    paths = []
    for name, text in systemd(request).files.items():
        (folder / name).write_text(text, encoding="utf-8")
        paths.append(folder / name)
    return paths


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_units_are_ones_that_systemd_takes(tmp_path: Path) -> None:
    text = SETTINGS.replace("    app: tasks:app\n", '    command: [/bin/sh, "-c", "echo $HOME %i %n \\"x\\""]\n')
    paths = units(a_request(text, program=(sys.executable, "-m", "orchestrator")), tmp_path)
    assert {path.name for path in paths} == {
        "towline-queue.service",
        "towline-supervisor.service",
        "towline-worker-resize@.service",
    }
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def test_no_value_breaks_out_of_its_line_in_a_unit() -> None:
    text = systemd(a_request()).files["towline-worker-resize@.service"]
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    keys = {line.partition("=")[0] for line in lines if not line.startswith("[")}
    assert all(key.isalpha() for key in keys), keys
    assert [line for line in lines if line.startswith("[")] == ["[Unit]", "[Service]", "[Install]"]
    assert r'Environment="QUOTES=\"double\" ' in text
    assert "%%n %%i" in text


def test_a_worker_without_a_full_path_is_refused_where_systemd_wants_one() -> None:
    text = SETTINGS.replace("    app: tasks:app\n", "    command: [python, work.py]\n")
    with pytest.raises(ExportRefusedError, match=r"pools\.resize\.command: python: systemd wants"):
        systemd(a_request(text))


# -- the command --------------------------------------------------------------------------------------------------


@pytest.fixture
def towline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "towline.yaml").write_text(SETTINGS)
    return Commands(tmp_path, capsys)


def test_the_command_writes_to_stdout_or_to_a_folder_and_over_nothing_unasked(towline: Commands) -> None:
    told = towline("export", "--to", "keda", "--image", "resize=thumbs:1")
    assert told.code == 0
    assert told.out.startswith("# Queue, supervisor and workers on Kubernetes")
    assert "warning: towline.yaml:1:1: store:" in told.err
    assert towline("export", "--to", "keda", "--image", "thumbs:1", "--out", "made").code == 0
    assert (towline.folder / "made" / "towline-keda.yaml").is_file()
    assert towline("export", "--to", "keda", "--image", "thumbs:1", "--out", "made").code == 0
    changed = towline("export", "--to", "keda", "--image", "thumbs:2", "--out", "made")
    assert changed.code == 73
    assert towline("export", "--to", "keda", "--image", "thumbs:2", "--out", "made", "--force").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--to", "keda"], 78, "which image?"),
        (["--to", "keda", "--image", "resise=a"], 2, "did you mean"),
        (["--to", "keda", "--image", "resize="], 2, "POOL=IMAGE"),
        (["--to", "keda", "--namespace", "No_Name"], 2, "--namespace"),
        (["--to", "nomad"], 2, "keda"),
        (["--to", "keda", "backup.jsonl"], 2, "goes with neither"),
        ([], 2, "which FILE?"),
        (["backup.jsonl", "--out", "x"], 2, "go with --to"),
        (["--to", "keda", "-f", "missing.yaml"], 66, "missing.yaml"),
    ],
)
def test_a_command_line_that_can_not_be_meant_says_what_would(
    towline: Commands, arguments: list[str], code: int, told: str
) -> None:
    found = towline("export", *arguments)
    assert found.code == code
    assert told in found.err


def test_tasks_are_exported_as_before(towline: Commands) -> None:
    assert towline("add", "thumbs", "a cat").code == 0
    assert towline("export", "backup.jsonl").code == 0
    assert (towline.folder / "backup.jsonl").read_text().count("\n") >= 2


def test_the_json_of_an_export_has_the_files(towline: Commands) -> None:
    told = towline("export", "--to", "systemd", "--json").json
    assert isinstance(told, dict)
    assert set(told["files"]) >= {"towline-queue.service"}
