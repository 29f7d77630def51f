"""One supervisor leads a store; the others stand by. The lead is a lease of its own, renewed while we live.

It ends by our own clock, before the store's does: who can't reach the store stops acting before another one begins.
"""

import contextlib
import secrets
import socket
from pathlib import Path
from typing import Final

from orchestrator.clock import Monotonic
from orchestrator.errors import SourceUnavailableError
from orchestrator.private_files import make_folder, opener
from orchestrator.source import WorkSource

LEAD_SECONDS: Final = 15.0
RENEWAL_SECONDS: Final = 5.0
STANDBY_SECONDS: Final = 1.0
HEAD_START_SECONDS: Final = 5.0
"""When a store did not answer: how much later than its last leader the others ask again, so that its fleet may stay."""
MARGIN_SECONDS: Final = 1.0
"""How much earlier than at the store a lead ends here: for what is just being done, and for clocks that drift."""

_HOLDER_FILE: Final = "holder"


class LeaderElection:
    """Whether this supervisor leads, as far as the source has told."""

    def __init__(self, source: WorkSource, *, holder: str) -> None:
        self._source = source
        self._holder = holder
        self._due_at = Monotonic(float("-inf"))
        self._ends_at = Monotonic(float("-inf"))
        self.is_ours = False
        self.is_anothers = False

    def hold(self, *, now: Monotonic) -> bool:
        """Take or keep the lead when that is due; whether it is ours.

        While the source does not answer we lead until our time is up; then nobody is known to.
        """
        if now >= self._due_at:
            self._ask(now)
        if not self.is_live(now=now):
            self.is_ours = False
        return self.is_ours

    def is_live(self, *, now: Monotonic) -> bool:
        """Whether the lead is ours at this moment: to be asked again after whatever may have taken long."""
        return self.is_ours and now < self._ends_at

    def give_up(self) -> None:
        """Let another one lead at once."""
        if self.is_ours:
            self.is_ours = False
            with contextlib.suppress(SourceUnavailableError):
                self._source.lead(self._holder, seconds=0.0)

    def _ask(self, now: Monotonic) -> None:
        has_led = self._ends_at > 0
        try:
            self.is_ours = self._source.lead(self._holder, seconds=LEAD_SECONDS)
        except SourceUnavailableError:
            self._due_at = Monotonic(
                now + (STANDBY_SECONDS if has_led and not self.is_anothers else HEAD_START_SECONDS)
            )
            return
        self.is_anothers = not self.is_ours
        if self.is_ours:  # from the asking: the store counts from a later moment
            self._ends_at = Monotonic(now + LEAD_SECONDS - MARGIN_SECONDS)
        self._due_at = Monotonic(now + (RENEWAL_SECONDS if self.is_ours else STANDBY_SECONDS))


def holder_of(state_dir: Path) -> str:
    """A name that no other supervisor has, and the same after a restart: one that was killed need not wait for its own
    lead to end. Kept in the state directory, which is made where there is none."""
    make_folder(state_dir)
    path = state_dir / _HOLDER_FILE
    try:
        with open(path, "x", encoding="ascii", opener=opener) as file:
            file.write(secrets.token_hex(8))
    except FileExistsError:
        pass
    return f"{socket.gethostname()}:{path.read_text(encoding='ascii').strip()}"
