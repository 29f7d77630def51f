"""Google's in-process stub of the service, with its clock and whole state under the test's control."""

import datetime as dt
import logging
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self  # the stub and its messages have no types

from queue_core.clock import ManualClock
from tests.differential.answers import OK, AddAnswer, Answer, Crashed, Method, Refused
from tests.support.google.appengine_sdk import apiproxy_errors, service_pb2

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from google.appengine.api import queueinfo
    from google.appengine.api.taskqueue import taskqueue_stub


class ExactSeconds(float):
    """Seconds of the epoch that the stub's multiplication turns into exact microseconds."""

    def __new__(cls, microseconds: int) -> Self:
        made = super().__new__(cls, microseconds / 1e6)
        made.microseconds = microseconds
        return made

    microseconds: int

    def __mul__(self, other: float) -> float:
        assert other == 1e6, "the stub makes microseconds of its clock, nothing else"
        return self.microseconds  # exact


@dataclass(frozen=True, slots=True)
class QueueCopy:
    """The contents of a queue of the stub."""

    tasks: tuple[Any, ...]
    archive: frozenset[str]
    paused: bool


@dataclass(frozen=True, slots=True)
class StubCopy:
    """The contents of the stub."""

    queues: Mapping[str, QueueCopy]
    next_task_id: int


class GoogleStub:
    """The stub with pull queues, some of which have a task_retry_limit."""

    def __init__(self, queues: Mapping[str, int | None], clock: ManualClock) -> None:
        self.clock = clock
        self.ahead = 0
        """Microseconds that the stub's clock is ahead of the other."""
        logging.getLogger().addHandler(logging.NullHandler())
        self._stub = taskqueue_stub.TaskQueueServiceStub(gettime=self._gettime)
        parsed = queueinfo.LoadSingleQueue(_queue_yaml(queues))
        self._stub.queue_yaml_parser = lambda _root: parsed
        self._stub.GetQueues()
        self.group._queue_yaml_parser = None  # read once, not at every call

    def _gettime(self) -> ExactSeconds:
        return ExactSeconds(self.now)

    @property
    def now(self) -> int:
        """The stub's present, in microseconds."""
        return self.clock.now() + self.ahead

    @property
    def group(self) -> Any:
        """The stub's own object for all queues."""
        return self._stub._GetGroup()

    def queue(self, name: str) -> Any:
        """Return the stub's own object for a queue; None for an unknown one."""
        return self.group._queues.get(name)

    def tasks(self, name: str) -> list[Any]:
        """Return the tasks of a queue by name; changing what orders them requires `reindex`."""
        queue = self.queue(name)
        return [] if queue is None else [task for _, task in queue._sorted_by_name]

    def call(self, method: Method, request: Any) -> Answer:
        """Make one call. The request is not changed."""
        response = method.response()
        own = method.request()
        own.CopyFrom(request)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if method.name == "PauseQueue":  # which the stub knows in the groups of other applications only
                    self.group.PauseQueue_Rpc(own, response)
                else:
                    self._stub.MakeSyncCall("taskqueue", method.name, own, response)
        except apiproxy_errors.ApplicationError as error:
            return Refused(error.application_error)
        except Exception as error:  # noqa: BLE001 - the stub has many ways to break
            return Crashed(type(error).__name__)
        answer = method.read(response)
        return _with_chosen_names(answer, request, own) if isinstance(answer, AddAnswer) else answer

    def accepts(self, add_request: Any) -> bool:
        """Return whether the stub accepts a request to add."""
        now = dt.datetime.fromtimestamp(self._gettime(), dt.UTC).replace(tzinfo=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                code: int = self.group._VerifyTaskQueueAddRequest(add_request, now)
            except (OverflowError, ValueError):  # an eta beyond its calendar
                return False
            return code == 0

    # -- the state ------------------------------------------------------------------------------------------------

    def copy(self, names: Iterable[str]) -> StubCopy:
        """Return the stub's contents of these queues, those that exist."""
        queues = {}
        for name in names:
            queue = self.queue(name)
            if queue is not None:
                tasks = tuple(_copy_of(task) for _, task in queue._sorted_by_name)
                queues[name] = QueueCopy(tasks, frozenset(queue.task_name_archive), queue.paused)
        return StubCopy(queues, self.group._next_task_id)

    def restore(self, copy: StubCopy) -> None:
        """Restore these contents."""
        self.group._next_task_id = copy.next_task_id
        for name, held in copy.queues.items():
            queue = self.queue(name)
            queue.task_name_archive = set(held.archive)
            queue.paused = held.paused
            self.reindex(name, [_copy_of(task) for task in held.tasks])

    def reindex(self, name: str, tasks: Iterable[Any]) -> None:
        """Set the tasks of a queue, ordered by their names, etas and tags."""
        queue = self.queue(name)
        named = [(task.task_name.decode(), task) for task in tasks]
        queue._sorted_by_name = sorted(named, key=lambda row: row[0])
        queue._sorted_by_eta = sorted(((task.eta_usec, text, task) for text, task in named), key=lambda row: row[:2])
        queue._sorted_by_tag = sorted(
            ((task.tag.decode(), task.eta_usec, text, task) for text, task in named if task.HasField("tag")),
            key=lambda row: row[:3],
        )


def _with_chosen_names(answer: AddAnswer, request: Any, own: Any) -> AddAnswer:
    """Add the names that the stub chose, from its own request, where it writes them.

    Its response loses them or assigns them to the wrong task: it marks results by `id()`, and protobuf's C
    implementation makes new objects at every access.
    """
    is_chosen = [
        code == OK and not one.task_name for one, (code, _) in zip(request.add_request, answer.results, strict=True)
    ]
    return AddAnswer(
        tuple((code, chosen) for chosen, (code, _) in zip(is_chosen, answer.results, strict=True)),
        tuple(bytes(one.task_name) if chosen else b"" for one, chosen in zip(own.add_request, is_chosen, strict=True)),
    )


def _copy_of(task: Any) -> Any:
    made = service_pb2.TaskQueueQueryTasksResponse.Task()
    made.CopyFrom(task)
    return made


def _queue_yaml(queues: Mapping[str, int | None]) -> str:
    lines = ["queue:"]
    for name, limit in queues.items():
        lines += [f"- name: {name}", "  mode: pull"]
        if limit is not None:
            lines += ["  retry_parameters:", f"    task_retry_limit: {limit}"]
    return "\n".join(lines) + "\n"
