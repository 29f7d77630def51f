"""A message of kombu as a task: its payload, tag and eta, and back. Pure.

A payload is the message as JSON. Nothing is added to a message's headers: programs compare them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from queue_core.celery.mailboxes.mailboxes import MAX_PRIORITY
from queue_core.celery.mailboxes.news import Posted
from queue_core.celery.transport.malformed import message_in
from queue_core.clock import MICROSECONDS, Instant
from queue_core.limits import MAX_ETA_SECONDS, MAX_TAG_BYTES
from queue_core.task import CELERY_ID, CELERY_ID_FORM, Headers, Lease, NewTask

KombuMessage: TypeAlias = dict[str, Any]

_MARGIN_SECONDS: Final = 60.0
"""An eta is kept this far below the limit, as the store's clock is another."""
PREFETCH_SECONDS: Final = 10.0
"""A task that is due so soon is given to a worker at once, which may be started for it, and which then shows it as
scheduled; but not one that retries: those come in crowds."""
_HAS_PRIORITY: Final = "priority" in NewTask.__dataclass_fields__
"""Stores without priorities ignore them, as brokers do whose queues have no `max_priority`."""


@dataclass(frozen=True, slots=True)
class MessageExpiry:
    """The rule for messages whose time is over: who drops them.

    Args:
        by_store: a task of Celery that is over is dropped unseen; else its worker gets it, and marks it as revoked.
        ttl_seconds: the queue's own limit; None: none.
    """

    by_store: bool = False
    ttl_seconds: float | None = None

    def is_over(self, message: KombuMessage, *, added_at: Instant, now: Instant) -> bool:
        """Return whether a message is to be dropped instead of delivered."""
        lifetimes = [] if self.ttl_seconds is None else [self.ttl_seconds]
        own = ttl_seconds_of(message)
        if own is not None and (self.by_store or not is_celery_task(message)):
            lifetimes.append(own)
        return bool(lifetimes) and now >= added_at + min(lifetimes) * MICROSECONDS


def task_of(
    message: KombuMessage,
    *,
    now: Instant,
    delays: bool,
    max_eta_seconds: float = MAX_ETA_SECONDS,
    prefetch_seconds: float = PREFETCH_SECONDS,
) -> NewTask:
    """Return the task that carries a message.

    Args:
        delays: one with an eta becomes leasable then, and not before.
        max_eta_seconds: how far ahead its queues let an eta be.
        prefetch_seconds: one that is due so soon becomes leasable at once.
    """
    payload = text_of(message).encode("utf-8", "surrogatepass")
    headers = message.get("headers") or {}
    name = headers.get("task")
    tag = name if isinstance(name, str) and 0 < len(name.encode("utf-8", "replace")) <= MAX_TAG_BYTES else None
    eta = (
        eta_of(headers, now=now, max_eta_seconds=max_eta_seconds, prefetch_seconds=prefetch_seconds) if delays else None
    )
    members: dict[str, Any] = {"payload": payload, "tag": tag, "eta": eta, "headers": _headers_of(headers.get("id"))}
    if _HAS_PRIORITY:
        members["priority"] = priority_of(message)
    return NewTask(**members)


def _headers_of(celery_id: object) -> Headers | None:
    """Return the headers of the task: an ended lease keeps Celery's id of them, but nothing of the payload."""
    is_kept = isinstance(celery_id, str) and CELERY_ID_FORM.fullmatch(celery_id)
    return {CELERY_ID: str(celery_id)} if is_kept else None


def text_of(message: KombuMessage) -> str:
    """Return a message as JSON, without properties that JSON can't have: AMQP, too, drops what it does not know.

    Raises `TypeError` for such a header.
    """
    try:
        return _written(message)
    except TypeError:
        properties = {name: value for name, value in message["properties"].items() if _can_be_written(value)}
        return _written({**message, "properties": properties})


def text_without_tag(message: KombuMessage) -> str:
    """Return a message as JSON without its delivery tag, which is another in each try to publish it."""
    properties = {name: value for name, value in message["properties"].items() if name != "delivery_tag"}
    return text_of({**message, "properties": properties})


def _written(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _can_be_written(value: object) -> bool:
    try:
        _written(value)
    except TypeError:
        return False
    return True


def posted_of(message: KombuMessage) -> Posted:
    """Return a message as mailboxes take it."""
    return Posted(text_of(message), ttl_seconds_of(message), priority_of(message))


def message_of(lease: Lease, *, delivery_tag: str) -> KombuMessage:
    """Return the message that a leased task carries, stamped with this delivery's tag and count.

    Raises `MalformedMessageError`.
    """
    return stamped(message_in(lease.payload), delivery_tag=delivery_tag, deliveries=lease.lease_number)


def stamped(message: KombuMessage, *, delivery_tag: str, deliveries: int) -> KombuMessage:
    """Return the message with this delivery's tag and count."""
    properties = message.setdefault("properties", {})
    properties["delivery_tag"] = delivery_tag
    properties["delivery_info"] = {
        **(properties.get("delivery_info") or {}),
        "redelivered": deliveries > 1,
        "delivery_count": deliveries,
    }
    return message


def tag_of(message: KombuMessage) -> str:
    """Return the delivery tag that a message's publisher gave it; "" for none."""
    tag = message["properties"].get("delivery_tag")
    return tag if isinstance(tag, str) else ""


def is_celery_task(message: KombuMessage) -> bool:
    """Return whether a message is a call of a Celery task."""
    return "task" in (message.get("headers") or {})


def priority_of(message: KombuMessage) -> int:
    """Return the priority of a message, 0 to 9; the higher first."""
    try:
        return max(0, min(MAX_PRIORITY, int(message["properties"]["priority"])))
    except (KeyError, OverflowError, TypeError, ValueError):
        return 0


def ttl_seconds_of(message: KombuMessage) -> float | None:
    """Return how long a message may wait: AMQP's `expiration`, milliseconds as text."""
    try:
        return max(0.0, float(message["properties"]["expiration"]) / 1000)
    except (KeyError, TypeError, ValueError):
        return None


def eta_of(
    headers: Mapping[str, object],
    *,
    now: Instant,
    max_eta_seconds: float = MAX_ETA_SECONDS,
    prefetch_seconds: float = PREFETCH_SECONDS,
) -> Instant | None:
    """Return the eta of a Celery task, if it is ahead; of a later one than its queues keep, the latest that they do.

    The eta of a task that is due within `prefetch_seconds` is its worker's to wait for, unless it retries: None.
    """
    eta = _written_eta(headers)
    if eta is None:
        return None
    latest = Instant(now + round((max_eta_seconds - _MARGIN_SECONDS) * MICROSECONDS))
    is_near = eta <= now + (0 if headers.get("retries") else prefetch_seconds * MICROSECONDS)
    return None if is_near else min(eta, latest)


def eta_to_prefetch(headers: Mapping[str, object], *, now: Instant) -> Instant | None:
    """Return the eta of a Celery task that a worker has to wait for, but not longer than `PREFETCH_SECONDS`."""
    eta = _written_eta(headers)
    return eta if eta is not None and now < eta <= now + PREFETCH_SECONDS * MICROSECONDS else None


def _written_eta(headers: Mapping[str, object]) -> Instant | None:
    text = headers.get("eta")
    if not isinstance(text, str) or "task" not in headers:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return Instant(round(when.timestamp() * MICROSECONDS))
