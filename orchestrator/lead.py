"""One supervisor leads a store; the others stand by. The lead is a lease of its own, renewed while we live."""

import contextlib
import hashlib
import socket
from pathlib import Path
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.errors import SourceUnavailableError
from orchestrator.source import WorkSource

LEAD_SECONDS: Final = 15.0
RENEWAL_SECONDS: Final = 5.0
STANDBY_SECONDS: Final = 1.0


class Lead:
    """Whether this supervisor leads, as far as the source has told."""

    def __init__(self, source: WorkSource, *, holder: str) -> None:
        self._source = source
        self._holder = holder
        self._due_at = Monotonic(float("-inf"))
        self.is_ours = False
        self.is_anothers = False

    def hold(self, *, now: Monotonic) -> bool:
        """Take or keep the lead when that is due; whether it is ours.

        A source that does not answer changes nothing: nobody else can take the lead there either.
        """
        if now >= self._due_at:
            with contextlib.suppress(SourceUnavailableError):
                self.is_ours = self._source.lead(self._holder, seconds=LEAD_SECONDS)
                self.is_anothers = not self.is_ours
            self._due_at = Monotonic(now + (RENEWAL_SECONDS if self.is_ours else STANDBY_SECONDS))
        return self.is_ours

    def give_up(self) -> None:
        """Let another one lead at once."""
        if self.is_ours:
            self.is_ours = False
            with contextlib.suppress(SourceUnavailableError):
                self._source.lead(self._holder, seconds=0.0)


def holder_of(state_dir: Path) -> str:
    """The same after a restart, so that a supervisor that was killed need not wait for its own lead to end."""
    return f"{socket.gethostname()}:{hashlib.sha256(str(state_dir).encode()).hexdigest()[:12]}"
