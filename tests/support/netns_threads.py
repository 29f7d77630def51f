"""A thread of ours on a host of `netns`: the sockets it opens there are that host's, wherever they are used."""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.netns import Host

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def on_host(host: Host) -> Iterator[None]:
    """Within, what this thread opens is on `host`."""
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
