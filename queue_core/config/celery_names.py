"""Names of Celery's queues, which are any text, as names of the store's: letters, digits and hyphens. Pure.

A character that a store's name can't have is written `--` and the hexadecimal digits of its bytes, so that the true
name can be read back; a namespace comes before `--x`. A name that would be too long ends in `--z` and a digest.
"""

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from queue_core.limits import MAX_LABEL_CHARACTERS, MAX_QUEUE_NAME_CHARACTERS
from queue_core.process.terminal import clean

_PLAIN = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
_DIGEST_DIGITS = 20
_PART = re.compile(rb"--x|--([0-9a-f]{2})|[A-Za-z0-9-]")


def store_name(queue: str, *, namespace: str = "") -> str:
    """Return the name in the store of a queue of a namespace ("": none)."""
    name = f"{_escaped(namespace)}--x{_escaped(queue)}" if namespace else _escaped(queue)
    if len(name) <= MAX_QUEUE_NAME_CHARACTERS:
        return name
    tail = "--z" + sha256(name.encode()).hexdigest()[:_DIGEST_DIGITS]
    return name[: MAX_QUEUE_NAME_CHARACTERS - len(tail)] + tail


def namespace_prefix(namespace: str) -> str:
    """Return what the names in the store of a namespace's queues begin with; "" for no namespace."""
    return f"{_escaped(namespace)}--x" if namespace else ""


def true_name(name: str) -> tuple[str, str] | None:
    """Return the namespace and the queue of a name in the store; None for one that was cut."""
    if "--z" in name:
        return None
    before, separator, after = name.partition("--x")
    return (_unescaped(before), _unescaped(after)) if separator else ("", _unescaped(name))


def label_of(queue: str, *, namespace: str = "") -> str:
    """Return the label of a queue whose name in the store does not tell its true name; "" for one that does."""
    if true_name(store_name(queue, namespace=namespace)) is not None:
        return ""
    whole = f"{namespace}/{queue}" if namespace else queue
    return whole.encode("utf-8", "replace").decode()[:MAX_LABEL_CHARACTERS].replace("\0", "\\0")


def shown_queue(name: str, *, label: str = "") -> str:
    """Return the name that people know a queue by: Celery's, as NAMESPACE/QUEUE in a namespace, or else its own.

    `label`: that of its settings, which has the names that are too long to be read back.
    """
    if label:
        return clean(label)
    if "--" not in name:
        return name
    try:
        found = true_name(name)
    except UnicodeDecodeError:
        return name
    if found is None or store_name(found[1], namespace=found[0]) != name:
        return name  # a name of somebody's own that only looks like an escape
    return clean("/".join(filter(None, found)))


def store_names(text: str) -> list[str]:
    """Return the names in the store that a text may mean: itself, a queue of Celery's, NAMESPACE/QUEUE."""
    namespace, slash, queue = text.partition("/")
    found = [text, store_name(text)]
    if slash and namespace and queue:
        found.append(store_name(queue, namespace=namespace))
    return list(dict.fromkeys(found))


def _escaped(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    raw = text.encode("utf-8", "surrogatepass")
    parts: list[str] = []
    for index, byte in enumerate(raw):
        one = chr(byte)
        is_inner = 0 < index < len(raw) - 1 and _is_plain(raw[index - 1]) and _is_plain(raw[index + 1])
        if _is_plain(byte) or (one == "-" and is_inner):
            parts.append(one)
        else:
            parts.append(f"--{byte:02x}")
    return "".join(parts)


def _is_plain(byte: int) -> bool:
    return byte < 128 and chr(byte).isalnum()


def _unescaped(name: str) -> str:
    def character(match: re.Match[bytes]) -> bytes:
        return bytes([int(match[1], 16)]) if match[1] else match[0]

    return _PART.sub(character, name.encode()).decode("utf-8", "surrogatepass")


_OF_ONE_CONSUMER: Final = re.compile(
    r"(^|\.)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}($|\.)|\.pidbox$|^celeryev\.|^amq\.gen-"
)


def is_of_one_consumer(queue: str) -> bool:
    """Return whether a queue's name was made for one consumer, as those of broadcasts, replies and remote control are.

    Nobody comes back to such a queue: its messages are of no use without its consumer.
    """
    return _OF_ONE_CONSUMER.search(queue) is not None


HONOURED_ARGUMENTS: Final = frozenset(
    {
        "x-delivery-limit",
        "x-expires",
        "x-max-message-bytes",
        "x-max-priority",
        "x-message-ttl",
        "x-queue-mode",
        "x-queue-type",
    }
)
"""Arguments of a queue that have their effect here, or that say where RabbitMQ keeps it. A queue of the store is
refused with `x-expires`."""


def expiry_refused(queue: str) -> str:
    """Return why a queue of the store can't be declared with `expires`, and what to write instead."""
    return (
        f"queue {queue} is durable and has expires (x-expires): it is refused, as Towline deletes no tasks that nobody"
        " ran; leave expires out, or declare the queue with durable=False"
    )


def ignored_arguments(arguments: Iterable[str]) -> list[str]:
    """Return those of a queue's arguments that have no effect here."""
    return sorted(set(arguments) - HONOURED_ARGUMENTS)
