"""A worker process that ends after one task."""

import os
import subprocess
import sys
from pathlib import Path

from queue_core.client.local_calls import LocalQueues
from queue_core.stores import open_store
from queue_core.task import NewTask, QueueSpec
from queue_core.unit.service import QueueService

ROOT = Path(__file__).resolve().parents[3]


def worker_on_one_task(folder: Path, program: str, *, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run a worker process on one task of a store in the folder, and return what it wrote; `code`: its exit code."""
    (folder / "tasks.py").write_text(program)
    url = f"sqlite:///{folder / 'queue.db'}"
    queues = LocalQueues(QueueService(open_store(url)))
    queues.put_queue(QueueSpec("q"))
    queues.queue("q").add([NewTask(name="t", tag="x")])
    queues.close()
    settings = {"TOWLINE_APP": "tasks:app", "TOWLINE_URL": url, "TOWLINE_WORKER": "w-1"}
    settings |= {"TOWLINE_RECYCLE": '{"tasks": 1}', "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, "-m", "queue_core.worker"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done
