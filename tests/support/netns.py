"""Several hosts on one machine: network namespaces on a private bridge whose links can be cut. Needs root.

This machine's network is not touched: the bridge is in a namespace, too.
"""

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PREFIX = "tl"
NETWORK = "10.77.0"


class NamespacesUnavailableError(Exception):
    """Network namespaces can't be made here; the message says why, as a reason for skipping."""


@dataclass(frozen=True, slots=True)
class NetnsHost:
    """One host: its namespace, and its address on the common network."""

    namespace: str
    address: str
    _hub: str
    _port: str

    def cut(self) -> None:
        """Cut its link: packets are lost without notice."""
        _ip("-n", self._hub, "link", "set", self._port, "down")

    def mend(self) -> None:
        """Restore its link."""
        _ip("-n", self._hub, "link", "set", self._port, "up")

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]


@contextmanager
def hosts(*names: str) -> Iterator[list[NetnsHost]]:
    """Make hosts that reach each other, removed at the end; processes left on them lose their network.

    Raises `NamespacesUnavailableError`.
    """
    if os.geteuid() != 0:
        raise NamespacesUnavailableError("network namespaces need root")
    if shutil.which("ip") is None:
        raise NamespacesUnavailableError("ip: not installed (Debian: apt-get install iproute2)")
    prefix = f"{PREFIX}{os.getpid()}"
    hub = f"{prefix}-hub"
    made: list[str] = []
    try:
        _make(hub, made)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        found = []
        for number, name in enumerate(names, start=1):
            host = NetnsHost(f"{prefix}-{name}", f"{NETWORK}.{number}", hub, f"port{number}")
            _make(host.namespace, made)
            _ip("-n", hub, "link", "add", host._port, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            _ip("-n", hub, "link", "set", host._port, "master", "bridge", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
            found.append(host)
        yield found
    finally:
        for namespace in made:
            _ip("netns", "delete", namespace)


def _make(namespace: str, made: list[str]) -> None:
    _ip("netns", "add", namespace)
    made.append(namespace)
    _ip("-n", namespace, "link", "set", "lo", "up")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NamespacesUnavailableError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def on_host(host: NetnsHost) -> Iterator[None]:
    """Open this thread's new sockets on `host` while the context is open; they may be used anywhere."""
    ours = Path(f"/proc/self/task/{threading.get_native_id()}/ns/net")
    before = os.open(ours, os.O_RDONLY)
    try:
        _enter(Path("/run/netns") / host.namespace)
        try:
            yield
        finally:
            _set(before)
    finally:
        os.close(before)


def _enter(namespace: Path) -> None:
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        _set(descriptor)
    finally:
        os.close(descriptor)


def _set(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns failed")
