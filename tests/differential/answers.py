"""The answers of calls as comparable values; tasks have the names that Google's stub gave them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias  # protobuf messages have no types

from tests.support.google.appengine_sdk import service_pb2

OK = 0
UNKNOWN_QUEUE, TASK_TOO_LARGE, INVALID_TASK_NAME, INVALID_QUEUE_NAME = 1, 4, 5, 6
TASK_ALREADY_EXISTS, TOMBSTONED_TASK, INVALID_ETA, INVALID_REQUEST, UNKNOWN_TASK = 10, 11, 12, 13, 14
SKIPPED, TOO_MANY_TASKS, INVALID_RETRY_PARAMETERS, INVALID_QUEUE_MODE = 17, 18, 20, 21
QUEUE_PAUSED, INVALID_TAG = 26, 27


@dataclass(frozen=True, slots=True)
class Refused:
    """An application error; below 0: an error of the transport."""

    code: int


@dataclass(frozen=True, slots=True)
class Crashed:
    """An exception in the stub instead of an answer."""

    error: str


@dataclass(frozen=True, slots=True)
class AddAnswer:
    """A code per task, and whether its name was chosen by the queue; the names themselves differ."""

    results: tuple[tuple[int, bool], ...]
    chosen: tuple[bytes, ...] = field(compare=False)

    @property
    def is_done(self) -> bool:
        """Whether no task was refused before any was added."""
        return all(code in (OK, TASK_ALREADY_EXISTS, TOMBSTONED_TASK) for code, _ in self.results)


@dataclass(frozen=True, slots=True)
class LeasedTask:
    name: bytes
    eta: int
    leases: int
    body: bytes
    tag: bytes | None


@dataclass(frozen=True, slots=True)
class Leased:
    tasks: tuple[LeasedTask, ...]


@dataclass(frozen=True, slots=True)
class Modified:
    eta: int


@dataclass(frozen=True, slots=True)
class DeleteAnswer:
    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecentFigures:
    """The statistics of recent time, which the stub draws at random."""

    last_minute: int
    last_hour: int
    in_flight: int
    enforced_rate: float


@dataclass(frozen=True, slots=True)
class StatsAnswer:
    """The number of tasks and the lowest eta of each queue."""

    queues: tuple[tuple[int, int], ...]
    recent: tuple[RecentFigures | None, ...] = field(compare=False)


@dataclass(frozen=True, slots=True)
class EmptyAnswer:
    """An answer without content."""


Answer: TypeAlias = Refused | Crashed | AddAnswer | Leased | Modified | DeleteAnswer | StatsAnswer | EmptyAnswer


def _add_answer(response: Any) -> Answer:
    results = [(one.result, one.HasField("chosen_task_name")) for one in response.taskresult]
    return AddAnswer(tuple(results), tuple(bytes(one.chosen_task_name) for one in response.taskresult))


def _leased(response: Any) -> Answer:
    return Leased(
        tuple(
            LeasedTask(
                bytes(task.task_name),
                task.eta_usec,
                task.retry_count,
                bytes(task.body),
                bytes(task.tag) if task.HasField("tag") else None,
            )
            for task in response.task
        )
    )


def _stats_answer(response: Any) -> Answer:
    recent = tuple(
        RecentFigures(
            one.scanner_info.executed_last_minute,
            one.scanner_info.executed_last_hour,
            one.scanner_info.requests_in_flight,
            one.scanner_info.enforced_rate,
        )
        if one.HasField("scanner_info")
        else None
        for one in response.queuestats
    )
    return StatsAnswer(tuple((one.num_tasks, one.oldest_eta_usec) for one in response.queuestats), recent)


@dataclass(frozen=True, slots=True)
class Method:
    """A call of the service: its name, its messages, and how its response is read."""

    name: str
    request: Any
    response: Any
    read: Callable[[Any], Answer]


def _method(name: str, message: str, read: Callable[[Any], Answer]) -> Method:
    request = getattr(service_pb2, f"TaskQueue{message}Request")
    return Method(name, request, getattr(service_pb2, f"TaskQueue{message}Response"), read)


ADD = _method("BulkAdd", "BulkAdd", _add_answer)
LEASE = _method("QueryAndOwnTasks", "QueryAndOwnTasks", _leased)
MODIFY = _method("ModifyTaskLease", "ModifyTaskLease", lambda response: Modified(response.updated_eta_usec))
DELETE = _method("Delete", "Delete", lambda response: DeleteAnswer(tuple(response.result)))
PURGE = _method("PurgeQueue", "PurgeQueue", lambda _response: EmptyAnswer())
PAUSE = _method("PauseQueue", "PauseQueue", lambda _response: EmptyAnswer())
STATS = _method("FetchQueueStats", "FetchQueueStats", _stats_answer)
