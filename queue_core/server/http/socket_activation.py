"""A listening socket that was there before us: from a service manager, or from the program we were started in place of.

The protocol is that of systemd's socket activation, sd_listen_fds(3): descriptors from 3 on, told by LISTEN_FDS to the
process whose pid is LISTEN_PID.
"""

import contextlib
import os
import socket
from typing import Final

from queue_core.server.options import ServeOptions

FIRST_INHERITED: Final = 3
MAX_INHERITED_SOCKETS: Final = 64
_ACTIVATION_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def inherited_socket(options: ServeOptions) -> socket.socket | None:
    """The inherited socket that listens where these options want to; None when there is none."""
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return None
    for descriptor in range(FIRST_INHERITED, FIRST_INHERITED + min(int(count), MAX_INHERITED_SOCKETS)):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=descriptor)
            if _listens_at(found, options):
                found.set_inheritable(False)
                for name in _ACTIVATION_VARIABLES:
                    os.environ.pop(name, None)
                return found
            found.detach()
    return None


def pass_on_socket(listening: int) -> None:
    """Let this descriptor be the one that the program finds which is executed in our place."""
    os.dup2(listening, FIRST_INHERITED, inheritable=True)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="towline")


def _listens_at(found: socket.socket, options: ServeOptions) -> bool:
    if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    where = found.getsockname()
    if options.socket_path is not None:
        return found.family == socket.AF_UNIX and where == str(options.socket_path)
    is_there = found.family in {socket.AF_INET, socket.AF_INET6} and where[0] == options.host
    return is_there and options.port in {0, where[1]}
