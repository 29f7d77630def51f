"""The calls on whole queues: statistics, listing of tasks and queues, settings; and the lookup of pull queues."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from queue_core import limits
from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import QueueModeError, UnknownQueueError
from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import decode, encode
from queue_core.google.appengine.codes import ApplicationError, TaskQueueErrorCode
from queue_core.google.appengine.fields import is_chosen, possible_name, queue_of, queue_or_none
from queue_core.google.appengine.schema import ProtoRecord
from queue_core.google.queue_files.plan import ALWAYS_THERE
from queue_core.server.leases.rates import LeaseCounts
from queue_core.stats import QueueStats
from queue_core.task import ALL_STATES, ANY, QueueSpec, StoredTask, TaskState
from queue_core.unit.service import Operation
from queue_core.unit.unit_of_work import UnitOfWork

MAX_QUEUES_PER_CALL = 1000
"""Queues of one FetchQueueStats."""
MAX_RESPONSE_BYTES = 32 << 20
"""Bytes of payloads in one QueryTasks response."""
SAMPLING_SECONDS = 60.0
"""The `sampling_duration_seconds` that FetchQueueStats returns."""


def request_of(payload: bytes) -> str:
    """Return the queue of a PurgeQueue or DeleteQueue request. Raises `CodecError`, `ApplicationError`."""
    return queue_of(decode(messages.QUEUE_REQUEST, payload).octets("queue_name"))


# -- statistics -------------------------------------------------------------------------------------------------------


def fetch_stats(counts: LeaseCounts) -> Callable[[bytes], Operation[bytes]]:
    """Return the handler of `FetchQueueStats`; a queue that does not exist counts as empty."""

    def prepare(payload: bytes) -> Operation[bytes]:
        names = decode(messages.STATS_REQUEST, payload).all_octets("queue_name")
        if len(names) > MAX_QUEUES_PER_CALL:
            raise ApplicationError(
                TaskQueueErrorCode.INVALID_REQUEST, f"at most {MAX_QUEUES_PER_CALL} queues in one call: {len(names)}"
            )
        queues = [queue_or_none(name) for name in names]

        def operation(unit: UnitOfWork) -> bytes:
            return encode(messages.STATS_RESPONSE, {"queuestats": [_stats(unit, queue, counts) for queue in queues]})

        return operation

    return prepare


def _stats(unit: UnitOfWork, queue: str | None, recent: LeaseCounts) -> ProtoRecord:
    """Return the statistics of a queue as a record; dead tasks are not counted, because they are no backlog."""
    try:
        counts = unit.stats(queue, ANY) if queue is not None else QueueStats("")
        lowest = _lowest_eta(unit, queue, counts) if queue is not None else None
    except UnknownQueueError:
        counts, lowest = QueueStats(""), None
    leased = recent.counts(counts, now=unit.now)
    return ProtoRecord(
        num_tasks=min(counts.pending, (1 << 31) - 1),
        oldest_eta_usec=-1 if lowest is None else int(lowest),
        scanner_info=ProtoRecord(
            executed_last_minute=leased.last_minute,
            executed_last_hour=leased.last_hour,
            sampling_duration_seconds=SAMPLING_SECONDS,
            requests_in_flight=min(counts.in_flight, (1 << 31) - 1),
            enforced_rate=0.0,
        ),
    )


def _lowest_eta(unit: UnitOfWork, queue: str, counts: QueueStats) -> Instant | None:
    """Return the lowest eta of all tasks that count.

    The store's next eta may belong to a task that has used up its leases but is not expired yet (ADR 2): then look at
    the leases and the first 1000 delayed tasks.
    """
    if counts.oldest_ready_at is not None:
        return counts.oldest_ready_at
    next_eta = unit.transaction.next_eta(queue, now=unit.now)
    if next_eta is None or next_eta > unit.now:
        return next_eta
    etas = [lease.expires_at for lease in unit.transaction.live_leases(queue, limit=1, now=unit.now)]
    if counts.delayed:
        delayed = frozenset({TaskState.DELAYED})
        page = unit.peek(
            queue, tags=ANY, states=delayed, names=None, after=0, limit=limits.MAX_PEEK_TASKS, payload_bytes=0
        )
        etas += [task.eta for task in page.tasks]
    return min(etas, default=None)


# -- tasks of a queue -------------------------------------------------------------------------------------------------


def query_tasks(payload: bytes) -> Operation[bytes]:
    """Handle `QueryTasks`: list tasks from `start_task_name` on, in the order in which they were added."""
    record = decode(messages.TASKS_REQUEST, payload)
    queue, rows = queue_of(record.octets("queue_name")), record.integer("max_rows", 1)
    start = record.octets("start_task_name")
    if not 1 <= rows <= limits.MAX_PEEK_TASKS:
        raise ApplicationError(
            TaskQueueErrorCode.INVALID_REQUEST, f"max_rows must be in [1, {limits.MAX_PEEK_TASKS}]: {rows}"
        )
    if record.octets("start_tag") or (record.integer("start_eta_usec") and not start):
        raise ApplicationError(
            TaskQueueErrorCode.INVALID_REQUEST,
            "tasks are listed in the order in which they were added: continue with start_task_name only",
        )

    def operation(unit: UnitOfWork) -> bytes:
        after = _find(unit, queue, start, may_expire=False).id - 1 if start else 0
        page = unit.peek(
            queue,
            tags=ANY,
            states=ALL_STATES,
            names=None,
            after=after,
            limit=rows,
            payload_bytes=min(limits.MAX_PAYLOAD_BYTES, MAX_RESPONSE_BYTES // rows),
        )
        return encode(messages.TASKS_RESPONSE, {"task": [_task_record(task) for task in page.tasks]})

    return operation


def fetch_task(payload: bytes) -> Operation[bytes]:
    """Handle `FetchTask`. It is a write, because it may expire a task that has used up its leases (ADR 2)."""
    record = decode(messages.TASK_REQUEST, payload)
    queue, name = queue_of(record.octets("queue_name")), record.octets("task_name")

    def operation(unit: UnitOfWork) -> bytes:
        found = _task_record(_find(unit, queue, name, may_expire=True))
        return encode(messages.TASK_RESPONSE, {"task": ProtoRecord(task=[found])})

    return operation


def _find(unit: UnitOfWork, queue: str, raw_name: bytes, *, may_expire: bool) -> StoredTask:
    name = possible_name(raw_name)
    if name is None:
        unit.transaction.queue(queue)
        raise ApplicationError(TaskQueueErrorCode.UNKNOWN_TASK, f"no task {raw_name[:60]!r} in queue {queue}")
    page = unit.peek(
        queue, tags=ANY, states=ALL_STATES, names=[name], after=0, limit=1, payload_bytes=limits.LARGEST_PAYLOAD_BYTES
    )
    if not page.tasks:
        raise no_task(unit, queue, name, may_expire=may_expire)
    return page.tasks[0]


def no_task(unit: UnitOfWork, queue: str, name: str, *, may_expire: bool) -> ApplicationError:
    """Return the error for a name without a task: TOMBSTONED_TASK if it is known to be deleted, else UNKNOWN_TASK.

    `may_expire`: whether the transaction may write, and so expire a task that has used up its leases; otherwise such a
    task is unknown (ADR 2).
    """
    if is_chosen(name):
        return ApplicationError(TaskQueueErrorCode.TOMBSTONED_TASK, f"task {name} of queue {queue} was deleted")
    if may_expire:
        unit.expire(queue)
    if _is_tombstoned(unit, queue, name):
        return ApplicationError(TaskQueueErrorCode.TOMBSTONED_TASK, f"task {name} of queue {queue} was deleted")
    return ApplicationError(TaskQueueErrorCode.UNKNOWN_TASK, f"no task {name} in queue {queue}")


def _is_tombstoned(unit: UnitOfWork, queue: str, name: str) -> bool:
    """Return whether the name is kept after its task was deleted: then it is the first name after its predecessor."""
    before = name[:-1] + chr(ord(name[-1]) - 1) + "~"
    held = unit.transaction.held_names(queue, after=before, limit=1, now=unit.now)
    return bool(held) and held[0].name == name


def _task_record(task: StoredTask) -> ProtoRecord:
    record = ProtoRecord(
        task_name=task.shown_name.encode(),
        eta_usec=int(task.eta),
        retry_count=task.leases,
        body_size=len(task.payload),
        body=task.payload,
        creation_time_usec=int(task.added_at),
    )
    if task.max_leases is not None:
        record["retry_parameters"] = ProtoRecord(retry_limit=task.max_leases)
    if task.tag is not None:
        record["tag"] = task.tag.encode()
    return record


# -- queues -----------------------------------------------------------------------------------------------------------


def fetch_queues(payload: bytes, visible: Callable[[Sequence[QueueSpec]], Sequence[QueueSpec]]) -> Operation[bytes]:
    """Handle `FetchQueues`: list by name the queues that the caller may see."""
    rows = decode(messages.QUEUES_REQUEST, payload).integer("max_rows")

    def operation(unit: UnitOfWork) -> bytes:
        found = visible(unit.transaction.queues())[: max(0, rows)]
        return encode(messages.QUEUES_RESPONSE, {"queue": [_queue_record(spec) for spec in found]})

    return operation


def pause(payload: bytes) -> Operation[bytes]:
    """Handle `PauseQueue`, which pauses or resumes."""
    record = decode(messages.PAUSE_REQUEST, payload)
    queue = queue_of(record.octets("queue_name"))
    is_pause = bool(record.integer("pause"))

    def operation(unit: UnitOfWork) -> bytes:
        unit.set_paused(queue, "paused" if is_pause else "running")
        return b""

    return operation


def update(payload: bytes) -> Operation[bytes]:
    """Handle `UpdateQueue`: create a pull queue, or set its lease limit and access list; rates are ignored."""
    record = decode(messages.UPDATE_QUEUE_REQUEST, payload)
    queue = queue_of(record.octets("queue_name"))
    if record.integer("mode", messages.PUSH) != messages.PULL:
        raise ApplicationError(TaskQueueErrorCode.INVALID_QUEUE_MODE, "every queue here is a pull queue")
    retry, acl = record.record("retry_parameters") or ProtoRecord(), record.record("acl") or ProtoRecord()
    max_leases = retry.integer("retry_limit") if "retry_limit" in retry else None
    if max_leases is not None and max_leases < 1:
        raise ApplicationError(
            TaskQueueErrorCode.INVALID_RETRY_PARAMETERS,
            f"retry_limit must be at least 1, the first lease: {max_leases}",
        )
    users, writers = _emails(acl, "user_email"), _emails(acl, "writer_email")

    def operation(unit: UnitOfWork) -> bytes:
        try:
            spec = unit.transaction.queue(queue)
        except UnknownQueueError:
            spec = QueueSpec(queue, on_exhausted="delete")
        unit.put_queue(replace(spec, mode="pull", max_leases=max_leases, user_emails=users, writer_emails=writers))
        return b""

    return operation


def delete(queue: str) -> Operation[bytes]:
    """Handle `DeleteQueue`: delete a queue with all its tasks."""

    def operation(unit: UnitOfWork) -> bytes:
        unit.transaction.delete_queue(queue)
        return b""

    return operation


def _queue_record(spec: QueueSpec) -> ProtoRecord:
    record = ProtoRecord(
        queue_name=spec.name.encode(),
        bucket_refill_per_second=0.0,
        bucket_capacity=0.0,
        paused=spec.is_closed,
        mode=messages.PULL if spec.mode == "pull" else messages.PUSH,
    )
    if spec.max_leases is not None:
        record["retry_parameters"] = ProtoRecord(retry_limit=spec.max_leases)
    if spec.user_emails or spec.writer_emails:
        record["acl"] = ProtoRecord(user_email=_octets(spec.user_emails), writer_email=_octets(spec.writer_emails))
    return record


def _octets(texts: Sequence[str]) -> list[int | float | bool | bytes | str | ProtoRecord]:
    return [text.encode() for text in texts]


def _emails(acl: ProtoRecord, name: str) -> tuple[str, ...]:
    try:
        return tuple(email.decode() for email in acl.all_octets(name))
    except UnicodeDecodeError as error:
        raise ApplicationError(TaskQueueErrorCode.INVALID_REQUEST, f"acl: {name}: not UTF-8: {error.reason}") from None


CACHE_SECONDS = 1.0
"""Seconds for which the settings of a queue are cached for frequent calls."""
UNCONFIGURED: Final = QueueSpec(ALWAYS_THERE, mode="push")
"""The queue `default` when it was not created. Source: App Engine, where it always exists, first as a push queue."""


def pull_queue(unit: UnitOfWork, queue: str) -> QueueSpec:
    """Return the settings of a pull queue. Raises `UnknownQueueError`, `QueueModeError`."""
    return _checked(_spec(unit, queue))


def _spec(unit: UnitOfWork, queue: str) -> QueueSpec:
    try:
        return unit.transaction.queue(queue)
    except UnknownQueueError:
        if queue == ALWAYS_THERE:
            return UNCONFIGURED
        raise


def _checked(spec: QueueSpec) -> QueueSpec:
    if spec.mode == "push":
        raise QueueModeError(
            f"queue {spec.name} is a push queue, which is not supported: give it `mode: pull` in queue.yaml, "
            "apply the file, and lease its tasks"
        )
    return spec


Allow = Callable[[UnitOfWork, str], None]
"""Raises `PermissionDeniedError` for a queue that the caller may not use so."""


class QueueSettingsCache:
    """Settings of queues, read once a second. Used in transactions, of which several may run at a time."""

    def __init__(self) -> None:
        self._cached: dict[str, tuple[Instant, QueueSpec]] = {}

    def pull_queue(self, unit: UnitOfWork, queue: str) -> QueueSpec:
        """Return the settings of a pull queue, at most a second old. Raises `UnknownQueueError`, `QueueModeError`."""
        cached = self._cached.get(queue)
        if cached is None or not 0 <= unit.now - cached[0] < CACHE_SECONDS * MICROSECONDS:
            cached = self._cached[queue] = (unit.now, _spec(unit, queue))
        return _checked(cached[1])

    def allow(self, unit: UnitOfWork, queue: str) -> None:
        """Allow the call to use a queue: see `CallerSettings`."""

    def forget(self, queue: str) -> None:
        """Drop the settings of a deleted queue."""
        self._cached.pop(queue, None)


class CallerSettings(QueueSettingsCache):
    """The settings of queues for one call, of a caller that may not use all of them."""

    def __init__(self, settings: QueueSettingsCache, allow: Allow) -> None:
        super().__init__()
        self._settings = settings
        self._allow = allow

    def allow(self, unit: UnitOfWork, queue: str) -> None:
        """Raise `PermissionDeniedError` for a queue that the caller may not add to."""
        self._allow(unit, queue)

    def pull_queue(self, unit: UnitOfWork, queue: str) -> QueueSpec:
        """See `QueueSettingsCache.pull_queue`. Raises `PermissionDeniedError`."""
        self._allow(unit, queue)
        return self._settings.pull_queue(unit, queue)
