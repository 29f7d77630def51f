"""Access to a cluster: where its apiserver is and who we are, from inside the cluster or from a kubeconfig.

Files are read again whenever they may have changed: a token is renewed hourly, and an authority may be replaced.
"""

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path
from typing import Final

import yaml

from orchestrator.base.clock import MonotonicClock, SystemMonotonicClock
from orchestrator.base.errors import RuntimeUnavailableError
from orchestrator.base.values import value

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a Pod finds its ServiceAccount's token, authority and namespace."""
IN_CLUSTER: Final = "in-cluster"
"""The name of the context that is the cluster we run in."""
DEFAULT_NAMESPACE: Final = "default"
TOKEN_SECONDS: Final = 60.0
"""Age at which a token's file is read again: the kubelet renews it when a fifth of its time is left."""
EARLY_SECONDS: Final = 60.0
"""Time before the end of a plugin's credentials at which new ones are asked for."""
PLUGIN_SECONDS: Final = 30.0
"""Time limit of a plugin: a call to its cloud."""
_EXEC_VERSION: Final = "client.authentication.k8s.io/v1"
_FOREVER: Final = float("inf")


@value
class ExecPlugin:
    """A program that prints credentials, as those of EKS and GKE; relative paths start at the kubeconfig's folder."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    version: str = _EXEC_VERSION
    hint: str = ""
    folder: str = "."


@value
class ClientCertificate:
    """A client's certificate and key: PEM texts, or the paths of files with them."""

    text: str = ""
    key_text: str = ""
    file: str = ""
    key_file: str = ""


