"""The terminal that a daemon was started from: where it hangs up, the daemon ends, else a hang-up means a reload."""

import os
import signal
from typing import Final

_KEPT_TERMINAL: Final = "TOWLINE_KEPT_TERMINAL"


class OwnTerminal:
    """The terminal that controls this process, from the start on; a daemon has none.

    Make it before hang-ups are ignored: where they are already, as by `nohup`, the process is to outlive its terminal.
    """

    def __init__(self) -> None:
        is_kept = os.environ.pop(_KEPT_TERMINAL, "") == str(os.getpid())
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self.is_there = has_controlling_terminal() and (is_kept or not is_ignored)

    def keep(self) -> None:
        """Let the program that is executed in place of this one know it, although hang-ups are ignored meanwhile."""
        if self.is_there:
            os.environ[_KEPT_TERMINAL] = str(os.getpid())

    def is_gone(self) -> bool:
        """Return whether it was there at the start, and hung up since."""
        return self.is_there and not has_controlling_terminal()


def has_controlling_terminal() -> bool:
    """Return whether a terminal controls this process. After a hang-up none does."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
