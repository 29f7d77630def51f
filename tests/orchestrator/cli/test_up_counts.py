"""What the last line of `towline up` counts: tasks that are done, dead and waiting, however often each was tried."""

from collections.abc import MutableMapping
from pathlib import Path

from structlog.testing import capture_logs

from orchestrator.base import events
from orchestrator.cli.fleet_events import fleet_lines
from orchestrator.cli.up.view import UpView
from orchestrator.settings_file import parse
from queue_core.cli.worker_events import EventReader
from queue_core.client.connect import open_queues
from queue_core.client.queue import Queue
from queue_core.task import NewTask, QueueSpec, TagFilter

SETTINGS = """\
store: {url}
queues:
  thumbs: {{max_leases: 2}}
pools:
  resize: {{queue: thumbs, app: "tasks:app", slo: 5s}}
  encode: {{queue: thumbs, tags: [encode], app: "tasks:app", slo: 5s}}
"""


def fail(queue: Queue, *tags: str) -> None:
    """Let the task of each tag use up its two attempts."""
    for tag in tags:
        for _ in range(2):
            queue.release(queue.lease(tags=TagFilter.of(tag), worker="w1"), delay_seconds=0)


def last_line(logged: list[MutableMapping[str, object]]) -> str:
    (counted,) = [entry for entry in logged if entry["event"] == events.WORK_COUNTED]
    (line,) = fleet_lines(counted, EventReader({}, "info"))
    return line.text


def test_the_last_line_counts_dead_tasks_and_not_their_attempts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    project = parse(SETTINGS.format(url=url), name="towline.yaml", directory=tmp_path)
    queues = open_queues(url)
    queues.put_queue(QueueSpec("thumbs", max_leases=2))
    queue = queues.queue("thumbs")
    queue.add([NewTask(tag=f"bad-{number}") for number in range(6)])
    queue.add([NewTask(tag="good") for _ in range(5)])
    fail(queue, "bad-0")  # before this run: it is dead, too
    with capture_logs() as logged, UpView(project, None, tells_events=False, url=url).counted(store="sqlite:///q.db"):
        fail(queue, *(f"bad-{number}" for number in range(1, 6)))
        queue.delete(queue.lease(4, tags=TagFilter.of("good"), worker="w1"))
    queues.close()
    assert last_line(logged) == "Stopped. 4 done, 6 dead, 1 still waits in sqlite:///q.db."


def test_the_last_line_counts_no_task_that_was_deleted_by_hand(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    project = parse(SETTINGS.format(url=url), name="towline.yaml", directory=tmp_path)
    queues = open_queues(url)
    queues.put_queue(QueueSpec("thumbs", max_leases=1))
    queue = queues.queue("thumbs")
    queue.add([NewTask(name=f"t{number}") for number in range(9)])
    with capture_logs() as logged, UpView(project, None, tells_events=False, url=url).counted(store="sqlite:///q.db"):
        done, running, died = (queue.lease(worker="w1") for _ in range(3))
        queue.delete(done)
        queue.release(died, delay_seconds=0)
        names = [task.shown_name for task in queue.peek().tasks]
        queue.delete_by_name([running[0].name, died[0].name, names[-1]])  # running, dead, waiting
        queue.purge()
    queues.close()
    assert last_line(logged) == "Stopped. 1 done, 0 dead, 0 still wait in sqlite:///q.db."
