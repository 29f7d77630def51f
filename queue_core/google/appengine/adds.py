"""Add and BulkAdd: check all requests of a call first, and add their tasks only if all are valid."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from queue_core import limits
from queue_core.clock import Instant
from queue_core.errors import InvalidEtaError, QueueModeError, UnknownQueueError
from queue_core.fast_values import value
from queue_core.google.appengine import fast_adds, messages
from queue_core.google.appengine.codec import decode, encode
from queue_core.google.appengine.codes import ApplicationError, TaskQueueErrorCode
from queue_core.google.appengine.fast_adds import MAX_TASKS_PER_ADD, STATUS
from queue_core.google.appengine.fields import given_name, queue_of, queue_or_none, tag_of
from queue_core.google.appengine.queues import QueueSettingsCache, pull_queue
from queue_core.google.appengine.schema import ProtoRecord
from queue_core.task import NewTask
from queue_core.unit.service import Operation
from queue_core.unit.unit_of_work import UnitOfWork

MAX_PULL_TASK_BYTES = 1 << 20
"""Bytes of the whole request for one pull task, as App Engine's servers counted."""
MAX_PUSH_TASK_BYTES = 100 << 10
"""Bytes of the whole request for one push task."""


@value
class AddParams:
    """One request: the task to add, or the reason why it is invalid.

    Args:
        queue: the queue's name as received.
        eta: checked first, in the transaction, and set on the task there.
        refusal: the error in the other fields; independent of whether the queue exists.
    """

    queue: bytes
    eta: Instant
    task: NewTask | None
    refusal: ApplicationError | None
    is_pull: bool
    is_transactional: bool
    is_named: bool


@value
class AddResult:
    """The result of one request; `chosen_name` if the queue chose the task's name."""

    code: TaskQueueErrorCode
    chosen_name: str = ""
    detail: str = ""


def bulk_add(settings: QueueSettingsCache) -> Callable[[bytes], Operation[bytes]]:
    """Return the handler of `TaskQueueService.BulkAdd`."""

    def prepare(payload: bytes) -> Operation[bytes]:
        plain = fast_adds.read(payload)
        if plain is None:
            return bulk_add_each(payload, settings)

        def operation(unit: UnitOfWork) -> bytes:
            tasks = plain.tasks_at(unit.now)
            try:
                limits.check_eta(Instant(max(plain.etas, default=0)), now=unit.now)
                settings.pull_queue(unit, plain.queue)
                return fast_adds.answer(tasks, unit.add(plain.queue, tasks))
            except (UnknownQueueError, QueueModeError, InvalidEtaError):
                return bulk_add_each(payload, settings)(unit)

        return operation

    return prepare


def bulk_add_each(payload: bytes, settings: QueueSettingsCache) -> Operation[bytes]:
    """Handle any BulkAdd: decode a record for each task, and report the error of each."""
    requests = decode(messages.BULK_ADD_REQUEST, payload).all_octets("add_request")
    if len(requests) > MAX_TASKS_PER_ADD:
        raise ApplicationError(
            TaskQueueErrorCode.TOO_MANY_TASKS,
            f"at most {MAX_TASKS_PER_ADD} tasks in one call: {len(requests)}; split the batch",
        )
    params = [add_params(request) for request in requests]
    if params and not params[0].queue:
        raise ApplicationError(TaskQueueErrorCode.UNKNOWN_QUEUE, "the first task names no queue")

    def operation(unit: UnitOfWork) -> bytes:
        results = add_all(unit, params, settings)
        return b"".join([fast_adds.result(one.code, one.chosen_name) for one in results])

    return operation


def add(settings: QueueSettingsCache) -> Callable[[bytes], Operation[bytes]]:
    """Return the handler of `TaskQueueService.Add`: one task, whose error fails the call. Only Go calls it."""

    def prepare(payload: bytes) -> Operation[bytes]:
        params = [add_params(payload)]

        def operation(unit: UnitOfWork) -> bytes:
            (result,) = add_all(unit, params, settings)
            if result.code is not TaskQueueErrorCode.OK:
                raise ApplicationError(result.code, result.detail)
            chosen = {"chosen_task_name": result.chosen_name.encode()} if result.chosen_name else {}
            return encode(messages.ADD_RESPONSE, chosen)

        return operation

    return prepare


def add_params(request: bytes) -> AddParams:
    """Decode one request. Raises `CodecError`."""
    record = decode(messages.ADD_REQUEST, request)
    is_pull = record.integer("mode", messages.PUSH) == messages.PULL
    task = refusal = None
    try:
        task = _task(record, is_pull=is_pull, size_bytes=len(request))
    except ApplicationError as error:
        refusal = error
    return AddParams(
        record.octets("queue_name"),
        Instant(record.integer("eta_usec")),
        task,
        refusal,
        is_pull,
        "transaction" in record or "datastore_transaction" in record,
        bool(record.octets("task_name")),
    )


