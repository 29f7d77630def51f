"""The worker process that a supervisor starts: settings from the environment, its end as the exit code."""

import os
import sys

from queue_core import logs
from queue_core.errors import InvalidSettingError
from queue_core.worker.process import run_worker
from queue_core.worker.settings import WorkerSettings
from queue_core.worker.shift import EXIT_MISCONFIGURED


def main() -> int:
    """Run one worker; 78 when the environment can't be understood, else see `run_worker`."""
    logs.configure()
    try:
        settings = WorkerSettings.from_environment(os.environ)
    except InvalidSettingError as error:
        sys.stderr.write(f"towline worker: {error}\n")
        return EXIT_MISCONFIGURED
    return run_worker(settings)


if __name__ == "__main__":
    sys.exit(main())
