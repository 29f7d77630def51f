"""What the service manager is told of a supervisor: its phases, what it looks after, and that its turns finish."""

from collections.abc import Mapping
from typing import Final

from orchestrator.clock import Monotonic
from queue_core.process.sd_notify import ServiceManager

LONGER_SECONDS: Final = 15.0
"""How much longer a stop may take from each time this is told, once a second, while workers finish what they hold."""


class Notices:
    """Speaks for one supervisor. Belongs to one thread."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._manager = ServiceManager(environment)
        self._feed_at = Monotonic(float("-inf"))

    def ready(self, status: str) -> None:
        """It supervises; or it has read its settings again, whether or not they could be used."""
        self._manager.ready(status)

    def reloading(self, *, now: Monotonic) -> None:
        """It reads its settings again; `ready` follows."""
        self._manager.reloading(monotonic_seconds=now)

    def status(self, text: str) -> None:
        """What it is about, told when that is something else than before."""
        self._manager.status(text)

    def finished_turns(self, *, now: Monotonic) -> None:
        """Feed the watchdog, no more often than it wants. Only turns that finished may do so."""
        if self._manager.watchdog_seconds is not None and now >= self._feed_at:
            self._feed_at = Monotonic(now + self._manager.watchdog_seconds)
            self._manager.alive()

    def stopping(self, status: str) -> None:
        """It stops."""
        self._manager.stopping(status)

    def finishing(self, status: str) -> None:
        """Its workers still finish what they hold: it is not stuck."""
        self._manager.status(status)
        self._manager.needs_longer(seconds=LONGER_SECONDS)


def status_of(phase: str, *, pools: int, workers: int, leaving: int) -> str:
    """One line for `systemctl status`."""
    crew = f"{workers} worker{'' if workers == 1 else 's'}"
    if leaving:
        crew += f", {leaving} of them leaving"
    return f"{phase}: {pools} pool{'' if pools == 1 else 's'}, {crew}"
