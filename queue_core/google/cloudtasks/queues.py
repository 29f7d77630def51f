"""The methods of queues, and UploadQueueYaml: run a request's verb and return the response's values."""

from collections.abc import Sequence
from dataclasses import replace

from queue_core import limits
from queue_core.clock import MICROSECONDS, Instant
from queue_core.config.yaml_document import DocumentError
from queue_core.google.cloudtasks.call import (
    CloudTasksCall,
    MessageReader,
    Values,
    page_size,
    page_token,
    parse_page_token,
)
from queue_core.google.cloudtasks.failures import CloudTasksError, RpcStatus, invalid
from queue_core.google.cloudtasks.filters import QueueFilter
from queue_core.google.cloudtasks.json_codec import MAX_DURATION_MICROSECONDS, values_of
from queue_core.google.cloudtasks.masks import check_mask, covers, masked
from queue_core.google.cloudtasks.messages import PAUSED, RUNNING
from queue_core.google.cloudtasks.names import QueueName, parse_place, parse_queue
from queue_core.google.queue_files.plan import plan_of
from queue_core.google.queue_files.yaml import read_queue_yaml
from queue_core.server.callers.access import check_whole_store, is_allowed
from queue_core.server.callers.auth import described
from queue_core.server.state import ServerState
from queue_core.stats import TaskRemoval
from queue_core.task import ANY, QueueSpec
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs.change_verbs import PIECE_TASKS

QUEUE_YAML = "queue.yaml"
MAX_PAGE_QUEUES = 9800
"""Queues of one page. Source: the API's documentation."""
TOMBSTONE_SECONDS = 3600.0
"""Seconds for which a queue created by this API keeps the name of a deleted task. Source: its documentation."""
FOREVER_MICROSECONDS = 10 * 365 * 86_400 * MICROSECONDS
"""A task_ttl from here on means for ever, as a deployed queue.yaml sets it."""


async def get_queue(core: ServerState, call: CloudTasksCall) -> Values:
    name = parse_queue(call.fields.text("name"), field="name")
    mask = _read_mask(call.fields)
    return await core.read(lambda unit: _shown(core, unit, call.authorize(unit, name.queue, "look"), name.place, mask))


async def list_queues(core: ServerState, call: CloudTasksCall) -> Values:
    place = parse_place(call.fields.text("parent"), field="parent")
    mask = _read_mask(call.fields)
    wanted = QueueFilter(call.fields.text("filter"))
    size = page_size(call.fields, most=MAX_PAGE_QUEUES)
    after = parse_page_token(call.fields)

    def operation(unit: UnitOfWork) -> tuple[list[Values], str]:
        specs = [
            spec for spec in unit.transaction.queues() if spec.name > after and is_allowed(call.caller, spec, "look")
        ]
        specs = [spec for spec in specs if wanted.accepts(queue_values(spec, QueueName(place, spec.name)))]
        more = specs[size - 1].name if len(specs) > size else ""
        return [_shown(core, unit, spec, place, mask) for spec in specs[:size]], more

    queues, more = await core.read(operation)
    answer: Values = {"queues": queues} if queues else {}
    if more:
        answer["nextPageToken"] = page_token(more)
    return answer


async def create_queue(core: ServerState, call: CloudTasksCall) -> Values:
    place = parse_place(call.fields.text("parent"), field="parent")
    queue = call.fields.fields("queue")
    name = _queue_name(queue)
    if name.place != place:
        raise invalid(f"{queue.named('name')} must be in the parent, {place}: {name}")
    made = _updated(_new_spec(name.queue), queue, ())

    def operation(unit: UnitOfWork) -> QueueSpec:
        if any(spec.name == name.queue for spec in unit.transaction.queues()):
            raise CloudTasksError(RpcStatus.ALREADY_EXISTS, f"queue {name} already exists; change it with UpdateQueue")
        unit.put_queue(made)
        core.access.forget(name.queue)
        return unit.transaction.queue(name.queue)

    return queue_values(await core.committer.run(operation), name)


