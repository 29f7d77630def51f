"""Elect one leading supervisor per store; the others stand by. Leadership is a lease that its holder renews.

It ends by our own clock before it ends at the store, so a supervisor that can't reach the store stops acting before
another one starts.
"""

import contextlib
import socket
from pathlib import Path
from typing import Final

from orchestrator.base.clock import Monotonic
from orchestrator.base.errors import SourceUnavailableError
from orchestrator.source import WorkSource
from orchestrator.state.private_files import identity_of_folder

LEAD_SECONDS: Final = 15.0
"""Length of the leadership lease by default: how long a store is without a leader after one was killed, at most."""
MIN_LEAD_SECONDS: Final = 5.0
"""The shortest: a store that is silent for this long without the two margins below ends a leadership."""
RENEWALS: Final = 3
"""Renewals within one leadership lease, so that one that failed is harmless."""
STANDBY_SECONDS: Final = 0.5
"""Interval at which a standby tries to take over: a leadership that was given up is taken within a second."""
RETRY_SECONDS: Final = 1.0
"""Retry interval of the last leader after the store did not answer; below `HEAD_START_SECONDS`."""
HEAD_START_SECONDS: Final = 5.0
"""Retry interval of a standby after the store did not answer: the last leader retries first and keeps its fleet."""
TAKEOVER_SECONDS: Final = 1.0
"""The lease ends this much earlier at the store than its length says, so that another one leads in that time: it asks
twice a second, and then adopts the workers."""
MARGIN_SECONDS: Final = 1.0
"""Leadership ends this much earlier here than at the store: for actions under way, and for clock drift."""


class LeaderElection:
    """Tracks whether this supervisor leads, as of the last answer of the source."""

    def __init__(self, source: WorkSource, *, holder: str, lead_seconds: float = LEAD_SECONDS) -> None:
        """`lead_seconds`: length of the leadership lease, at least `MIN_LEAD_SECONDS`."""
        self._source = source
        self._holder = holder
        self._lead_seconds = lead_seconds
        self._due_at = Monotonic(float("-inf"))
        self._ends_at = Monotonic(float("-inf"))
        self.is_ours = False
        self.is_led_by_another = False

    def hold(self, *, now: Monotonic) -> bool:
        """Take or renew the leadership when due; return whether it is ours.

        While the source is unavailable we lead until our lease ends; after that nobody is known to lead.
        """
        if now >= self._due_at:
            self._renew(now)
        if not self.is_live(now=now):
            self.is_ours = False
        return self.is_ours

    def is_live(self, *, now: Monotonic) -> bool:
        """Return whether we lead at this instant; check it again after anything that may have taken long."""
        return self.is_ours and now < self._ends_at

    @property
    def due_at(self) -> Monotonic:
        """The instant at which `hold` asks the source again."""
        return self._due_at

    def give_up(self) -> None:
        """End our leadership, so that another supervisor can lead at once."""
        if self.is_ours:
            self.is_ours = False
            with contextlib.suppress(SourceUnavailableError):
                self._source.lead(self._holder, seconds=0.0)

    def _renew(self, now: Monotonic) -> None:
        has_led = self._ends_at > 0
        try:
            self.is_ours = self._source.lead(self._holder, seconds=self._lead_seconds - TAKEOVER_SECONDS)
        except SourceUnavailableError:
            self._due_at = Monotonic(
                now + (RETRY_SECONDS if has_led and not self.is_led_by_another else HEAD_START_SECONDS)
            )
            return
        self.is_led_by_another = not self.is_ours
        if self.is_ours:  # counted from before the call: the store counts from a later instant
            self._ends_at = Monotonic(now + self._lead_seconds - TAKEOVER_SECONDS - MARGIN_SECONDS)
        self._due_at = Monotonic(now + (self._lead_seconds / RENEWALS if self.is_ours else STANDBY_SECONDS))


def holder_of(state_dir: Path) -> str:
    """Return a name that is unique to this supervisor and survives its restart.

    A restarted supervisor thus keeps its own leadership instead of waiting for it to expire. The name is stored in the
    state directory, which is created if missing.
    """
    return f"{socket.gethostname()}:{identity_of_folder(state_dir)}"
