"""No exported file has a secret of the settings in it, and nobody is given a token with more rights than it needs."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.export.compose import SETTINGS_FILE, compose
from orchestrator.export.crema import crema
from orchestrator.export.helm import helm
from orchestrator.export.keda import keda
from orchestrator.export.request import CloudRunPlace, ExportedFiles, ExportRefusedError, ExportRequest
from orchestrator.export.systemd import systemd
from orchestrator.settings_file import POOL_VARIABLES, overrides_of, parse
from queue_core.config.yaml_document import DocumentError
from tests.support.commands import Commands
from tests.support.fleet.export_requests import HOSTILE, SETTINGS, a_request

VARIABLES = {
    "STRIPE_KEY": "secret-one",
    "DATABASE_URL": "postgresql://ann:secret-two@db/x",
    "LEVEL": "secret-three",  # of no name and no form of a secret's
    "GREETING": "secret-four of {pool}",
}
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
@pytest.mark.parametrize("runtime", ["external", "process", "{docker: {image: shop}}", "{swarm: {image: shop}}"])
def test_values_of_variables_are_in_private_files_alone(platform: str, runtime: str) -> None:
    text = PLATFORMS[platform][1].replace("runtime: external", f"runtime: {runtime}")
    if (platform, runtime[1:6]) == ("compose", "swarm"):
        with pytest.raises(ExportRefusedError):
            exported(platform, text)
        return
    made = exported(platform, text)
    assert [name for name, text in made.files.items() if "secret-" in text] == []
    assert [line for line in made.warnings if "secret-" in line] == []
    if platform == "systemd" and runtime != "external":  # there the supervisor reads the settings file itself
        assert made.private == {}
    else:
        whole = "".join(made.private.values())
        assert [
            value for value in ("secret-one", "secret-two", "secret-three", "secret-four") if value not in whole
        ] == []
        assert [name for name in made.private if name not in str(made.files)] == []


def by_compose(made: ExportedFiles, folder: Path) -> dict[str, dict[str, str]]:
    """Return the environment of each service as Compose reads it."""
    for name, text in {**made.files, **made.private}.items():
        (folder / name).write_bytes(text.encode())
    command = ["docker-compose", "--file", "compose.yaml", "config"]
    given = {"PATH": os.environ["PATH"], "DOCKER_GROUP": "1", "TOWLINE_ADMIN": "a", "TOWLINE_WORKER": "w"}
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=True)
    read = yaml.safe_load(done.stdout)["services"]
    return {name: {k: v.replace("$$", "$") for k, v in one["environment"].items()} for name, one in read.items()}


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_compose_reads_every_value_as_it_was_written(tmp_path: Path) -> None:
    made = compose(a_request(SETTINGS.replace('token_file: "secrets/viewer\'s token"', "token_env: TOWLINE_WORKER")))
    simple = ExportedFiles({**made.files, "compose.yaml": without_environment_secrets(made)}, (), made.private)
    services = by_compose(simple, tmp_path)
    replaced = HOSTILE["QUOTES"].replace("${HOME}", "")  # of Compose 1.29, and that is told
    assert services["resize"].items() >= {**HOSTILE, "QUOTES": replaced}.items()
    assert [line for line in made.warnings if "pools.resize.env.QUOTES" in line and "Compose 2" in line]
    again = overrides_of({POOL_VARIABLES: services["towline"][POOL_VARIABLES]})
    assert {one.path: one.value for one in again} == {("pools", "render", "env", k): v for k, v in HOSTILE.items()}


def without_environment_secrets(made: ExportedFiles) -> str:
    """Return the compose file with secrets from files: Compose 1 has none from the environment."""
    whole = yaml.safe_load(made.files["compose.yaml"])
    whole["version"] = "3.8"
    whole["secrets"] = {name: {"file": "./compose.yaml"} for name in whole["secrets"]}
    return yaml.safe_dump(whole)


def test_variables_reach_the_pools_that_the_supervisor_starts_under_compose() -> None:
    text = SETTINGS.replace("runtime: external", "runtime: process")
    made = compose(a_request(text, env=VARIABLES))
    (name,) = made.private
    assert yaml.safe_load(made.files["compose.yaml"])["services"]["towline"]["env_file"] == [name]
    value = made.private[name].partition("=")[2].strip().strip("'")
    kept = made.files[SETTINGS_FILE]
    project = parse(kept, name="f", directory=Path("/app"), overrides=overrides_of({POOL_VARIABLES: value}))
    assert {pool.name: dict(pool.env) for pool in project.pools.values()} == {"resize": VARIABLES, "render": VARIABLES}
    assert POOL_VARIABLES in project.secret_variables({}, url="http://queue")


def test_variables_of_a_pool_that_is_no_more_are_left_out() -> None:
    given = overrides_of({POOL_VARIABLES: json.dumps({"gone": {"A": "1"}, "resize": {"A": "2"}})})
    project = parse(SETTINGS, name="f", directory=Path("/app"), overrides=given)
    assert set(project.pools) == {"resize", "render"}
    assert project.pools["resize"].env == {"A": "2"}
    assert project.origins["pools.resize.env.A"] == POOL_VARIABLES


def test_variables_that_are_no_json_are_refused_without_their_value() -> None:
    with pytest.raises(DocumentError) as caught:
        overrides_of({POOL_VARIABLES: '{"resize": {"KEY": 17, "OTHER": "secret"}}'})
    assert POOL_VARIABLES in str(caught.value)
    assert "secret" not in str(caught.value)


def test_systemd_reads_every_value_as_it_was_written(tmp_path: Path) -> None:
    made = systemd(a_request())
    (tmp_path / "worker.env").write_bytes(made.private["worker-resize.env"].encode())
    shown = 'while IFS= read -r -d "" one; do printf "%s\\0" "$one"; done < <(env -i bash -c "set -a; . $1; env -0")'
    done = subprocess.run(
        ["bash", "-c", shown, "-", str(tmp_path / "worker.env")], capture_output=True, check=True
    )  # systemd's double quotes are a shell's
    read = dict(one.split("=", 1) for one in done.stdout.decode().split("\0") if one)
    assert read.items() >= HOSTILE.items()
    assert "EnvironmentFile=/etc/towline/worker-resize.env\n" in made.files["towline-worker-resize@.service"]


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
    made = exported("keda")
    text = made.files["towline-keda.yaml"]
    (worker,) = [one for one in yaml.safe_load_all(text) if one["kind"] == "Deployment"]
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one}
    assert given == {name: {"name": "towline-resize-env", "key": name} for name in VARIABLES}
    secret = yaml.safe_load(made.private["towline-variables.yaml"])
    assert (secret["kind"], secret["metadata"]["name"]) == ("Secret", "towline-resize-env")
    assert secret["stringData"] == {**VARIABLES, "GREETING": "secret-four of resize"}
    assert "kubectl apply --namespace default --server-side --filename towline-variables.yaml" in text


def test_a_chart_packages_no_values_of_variables() -> None:
    made = exported("helm")
    assert [*made.private] == made.files[".helmignore"].split()


def test_instances_on_cloud_run_have_each_value_from_a_file_with_exactly_its_bytes() -> None:
    made = exported("crema")
    assert made.private["variables/resize/GREETING"] == "secret-four of resize"
    assert "towline-resize-GREETING --data-file=variables/resize/GREETING" in made.files["server.yaml"]


@pytest.mark.parametrize("to", ["compose", "keda", "helm", "systemd"])
def test_private_files_are_for_their_owner_alone_and_are_not_printed(towline: Commands, to: str) -> None:
    command = "    command: [/bin/work]\n    env: {PLAIN: secret-one}\n"
    (towline.folder / "towline.yaml").write_text(EXTERNAL.replace("    app: tasks:app\n", command))
    base = ("export", "--to", to, "--image", "thumbs:1")
    printed = towline(*base)
    assert printed.code == 0
    assert "secret-one" not in printed.out + printed.err
    assert "--out writes them" in printed.err
    assert "secret-one" not in towline(*base, "--json").out
    assert towline(*base, "--out", "made").code == 0
    (private,) = [
        one for one in (towline.folder / "made").rglob("*") if one.is_file() and b"secret-one" in one.read_bytes()
    ]
    assert private.stat().st_mode & 0o777 == 0o600
    private.write_text("older")
    private.chmod(0o644)
    assert towline(*base, "--out", "made").code == 73
    assert towline(*base, "--out", "made", "--force").code == 0
    assert private.stat().st_mode & 0o777 == 0o600
