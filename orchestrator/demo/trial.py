"""How long a worker process takes here until it could begin: what the demo promises follows it.

A machine may be slow or busy; a fleet whose starts take as long as its tasks may wait is rightly kept, and never ends.
"""

import subprocess
import sys
from typing import Final

from orchestrator.clock import Clock

TRIAL: Final = "import queue_core.worker.process, orchestrator.demo.tasks"
"""What a worker of the demo has loaded when it begins."""


def start_seconds(clock: Clock) -> float:
    """The time from its start until a process has loaded what a worker needs."""
    began_at = clock.monotonic()
    subprocess.run([sys.executable, "-c", TRIAL], check=False, capture_output=True)
    return clock.monotonic() - began_at
