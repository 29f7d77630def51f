"""Resource names: `projects/P/locations/L/queues/Q/tasks/T`. Any P and L are accepted and returned unchanged. Pure."""

import re
from dataclasses import dataclass

from queue_core import limits
from queue_core.google.cloudtasks.failures import invalid

_PLACE = re.compile(r"projects/([^/]{1,200})/locations/([^/]{1,200})")
_QUEUE = re.compile(r"(projects/[^/]{1,200}/locations/[^/]{1,200})/queues/([a-zA-Z0-9-]{1,100})")
_TASK = re.compile(rf"({_QUEUE.pattern})/tasks/([a-zA-Z0-9_-]{{1,500}})")
_PROJECT = re.compile(r"projects/([^/]{1,200})")

_PLACE_FORM = "projects/PROJECT_ID/locations/LOCATION_ID"
_QUEUE_FORM = f"{_PLACE_FORM}/queues/QUEUE_ID"
_TASK_FORM = f"{_QUEUE_FORM}/tasks/TASK_ID"


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue's resource name: the place from the request (`projects/P/locations/L`), and the queue's own name."""

    place: str
    queue: str

    def __str__(self) -> str:
        return f"{self.place}/queues/{self.queue}"

    def task(self, name: str) -> str:
        """Return the resource name of one of its tasks."""
        return f"{self.place}/queues/{self.queue}/tasks/{name}"


@dataclass(frozen=True, slots=True)
class TaskName:
    """A task's resource name."""

    parent: QueueName
    task: str

    def __str__(self) -> str:
        return self.parent.task(self.task)


def parse_project(text: str, *, field: str) -> str:
    """Check and return `projects/P`. Raises `CloudTasksError`, as the others do."""
    if not _PROJECT.fullmatch(text):
        raise _malformed(field, "projects/PROJECT_ID", text)
    return text


def parse_place(text: str, *, field: str) -> str:
    """Check and return `projects/P/locations/L`."""
    if not _PLACE.fullmatch(text):
        raise _malformed(field, _PLACE_FORM, text)
    return text


def parse_queue(text: str, *, field: str) -> QueueName:
    """Parse a queue's resource name."""
    match = _QUEUE.fullmatch(text)
    if match is None:
        raise _malformed(
            field,
            f"{_QUEUE_FORM} with a QUEUE_ID of 1 to {limits.MAX_QUEUE_NAME_CHARACTERS} letters, digits or '-'",
            text,
        )
    return QueueName(match[1], match[2])


def parse_task(text: str, *, field: str) -> TaskName:
    """Parse a task's resource name."""
    match = _TASK.fullmatch(text)
    if match is None:
        raise _malformed(
            field,
            f"{_TASK_FORM} with a TASK_ID of 1 to {limits.MAX_TASK_NAME_CHARACTERS} letters, digits, '_' or '-'",
            text,
        )
    return TaskName(QueueName(match[2], match[3]), match[4])


def _malformed(field: str, form: str, text: str) -> Exception:
    shown = text if len(text) <= 200 else text[:197] + "..."
    return invalid(f"{field} must be {form}: {shown!r}")
