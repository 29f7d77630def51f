"""The counter's worker: leases all clicks of one counter, writes their sum once, and deletes them."""

import sqlite3
import time

from google.appengine.api import taskqueue
from google.appengine.runtime import apiproxy_errors

from queue_core import connect_appengine

connect_appengine()  # to TOWLINE_URL, which the supervisor sets

TABLE = "CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, count INTEGER)"
RAISE = "INSERT INTO counters VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET count = count + ?2"
TROUBLES = (taskqueue.TransientError, apiproxy_errors.DeadlineExceededError, apiproxy_errors.RPCFailedError)


def work(queue: taskqueue.Queue, database: sqlite3.Connection) -> bool:
    """Count up to 1,000 clicks of the counter that waits longest; False if there are none."""
    tasks = queue.lease_tasks_by_tag(30, 1000, deadline=60)
    if tasks:
        with database:
            database.execute(RAISE, (tasks[0].tag, len(tasks)))
        queue.delete_tasks(tasks)
        print(f"{tasks[0].tag}: {len(tasks)} more")
    return bool(tasks)


def main() -> None:
    """Go on for ever, as App Engine's own workers do."""
    queue = taskqueue.Queue("clicks")
    database = sqlite3.connect("counters.db", timeout=30)
    database.execute(TABLE)
    while True:
        try:
            if not work(queue, database):
                time.sleep(0.5)
        except TROUBLES:  # the server is restarted, or has too much to do
            time.sleep(1)


if __name__ == "__main__":
    main()
