"""An address of this machine that Pods of a private cluster reach; nothing of its network is left changed."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from tests.support.stores.engine_process import EngineUnavailableError

PREFIX: Final = "tlk"
_INTERFACES: Final = Path("/sys/class/net")
_FORWARDING: Final = Path("/proc/sys/net/ipv4/ip_forward")
_FIRST: Final = 64
_COUNT: Final = 64


@contextmanager
def address() -> Iterator[str]:
    """Make an interface with an address of its own, such as 10.88.0.1; put back whether this machine forwards.

    Raises `EngineUnavailableError`.
    """
    if shutil.which("ip") is None:
        raise EngineUnavailableError("kubernetes: no ip (Debian: apt-get install iproute2)")
    forwarding = _FORWARDING.read_text()  # the plugin that makes the interfaces of a Pod sets it
    name = f"{PREFIX}{os.getpid()}"
    found = f"10.{_FIRST + os.getpid() % _COUNT}.0.1"  # several planes may run on one machine
    _ip("link", "add", name, "type", "bridge")
    try:
        _ip("address", "add", f"{found}/32", "dev", name)
        _ip("link", "set", name, "up")
        yield found
    finally:
        _ip("link", "delete", name)
        with contextlib.suppress(OSError):
            _FORWARDING.write_text(forwarding)


def subnet_of(address: str, node: int) -> str:
    """Return the addresses of the Pods of a node."""
    return f"{address.rsplit('.', 2)[0]}.{node}.0/24"


def all_of(address: str) -> str:
    """Return the addresses of all Pods and of this machine for them."""
    return f"{address.rsplit('.', 2)[0]}.0.0/16"


def sweep() -> None:
    """Remove the interfaces of processes that were killed."""
    for interface in _INTERFACES.glob(f"{PREFIX}*"):
        owner = interface.name.removeprefix(PREFIX)
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            with contextlib.suppress(EngineUnavailableError):
                _ip("link", "delete", interface.name)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineUnavailableError(f"kubernetes: ip {' '.join(arguments)}: {done.stderr.strip()}")
