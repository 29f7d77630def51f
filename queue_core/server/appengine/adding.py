"""Add and BulkAdd: every request is checked first, and only if all of them are right are any added."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from queue_core import limits
from queue_core.clock import Instant
from queue_core.errors import InvalidEtaError, QueueModeError, UnknownQueueError
from queue_core.fast_values import fast_constructor
from queue_core.server.appengine import fast_adds, messages
from queue_core.server.appengine.codec import decode, encode
from queue_core.server.appengine.codes import ApplicationError, TaskQueueErrorCode
from queue_core.server.appengine.fast_adds import MAX_TASKS_PER_ADD, STATUS
from queue_core.server.appengine.fields import given_name, queue_of, tag_of
from queue_core.server.appengine.modes import KnownQueues, pull_queue
from queue_core.server.appengine.schema import ProtoRecord
from queue_core.service import Operation
from queue_core.task import NewTask
from queue_core.unit_of_work import UnitOfWork

MAX_PULL_TASK_BYTES = 1 << 20
"""Of the whole request for one task, as App Engine's servers counted."""
MAX_PUSH_TASK_BYTES = 100 << 10


@dataclass(frozen=True, slots=True)
class AddParams:
    """One request: the task that it asks for, or why it can't be had.

    Args:
        queue: the queue's name as it came.
        eta: checked when the present is known, before anything else; the task has it only then.
        refusal: what is wrong with the rest, whether or not the queue exists.
    """

    queue: bytes
    eta: Instant
    task: NewTask | None
    refusal: ApplicationError | None
    is_pull: bool
    is_transactional: bool
    is_named: bool


@dataclass(frozen=True, slots=True)
class AddResult:
    """What became of one request; `chosen_name` when it left the choice to the queue."""

    code: TaskQueueErrorCode
    chosen_name: str = ""
    detail: str = ""


new_result = fast_constructor(AddResult)
new_wanted = fast_constructor(AddParams)
new_task = fast_constructor(NewTask)


def bulk_add(known: KnownQueues) -> Callable[[bytes], Operation[bytes]]:
    """`TaskQueueService.BulkAdd`."""

    def prepare(payload: bytes) -> Operation[bytes]:
        plain = fast_adds.read(payload)
        if plain is None:
            return bulk_add_each(payload, known)

        def step(turn: UnitOfWork) -> bytes:
            tasks = plain.tasks_at(turn.now)
            try:
                known.pull_queue(turn, plain.queue)
                return fast_adds.answer(tasks, turn.add(plain.queue, tasks))
            except (UnknownQueueError, QueueModeError, InvalidEtaError):
                return bulk_add_each(payload, known)(turn)

        return step

    return prepare


def bulk_add_each(payload: bytes, known: KnownQueues) -> Operation[bytes]:
    """The same for any request: a record for each task, and a word for each mistake."""
    requests = decode(messages.BULK_ADD_REQUEST, payload).all_octets("add_request")
    if len(requests) > MAX_TASKS_PER_ADD:
        raise ApplicationError(
            TaskQueueErrorCode.TOO_MANY_TASKS,
            f"at most {MAX_TASKS_PER_ADD} tasks in one call: {len(requests)}; split the batch",
        )
    wanted = [wanted_of(request) for request in requests]
    if wanted and not wanted[0].queue:
        raise ApplicationError(TaskQueueErrorCode.UNKNOWN_QUEUE, "the first task names no queue")

    def step(turn: UnitOfWork) -> bytes:
        results = add_all(turn, wanted, known)
        return b"".join([fast_adds.result(one.code, one.chosen_name) for one in results])

    return step


def add(known: KnownQueues) -> Callable[[bytes], Operation[bytes]]:
    """`TaskQueueService.Add`: the same for one task, whose error is that of the call. Only Go calls it."""

    def prepare(payload: bytes) -> Operation[bytes]:
        wanted = [wanted_of(payload)]

        def step(turn: UnitOfWork) -> bytes:
            (result,) = add_all(turn, wanted, known)
            if result.code is not TaskQueueErrorCode.OK:
                raise ApplicationError(result.code, result.detail)
            chosen = {"chosen_task_name": result.chosen_name.encode()} if result.chosen_name else {}
            return encode(messages.ADD_RESPONSE, chosen)

        return step

    return prepare


def wanted_of(request: bytes) -> AddParams:
    """One request as a value. Raises `CodecError`."""
    record = decode(messages.ADD_REQUEST, request)
    is_pull = record.integer("mode", messages.PUSH) == messages.PULL
    task = refusal = None
    try:
        task = _task(record, is_pull=is_pull, size_bytes=len(request))
    except ApplicationError as error:
        refusal = error
    return new_wanted(
        record.octets("queue_name"),
        Instant(record.integer("eta_usec")),
        task,
        refusal,
        is_pull,
        "transaction" in record or "datastore_transaction" in record,
        bool(record.octets("task_name")),
    )