async def update_queue(core: ServerState, call: CloudTasksCall) -> Values:
    """Update the queue, or create it when it does not exist."""
    queue = call.fields.fields("queue")
    name = _update_name(call.fields, queue)
    mask = call.fields.texts("updateMask")
    check_mask("Queue", mask, place="update_mask")
    made = _updated(_new_spec(name.queue), queue, ())

    def operation(unit: UnitOfWork) -> QueueSpec:
        existing = next((spec for spec in unit.transaction.queues() if spec.name == name.queue), None)
        unit.put_queue(made if existing is None else _updated(existing, queue, mask))
        core.access.forget(name.queue)
        return unit.transaction.queue(name.queue)

    return queue_values(await core.committer.run(operation), name)


def _update_name(fields: MessageReader, queue: MessageReader) -> QueueName:
    """Return the queue's name from the path, which REST sets, or from the body."""
    if "name" not in fields:
        return _queue_name(queue)
    name = parse_queue(fields.text("name"), field="name")
    if "name" in queue and _queue_name(queue) != name:
        raise invalid(f"{queue.named('name')} must be that of the path, {name}: a queue's name cannot be changed")
    return name


def _queue_name(queue: MessageReader) -> QueueName:
    return parse_queue(queue.text("name"), field=queue.named("name"))


def _new_spec(name: str) -> QueueSpec:
    return QueueSpec(name, on_exhausted="delete", name_retention_seconds=TOMBSTONE_SECONDS)


def _updated(spec: QueueSpec, queue: MessageReader, mask: Sequence[str]) -> QueueSpec:
    """Return the settings with the fields of a mask (none: all fields) taken from the message.

    Fields that are output only for pull queues are ignored, as in the real service. Raises `CloudTasksError`.
    """
    for target in ("appEngineHttpTarget", "httpTarget"):
        if target in queue:
            raise invalid(f"{queue.named(target)}: only pull queues are supported; use pullTarget instead")
    retry = queue.fields("retryConfig")
    if not mask or covers(mask, "retry_config.max_attempts") or covers(mask, "retry_config.unlimited_attempts"):
        spec = replace(spec, max_leases=_max_leases(retry))
    if not mask or covers(mask, "tombstone_ttl"):
        spec = replace(spec, name_retention_seconds=_tombstone_seconds(queue))
    if (not mask or covers(mask, "task_ttl")) and "taskTtl" in queue and queue.number("taskTtl") < FOREVER_MICROSECONDS:
        raise invalid(f"{queue.named('taskTtl')}: tasks are kept until they are deleted; omit it")
    return spec


def _max_leases(retry: MessageReader) -> int | None:
    if "maxAttempts" not in retry:
        return None
    attempts = retry.number("maxAttempts")
    if retry.number("unlimitedAttempts"):
        raise invalid(f"give either {retry.named('maxAttempts')} or {retry.named('unlimitedAttempts')}")
    if attempts < 0:
        return None  # what deployed queue.yaml files have for unlimited
    if attempts == 0:
        raise invalid(f"{retry.named('maxAttempts')} must be above 0; for no bound set unlimitedAttempts")
    return attempts


def _tombstone_seconds(queue: MessageReader) -> float:
    if "tombstoneTtl" not in queue:
        return TOMBSTONE_SECONDS
    seconds = queue.number("tombstoneTtl") / MICROSECONDS
    if not 0 <= seconds <= limits.MAX_ETA_SECONDS:
        raise invalid(f"{queue.named('tombstoneTtl')} must be in [0, {limits.MAX_ETA_SECONDS:.0f}] s: {seconds} s")
    return seconds


async def delete_queue(core: ServerState, call: CloudTasksCall) -> Values:
    name = parse_queue(call.fields.text("name"), field="name")
    await core.committer.run(lambda unit: unit.transaction.delete_queue(name.queue))
    core.access.forget(name.queue)
    core.waiting.retry_queue(name.queue)
    return {}


async def pause_queue(core: ServerState, call: CloudTasksCall) -> Values:
    return await _set_paused(core, call, "paused")


async def resume_queue(core: ServerState, call: CloudTasksCall) -> Values:
    return await _set_paused(core, call, "running")


async def _set_paused(core: ServerState, call: CloudTasksCall, paused: str) -> Values:
    name = parse_queue(call.fields.text("name"), field="name")

    def operation(unit: UnitOfWork) -> QueueSpec:
        call.authorize_change(unit, name.queue)
        unit.set_paused(name.queue, "paused" if paused == "paused" else "running")
        return unit.transaction.queue(name.queue)

    return queue_values(await core.committer.run(operation), name)


