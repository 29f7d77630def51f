"""A worker process for end-to-end stories, told everything by its environment: `python -m tests.support.work`."""

import os
import sys

from queue_core import logs
from queue_core.worker.process import run_worker
from queue_core.worker.settings import WorkerSettings

if __name__ == "__main__":
    logs.configure(shape="json")
    sys.exit(run_worker(WorkerSettings.from_environment(os.environ)))
