"""A private Docker Engine with its own socket, images, containers and cgroups; it leaves nothing behind.

The system's engine, if any, is neither used nor disturbed. Only processes of the private engine are signalled: those in
its cgroup, and those that name its folder.
"""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import psutil

PREFIX: Final = "towline-docker-"
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CGROUPS: Final = Path("/sys/fs/cgroup")
_LONGEST_SOCKET_PATH_BYTES: Final = 107  # Linux's sun_path without its final NUL
_DEEPEST_SOCKET: Final = "exec/containerd/containerd-debug.sock.ttrpc"
_REMOVALS: Final = 50


class NoEngineError(Exception):
    """No private engine can be started here; the message says why and what to do."""


def why_no_engine() -> str:
    """Return why no engine can be started here, as a reason for skipping; "" when one can."""
    if os.geteuid() != 0:
        return "dockerd: only root can start one"
    if _program("dockerd") is None:
        return "dockerd: not installed (Debian: apt-get install docker.io)"
    return ""


def new_home(parent: Path | None = None) -> Path:
    """Create a folder for one engine, named after our process. Raises `NoEngineError` if its path is too long."""
    home = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))
    if len(os.fsencode(home / _DEEPEST_SOCKET)) > _LONGEST_SOCKET_PATH_BYTES:
        home.rmdir()
        raise NoEngineError(f"{home}: too long for the sockets of an engine; set TMPDIR=/tmp")
    return home


def socket_path(home: Path) -> Path:
    """Return the socket of the engine in this folder."""
    return home / "docker.sock"


def config_path(home: Path) -> Path:
    """Return the settings file of the engine in this folder; SIGHUP makes the engine read it again."""
    return home / "daemon.json"


def engine_command(home: Path, *, options: Sequence[str] = (), has_network: bool = False) -> list[str]:
    """Return the command that starts the engine of `home`.

    Without `has_network` its containers have network `none` or `host`; with it, start the engine in a network
    namespace, so that this machine's network is not changed.
    """
    config = config_path(home)  # the system's settings may contradict ours
    config.write_text("{}")
    command = [
        *(_program("dockerd") or "dockerd", "--host", f"unix://{socket_path(home)}", "--data-root", str(home / "data")),
        *("--exec-root", str(home / "exec"), "--pidfile", str(home / "docker.pid"), "--config-file", str(config)),
        *("--cgroup-parent", f"/{home.name}", "--exec-opt", "native.cgroupdriver=cgroupfs", "--log-level=warn"),
    ]
    if not has_network:
        command += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]
    return [*command, *options]


def answers(home: Path, *, timeout_seconds: float = 2.0) -> bool:
    """Return whether the engine in this folder answers now."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as line:
        line.settimeout(timeout_seconds)
        try:
            line.connect(str(socket_path(home)))
            line.sendall(b"GET /_ping HTTP/1.1\r\nHost: docker\r\nConnection: close\r\n\r\n")
            answer = http.client.HTTPResponse(line)
            answer.begin()
            return answer.status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False


def end_leftovers(home: Path) -> None:
    """End what outlives a stopped engine (containers, shims, mounts, cgroups), then remove its folder."""
    for _ in range(_REMOVALS):
        left = [*_in_cgroup(home), *_naming(home)]
        if not left:
            break
        for member in left:
            with contextlib.suppress(psutil.Error):
                member.send_signal(signal.SIGKILL)
        psutil.wait_procs(left, timeout=0.1)
    for mount in _mounts_under(home):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    for controller in {_CGROUPS, *(_CGROUPS.iterdir() if _CGROUPS.is_dir() else ())}:
        _remove_cgroup(controller / home.name)
    shutil.rmtree(home, ignore_errors=True)


def sweep(parent: Path | None = None) -> None:
    """Clean up after engines whose owners were killed."""
    for home in (parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*-*"):
        owner = home.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            end_leftovers(home)


def forget_pids(home: Path) -> None:
    """Remove pid files before a killed engine restarts: it would take unreaped processes for living ones."""
    for file in (home / "docker.pid", home / "exec" / "containerd" / "containerd.pid"):
        file.unlink(missing_ok=True)


def containers_of(home: Path) -> int:
    """Return how many processes run in this engine's containers, according to the kernel."""
    return len(_in_cgroup(home))


def _in_cgroup(home: Path) -> list[psutil.Process]:
    pids = set()
    for file in [
        *_CGROUPS.glob(f"{home.name}/**/cgroup.procs"),
        *_CGROUPS.glob(f"*/{home.name}/**/cgroup.procs"),
    ]:
        with contextlib.suppress(OSError):
            pids |= {int(line) for line in file.read_text().split()}
    return _processes(pids)


def _naming(home: Path) -> list[psutil.Process]:
    """Return processes of the engine's programs that name a path under its folder."""
    found = []
    for pid in psutil.pids():
        for member in _processes({pid}):
            words = _words(member)
            is_engine = words and Path(words[0]).name.startswith(("dockerd", "containerd", "docker-", "runc"))
            if is_engine and any(word.startswith(f"{home}/") or f"//{home}/" in word for word in words):
                found.append(member)
    return found


def _processes(pids: set[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            member = psutil.Process(pid)
            if member.status() != psutil.STATUS_ZOMBIE:
                found.append(member)
    return found


def _words(member: psutil.Process) -> list[str]:
    try:
        return member.cmdline()
    except psutil.Error:
        return []


def _mounts_under(home: Path) -> list[str]:
    """Return the mounts under `home`, deepest first."""
    table = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split()[4] for line in table]
    return sorted((place for place in places if place.startswith(f"{home}/")), key=len, reverse=True)


def _remove_cgroup(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}")
