"""Notify the service manager (systemd, ADR 11): phases, a status text, and the watchdog."""

from collections.abc import Mapping
from typing import Final

from orchestrator.base.clock import Monotonic
from queue_core.process.sd_notify import ServiceManager

LONGER_SECONDS: Final = 15.0
"""Extension of the stop timeout, requested once a second while workers finish what they hold."""


class ServiceNotifier:
    """Notifies the service manager of one supervisor's state. Belongs to one thread."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._manager = ServiceManager(environment)
        self._feed_at = Monotonic(float("-inf"))

    def ready(self, status: str) -> None:
        """Notify that the supervisor runs, or has completed a reload, successful or not."""
        self._manager.ready(status)

    def reloading(self, *, now: Monotonic) -> None:
        """Notify that a reload began; `ready` follows."""
        self._manager.reloading(monotonic_seconds=now)

    def status(self, text: str) -> None:
        """Notify of a changed status text."""
        self._manager.status(text)

    def finished_turns(self, *, now: Monotonic) -> None:
        """Feed the watchdog at the interval it wants; call only after turns that finished."""
        if self._manager.watchdog_seconds is not None and now >= self._feed_at:
            self._feed_at = Monotonic(now + self._manager.watchdog_seconds)
            self._manager.alive()

    def stopping(self, status: str) -> None:
        """Notify that the supervisor stops."""
        self._manager.stopping(status)

    def finishing(self, status: str) -> None:
        """Notify that workers still finish what they hold, and request more time."""
        self._manager.status(status)
        self._manager.needs_longer(seconds=LONGER_SECONDS)


def status_of(phase: str, *, pools: int, workers: int, leaving: int) -> str:
    """Return the status text for `systemctl status`."""
    text = f"{workers} worker{'' if workers == 1 else 's'}"
    if leaving:
        text += f", {leaving} of them leaving"
    return f"{phase}: {pools} pool{'' if pools == 1 else 's'}, {text}"
