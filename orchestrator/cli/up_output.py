"""Show workers' output while `towline up` runs, as its terminal does for the programs of a Procfile.

In a thread of its own that reads files: neither a flood nor a terminal that takes nothing holds up the supervisor.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from orchestrator.cli.worker_lines import LinePrinter
from orchestrator.supervisor.output import FleetOutput, OutputFollower
from queue_core.cli.cut_output import OutputCutError

LOOK_SECONDS: Final = 0.25
"""Pause between two looks."""
MAX_LOOK_BYTES: Final = 32 * 1024
"""New output of one worker that one look shows, at most: 128 KiB a second. What it leaves out is counted."""
STOP_SECONDS: Final = 2.0
"""How long the end of the program waits for the last lines: a terminal may take nothing."""


@contextmanager
def output_shown(output: FleetOutput, printer: LinePrinter) -> Iterator[None]:
    """Print what workers write during the block, and the last of it at its end."""
    follower = OutputFollower(output, output.workers, max_bytes=MAX_LOOK_BYTES)
    is_over = threading.Event()

    def work() -> None:
        is_last = False
        while not is_last:
            is_last = is_over.wait(LOOK_SECONDS)
            try:
                printer.show(follower.new())
            except (OSError, OutputCutError):  # stdout is closed: its reader wants no more
                return

    thread = threading.Thread(target=work, name="towline-output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(STOP_SECONDS)
