"""The calls about whole queues: statistics, purge, and those of the administrators' console that cost little."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from queue_core import limits
from queue_core.api import ALL_STATES
from queue_core.clock import Instant
from queue_core.errors import UnknownQueueError
from queue_core.server.appengine import messages
from queue_core.server.appengine.codec import decode, encode
from queue_core.server.appengine.codes import ApplicationError, TaskQueueErrorCode
from queue_core.server.appengine.fields import known_name, queue_of, queue_or_none
from queue_core.server.appengine.leasing import no_task
from queue_core.server.appengine.schema import ProtoRecord
from queue_core.server.leases.rates import LeaseCounts
from queue_core.service import Operation
from queue_core.stats import QueueStats
from queue_core.task import ANY, QueueSpec, StoredTask, TaskState
from queue_core.unit_of_work import UnitOfWork

MAX_QUEUES_PER_CALL = 1000
MAX_ANSWER_BYTES = 32 << 20
SAMPLING_SECONDS = 60.0


def request_of(payload: bytes) -> str:
    """The queue that PurgeQueue or DeleteQueue names. Raises `CodecError`, `ApplicationError`."""
    return queue_of(decode(messages.QUEUE_REQUEST, payload).octets("queue_name"))


# -- statistics -------------------------------------------------------------------------------------------------------


def fetch_stats(counts: LeaseCounts) -> Callable[[bytes], Operation[bytes]]:
    """`FetchQueueStats`; a queue that does not exist is an empty one."""

    def prepare(payload: bytes) -> Operation[bytes]:
        names = decode(messages.STATS_REQUEST, payload).all_octets("queue_name")
        if len(names) > MAX_QUEUES_PER_CALL:
            raise ApplicationError(
                TaskQueueErrorCode.INVALID_REQUEST, f"at most {MAX_QUEUES_PER_CALL} queues in one call: {len(names)}"
            )
        queues = [queue_or_none(name) for name in names]

        def step(turn: UnitOfWork) -> bytes:
            return encode(messages.STATS_RESPONSE, {"queuestats": [_stats(turn, queue, counts) for queue in queues]})

        return step

    return prepare


def _stats(turn: UnitOfWork, queue: str | None, recent: LeaseCounts) -> ProtoRecord:
    """What is known of a queue; tasks that are dead count for nothing: they are no backlog."""
    try:
        counts = turn.stats(queue, ANY) if queue is not None else QueueStats("")
        lowest = _lowest_eta(turn, queue, counts) if queue is not None else None
    except UnknownQueueError:
        counts, lowest = QueueStats(""), None
    leased = recent.counts(counts, now=turn.now)
    return ProtoRecord(
        num_tasks=min(counts.ready + counts.delayed + counts.in_flight, (1 << 31) - 1),
        oldest_eta_usec=-1 if lowest is None else int(lowest),
        scanner_info=ProtoRecord(
            executed_last_minute=leased.last_minute,
            executed_last_hour=leased.last_hour,
            sampling_duration_seconds=SAMPLING_SECONDS,
            requests_in_flight=min(counts.in_flight, (1 << 31) - 1),
            enforced_rate=0.0,
        ),
    )


def _lowest_eta(turn: UnitOfWork, queue: str, counts: QueueStats) -> Instant | None:
    """Of every task that counts. What the store names as due may be one that has used up its leases, not settled yet:
    then the next ones are looked for, of delayed tasks among the first thousand."""
    if counts.oldest_ready_at is not None:
        return counts.oldest_ready_at
    next_eta = turn.transaction.next_eta(queue, now=turn.now)
    if next_eta is None or next_eta > turn.now:
        return next_eta
    etas = [lease.expires_at for lease in turn.transaction.live_leases(queue, limit=1, now=turn.now)]
    if counts.delayed:
        delayed = frozenset({TaskState.DELAYED})
        page = turn.peek(
            queue, tags=ANY, states=delayed, names=None, after=0, limit=limits.MAX_PEEK_TASKS, payload_bytes=0
        )
        etas += [task.eta for task in page.tasks]
    return min(etas, default=None)


# -- tasks of a queue -------------------------------------------------------------------------------------------------


def query_tasks(payload: bytes) -> Operation[bytes]:
    """`QueryTasks`: from `start_task_name` on, in the order in which they were added."""
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
            "tasks are listed as they were added: start_task_name alone says where to go on",
        )

    def step(turn: UnitOfWork) -> bytes:
        after = _find(turn, queue, start, settles=False).id - 1 if start else 0
        page = turn.peek(
            queue,
            tags=ANY,
            states=ALL_STATES,
            names=None,
            after=after,
            limit=rows,
            payload_bytes=min(limits.MAX_PAYLOAD_BYTES, MAX_ANSWER_BYTES // rows),
        )
        return encode(messages.TASKS_RESPONSE, {"task": [_shown(task) for task in page.tasks]})

    return step


def fetch_task(payload: bytes) -> Operation[bytes]:
    """`FetchTask`. A change, as it may find a task that used up its leases."""
    record = decode(messages.TASK_REQUEST, payload)
    queue, name = queue_of(record.octets("queue_name")), record.octets("task_name")

    def step(turn: UnitOfWork) -> bytes:
        found = _shown(_find(turn, queue, name, settles=True))
        return encode(messages.TASK_RESPONSE, {"task": ProtoRecord(task=[found])})

    return step


def _find(turn: UnitOfWork, queue: str, wanted: bytes, *, settles: bool) -> StoredTask:
    name = known_name(wanted)
    if name is None:
        turn.transaction.queue(queue)
        raise ApplicationError(TaskQueueErrorCode.UNKNOWN_TASK, f"no task {wanted[:60]!r} in queue {queue}")
    page = turn.peek(
        queue, tags=ANY, states=ALL_STATES, names=[name], after=0, limit=1, payload_bytes=limits.MAX_PAYLOAD_BYTES
    )
    if not page.tasks:
        raise no_task(turn, queue, name, settles=settles)
    return page.tasks[0]


def _shown(task: StoredTask) -> ProtoRecord:
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


def fetch_queues(payload: bytes) -> Operation[bytes]:
    """`FetchQueues`, by name."""
    rows = decode(messages.QUEUES_REQUEST, payload).integer("max_rows")

    def step(turn: UnitOfWork) -> bytes:
        found = turn.transaction.queues()[: max(0, rows)]
        return encode(messages.QUEUES_RESPONSE, {"queue": [_queue(spec) for spec in found]})

    return step


def pause(payload: bytes) -> Operation[bytes]:
    """`PauseQueue`, which resumes too."""
    record = decode(messages.PAUSE_REQUEST, payload)
    queue = queue_of(record.octets("queue_name"))
    is_pause = bool(record.integer("pause"))

    def step(turn: UnitOfWork) -> bytes:
        turn.set_paused(queue, "paused" if is_pause else "running")
        return b""

    return step


def update(payload: bytes) -> Operation[bytes]:
    """`UpdateQueue`: create a pull queue, or set its limit of leases and its access list; its rates mean nothing."""
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

    def step(turn: UnitOfWork) -> bytes:
        try:
            spec = turn.transaction.queue(queue)
        except UnknownQueueError:
            spec = QueueSpec(queue, on_exhausted="delete")
        turn.put_queue(replace(spec, mode="pull", max_leases=max_leases, user_emails=users, writer_emails=writers))
        return b""

    return step


def delete(queue: str) -> Operation[bytes]:
    """`DeleteQueue`: with all its tasks."""

    def step(turn: UnitOfWork) -> bytes:
        turn.transaction.delete_queue(queue)
        return b""

    return step


def _queue(spec: QueueSpec) -> ProtoRecord:
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
