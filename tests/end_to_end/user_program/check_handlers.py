"""A user's own test of the handlers, without a process or a network."""

from pathlib import Path

from handlers import app

from queue_core import Dead, NewTask, QueueSpec
from queue_core.testing import MemoryQueues, TaskOutcome, run_until_empty


def test_a_picture_is_published() -> None:
    queues = MemoryQueues(QueueSpec("thumbs", max_leases=3))
    tasks = [NewTask(b"cat.jpg", tag="resize"), NewTask(tag="resize")]
    outcomes: list[TaskOutcome] = run_until_empty(app, tasks, queues=queues)
    assert [(one.tag, one.attempts, isinstance(one.error, Dead)) for one in outcomes] == [
        ("resize", 1, False),
        ("resize", 1, True),
        ("publish", 1, False),
    ]
    assert Path("published.txt").read_text() == "cat.jpg\n"


if __name__ == "__main__":
    test_a_picture_is_published()
