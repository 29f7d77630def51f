"""A private Kubernetes for tests: etcd and the control plane on loopback, and real nodes where they are asked for.

Nothing is left behind: processes, mounts, cgroups, network interfaces and `ip_forward` are as they were. Any cluster
of this machine is neither used nor disturbed. `python3 -m tests.support.kubernetes.plane --nodes 2 COMMAND` runs a
command beside one, with its kubeconfig in KUBECONFIG.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil

from tests.support.docker.dockerd import end_leftovers
from tests.support.docker.image import NoImageError
from tests.support.docker.images import image_for_tests
from tests.support.eventually import eventually
from tests.support.kubernetes import network, node
from tests.support.kubernetes.cluster import ApiAccess, Cluster, Json
from tests.support.kubernetes.images import PAUSE, TOWLINE, pause_image, write_image
from tests.support.kubernetes.node import Node
from tests.support.kubernetes.programs import NoProgramsError, programs
from tests.support.stores.engine_process import Engine, EngineLaunch, EngineUnavailableError
from tests.support.stores.engines import LOOPBACK, free_port

PREFIX: Final = "towline-kube-"
START_SECONDS: Final = 120.0
CONTROLLERS: Final = (
    *("deployment-controller", "disruption-controller", "garbage-collector-controller", "namespace-controller"),
    *("node-lifecycle-controller", "pod-garbage-collector-controller", "replicaset-controller"),
    *("resourcequota-controller", "root-ca-certificate-publisher-controller", "serviceaccount-controller"),
    *("serviceaccount-token-controller", "taint-eviction-controller", "validatingadmissionpolicy-status-controller"),
)
"""What tests meet; each of the others would watch kinds of objects that no test makes."""

AUDIT: Final[Mapping[str, object]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Request",
            "verbs": ["create", "delete", "deletecollection"],
            "resources": [{"group": "", "resources": ["pods"]}],
        },
        {"level": "Metadata", "resources": [{"group": "", "resources": ["pods", "pods/*", "configmaps", "nodes"]}]},
        {"level": "None"},
    ],
}
"""Who made and ended which Pod, with the options of each DELETE, and every other call that a supervisor makes."""

NODES: Final = 5
"""A node needs a token of its own from the start."""


class Plane:
    """A control plane: its programs by name, its nodes, and what it tells of calls on Pods.

    Attributes:
        kubeconfig: the file of a person who may do everything.
        cluster: calls on its API by that person.
    """

    def __init__(self, home: Path, folder: Path, *, node_grace_seconds: int) -> None:
        self.home = home
        self.programs = folder
        self.node_grace_seconds = node_grace_seconds
        self.port = free_port()
        self.url = f"https://{LOOPBACK}:{self.port}"
        self.nodes: dict[str, Node] = {}
        self._address = ""
        self._parts: dict[str, Engine] = {}
        self._stack = ExitStack()
        self._keys = home / "keys"
        self._authority = self._keys / "apiserver.crt"

    @property
    def kubeconfig(self) -> Path:
        return self._keys / "admin.kubeconfig"

    @property
    def cluster(self) -> Cluster:
        return Cluster(ApiAccess.of_kubeconfig(self.kubeconfig))

    @property
    def address(self) -> str:
        """Where Pods reach servers of this machine; made when it is first asked for."""
        if not self._address:
            self._address = self._stack.enter_context(network.address())
        return self._address

    def part(self, name: str) -> Engine:
        """Return one of its programs: "etcd", "apiserver", "controllers" or "scheduler"."""
        return self._parts[name]

    def restart(self, name: str) -> None:
        """SIGKILL one of its programs, unless that was done, and start it again."""
        if self._parts[name].process.poll() is None:
            self._parts[name].kill()
        self._parts[name].start(wait=False)
        if name == "apiserver":
            self._await(name, f"{self.url}/readyz")

    def start(self) -> None:
        """Start etcd and the control plane. Raises `EngineUnavailableError`."""
        self._make_keys()
        etcd, peers = free_port(), free_port()
        stored = f"http://{LOOPBACK}:{etcd}"
        heard = f"http://{LOOPBACK}:{peers}"
        self._start(
            "etcd",
            ["etcd", "--data-dir", f"{self.home}/etcd-data", "--unsafe-no-fsync", "--log-level=warn"],
            [f"--listen-client-urls={stored}", f"--advertise-client-urls={stored}"],
            [f"--listen-peer-urls={heard}", f"--initial-advertise-peer-urls={heard}"],
            [f"--initial-cluster=default={heard}"],
        )
        self._start("apiserver", ["kube-apiserver", f"--etcd-servers={stored}"], self._apiserver_options())
        self._await("apiserver", f"{self.url}/readyz")
        controllers, scheduler = free_port(), free_port()
        self._start(
            "controllers",
            ["kube-controller-manager", "--use-service-account-credentials"],
            self._options_of_a_part("controllers", controllers),
            [f"--service-account-private-key-file={self._keys}/accounts.key", f"--root-ca-file={self._authority}"],
            [f"--node-monitor-grace-period={self.node_grace_seconds}s", "--node-monitor-period=2s"],
            ["--controllers", ",".join(CONTROLLERS)],
        )
        self._start("scheduler", ["kube-scheduler"], self._options_of_a_part("scheduler", scheduler))
        self._await("scheduler", f"https://{LOOPBACK}:{scheduler}/readyz")
        self._await("controllers", f"https://{LOOPBACK}:{controllers}/healthz")
        cluster = self.cluster
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        eventually(lambda: cluster.find(account) is not None, seconds=START_SECONDS)

    def add_node(self) -> Node:
        """Start one more real node with the test image. Raises `EngineUnavailableError`."""
        number = len(self.nodes) + 1
        home = Path(tempfile.mkdtemp(prefix=f"{node.PREFIX}{os.getpid()}-"))
        self._stack.callback(end_leftovers, home)
        made = Node(
            number,
            home,
            programs=self.programs,
            kubeconfig=self._keys / f"node{number}.kubeconfig",
            client_authority=self._keys / "to-kubelets.crt",
            network=self.address,
            lease_seconds=self.node_grace_seconds,
        )
        self._stack.callback(made.end)
        made.start(self._images())
        self.nodes[made.name] = made
        eventually(lambda: self.cluster.is_ready(made.name), seconds=START_SECONDS)
        return made

    def _images(self) -> list[Path]:
        """Return the images of a node as files, written for the first one. Raises `EngineUnavailableError`."""
        folder = self.home / "images"
        if not folder.is_dir():
            folder.mkdir()
            try:
                write_image(pause_image(self.programs / "pause"), PAUSE, folder / "pause.tar")
                write_image(image_for_tests(), TOWLINE, folder / "towline.tar")
            except NoImageError as error:
                raise EngineUnavailableError(f"kubernetes: {error}") from error
        return sorted(folder.iterdir())

    def access_file(self, name: str, token: str, *, namespace: str = "default") -> Path:
        """Write a kubeconfig with this token and return it."""
        return self._write_kubeconfig(name, token, namespace=namespace)

    def audit(self) -> list[Json]:
        """Return what the apiserver recorded of calls on Pods, configmaps and nodes, in order."""
        log = self.home / "audit.log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def end(self) -> None:
        """End its nodes, then its programs, the first started last."""
        self._stack.close()
        for part in reversed(self._parts.values()):
            part.stop()

    def _start(self, name: str, *command: Sequence[str]) -> None:
        words = [word for words in command for word in words]
        home = self.home / name
        home.mkdir()
        launch = EngineLaunch(name, [str(self.programs / words[0]), *words[1:]], home, lambda: True)
        self._parts[name] = Engine(launch, tcp_url="", host=LOOPBACK, port=0)
        self._parts[name].start(wait=False)

    def _await(self, name: str, url: str) -> None:
        part = self._parts[name]

        def ready() -> bool:
            if part.process.poll() is not None:
                raise EngineUnavailableError(f"{name} ended with {part.process.returncode}: {part.last_words()}")
            return _answers(url)

        eventually(ready, seconds=START_SECONDS)

    def _apiserver_options(self) -> list[str]:
        policy = self.home / "audit.json"
        policy.write_text(json.dumps(AUDIT))
        keys = self._keys
        return [
            *(f"--bind-address={LOOPBACK}", f"--advertise-address={LOOPBACK}", f"--secure-port={self.port}"),
            *(f"--cert-dir={keys}", f"--token-auth-file={keys}/tokens.csv", "--endpoint-reconciler-type=none"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            *("--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24"),
            *(f"--service-account-key-file={keys}/accounts.key", "--kubelet-preferred-address-types=InternalIP"),
            f"--service-account-signing-key-file={keys}/accounts.key",
            *(f"--kubelet-client-certificate={keys}/to-kubelets.crt", f"--kubelet-client-key={keys}/to-kubelets.key"),
            *(f"--audit-policy-file={policy}", f"--audit-log-path={self.home}/audit.log"),
        ]

    def _options_of_a_part(self, who: str, port: int) -> list[str]:
        file = self._keys / f"{who}.kubeconfig"
        return [
            *(f"--kubeconfig={file}", f"--authentication-kubeconfig={file}", f"--authorization-kubeconfig={file}"),
            *("--leader-elect=false", f"--bind-address={LOOPBACK}", f"--secure-port={port}"),
            f"--cert-dir={self.home}/{who}-certificates",
        ]

    def _make_keys(self) -> None:
        """Make the keys and tokens: each party has the rights that it has in a cluster."""
        self._keys.mkdir(mode=0o700)
        _openssl("genrsa", "-out", f"{self._keys}/accounts.key", "2048")
        certificate = ["-keyout", f"{self._keys}/to-kubelets.key", "-out", f"{self._keys}/to-kubelets.crt"]
        _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=apiserver", "-days", "2", *certificate)
        people = {
            "admin": ("admin", "system:masters"),
            "controllers": ("system:kube-controller-manager", ""),
            "scheduler": ("system:kube-scheduler", ""),
            **{f"node{n}": (f"system:node:{node.name_of(n)}", "system:nodes") for n in range(1, NODES + 1)},
        }
        lines = []
        for who, (user, group) in people.items():
            token = secrets.token_hex(16)
            lines.append(f'{token},{user},{who},"{group}"' if group else f"{token},{user},{who}")
            self._write_kubeconfig(who, token)
        (self._keys / "tokens.csv").write_text("\n".join(lines) + "\n")

    def _write_kubeconfig(self, name: str, token: str, *, namespace: str = "default") -> Path:
        file = self._keys / f"{name}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self._authority)}
        context = {"cluster": "here", "user": name, "namespace": namespace}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": context}],
        }
        file.write_text(json.dumps(content, indent=1))
        return file


@contextmanager
def plane(*, node_grace_seconds: int = 8) -> Iterator[Plane]:
    """Run a control plane without nodes (`Plane.add_node`), in its own folder. Raises `EngineUnavailableError`.

    `node_grace_seconds`: how long a node that is silent is believed in; a cluster's own default is 50 s.
    """
    try:
        folder = programs()
    except NoProgramsError as error:
        raise EngineUnavailableError(str(error)) from error
    if shutil.which("openssl") is None:
        raise EngineUnavailableError("kubernetes: no openssl (Debian: apt-get install openssl)")
    sweep()
    home = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    made = Plane(home, folder, node_grace_seconds=node_grace_seconds)
    try:
        made.start()
        yield made
    finally:
        made.end()
        shutil.rmtree(home, ignore_errors=True)


def sweep() -> None:
    """Clean up after planes whose owners were killed."""
    temporary = Path(tempfile.gettempdir())
    for prefix in (PREFIX, node.PREFIX):
        for home in temporary.glob(f"{prefix}*-*"):
            owner = home.name.removeprefix(prefix).partition("-")[0]
            if owner.isdecimal() and not psutil.pid_exists(int(owner)):
                end_leftovers(home)
    network.sweep()


def _answers(url: str) -> bool:
    """Return whether a part says that it is ready; its certificate is its own."""
    unverified = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(url, context=unverified, timeout=5) as answer:
            return int(answer.status) == 200
    except (OSError, urllib.error.URLError):
        return False


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def main() -> int:
    """Run a command beside a plane, or wait for an interrupt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=0, help="real nodes with containerd; they need root and runc")
    parser.add_argument("--node-grace", type=int, default=8, help="seconds that a silent node is believed in")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with plane(node_grace_seconds=arguments.node_grace) as made:
            for _ in range(arguments.nodes):
                made.add_node()
            print(f"KUBECONFIG={made.kubeconfig}", f"home {made.home}", sep="\n", flush=True)  # noqa: T201
            if arguments.nodes:
                print(f"Pods reach this machine at {made.address}", flush=True)  # noqa: T201
            if not arguments.command:
                with contextlib.suppress(KeyboardInterrupt):
                    signal.pause()
                return 0
            environment = {**os.environ, "KUBECONFIG": str(made.kubeconfig), "TOWLINE_TEST_ADDRESS": made.address}
            return subprocess.run(arguments.command, check=False, env=environment).returncode
    except EngineUnavailableError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 69


if __name__ == "__main__":
    sys.exit(main())
