"""A counter's worker half: leases all tasks of one tag, raises that counter by their number, deletes them."""

import os
import signal
import sqlite3
import sys
import time

from google.appengine.api import taskqueue
from google.appengine.runtime import apiproxy_errors

DATABASE, LEASE_SECONDS = sys.argv[1], float(sys.argv[2])
DIES_AFTER_LEASE = "die" in sys.argv[3:]


def raise_counter(name: str, by: int) -> None:
    """In one transaction."""
    with sqlite3.connect(DATABASE, timeout=30) as database:
        database.execute(
            "INSERT INTO counters VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET count = count + ?2", (name, by)
        )


def main() -> None:
    """For ever, as App Engine's `/_ah/start` does."""
    q = taskqueue.Queue("pullq")
    while True:
        try:
            tasks = q.lease_tasks_by_tag(LEASE_SECONDS, 1000, deadline=60)
        except (taskqueue.TransientError, apiproxy_errors.DeadlineExceededError):
            time.sleep(0.1)
            continue
        if tasks:
            if DIES_AFTER_LEASE:
                os.kill(os.getpid(), signal.SIGKILL)
            raise_counter(tasks[0].tag, len(tasks))
            q.delete_tasks(tasks)
        else:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
