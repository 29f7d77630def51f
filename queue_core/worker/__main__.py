"""`python -m queue_core.worker`: a worker that takes all settings from its environment, as a supervisor starts it.

It does what `towline work` does, without loading a command line, and leases its first task in half the time.
"""

import os
import sys
from collections.abc import Callable

from queue_core.errors import InvalidSettingError
from queue_core.log import get_logger
from queue_core.process import logs  # first: it spares structlog an import
from queue_core.process.init_process import run_as_init
from queue_core.process.terminal import open_missing_streams
from queue_core.worker import events
from queue_core.worker.lifecycle import EXIT_MISCONFIGURED
from queue_core.worker.main import run_worker
from queue_core.worker.settings import WorkerSettings


def main(renew: Callable[[], None] = lambda: None) -> int:
    """Run the worker and return its exit code; see `run_worker`."""
    open_missing_streams()

    run_as_init()
    logs.configure(shape="auto")
    try:
        settings = WorkerSettings.from_environment(os.environ)
    except InvalidSettingError as error:
        get_logger().error(events.WORKER_REFUSED, error=type(error).__name__, reason=str(error))
        return EXIT_MISCONFIGURED
    return run_worker(settings, renew=renew)


if __name__ == "__main__":
    sys.exit(main())
