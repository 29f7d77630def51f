"""A message of another broker as the task that Celery's workers on Towline run. Pure.

The task is what the transport itself would have stored (`queue_core.celery.transport.envelope`), with a name besides.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, Final, Literal

from queue_core.celery.transport.envelope import KombuMessage, task_of
from queue_core.clock import Instant
from queue_core.limits import MAX_PRIORITY
from queue_core.task import NewTask

NAME_PREFIX: Final = "bridge-"
_DIGEST_DIGITS: Final = 32
_OWN_PROPERTIES: Final = frozenset(
    {"application_headers", "cluster_id", "content_encoding", "content_type", "delivery_info", "delivery_tag"}
)
"""Properties that a message has elsewhere, or that belong to one delivery only."""
_IDS: Final = ("message_id", "correlation_id")

Priorities = Literal["kept", "reversed"]
"""`reversed`: 0 comes first, as with Celery on Redis; on Towline, as on RabbitMQ, 9 does."""


@dataclass(frozen=True, slots=True)
class BridgedMessage:
    """A message that a bridge has taken.

    Args:
        queue: the queue it was taken from.
        message: as kombu's virtual transports keep it.
        key: what tells it from all others of its queue, the same however often it is delivered; "": nothing does.
        flaw: why it can't be read; "": it can.
        handle: what its source acknowledges it by.
    """

    queue: str
    message: KombuMessage
    key: str
    flaw: str = ""
    handle: Any = None

    @property
    def title(self) -> str:
        """A few words that find it again: its task and its id."""
        headers = self.message.get("headers") or {}
        properties = self.message.get("properties") or {}
        ids = [headers.get("id"), *(properties.get(one) for one in _IDS), self.key[:_DIGEST_DIGITS]]
        words = [str(headers.get("task") or "a message"), next((str(one) for one in ids if one), "without an id")]
        return " ".join(words)


def bridged_task(taken: BridgedMessage, *, to_queue: str, now: Instant, priorities: Priorities = "kept") -> NewTask:
    """Return the task for a message, as the transport adds it, under a name that the same message always gets.

    Args:
        to_queue: Celery's name of the queue it goes to. Celery sends a retry to where its message came from, so one
            that changes queues says so.
    """
    message = dict(taken.message)
    properties = dict(message.get("properties") or {})
    if to_queue != taken.queue:
        properties["delivery_info"] = {"exchange": "", "routing_key": to_queue}
    if priorities == "reversed" and isinstance(properties.get("priority"), int):
        properties["priority"] = max(0, MAX_PRIORITY - properties["priority"])
    message["properties"] = properties
    task = task_of(message, now=now, delays=True)
    return replace(task, name=name_of(taken)) if taken.key else task


def name_of(taken: BridgedMessage) -> str:
    """Return the name of a message's task."""
    return (
        NAME_PREFIX
        + sha256(f"{taken.queue}\0{taken.key}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_DIGITS]
    )


def from_list(queue: str, raw: bytes) -> BridgedMessage:
    """Return a message as Redis' lists have it: kombu gives each publication an id of its own, the delivery tag."""
    try:
        message = json.loads(raw)
        properties = message["properties"]
        key = str(properties.get("delivery_tag") or "") or content_key(message)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        beginning = raw[:40].decode(errors="backslashreplace")
        return BridgedMessage(queue, {}, "", f"it is no message of kombu's: {beginning!r}", raw)
    return BridgedMessage(queue, _with_text(message), key, handle=raw)


def from_parts(
    queue: str,
    *,
    body: bytes | str,
    content_type: str | None,
    content_encoding: str | None,
    headers: Mapping[str, object],
    properties: Mapping[str, object],
    delivery_info: Mapping[str, object],
    handle: object = None,
) -> BridgedMessage:
    """Return a message that a consumer of kombu's got."""
    text, body_encoding = _body(body, content_encoding)
    kept = {name: value for name, value in properties.items() if name not in _OWN_PROPERTIES}
    kept["body_encoding"] = body_encoding
    kept["delivery_info"] = {
        "exchange": str(delivery_info.get("exchange") or ""),
        "routing_key": str(delivery_info.get("routing_key") or queue),
    }
    message: KombuMessage = _plain(
        {
            "body": text,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": dict(headers),
            "properties": kept,
        }
    )
    return BridgedMessage(queue, message, content_key(message), handle=handle)


def content_key(message: KombuMessage) -> str:
    """Return a key of what a message is; "" for one without an id of its own, of which there may be two alike.

    Celery's id alone does not do: a retry has its task's. Headers in which brokers count deliveries are left out.
    """
    headers, properties = message.get("headers") or {}, message.get("properties") or {}
    if not (headers.get("id") or any(properties.get(one) for one in _IDS)):
        return ""
    kept = {name: value for name, value in headers.items() if not name.startswith("x-") and name != "redelivered"}
    named = {name: value for name, value in properties.items() if name not in _OWN_PROPERTIES}
    whole = json.dumps([kept, named, message.get("body")], sort_keys=True)
    return sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


def _with_text(message: KombuMessage) -> KombuMessage:
    """Return a message whose body is the text it is, as the transport keeps it: base64 takes a third more."""
    properties, headers = message["properties"], message.get("headers") or {}
    body = message.get("body")
    if properties.get("body_encoding") != "base64" or not isinstance(body, str) or headers.get("compression"):
        return message
    try:
        text, body_encoding = _body(b64decode(body, validate=True), message.get("content-encoding"))
    except ValueError:
        return message
    return {**message, "body": text, "properties": {**properties, "body_encoding": body_encoding}}


def _body(body: bytes | str, content_encoding: str | None) -> tuple[str, str]:
    """Return a body as text, and how it was made text: bytes that are not, in base64."""
    if isinstance(body, str):
        return body, "utf-8"
    data = bytes(body)
    if (content_encoding or "").lower() in ("utf-8", "utf8", "us-ascii", "ascii"):
        try:
            return data.decode(), "utf-8"
        except UnicodeDecodeError:
            pass
    return b64encode(data).decode(), "base64"


def _plain(value: Any) -> Any:
    """Return a value of AMQP's as JSON has it: times and decimals as text, bytes as the text they are."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    return str(value) if isinstance(value, Decimal) else value
