"""How long worker processes take here until they could begin: what the demo promises follows it.

A machine may be slow or busy; a fleet whose starts take as long as its tasks may wait is rightly kept, and never ends.
"""

import subprocess
import sys
from typing import Final

from orchestrator.clock import Clock

TRIAL: Final = "import queue_core.worker.process, orchestrator.demo.tasks"
"""What a worker of the demo has loaded when it begins."""


def start_seconds(clock: Clock, *, at_a_time: int) -> float:
    """The time until each of so many processes that start together has loaded what a worker needs."""
    began_at = clock.monotonic()
    command = [sys.executable, "-c", TRIAL]
    started = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(at_a_time)
    ]
    for process in started:
        process.wait()
    return clock.monotonic() - began_at
