"""The same command once more in the place of this process: with its pid, its workers, and its listening socket."""

import os
import sys
from typing import Final, NoReturn

import structlog

from orchestrator import events
from orchestrator.signals import ignore_what_is_asked
from queue_core.first_process import stay_first
from queue_core.server import inherited

RENEW: Final = -1
"""What stands for an exit code until every resource is let go of, and the new program may start."""


def begin_as_daemon() -> None:
    """Before anything else: as the first process of a container go on in a child; heed no reload before we can."""
    stay_first()
    ignore_what_is_asked()


def renew(listening: int | None) -> NoReturn:
    """Execute the command that we were started by, as it is installed now.

    Args:
        listening: a descriptor of the address that is to stay ours meanwhile, if any.
    """
    command = [sys.executable, *sys.orig_argv[1:]]
    structlog.get_logger().info(events.SUPERVISOR_RENEWED, command=command)
    ignore_what_is_asked()
    sys.stdout.flush()
    sys.stderr.flush()
    if listening is not None:
        inherited.leave(listening)
    os.execv(sys.executable, command)  # noqa: S606  it is ourselves
