"""Addresses that mean this machine. Pure."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a name or address means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
