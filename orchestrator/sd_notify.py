"""Tells systemd how we are: ready, alive, stopping. Silent where no service manager listens."""

import socket
from collections.abc import Mapping


class ServiceManager:
    """The socket named by NOTIFY_SOCKET, if any. See sd_notify(3)."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.watchdog_seconds = _watchdog_seconds(environment)

    def tell(self, *states: str) -> None:
        """Send states such as `READY=1`; a manager that is gone is no concern of ours."""
        if not self._address.startswith(("/", "@")):
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(0)
            try:
                channel.sendto("\n".join(states).encode(), address)
            except OSError:
                return


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """How often to say WATCHDOG=1: half of what the manager allows; None when it does not ask for it."""
    allowed = environment.get("WATCHDOG_USEC", "")
    return int(allowed) / 2_000_000 if allowed.isdecimal() and int(allowed) else None
