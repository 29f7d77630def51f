"""Addresses of this machine: a secret goes to no other that nobody typed."""

import ipaddress
import socket
from urllib.parse import urlsplit

from queue_core.process.loopback import is_loopback


def is_of_this_machine(url: str) -> bool:
    """Return whether a server's URL leads to this machine: a Unix socket, the loopback, or an address that it has.

    No name is looked up but the machine's own: whoever owns a name decides where it leads.
    """
    if url.startswith("unix:"):
        return True
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return is_loopback(host) or host == socket.gethostname().lower() or _has_address(host)


def _has_address(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return not (address.is_multicast or address.is_unspecified)
