"""The way of a message from its task or mailbox to its consumer; one that nobody can run ends here, with its reason."""

from base64 import b64decode
from collections.abc import Callable
from typing import Any, Final, Protocol

from kombu.exceptions import ContentDisallowed
from kombu.transport.virtual.base import Base64

from queue_core.celery.mailboxes.mailbox import Popped
from queue_core.celery.transport import begun_requests, celery_state, events
from queue_core.celery.transport.envelope import KombuMessage
from queue_core.celery.transport.malformed import MISTAKES, flaw_of_call
from queue_core.celery.transport.qos import LeaseQoS
from queue_core.log import get_logger

ENDS: Final = (KeyboardInterrupt, MemoryError, SystemExit)
"""The exceptions by which Celery ends its worker, such as `WorkerShutdown`."""
LETTER: Final = "letter."
"""The beginning of delivery tags of messages from mailboxes; all others are tokens of leases."""

_log = get_logger()


class StrictBase64(Base64):
    """Refuses what is no base64, where kombu's own makes an empty body of it."""

    def decode(self, s: str) -> bytes:
        """Return the bytes. Raises `ValueError`."""
        return b64decode(s, validate=True)


class ReceivingChannel(Protocol):
    """A channel as its consumers' messages come through it; `Message` is kombu's class of messages."""

    Message: Callable[..., Any]
    qos: LeaseQoS

    def take_letter(self, tag: str) -> Popped | None:
        """Return the mailbox's message that was delivered under this tag, and forget it; None for a lease."""


def receive(
    channel: ReceivingChannel, queue: str, callback: Callable[[Any], Any], raw: KombuMessage, *, no_ack: bool
) -> None:
    """Hand a message to its consumer.

    A message that its consumer, a worker of Celery's, would end of or delete is dead instead.
    """
    tag = str(raw["properties"]["delivery_tag"])
    try:
        message = channel.Message(raw, channel=channel)
    except Exception:  # noqa: BLE001 - of any codec
        _refuse(channel, queue, tag, "its body can't be decoded as its body_encoding says")
        return
    if not no_ack:
        channel.qos.append(message, message.delivery_tag)
    consumer = getattr(callback, "__self__", None)
    if tag.startswith(LETTER) or not celery_state.is_task_consumer(consumer):
        callback(message)
        return
    begun_requests.watch()
    flaw = _flaw_of(message, accept=getattr(consumer, "accept", None))
    if flaw:
        _refuse(channel, queue, tag, flaw)
        return
    lost: Any = None
    try:
        callback(message)
    except BaseException as error:
        # A worker without a pool runs the task meanwhile. What ends it on purpose goes on.
        lost = None if isinstance(error, ENDS) else celery_state.active_request(tag)
        if lost is None:
            if message.acknowledged or not isinstance(error, MISTAKES):
                raise
            _refuse(channel, queue, tag, f"a Celery worker can't read it ({type(error).__name__})")
    if lost is not None:
        begun_requests.fail(lost)


def _refuse(channel: ReceivingChannel, queue: str, tag: str, flaw: str) -> None:
    """Make a message dead; one of a mailbox is dropped."""
    _log.warning(events.MESSAGE_MALFORMED, queue=queue, reason=flaw)
    if channel.take_letter(tag) is None:
        channel.qos.refuse(tag, f"malformed message: {flaw}")


def _flaw_of(message: Any, *, accept: Any) -> str:
    """Return why a worker of Celery's can't take a message; "": it can, as far as known."""
    if message.errors:
        return "its body can't be decompressed"
    message.accept = accept
    try:
        call = message.decode()  # as Celery does next: it is kept
    except ContentDisallowed:
        return "the workers don't accept its content type (accept_content)"
    except Exception as error:  # noqa: BLE001 - of any serializer
        return f"its body can't be read as its content type says ({type(error).__name__})"
    return flaw_of_call(message.headers, call)
