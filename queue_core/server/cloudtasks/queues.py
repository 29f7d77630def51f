"""The methods of queues: what a request means in verbs, and the answer as values."""

from collections.abc import Sequence
from dataclasses import replace

from queue_core import limits
from queue_core.clock import MICROSECONDS, Instant
from queue_core.config.yaml_document import DocumentError
from queue_core.queue_files.plan import plan_of
from queue_core.queue_files.yaml import read_queue_yaml
from queue_core.server.auth import is_listed
from queue_core.server.cloudtasks.call import (
    CloudTasksCall,
    MessageReader,
    Values,
    page_size,
    page_token,
    parse_page_token,
)
from queue_core.server.cloudtasks.failures import CloudTasksError, RpcStatus, invalid
from queue_core.server.cloudtasks.filters import QueueFilter
from queue_core.server.cloudtasks.json_codec import MAX_DURATION_MICROSECONDS, values_of
from queue_core.server.cloudtasks.masks import check_mask, covers, masked
from queue_core.server.cloudtasks.messages import PAUSED, RUNNING
from queue_core.server.cloudtasks.names import QueueName, parse_place, parse_queue
from queue_core.server.state import ServerState
from queue_core.task import ANY, QueueSpec
from queue_core.unit_of_work import PURGE_CHUNK, UnitOfWork

MAX_PAGE_QUEUES = 9800
TOMBSTONE_SECONDS = 3600.0
"""How long the name of a deleted task is kept in a queue made through this API. Source: its documentation."""
FOREVER_MICROSECONDS = 10 * 365 * 86_400 * MICROSECONDS
"""A task_ttl from here on means for ever: what a deployed queue.yaml sets."""


async def get_queue(core: ServerState, call: CloudTasksCall) -> Values:
    name = parse_queue(call.fields.text("name"), field="name")
    mask = _read_mask(call.fields)
    return await core.look(lambda turn: _shown(core, turn, call.enter(turn, name.queue, "look"), name.place, mask))


async def list_queues(core: ServerState, call: CloudTasksCall) -> Values:
    place = parse_place(call.fields.text("parent"), field="parent")
    mask = _read_mask(call.fields)
    wanted = QueueFilter(call.fields.text("filter"))
    size = page_size(call.fields, most=MAX_PAGE_QUEUES)
    after = parse_page_token(call.fields)

    def step(turn: UnitOfWork) -> tuple[list[Values], str]:
        specs = [
            spec for spec in turn.transaction.queues() if spec.name > after and is_listed(call.caller, spec, "look")
        ]
        specs = [spec for spec in specs if wanted.accepts(queue_values(spec, QueueName(place, spec.name)))]
        more = specs[size - 1].name if len(specs) > size else ""
        return [_shown(core, turn, spec, place, mask) for spec in specs[:size]], more

    queues, more = await core.look(step)
    answer: Values = {"queues": queues} if queues else {}
    if more:
        answer["nextPageToken"] = page_token(more)
    return answer


async def create_queue(core: ServerState, call: CloudTasksCall) -> Values:
    place = parse_place(call.fields.text("parent"), field="parent")
    queue = call.fields.fields("queue")
    name = _named(queue)
    if name.place != place:
        raise invalid(f"{queue.named('name')} must be in the parent, {place}: {name}")
    made = _changed(_new_spec(name.queue), queue, ())

    def step(turn: UnitOfWork) -> QueueSpec:
        if any(spec.name == name.queue for spec in turn.transaction.queues()):
            raise CloudTasksError(RpcStatus.ALREADY_EXISTS, f"queue {name} already exists; change it with UpdateQueue")
        turn.put_queue(made)
        return turn.transaction.queue(name.queue)

    return queue_values(await core.turns.run(step), name)


async def update_queue(core: ServerState, call: CloudTasksCall) -> Values:
    """Creates the queue when there is none."""
    queue = call.fields.fields("queue")
    name = _update_name(call.fields, queue)
    mask = call.fields.texts("updateMask")
    check_mask("Queue", mask, place="update_mask")
    made = _changed(_new_spec(name.queue), queue, ())

    def step(turn: UnitOfWork) -> QueueSpec:
        known = next((spec for spec in turn.transaction.queues() if spec.name == name.queue), None)
        turn.put_queue(made if known is None else _changed(known, queue, mask))
        return turn.transaction.queue(name.queue)

    return queue_values(await core.turns.run(step), name)


def _update_name(fields: MessageReader, queue: MessageReader) -> QueueName:
    """By the path over REST, which need not say it again in the body."""
    if "name" not in fields:
        return _named(queue)
    name = parse_queue(fields.text("name"), field="name")
    if "name" in queue and _named(queue) != name:
        raise invalid(f"{queue.named('name')} must be that of the path, {name}: a queue's name cannot be changed")
    return name


def _named(queue: MessageReader) -> QueueName:
    return parse_queue(queue.text("name"), field=queue.named("name"))


def _new_spec(name: str) -> QueueSpec:
    return QueueSpec(name, on_exhausted="delete", name_retention_seconds=TOMBSTONE_SECONDS)