def add_all(turn: UnitOfWork, wanted: Sequence[AddParams], known: KnownQueues) -> list[AddResult]:
    """Add them if all may be added. Raises `ApplicationError` for what concerns the call as a whole."""
    tasks = _all_tasks(turn, wanted, known)
    if tasks is None:
        return _refusals(turn, wanted)
    if not tasks:
        return []
    try:
        added = turn.add(queue_of(wanted[0].queue), tasks)
    except UnknownQueueError:
        return _refusals(turn, wanted)
    return [
        new_result(STATUS[one.status], "" if request.is_named or one.status != "added" else one.name, "")
        for request, one in zip(wanted, added, strict=True)
    ]


def _all_tasks(turn: UnitOfWork, wanted: Sequence[AddParams], known: KnownQueues) -> list[NewTask] | None:
    """What is to be added; None when anything is wrong."""
    tasks: list[NewTask] = []
    now = turn.now
    home = wanted[0].queue if wanted else b""
    for one in wanted:
        task = one.task
        if task is None or not one.is_pull or one.is_transactional or _eta_refusal(one, now) is not None:
            return None
        if one.eta > now:
            task = replace(task, eta=one.eta)
        if one.queue != home:
            task = replace(task, queue=queue_of(one.queue))
        tasks.append(task)
    return tasks if _are_pull_queues(turn, wanted, known) else None


def _are_pull_queues(turn: UnitOfWork, wanted: Sequence[AddParams], known: KnownQueues) -> bool:
    try:
        for queue in {one.queue for one in wanted}:
            known.pull_queue(turn, queue_of(queue))
    except (UnknownQueueError, QueueModeError):
        return False
    return True


def _refusals(turn: UnitOfWork, wanted: Sequence[AddParams]) -> list[AddResult]:
    """One result per request when nothing is added: what is wrong with it, or that it was skipped for the others.

    Source: `taskqueue_stub._VerifyTaskQueueAddRequest` for the order of the checks.
    """
    results = [_refusal(turn, one) for one in wanted]
    if any(result.code is not TaskQueueErrorCode.SKIPPED for result in results):
        return results
    if any(one.is_transactional for one in wanted):
        raise ApplicationError(
            TaskQueueErrorCode.DATASTORE_BAD_REQUEST,
            "there is no datastore here whose transaction a task could be part of",
        )
    for one in wanted:
        pull_queue(turn, queue_of(one.queue))
    raise ApplicationError(
        TaskQueueErrorCode.INVALID_QUEUE_MODE,
        "every queue here is a pull queue: add tasks with method='PULL', without a url",
    )


def _refusal(turn: UnitOfWork, one: AddParams) -> AddResult:
    refusal = _eta_refusal(one, turn.now) or _queue_refusal(turn, one) or one.refusal
    return AddResult(TaskQueueErrorCode.SKIPPED) if refusal is None else AddResult(refusal.code, detail=refusal.detail)


def _eta_refusal(one: AddParams, now: Instant) -> ApplicationError | None:
    if 0 <= one.eta <= now:
        return None
    try:
        limits.check_eta(one.eta, now=now)
    except InvalidEtaError as error:
        return ApplicationError(TaskQueueErrorCode.INVALID_ETA, str(error))
    return None


def _queue_refusal(turn: UnitOfWork, one: AddParams) -> ApplicationError | None:
    try:
        name = queue_of(one.queue)
        moved_to = pull_queue(turn, name).moved_to
    except ApplicationError as error:
        return error
    except QueueModeError:
        return None  # that concerns the whole call
    except UnknownQueueError as error:
        return ApplicationError(TaskQueueErrorCode.UNKNOWN_QUEUE, str(error))
    return (
        ApplicationError(TaskQueueErrorCode.UNKNOWN_QUEUE, f"queue {name} lives elsewhere: {moved_to}")
        if moved_to
        else None
    )


def _task(record: ProtoRecord, *, is_pull: bool, size_bytes: int) -> NewTask:
    """The task that a request asks for. Raises `ApplicationError`."""
    if "crontimetable" in record:
        raise ApplicationError(TaskQueueErrorCode.PERMISSION_DENIED, "tasks with a timetable are for cron itself")
    most = MAX_PULL_TASK_BYTES if is_pull else MAX_PUSH_TASK_BYTES
    if size_bytes > most:
        raise ApplicationError(
            TaskQueueErrorCode.TASK_TOO_LARGE,
            f"a task's request must be at most {most} bytes: {size_bytes}; keep the data elsewhere and add its address",
        )
    if is_pull and "body" not in record:
        raise ApplicationError(TaskQueueErrorCode.INVALID_REQUEST, "a pull task needs a payload; an empty one will do")
    retry = record.record("retry_parameters")
    max_leases = None
    if retry is not None and "retry_limit" in retry:
        max_leases = retry.integer("retry_limit")
        if max_leases < 1:
            raise ApplicationError(
                TaskQueueErrorCode.INVALID_RETRY_PARAMETERS,
                f"retry_limit must be at least 1, the first lease: {max_leases}",
            )
    queue_of(record.octets("queue_name"))
    return new_task(
        record.octets("body"),
        given_name(record.octets("task_name")),
        tag_of(record.octets("tag")),
        max_leases=max_leases,
    )
