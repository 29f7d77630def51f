"""How a cluster is reached: from inside it, by a kubeconfig, by a plugin; and how credentials are renewed."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.base.clock import ManualMonotonicClock
from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.runtimes.kubernetes.access import Access, Credentials

INSIDE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def an_account(folder: Path, token: str = "first") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(f"{token}\n")
    (folder / "namespace").write_text("fleet")
    (folder / "ca.crt").write_text("")
    return folder


def a_kubeconfig(folder: Path, user: dict[str, Any], *, name: str = "config", **cluster: Any) -> Path:
    path = folder / name
    document = {
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", **cluster}}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "me", "namespace": "fleet"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def a_plugin(folder: Path, status: str) -> dict[str, Any]:
    """Return a user whose plugin prints an ExecCredential, and counts how often it was run."""
    script = folder / "plugin.py"
    script.write_text(
        "import json, pathlib, os\n"
        f"runs = pathlib.Path({str(folder / 'runs')!r})\n"
        "runs.write_text(str(int(runs.read_text() or 0) + 1) if runs.exists() else '1')\n"
        "assert json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'] == 'ExecCredential'\n"
        f"print(json.dumps({{'kind': 'ExecCredential', 'status': {status}}}))\n"
    )
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": [str(script)]}}


def test_inside_a_cluster_its_account_says_who_we_are(tmp_path: Path) -> None:
    access = Access.in_cluster(environment=INSIDE, folder=an_account(tmp_path / "account"))
    assert (access.server, access.namespace, access.context) == ("https://10.0.0.1:443", "fleet", "in-cluster")
    assert Credentials(access).headers() == {"Authorization": "Bearer first"}


def test_an_address_of_the_newer_kind_is_written_with_brackets(tmp_path: Path) -> None:
    inside = {**INSIDE, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert Access.in_cluster(environment=inside, folder=an_account(tmp_path / "a")).server == "https://[fd00::1]:443"


def test_a_token_that_is_renewed_is_read_again_after_a_minute_and_at_once_when_it_was_refused(tmp_path: Path) -> None:
    clock = ManualMonotonicClock()
    folder = an_account(tmp_path / "account")
    credentials = Credentials(Access.in_cluster(environment=INSIDE, folder=folder), clock=clock)
    assert credentials.headers()["Authorization"] == "Bearer first"
    an_account(folder, "second")
    assert credentials.headers()["Authorization"] == "Bearer first"
    clock.advance(60)
    assert credentials.headers()["Authorization"] == "Bearer second"
    an_account(folder, "third")
    credentials.forget()
    assert credentials.headers()["Authorization"] == "Bearer third"


def test_a_kubeconfig_gives_a_context_with_paths_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    path = a_kubeconfig(
        tmp_path, {"tokenFile": "token"}, **{"certificate-authority": "ca.crt", "proxy-url": "http://p:3128"}
    )
    access = Access.of_kubeconfig(path)
    assert (access.server, access.context, access.namespace) == ("https://api.example:6443", "here", "fleet")
    assert access.ca_file == str(tmp_path / "ca.crt")
    assert access.proxy == "http://p:3128"
    assert Credentials(access).headers() == {"Authorization": "Bearer s3cret"}


def test_of_several_kubeconfigs_the_first_that_has_a_name_counts(tmp_path: Path) -> None:
    first = a_kubeconfig(tmp_path, {"token": "one"}, name="one")
    second = a_kubeconfig(tmp_path, {"token": "two"}, name="two")
    environment = {"KUBECONFIG": f"{first}:{second}:{tmp_path / 'gone'}"}
    assert Access.found(None, environment=environment).token == "one"


def test_a_context_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    path = a_kubeconfig(tmp_path, {"token": "one"})
    with pytest.raises(RuntimeUnavailableError, match="has no context there; its contexts: here"):
        Access.of_kubeconfig(path, "there")
    with pytest.raises(RuntimeUnavailableError, match=r"there is no kubeconfig at .*gone, and this is no Pod"):
        Access.found(None, environment={"KUBECONFIG": str(tmp_path / "gone")})


def test_a_certificate_in_a_kubeconfig_is_decoded(tmp_path: Path) -> None:
    encoded = {
        "client-certificate-data": base64.b64encode(b"CERT").decode(),
        "client-key-data": base64.b64encode(b"KEY").decode(),
    }
    certificate = Access.of_kubeconfig(a_kubeconfig(tmp_path, encoded)).certificate
    assert certificate is not None
    assert (certificate.text, certificate.key_text) == ("CERT", "KEY")
    with pytest.raises(RuntimeUnavailableError, match="not base64"):
        Access.of_kubeconfig(a_kubeconfig(tmp_path, {"client-certificate-data": "%%%"}))


def test_a_plugin_is_run_once_until_just_before_its_credentials_end(tmp_path: Path) -> None:
    clock = ManualMonotonicClock(wall_seconds=1_764_417_600.0)  # 2025-11-29T12:00:00Z
    user = a_plugin(tmp_path, json.dumps({"token": "t1", "expirationTimestamp": "2025-11-29T12:10:00Z"}))
    credentials = Credentials(Access.of_kubeconfig(a_kubeconfig(tmp_path, user)), clock=clock)
    for _ in range(3):
        assert credentials.headers() == {"Authorization": "Bearer t1"}
    clock.advance(539)
    credentials.headers()
    assert (tmp_path / "runs").read_text() == "1"
    clock.advance(1)
    credentials.headers()
    assert (tmp_path / "runs").read_text() == "2"


def test_a_plugins_certificate_makes_new_connections(tmp_path: Path) -> None:
    user = a_plugin(tmp_path, json.dumps({"clientCertificateData": "CERT", "clientKeyData": "KEY"}))
    credentials = Credentials(Access.of_kubeconfig(a_kubeconfig(tmp_path, user)))
    before = credentials.version
    assert credentials.headers() == {}
    assert credentials.version == before + 1


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (
            {"command": "no-such-plugin", "installHint": "install it\n  with apt"},
            "is not installed: install it with apt",
        ),
        (
            {"command": sys.executable, "args": ["-c", "import sys; sys.exit('log in first')"]},
            "exit code 1: log in first",
        ),
        ({"command": sys.executable, "args": ["-c", "print('{}')"]}, "printed no ExecCredential"),
    ],
    ids=["missing", "refuses", "prints something else"],
)
def test_a_plugin_that_gives_nothing_is_told_in_its_own_words(
    tmp_path: Path, plugin: dict[str, Any], said: str
) -> None:
    credentials = Credentials(Access.of_kubeconfig(a_kubeconfig(tmp_path, {"exec": plugin})))
    with pytest.raises(RuntimeUnavailableError, match=said):
        credentials.headers()