def add_all(unit: UnitOfWork, params: Sequence[AddParams], settings: QueueSettingsCache) -> list[AddResult]:
    """Add the tasks if all requests are valid. Raises `ApplicationError` for an error of the call as a whole."""
    for queue in {one.queue for one in params}:
        if (name := queue_or_none(queue)) is not None:
            settings.allow(unit, name)
    tasks = _all_tasks(unit, params, settings)
    if tasks is None:
        return _refusals(unit, params)
    if not tasks:
        return []
    try:
        added = unit.add(queue_of(params[0].queue), tasks)
    except UnknownQueueError:
        return _refusals(unit, params)
    return [
        AddResult(STATUS[one.status], "" if request.is_named or one.status != "added" else one.name, "")
        for request, one in zip(params, added, strict=True)
    ]


def _all_tasks(unit: UnitOfWork, params: Sequence[AddParams], settings: QueueSettingsCache) -> list[NewTask] | None:
    """Return the tasks to add, or None when any request is invalid."""
    tasks: list[NewTask] = []
    now = unit.now
    home = params[0].queue if params else b""
    for one in params:
        task = one.task
        if task is None or not one.is_pull or one.is_transactional or _eta_refusal(one, now) is not None:
            return None
        if one.eta > now:
            task = replace(task, eta=one.eta)
        if one.queue != home:
            task = replace(task, queue=queue_of(one.queue))
        tasks.append(task)
    return tasks if _are_pull_queues(unit, params, settings) else None


def _are_pull_queues(unit: UnitOfWork, params: Sequence[AddParams], settings: QueueSettingsCache) -> bool:
    try:
        for queue in {one.queue for one in params}:
            settings.pull_queue(unit, queue_of(queue))
    except (UnknownQueueError, QueueModeError):
        return False
    return True


def _refusals(unit: UnitOfWork, params: Sequence[AddParams]) -> list[AddResult]:
    """Return one result per request when nothing is added: its error, or SKIPPED because of the others.

    Source: `taskqueue_stub._VerifyTaskQueueAddRequest` for the order of the checks.
    """
    results = [_refusal(unit, one) for one in params]
    if any(result.code is not TaskQueueErrorCode.SKIPPED for result in results):
        return results
    if any(one.is_transactional for one in params):
        raise ApplicationError(
            TaskQueueErrorCode.DATASTORE_BAD_REQUEST,
            "transactional tasks are not supported: there is no datastore here",
        )
    for one in params:
        pull_queue(unit, queue_of(one.queue))
    raise ApplicationError(
        TaskQueueErrorCode.INVALID_QUEUE_MODE,
        "every queue here is a pull queue: add tasks with method='PULL', without a url",
    )


def _refusal(unit: UnitOfWork, one: AddParams) -> AddResult:
    refusal = _eta_refusal(one, unit.now) or _queue_refusal(unit, one) or one.refusal
    return AddResult(TaskQueueErrorCode.SKIPPED) if refusal is None else AddResult(refusal.code, detail=refusal.detail)


def _eta_refusal(one: AddParams, now: Instant) -> ApplicationError | None:
    if 0 <= one.eta <= now:
        return None
    try:
        limits.check_eta(one.eta, now=now)
    except InvalidEtaError as error:
        return ApplicationError(TaskQueueErrorCode.INVALID_ETA, str(error))
    return None


def _queue_refusal(unit: UnitOfWork, one: AddParams) -> ApplicationError | None:
    try:
        name = queue_of(one.queue)
        moved_to = pull_queue(unit, name).moved_to
    except ApplicationError as error:
        return error
    except QueueModeError:
        return None  # an error of the whole call
    except UnknownQueueError as error:
        return ApplicationError(TaskQueueErrorCode.UNKNOWN_QUEUE, str(error))
    return (
        ApplicationError(TaskQueueErrorCode.UNKNOWN_QUEUE, f"queue {name} has moved to {moved_to}")
        if moved_to
        else None
    )


def _task(record: ProtoRecord, *, is_pull: bool, size_bytes: int) -> NewTask:
    """Return the task of a request. Raises `ApplicationError`."""
    if "crontimetable" in record:
        raise ApplicationError(TaskQueueErrorCode.PERMISSION_DENIED, "tasks with a timetable are reserved for cron")
    most = MAX_PULL_TASK_BYTES if is_pull else MAX_PUSH_TASK_BYTES
    if size_bytes > most:
        raise ApplicationError(
            TaskQueueErrorCode.TASK_TOO_LARGE,
            f"a task's request must be at most {most} bytes: {size_bytes}; keep the data elsewhere and add its address",
        )
    if is_pull and "body" not in record:
        raise ApplicationError(TaskQueueErrorCode.INVALID_REQUEST, "a pull task needs a payload, which may be empty")
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
    return NewTask(
        record.octets("body"),
        given_name(record.octets("task_name")),
        tag_of(record.octets("tag")),
        max_leases=max_leases,
    )
