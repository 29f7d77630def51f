"""Read what Celery writes: messages in a Redis list, events of its workers, answers to remote control. Pure.

All of it is a stranger's: what is not as expected is left out, and nothing of a payload is kept.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from orchestrator.base.json_fields import mapping_of
from orchestrator.base.values import value

MAX_NAME_CHARS: Final = 255
MAX_LISTED: Final = 10_000
"""Tasks of one answer, or of one node, at most."""

SignalKind = Literal["heartbeat", "online", "offline", "started", "succeeded", "failed"]

_KINDS: Final[Mapping[str, SignalKind]] = {
    "worker-heartbeat": "heartbeat",
    "worker-online": "online",
    "worker-offline": "offline",
    "task-started": "started",
    "task-succeeded": "succeeded",
    "task-failed": "failed",
    "task-retried": "failed",
}


@value
class MessageHead:
    """The headers of one message: its task's id, and the time of its eta in seconds since the epoch, if it has one."""

    task: str
    eta: float | None = None


@value
class NodeSignal:
    """An event of a node. `active` and `processed` are a heartbeat's; `task` and `run_seconds` a task's."""

    kind: SignalKind
    node: str
    active: int = 0
    processed: int = 0
    pid: int = 0
    task: str = ""
    run_seconds: float | None = None


@value
class ActiveTask:
    """A task that a node runs; `started` is in seconds since the epoch, None if it does not say."""

    task: str
    started: float | None = None


@value
class HeldMessage:
    """A message of Redis that a worker has and has not acknowledged: its delivery tag, its queue, its task."""

    tag: str
    queue: str
    task: str


def head_of(raw: bytes | str) -> MessageHead | None:
    """Return the headers of a message as kombu writes it into a Redis list; None for anything else."""
    return _head(_mapping(raw))


def held_message(tag: bytes | str, raw: bytes | str) -> HeldMessage | None:
    """Return an entry of Redis' `unacked`: `[message, exchange, routing key]`; None for anything else."""
    found = _json(raw)
    if not isinstance(found, list) or len(found) < 3 or not isinstance(found[0], dict):
        return None
    head, key = _head(found[0]), found[2]
    if head is None or not isinstance(key, str):
        return None
    return HeldMessage(tag.decode(errors="replace") if isinstance(tag, bytes) else tag, key, head.task)


def restored(raw: bytes | str) -> str | None:
    """Return the message of an entry of `unacked` as kombu puts it back: marked as delivered before."""
    found = _json(raw)
    if not isinstance(found, list) or not found or not isinstance(found[0], dict):
        return None
    message = found[0]
    headers, properties = message.setdefault("headers", {}), message.setdefault("properties", {})
    if not isinstance(headers, dict) or not isinstance(properties, dict):
        return None
    headers["redelivered"] = True
    delivery = properties.setdefault("delivery_info", {})
    if isinstance(delivery, dict):
        delivery["redelivered"] = True
    return json.dumps(message)


def signals_in(body: object) -> Iterator[NodeSignal]:
    """Yield the events of one message: it has one, or a list of them."""
    for event in body if isinstance(body, list) else [body]:
        signal = _signal(mapping_of(event))
        if signal is not None:
            yield signal


def answers_in(replies: object) -> dict[str, object]:
    """Return each node's answer to a remote control command, by its name."""
    listed = replies if isinstance(replies, list) else []
    return {node: answer for reply in listed for node, answer in mapping_of(reply).items() if _is_name(node)}


def active_in(answer: object) -> tuple[ActiveTask, ...] | None:
    """Return the tasks of an answer to `active` or `reserved`; None if it is an error."""
    if not isinstance(answer, list):
        return None
    found = []
    for one in answer[:MAX_LISTED]:
        task = mapping_of(one)
        name = task.get("id")
        if isinstance(name, str):
            found.append(ActiveTask(name[:MAX_NAME_CHARS], _number(task.get("time_start"))))
    return tuple(found)


def etas_in(answer: object) -> tuple[float, ...] | None:
    """Return the times in an answer to `scheduled`, soonest first; None if it is an error."""
    if not isinstance(answer, list):
        return None
    found = [eta for one in answer[:MAX_LISTED] if (eta := epoch_of(mapping_of(one).get("eta"))) is not None]
    return tuple(sorted(found))


def queues_in(answer: object) -> tuple[str, ...] | None:
    """Return the names in an answer to `active_queues`; None if it is an error."""
    if not isinstance(answer, list):
        return None
    names = [mapping_of(one).get("name") for one in answer[:MAX_LISTED]]
    return tuple(name for name in names if isinstance(name, str) and _is_name(name))


def totals_in(answer: object) -> tuple[int, int] | None:
    """Return the pid and the number of tasks begun in an answer to `stats`; None if it is an error."""
    stats = mapping_of(answer)
    pid = stats.get("pid")
    if not isinstance(pid, int):
        return None
    return pid, sum(count for count in mapping_of(stats.get("total")).values() if isinstance(count, int))


def uses_one_thread(answer: object) -> bool:
    """Return whether an answer to `stats` is of a solo pool: while its task runs, such a node is silent."""
    implementation = mapping_of(mapping_of(answer).get("pool")).get("implementation")
    return isinstance(implementation, str) and "solo" in implementation


def epoch_of(text: object) -> float | None:
    """Return an ISO 8601 time in seconds since the epoch; without a zone it is UTC, as Celery writes it."""
    if not isinstance(text, str):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def worker_of(node: str) -> str:
    """Return the part of a node's name before its host: our worker's name."""
    return node.partition("@")[0]


def sampled_future(heads: Sequence[MessageHead | None], *, now: float) -> tuple[float, ...]:
    """Return the etas after `now` of messages that were looked at, soonest first."""
    return tuple(sorted(head.eta for head in heads if head is not None and head.eta is not None and head.eta > now))


def _signal(event: Mapping[str, object]) -> NodeSignal | None:
    kind, node = _KINDS.get(str(event.get("type"))), event.get("hostname")
    if kind is None or not isinstance(node, str) or not _is_name(node):
        return None
    task = event.get("uuid")
    if kind in ("started", "succeeded", "failed"):
        if not isinstance(task, str):
            return None
        return NodeSignal(
            kind,
            node,
            task=task[:MAX_NAME_CHARS],
            run_seconds=_number(event.get("runtime")),
        )
    return NodeSignal(kind, node, _count(event.get("active")), _count(event.get("processed")), _count(event.get("pid")))


def _count(found: object) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def _number(found: object) -> float | None:
    return max(0.0, float(found)) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()


def _head(message: Mapping[str, object]) -> MessageHead | None:
    headers = mapping_of(message.get("headers"))
    task = headers.get("id") or mapping_of(message.get("properties")).get("correlation_id")
    if not isinstance(task, str):
        return None
    return MessageHead(task[:MAX_NAME_CHARS], epoch_of(headers.get("eta")))


def _mapping(raw: bytes | str) -> Mapping[str, object]:
    return mapping_of(_json(raw))


def _json(raw: bytes | str) -> object:
    try:
        found: object = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return found
