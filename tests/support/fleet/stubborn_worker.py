"""A worker that keeps requesting leases when it is refused: `python -m tests.support.fleet.stubborn_worker`."""

import os
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

from queue_core.client.connect import open_queues
from queue_core.errors import WorkerRetiredError
from queue_core.task import Lease
from queue_core.worker.context import Task
from tests.support.fleet.recording_app import work

queues = open_queues(os.environ["TOWLINE_URL"])
queue = queues.queue(os.environ["TOWLINE_QUEUE"])
while True:
    leases: list[Lease] = []
    with suppress(WorkerRetiredError):
        leases = queue.lease(worker=os.environ["TOWLINE_WORKER"])
    for lease in leases:
        work(cast("Task", SimpleNamespace(payload=lease.payload, lease_number=lease.lease_number)))
        queue.delete(lease)
    time.sleep(0.05)