def _changed(spec: QueueSpec, queue: MessageReader, mask: Sequence[str]) -> QueueSpec:
    """The settings with the fields of a mask (none: all fields) as the message has them.

    What is output only for pull queues is passed over, as the real service does. Raises `CloudTasksError`.
    """
    for target in ("appEngineHttpTarget", "httpTarget"):
        if target in queue:
            raise invalid(f"{queue.named(target)}: there are pull queues only here; give pullTarget instead")
    retry = queue.fields("retryConfig")
    if not mask or covers(mask, "retry_config.max_attempts") or covers(mask, "retry_config.unlimited_attempts"):
        spec = replace(spec, max_leases=_max_leases(retry))
    if not mask or covers(mask, "tombstone_ttl"):
        spec = replace(spec, name_retention_seconds=_tombstone_seconds(queue))
    if (not mask or covers(mask, "task_ttl")) and "taskTtl" in queue and queue.number("taskTtl") < FOREVER_MICROSECONDS:
        raise invalid(f"{queue.named('taskTtl')}: tasks are kept here until they are deleted; leave it out")
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
    await core.turns.run(lambda turn: turn.transaction.delete_queue(name.queue))
    core.waiting.retry_queue(name.queue)
    return {}


async def pause_queue(core: ServerState, call: CloudTasksCall) -> Values:
    return await _set_paused(core, call, "paused")


async def resume_queue(core: ServerState, call: CloudTasksCall) -> Values:
    return await _set_paused(core, call, "running")


async def _set_paused(core: ServerState, call: CloudTasksCall, paused: str) -> Values:
    name = parse_queue(call.fields.text("name"), field="name")

    def step(turn: UnitOfWork) -> QueueSpec:
        turn.set_paused(name.queue, "paused" if paused == "paused" else "running")
        return turn.transaction.queue(name.queue)

    return queue_values(await core.turns.run(step), name)


async def purge_queue(core: ServerState, call: CloudTasksCall) -> Values:
    """In chunks; of the tasks that come meanwhile no more go than there were at the start."""
    name = parse_queue(call.fields.text("name"), field="name")

    def begin(turn: UnitOfWork) -> tuple[int, Instant]:
        stats = turn.stats(name.queue, ANY)
        return stats.ready + stats.delayed + stats.in_flight, turn.now

    count, began_at = await core.turns.run(begin)
    for _ in range(count // PURGE_CHUNK + 1):
        if not await core.turns.run(lambda turn: turn.purge(name.queue, ANY, dead="keep")):
            break
    spec = await core.look(lambda turn: turn.transaction.queue(name.queue))
    return {**queue_values(spec, name), "purgeTime": began_at}


def queue_values(spec: QueueSpec, name: QueueName) -> Values:
    """A queue as its message, without its statistics."""
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


def _shown(core: ServerState, turn: UnitOfWork, spec: QueueSpec, place: str, mask: Sequence[str]) -> Values:
    """A queue with what a read mask names; its statistics only when it names them."""
    values = queue_values(spec, QueueName(place, spec.name))
    if mask and covers(mask, "stats"):
        values["stats"] = _stats(core, turn, spec.name)
    return masked(values, mask) if mask else values


def _stats(core: ServerState, turn: UnitOfWork, queue: str) -> Values:
    stats = turn.stats(queue, ANY)
    values: Values = {
        "tasksCount": stats.ready + stats.delayed + stats.in_flight,
        "executedLastMinuteCount": core.lease_counts.counts(stats, now=turn.now).last_minute,
        "concurrentDispatchesCount": stats.in_flight,
    }
    etas = [stats.oldest_ready_at, turn.transaction.next_eta(queue, now=turn.now)]
    known = [eta for eta in etas if eta is not None]
    if known and values["tasksCount"]:
        values["oldestEstimatedArrivalTime"] = min(known)
    return values


def _read_mask(fields: MessageReader) -> tuple[str, ...]:
    mask = fields.texts("readMask")
    check_mask("Queue", mask, place="read_mask")
    return mask


NAME = "queue.yaml"


async def upload_queue_yaml(core: ServerState, call: CloudTasksCall) -> Values:
    """The file is definitive: queues it does not list are paused. Of push queues the names are kept."""
    try:
        text = _text(call.fields.fields("httpBody"))
        entries = await core.beside(lambda: read_queue_yaml(text, name=NAME))  # the longest takes a second and more
    except DocumentError as error:
        raise invalid("\n".join(error.lines)) from error

    def step(turn: UnitOfWork) -> None:
        before = turn.transaction.storage().limit_bytes
        plan = plan_of(entries, turn.transaction.queues(), storage_limit_bytes=before)
        if plan.storage is not None:
            turn.set_storage_limit(entries.total_storage_limit_bytes)
        for change in plan.changes:
            if change.spec is not None:
                turn.put_queue(change.spec)
            if change.pausing is not None:
                turn.set_paused(change.queue, "paused" if change.pausing == "pause" else "running")

    await core.turns.run(step)
    return {}


def _text(body: MessageReader) -> str:
    data = body.data("data")
    if not data.strip():
        raise invalid(f"the body must be a {NAME}; `queue:` with nothing under it means no queues, and pauses all")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(f"{NAME}: byte {error.start} is not UTF-8") from error


def http_body(content_type: str, body: bytes, *, data: object) -> Values:
    """What came over REST: the file itself, or JSON (as `data`) that holds it in base64."""
    if isinstance(data, dict) and "data" in data:
        return values_of("HttpBody", data, place="http_body.")
    return {"contentType": content_type, "data": body}
