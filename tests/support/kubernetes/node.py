"""A real node of a private cluster: a containerd of its own, a kubelet, and interfaces of its Pods on this machine."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.eventually import eventually
from tests.support.kubernetes import images
from tests.support.kubernetes.network import all_of, subnet_of
from tests.support.stores.engine_process import Engine, EngineLaunch, EngineUnavailableError
from tests.support.stores.engines import free_port

PREFIX: Final = "towline-node-"
START_SECONDS: Final = 120.0
_CGROUPS: Final = Path("/sys/fs/cgroup")
_UNIFIED: Final = _CGROUPS / "cgroup.controllers"
_NAMESPACE: Final = "k8s.io"


def name_of(number: int) -> str:
    """Return the name of a node: a kubelet takes one that is an address as its own address."""
    return f"127.0.0.{number}"


def why_no_node() -> str:
    """Return why no node can be started here, as a reason for skipping; "" when one can."""
    if os.geteuid() != 0:
        return "kubernetes: only root can start a node"
    if _runc() is None:
        return "kubernetes: no runc (Debian: apt-get install docker.io)"
    return ""


class Node:
    """A node: it can be frozen, as a machine that hangs, and thawed.

    Attributes:
        name: its name in the cluster.
        number: 1 for the first.
    """

    def __init__(
        self,
        number: int,
        home: Path,
        *,
        programs: Path,
        kubeconfig: Path,
        client_authority: Path,
        network: str,
        lease_seconds: int,
    ) -> None:
        self.number = number
        self.name = name_of(number)
        self.home = home
        self._programs = programs
        self._kubeconfig = kubeconfig
        self._client_authority = client_authority
        self._network = network
        self._lease_seconds = lease_seconds
        self._socket = home / "containerd.sock"
        self._containerd: Engine | None = None
        self._kubelet: Engine | None = None

    def start(self, archives: Sequence[Path]) -> None:
        """Start containerd, import images and start the kubelet. Raises `EngineUnavailableError`."""
        if reason := why_no_node():
            raise EngineUnavailableError(reason)
        self._make_cgroups()
        self._containerd = self._engine("containerd", ["--config", str(self._write_containerd())])
        self._containerd.start(wait=False)
        eventually(self._answers, seconds=START_SECONDS)
        for archive in archives:
            self._ctr("images", "import", "--local", str(archive))
        kubelet = [
            *("--config", str(self._write_kubelet()), "--kubeconfig", str(self._kubeconfig)),
            *("--hostname-override", self.name, "--root-dir", f"{self.home}/kubelet"),
            *("--cert-dir", f"{self.home}/certificates"),
        ]
        self._kubelet = self._engine("kubelet", kubelet)
        self._kubelet.start(wait=False)

    def freeze(self) -> None:
        """Stop its kubelet: its containers run on, and nobody hears of them."""
        assert self._kubelet is not None
        self._kubelet.freeze()

    def thaw(self) -> None:
        """Let its kubelet go on."""
        assert self._kubelet is not None
        self._kubelet.thaw()

    def tag(self, image: str, name: str) -> None:
        """Give an image one more name."""
        self._ctr("images", "tag", "--force", image, name)

    def end(self) -> None:
        """End it as if its machine were switched off."""
        if self._kubelet is not None:
            self._kubelet.stop()
        if self._containerd is None or self._containerd.process.poll() is not None:
            return
        for container in self._ctr("containers", "list", "-q").split():
            with contextlib.suppress(EngineUnavailableError):  # one that ended meanwhile
                self._ctr("tasks", "delete", "--force", container)
            with contextlib.suppress(EngineUnavailableError):
                self._ctr("containers", "delete", container)
        self._containerd.stop()

    def _engine(self, program: str, arguments: Sequence[str]) -> Engine:
        home = self.home / f"{program}-log"
        home.mkdir()
        # containerd looks for its shim, and the shim for runc, on PATH.
        path = f"PATH={self._programs}:{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
        command = ["env", path, str(self._programs / program), *arguments]
        return Engine(EngineLaunch(program, command, home, lambda: True), tcp_url="", host=self.name, port=0)

    def _answers(self) -> bool:
        assert self._containerd is not None
        if self._containerd.process.poll() is not None:
            raise EngineUnavailableError(f"containerd: {self._containerd.last_words()}")
        try:
            self._ctr("version")
        except EngineUnavailableError:
            return False
        return True

    def _ctr(self, *arguments: str) -> str:
        command = [str(self._programs / "ctr"), "--address", str(self._socket), "--namespace", _NAMESPACE, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_SECONDS)
        if done.returncode:
            raise EngineUnavailableError(f"kubernetes: ctr {' '.join(arguments)}: {done.stderr.strip()[-400:]}")
        return done.stdout

    def _write_containerd(self) -> Path:
        """Write containerd's settings: all that it mounts lies in our folder."""
        self._write_plugins()
        file = self.home / "containerd.toml"
        cri = "io.containerd.cri.v1"
        file.write_text(f"""
version = 3
root = "{self.home}/data"
state = "{self.home}/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]

[grpc]
address = "{self._socket}"

[plugins."{cri}.images"]
snapshotter = "overlayfs"

[plugins."{cri}.images".pinned_images]
sandbox = "{images.PAUSE}"

[plugins."{cri}.runtime"]
disable_apparmor = true
netns_mounts_under_state_dir = true
restrict_oom_score_adj = true

[plugins."{cri}.runtime".cni]
bin_dirs = ["{self._programs}"]
conf_dir = "{self.home}/plugins"

[plugins."{cri}.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."{cri}.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
""")
        return file

    def _write_plugins(self) -> None:
        """Describe a Pod's network: a pair of interfaces, by which it reaches this machine and other Pods alone."""
        addresses = {
            "type": "host-local",
            "dataDir": f"{self.home}/addresses",
            "ranges": [[{"subnet": subnet_of(self._network, self.number)}]],
            "routes": [{"dst": all_of(self._network)}],
        }
        pair = {"type": "ptp", "ipMasq": False, "ipam": addresses}
        folder = self.home / "plugins"
        folder.mkdir()
        described = {"cniVersion": "1.0.0", "name": f"node{self.number}", "plugins": [pair]}
        (folder / "pods.conflist").write_text(json.dumps(described))

    def _write_kubelet(self) -> Path:
        file = self.home / "kubelet.json"
        settings: dict[str, object] = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.name,
            "port": free_port(),
            "healthzPort": 0,
            "readOnlyPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self._client_authority)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "podLogsDir": f"{self.home}/logs",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.home.name}",
            "enforceNodeAllocatable": ["pods"],
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": self._lease_seconds,
        }
        file.write_text(json.dumps(settings, indent=1))
        return file

    def _make_cgroups(self) -> None:
        """Make the group of its Pods; in v1, one for each controller, and none without cores takes a process."""
        if _UNIFIED.exists():
            (_CGROUPS / self.home.name).mkdir()
            return
        for controller in (path.parent for path in _CGROUPS.glob("*/cgroup.procs")):
            group = controller / self.home.name
            group.mkdir()
            for kind in ("cpus", "mems"):
                if (controller / f"cpuset.{kind}").exists():
                    (group / f"cpuset.{kind}").write_text((controller / f"cpuset.{kind}").read_text())


def _runc() -> str | None:
    return shutil.which("runc", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
