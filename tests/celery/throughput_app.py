"""Tasks without work, for `throughput.py`; each notes when it was sent and when it began."""

import os
import struct
from functools import lru_cache

from celery import Celery

import queue_core.kombu  # noqa: F401 - registers the transport
from queue_core.clock import SystemClock

NOTE = struct.Struct("dd")
"""A task's two instants in monotonic seconds, which processes of one machine share: sent (0: not given), begun."""

CLOCK = SystemClock()

app = Celery("throughput", broker=os.environ.get("BENCH_BROKER"))
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
if os.environ.get("BENCH_SETTINGS") == "late":
    app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1)


@lru_cache(maxsize=1)
def _notes(_pid: int) -> int:
    return os.open(os.environ["BENCH_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task(name="note")
def note(sent_at: float) -> None:
    os.write(_notes(os.getpid()), NOTE.pack(sent_at, CLOCK.monotonic()))
