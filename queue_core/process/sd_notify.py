"""Tells a service manager how we are: ready, alive, stopping. Silent where none listens. See sd_notify(3)."""

import os
import socket
from collections.abc import Mapping
from typing import Final

STATUS_CHARS: Final = 200


class ServiceManager:
    """The socket named by NOTIFY_SOCKET, if any."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._status = ""
        self.watchdog_seconds = _watchdog_seconds(environment) if self.listens else None
        """How often to say WATCHDOG=1: half of what the manager allows; None when it does not ask for it."""

    @property
    def listens(self) -> bool:
        """Whether there is a manager to tell."""
        return self._address.startswith(("/", "@"))

    def tell(self, *states: str) -> None:
        """Send states such as `READY=1` as one message; a manager that is gone is no concern of ours."""
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
        """We are up, or done with a reload."""
        self._status = status
        self.tell("READY=1", f"MAINPID={os.getpid()}", *_status(status))

    def reloading(self, *, monotonic_seconds: float) -> None:
        """A reload begins; `ready` ends it."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={round(monotonic_seconds * 1_000_000)}")

    def status(self, text: str) -> None:
        """One line for people, told when it is another one than before."""
        if text != self._status:
            self._status = text
            self.tell(*_status(text))

    def alive(self) -> None:
        """Feed the watchdog."""
        self.tell("WATCHDOG=1")

    def stopping(self, status: str = "") -> None:
        """The end begins."""
        self._status = status
        self.tell("STOPPING=1", *_status(status))

    def needs_longer(self, *, seconds: float) -> None:
        """What goes on now, a start or a stop, is not stuck: it may take at least this much longer."""
        self.tell(f"EXTEND_TIMEOUT_USEC={round(seconds * 1_000_000)}")


def _status(text: str) -> list[str]:
    return [f"STATUS={' '.join(text.split())[:STATUS_CHARS]}"] if text else []


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    allowed, whose = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if whose.isdecimal() and int(whose) != os.getpid():
        return None
    return int(allowed) / 2_000_000 if allowed.isdecimal() and int(allowed) else None