@value
class Access:
    """How an apiserver is reached, and as whom. `context` names it for people and in a worker's `ref`.

    `namespace` is the one to use where the settings name none. The authority is `ca_text` (PEM), or the file `ca_file`;
    the system's without either. A token is `token`, or in `token_file`, or a plugin's.
    """

    server: str
    context: str
    namespace: str = DEFAULT_NAMESPACE
    ca_text: str = ""
    ca_file: str = ""
    is_verified: bool = True
    server_name: str = ""
    token: str = ""
    token_file: str = ""
    certificate: ClientCertificate | None = None
    plugin: ExecPlugin | None = None
    proxy: str = ""

    @classmethod
    def found(cls, context: str | None, *, environment: Mapping[str, str]) -> "Access":
        """Return the access of a context; without one, of the cluster that we run in, or of the current context.

        Raises `RuntimeUnavailableError` where there is none.
        """
        if context in {None, IN_CLUSTER} and is_in_cluster(environment):
            return cls.in_cluster(environment=environment)
        paths = [path for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
        return cls.of_kubeconfig(paths or [Path(environment.get("HOME", "~")).expanduser() / ".kube/config"], context)

    @classmethod
    def in_cluster(cls, *, environment: Mapping[str, str] | None = None, folder: Path = SERVICE_ACCOUNT) -> "Access":
        """Return the access of the Pod that we run in. Raises `RuntimeUnavailableError` outside of a cluster."""
        known = os.environ if environment is None else environment
        host, port = known.get("KUBERNETES_SERVICE_HOST", ""), known.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise RuntimeUnavailableError("this is no Pod: KUBERNETES_SERVICE_HOST is not set")
        try:
            namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
        except OSError as error:
            why = (
                f"{folder}: the ServiceAccount's token is not mounted (automountServiceAccountToken): {error.strerror}"
            )
            raise RuntimeUnavailableError(why) from error
        shown = f"[{host}]" if ":" in host else host
        return cls(
            f"https://{shown}:{port}",
            IN_CLUSTER,
            namespace or DEFAULT_NAMESPACE,
            ca_file=str(folder / "ca.crt"),
            token_file=str(folder / "token"),
        )

    @classmethod
    def of_kubeconfig(cls, path: str | Path | Sequence[str | Path], context: str | None = None) -> "Access":
        """Return the access of a context in a kubeconfig, or in several that are merged; None: the current one.

        Raises `RuntimeUnavailableError` for a file or a context that is missing or can't be used.
        """
        paths = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
        documents = [(one, _read(one)) for one in paths if one.exists()]
        if not documents:
            raise RuntimeUnavailableError(
                f"there is no kubeconfig at {', '.join(map(str, paths))}, and this is no Pod: set KUBECONFIG"
            )
        name = context or next((str(found) for _, one in documents if (found := one.get("current-context"))), "")
        known = _named(documents, "contexts", "context")
        if name not in known:
            has = ", ".join(sorted(known)) or "none"
            asked = f"has no context {name}" if name else "has no current-context"
            raise RuntimeUnavailableError(f"{documents[0][0]}: {asked}; its contexts: {has}")
        _, chosen = known[name]
        clusters, users = _named(documents, "clusters", "cluster"), _named(documents, "users", "user")
        if str(chosen.get("cluster")) not in clusters:
            raise RuntimeUnavailableError(f"{documents[0][0]}: context {name} names no cluster of it")
        place, cluster = clusters[str(chosen["cluster"])]
        of_user, user = users.get(str(chosen.get("user")), (place, {}))
        return cls(
            str(cluster.get("server", "")),
            name,
            str(chosen.get("namespace") or DEFAULT_NAMESPACE),
            ca_text=_decoded(cluster.get("certificate-authority-data"), place),
            ca_file=_beside(place, cluster.get("certificate-authority")),
            is_verified=cluster.get("insecure-skip-tls-verify") is not True,
            server_name=str(cluster.get("tls-server-name") or ""),
            token=str(user.get("token") or ""),
            token_file=_beside(of_user, user.get("tokenFile")),
            certificate=_certificate_of(user, of_user),
            plugin=_plugin_of(user, of_user),
            proxy=str(cluster.get("proxy-url") or ""),
        )


def is_in_cluster(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> bool:
    """Return whether we run in a Pod that may speak to its apiserver."""
    return bool(environment.get("KUBERNETES_SERVICE_HOST")) and (folder / "token").exists()


class Credentials:
    """The current token and certificate of an access. Any thread may call it."""

    def __init__(self, access: Access, *, clock: MonotonicClock | None = None) -> None:
        self._access = access
        self._clock = clock or SystemMonotonicClock()
        self._lock = threading.Lock()
        self._token = access.token
        self._certificate = access.certificate
        self._fresh_until = _FOREVER if access.token and not access.plugin else float("-inf")
        self.version = 0
        """Rises with each new certificate: connections that were made before it are of no use."""

    def headers(self) -> dict[str, str]:
        """Return what identifies us in a request. Raises `RuntimeUnavailableError` if that can't be read."""
        with self._lock:
            if self._clock.wall_seconds() >= self._fresh_until:
                self._renew()
            return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def forget(self) -> None:
        """Read the token again before the next request: the apiserver refused it."""
        with self._lock:
            if self._access.token_file or self._access.plugin:
                self._fresh_until = float("-inf")

    def tls(self) -> ssl.SSLContext:
        """Return a context of the authority and the certificate as their files are now."""
        access = self._access
        try:
            context = ssl.create_default_context(cafile=access.ca_file or None, cadata=access.ca_text or None)
            context.check_hostname = False  # urllib3 compares names itself; Python's check has none of an address
            if not access.is_verified:
                context.verify_mode = ssl.CERT_NONE
            if self._certificate is not None:
                _load_certificate(context, self._certificate)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise RuntimeUnavailableError(f"the certificates of {access.context} can't be used: {error}") from error
        return context

    def _renew(self) -> None:
        now = self._clock.wall_seconds()
        if self._access.plugin is not None:
            self._take(_run(self._access.plugin))
        elif self._access.token_file:
            try:
                self._token = Path(self._access.token_file).read_text(encoding="utf-8").strip()
            except OSError as error:
                why = f"{self._access.token_file}: the token can't be read: {error.strerror}"
                raise RuntimeUnavailableError(why) from error
            self._fresh_until = now + TOKEN_SECONDS
        else:
            self._fresh_until = _FOREVER

    def _take(self, status: Mapping[str, object]) -> None:
        """Take the `status` of an ExecCredential."""
        self._token = str(status.get("token") or "")
        text, key = status.get("clientCertificateData"), status.get("clientKeyData")
        if isinstance(text, str) and isinstance(key, str):
            self._certificate = ClientCertificate(text=text, key_text=key)
            self.version += 1
        ends = status.get("expirationTimestamp")
        try:
            ends_at = datetime.fromisoformat(str(ends)).timestamp() if ends else _FOREVER
        except ValueError:
            ends_at = self._clock.wall_seconds() + EARLY_SECONDS + TOKEN_SECONDS
        self._fresh_until = ends_at - EARLY_SECONDS


def _run(plugin: ExecPlugin) -> Mapping[str, object]:
    """Run a plugin; return the `status` of what it prints. Raises `RuntimeUnavailableError` with its own words."""
    asked = {"kind": "ExecCredential", "apiVersion": plugin.version, "spec": {"interactive": False}}
    environment = {**os.environ, **plugin.environment, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    command = plugin.command
    if os.sep in command:
        command = str(Path(plugin.folder) / command)
    try:
        ended = subprocess.run(  # the program that the kubeconfig names
            [command, *plugin.arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PLUGIN_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        hint = f": {plugin.hint}" if plugin.hint else ""
        raise RuntimeUnavailableError(f"the kubeconfig's plugin {plugin.command} is not installed{hint}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeUnavailableError(f"the kubeconfig's plugin {plugin.command} can't be run: {error}") from error
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip().splitlines()
        why = f": {said[-1]}" if said else ""
        raise RuntimeUnavailableError(
            f"the kubeconfig's plugin {plugin.command} ended with exit code {ended.returncode}{why}"
        )
    try:
        status = json.loads(ended.stdout)["status"]
    except (ValueError, KeyError, TypeError):
        status = None
    if not isinstance(status, Mapping):
        raise RuntimeUnavailableError(
            f"the kubeconfig's plugin {plugin.command} printed no ExecCredential with a status"
        )
    return status


def _load_certificate(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    """Load a client's certificate, which `ssl` takes from files only."""
    if certificate.file:
        context.load_cert_chain(certificate.file, certificate.key_file or None)
        return
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as file:  # readable for its owner only
        file.write(f"{certificate.text}\n{certificate.key_text}\n")
        file.flush()
        context.load_cert_chain(file.name)


def _read(path: Path) -> Mapping[str, object]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RuntimeUnavailableError(f"{path}: the kubeconfig can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RuntimeUnavailableError(f"{path}: the kubeconfig is no YAML: {error}") from error
    if not isinstance(document, Mapping):
        raise RuntimeUnavailableError(f"{path}: the kubeconfig is empty")
    return document


def _named(
    documents: Sequence[tuple[Path, Mapping[str, object]]], plural: str, singular: str
) -> dict[str, tuple[Path, Mapping[str, object]]]:
    """Return the named entries of all documents with their file; of one name the first counts, as for kubectl."""
    found: dict[str, tuple[Path, Mapping[str, object]]] = {}
    for path, document in documents:
        entries = document.get(plural)
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, Mapping) and isinstance(entry.get(singular), Mapping):
                found.setdefault(str(entry.get("name")), (path, entry[singular]))
    return found


def _beside(place: Path, path: object) -> str:
    return str(place.parent / str(path)) if path else ""


def _decoded(data: object, place: Path) -> str:
    if not data:
        return ""
    try:
        return base64.b64decode("".join(str(data).split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise RuntimeUnavailableError(f"{place}: a certificate in the kubeconfig is not base64: {error}") from error


def _certificate_of(user: Mapping[str, object], place: Path) -> ClientCertificate | None:
    known = ClientCertificate(
        _decoded(user.get("client-certificate-data"), place),
        _decoded(user.get("client-key-data"), place),
        _beside(place, user.get("client-certificate")),
        _beside(place, user.get("client-key")),
    )
    if known.text:
        return replace(known, file="", key_file="")
    return known if known.file else None


def _plugin_of(user: Mapping[str, object], place: Path) -> ExecPlugin | None:
    given = user.get("exec")
    if not isinstance(given, Mapping) or not given.get("command"):
        return None
    variables = given.get("env") or []
    return ExecPlugin(
        str(given["command"]),
        tuple(str(one) for one in given.get("args") or ()),
        {str(one["name"]): str(one["value"]) for one in variables if isinstance(one, Mapping)},
        str(given.get("apiVersion") or _EXEC_VERSION),
        " ".join(str(given.get("installHint") or "").split()),
        str(place.parent),
    )
