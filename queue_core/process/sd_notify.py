"""Reports the state of the process to systemd: ready, alive, stopping. Does nothing without it. See sd_notify(3)."""

import os
import socket
from collections.abc import Mapping
from typing import Final

STATUS_CHARS: Final = 200


class ServiceManager:
    """The service manager at NOTIFY_SOCKET, if set."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._status = ""
        self.watchdog_seconds = _watchdog_seconds(environment) if self.listens else None
        """Interval for WATCHDOG=1: half the manager's limit; None when it has no watchdog."""

    @property
    def listens(self) -> bool:
        """Return whether there is a service manager."""
        return self._address.startswith(("/", "@"))

    def notify(self, *states: str) -> None:
        """Send states such as `READY=1` as one message; ignore a manager that is gone."""
        if not self.listens:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.settimeout(0)
                channel.sendto("\n".join(states).encode(), address)
        except OSError:
            return

    def ready(self, status: str = "") -> None:
        """Report that the process has started or finished a reload."""
        self._status = status
        self.notify("READY=1", f"MAINPID={os.getpid()}", *_status(status))

    def reloading(self, *, monotonic_seconds: float) -> None:
        """Report that a reload begins; `ready` ends it."""
        self.notify("RELOADING=1", f"MONOTONIC_USEC={round(monotonic_seconds * 1_000_000)}")

    def status(self, text: str) -> None:
        """Report a one-line status text if it changed."""
        if text != self._status:
            self._status = text
            self.notify(*_status(text))

    def alive(self) -> None:
        """Reset the watchdog."""
        self.notify("WATCHDOG=1")

    def stopping(self, status: str = "") -> None:
        """Report that the process is stopping."""
        self._status = status
        self.notify("STOPPING=1", *_status(status))

    def needs_longer(self, *, seconds: float) -> None:
        """Extend the timeout of the present start or stop by at least this time."""
        self.notify(f"EXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}")


def _status(text: str) -> list[str]:
    return [f"STATUS={' '.join(text.split())[:STATUS_CHARS]}"] if text else []


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    allowed, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if pid.isdecimal() and int(pid) != os.getpid():
        return None
    return int(allowed) / 2_000_000 if allowed.isdecimal() and int(allowed) else None