async def purge_queue(core: ServerState, call: CloudTasksCall) -> Values:
    """Purge the queue in chunks, at most as many tasks as there were at the start."""
    name = parse_queue(call.fields.text("name"), field="name")

    def begin(unit: UnitOfWork) -> tuple[int, Instant]:
        call.authorize_change(unit, name.queue)
        stats = unit.stats(name.queue, ANY)
        return stats.pending, unit.now

    removal = TaskRemoval(f"purged by {described(call.caller)}")
    count, began_at = await core.committer.run(begin)
    for _ in range(count // PIECE_TASKS + 1):
        if not await core.committer.run(lambda unit: unit.purge(name.queue, ANY, dead="keep", removal=removal)):
            break
    spec = await core.read(lambda unit: unit.transaction.queue(name.queue))
    return {**queue_values(spec, name), "purgeTime": began_at}


def queue_values(spec: QueueSpec, name: QueueName) -> Values:
    """Return a queue as the values of its message, without statistics."""
    attempts: Values = {"unlimitedAttempts": True} if spec.max_leases is None else {"maxAttempts": spec.max_leases}
    return {
        "name": str(name),
        ("pullTarget" if spec.mode == "pull" else "appEngineHttpTarget"): {},
        "rateLimits": {"maxConcurrentTasks": -1},
        "retryConfig": attempts,
        "state": PAUSED if spec.is_closed else RUNNING,
        "taskTtl": MAX_DURATION_MICROSECONDS,
        "tombstoneTtl": round(spec.name_retention_seconds * MICROSECONDS),
    }


def _shown(core: ServerState, unit: UnitOfWork, spec: QueueSpec, place: str, mask: Sequence[str]) -> Values:
    """Return a queue with the fields of a read mask; statistics only if the mask names them."""
    values = queue_values(spec, QueueName(place, spec.name))
    if mask and covers(mask, "stats"):
        values["stats"] = _stats(core, unit, spec.name)
    return masked(values, mask) if mask else values


def _stats(core: ServerState, unit: UnitOfWork, queue: str) -> Values:
    stats = unit.stats(queue, ANY)
    values: Values = {
        "tasksCount": stats.pending,
        "executedLastMinuteCount": core.lease_counts.counts(stats, now=unit.now).last_minute,
        "concurrentDispatchesCount": stats.in_flight,
    }
    etas = [stats.oldest_ready_at, unit.transaction.next_eta(queue, now=unit.now)]
    present = [eta for eta in etas if eta is not None]
    if present and values["tasksCount"]:
        values["oldestEstimatedArrivalTime"] = min(present)
    return values


def _read_mask(fields: MessageReader) -> tuple[str, ...]:
    mask = fields.texts("readMask")
    check_mask("Queue", mask, place="read_mask")
    return mask


async def upload_queue_yaml(core: ServerState, call: CloudTasksCall) -> Values:
    """Apply a queue.yaml in one transaction. Queues that the file does not list are paused."""
    check_whole_store(call.caller, "a queue.yaml")
    try:
        text = _text(call.fields.fields("httpBody"))
        entries = await core.in_thread(lambda: read_queue_yaml(text, name=QUEUE_YAML))  # may take seconds
    except DocumentError as error:
        raise invalid("\n".join(error.lines)) from error

    def operation(unit: UnitOfWork) -> None:
        before = unit.transaction.storage().limit_bytes
        plan = plan_of(entries, unit.transaction.queues(), storage_limit_bytes=before)
        if plan.storage is not None:
            unit.set_storage_limit(entries.total_storage_limit_bytes)
        for change in plan.changes:
            if change.spec is not None:
                unit.put_queue(change.spec)
                core.access.forget(change.queue)
            if change.pausing is not None:
                unit.set_paused(change.queue, "paused" if change.pausing == "pause" else "running")

    await core.committer.run(operation)
    return {}


def _text(body: MessageReader) -> str:
    data = body.data("data")
    if not data.strip():
        raise invalid(f"the body must be a {QUEUE_YAML}; `queue:` with nothing under it pauses all queues")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(f"{QUEUE_YAML}: byte {error.start} is not UTF-8") from error


def http_body(content_type: str, body: bytes, *, data: object) -> Values:
    """Return the HttpBody of an upload over REST: the file itself, or JSON (as `data`) with the file in base64."""
    if isinstance(data, dict) and "data" in data:
        return values_of("HttpBody", data, place="http_body.")
    return {"contentType": content_type, "data": body}
