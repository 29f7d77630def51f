"""News of mailboxes between the processes of a store, as text, and in pieces of bounded size. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from queue_core.celery.mailboxes.exchanges import Binding
from queue_core.celery.mailboxes.homes import Key
from queue_core.clock import Instant
from queue_core.limits import FARTHEST_ETA_SECONDS


@dataclass(frozen=True, slots=True)
class Posted:
    """A message to put into mailboxes. `ttl_seconds`: how long it may wait; of higher `priority`: before others."""

    text: str
    ttl_seconds: float | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Announcement:
    """Mailboxes, types of exchanges and bindings that a process has.

    Args:
        boxes: each mailbox, with the instant at which it was last declared.
        kinds: namespace, exchange and type.
        bindings: namespace, exchange and binding.
        is_whole: all that the process has; else what is new.
        wants_answer: its recipients announce what they have to the sender.
    """

    boxes: tuple[tuple[Key, Instant], ...] = ()
    kinds: tuple[tuple[str, str, str], ...] = ()
    bindings: tuple[tuple[str, str, Binding], ...] = ()
    is_whole: bool = False
    wants_answer: bool = False


@dataclass(frozen=True, slots=True)
class Removal:
    """Mailboxes that a process has no more, and bindings that have ended everywhere."""

    boxes: tuple[Key, ...] = ()
    bindings: tuple[tuple[str, str, Binding], ...] = ()


@dataclass(frozen=True, slots=True)
class Mail:
    """A message for mailboxes; `queues`: those of each process."""

    space: str
    queues: Mapping[str, Sequence[str]]
    posted: Posted


@dataclass(frozen=True, slots=True)
class Clearing:
    """A mailbox to empty, wherever it is; or one that was deleted, with its bindings.

    Args:
        deleted_until: the last declaration that the deletion is about, as a later one may cross it on its way; None:
            the mailbox is only emptied.
    """

    space: str
    queue: str
    deleted_until: Instant | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """A text that a process sends to itself: when it is back, all that was sent before it is here, too."""

    number: int


News: TypeAlias = Announcement | Removal | Mail | Clearing | Echo

EVERYBODY = ""
"""The recipient of what is for all other processes."""


def encoded(sender: str, news: Sequence[News]) -> str:
    """Return a text, of ASCII only, for several news."""
    return json.dumps({"from": sender, "news": [_as_json(one) for one in news]}, separators=(",", ":"))


def decoded(text: str) -> tuple[str, list[News]]:
    """Return the sender and the news of a text. Raises `ValueError` for one that is not of ours."""
    try:
        whole = json.loads(text)
        return str(whole["from"]), [_as_news(one) for one in whole["news"]]
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"no news of mailboxes: {type(error).__name__}") from error


def _as_json(news: News) -> dict[str, object]:
    match news:
        case Announcement():
            return {
                "kind": "announcement",
                "boxes": [[*key, at] for key, at in news.boxes],
                "kinds": news.kinds,
                "bindings": [_binding_cells(one) for one in news.bindings],
                "is_whole": news.is_whole,
                "wants_answer": news.wants_answer,
            }
        case Removal():
            return {
                "kind": "removal",
                "boxes": news.boxes,
                "bindings": [_binding_cells(one) for one in news.bindings],
            }
        case Mail():
            posted = news.posted
            cells = [posted.text, posted.ttl_seconds, posted.priority]
            return {"kind": "mail", "space": news.space, "queues": news.queues, "posted": cells}
        case Clearing():
            return {"kind": "clearing", "space": news.space, "queue": news.queue, "until": news.deleted_until}
        case Echo():
            return {"kind": "echo", "number": news.number}


def _as_news(cells: Mapping[str, object]) -> News:
    given: dict[str, object] = dict(cells)
    kind = given.pop("kind")
    match kind:
        case "announcement":
            return Announcement(
                tuple(((str(space), str(queue)), Instant(int(at))) for space, queue, at in _lists(given["boxes"])),
                tuple((str(space), str(exchange), str(type_)) for space, exchange, type_ in _lists(given["kinds"])),
                tuple(_binding(one) for one in _lists(given["bindings"])),
                bool(given["is_whole"]),
                bool(given["wants_answer"]),
            )
        case "removal":
            boxes = tuple((str(space), str(queue)) for space, queue in _lists(given["boxes"]))
            return Removal(boxes, tuple(_binding(one) for one in _lists(given["bindings"])))
        case "mail":
            queues = {str(node): [str(queue) for queue in of] for node, of in _pairs(given["queues"])}
            ((text, ttl_seconds, priority),) = _lists([given["posted"]])
            seconds = None if ttl_seconds is None else float(ttl_seconds)
            if seconds is not None and not seconds <= FARTHEST_ETA_SECONDS:
                raise ValueError(f"no news of mailboxes: a message that waits {seconds} s")
            return Mail(str(given["space"]), queues, Posted(str(text), seconds, int(priority)))
        case "clearing":
            until = given["until"]
            return Clearing(
                str(given["space"]), str(given["queue"]), None if until is None else Instant(int(str(until)))
            )
        case "echo":
            return Echo(int(str(given["number"])))
        case _:
            raise ValueError(f"no news of mailboxes: {kind!r}")


def _binding_cells(of: tuple[str, str, Binding]) -> list[object]:
    space, exchange, binding = of
    return [space, exchange, binding.routing_key, binding.queue, binding.is_task_queue]


def _binding(cells: Sequence[object]) -> tuple[str, str, Binding]:
    space, exchange, routing_key, queue, is_task_queue = cells
    return str(space), str(exchange), Binding(str(routing_key), str(queue), bool(is_task_queue))


def _lists(value: object) -> "list[list[str | int]]":
    if not isinstance(value, list) or not all(isinstance(one, list) for one in value):
        raise ValueError("no news of mailboxes: a list of lists is missing")
    return value


def _pairs(value: object) -> "list[tuple[str, list[str]]]":
    if not isinstance(value, dict) or not all(isinstance(of, list) for of in value.values()):
        raise ValueError("no news of mailboxes: the recipients are missing")
    return list(value.items())


def pieces(text: str, *, sender: str, number: int, size: int) -> list[str]:
    """Cut a text into pieces of up to `size` characters; `number` rises with each text of a sender."""
    room = size - len(f"{sender}.{number}...") - 2 * len(str(len(text)))
    parts = [text[start : start + room] for start in range(0, len(text), room)] or [""]
    return [f"{sender}.{number}.{index}.{len(parts)}.{part}" for index, part in enumerate(parts)]


@dataclass(slots=True)
class Joiner:
    """Puts pieces together again. A sender's pieces come in order; some may be missing, or come twice."""

    _last: dict[str, int] = field(default_factory=dict)
    _parts: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def take(self, piece: str) -> str | None:
        """Return the text that this piece completes. Raises `ValueError` for one that is not of ours."""
        sender, number_text, index_text, count_text, part = piece.split(".", 4)
        number, index, count = int(number_text), int(index_text), int(count_text)
        if number <= self._last.get(sender, 0):
            return None
        of, parts = self._parts.pop(sender, (number, []))
        if of != number:
            parts = []
        if index == len(parts):
            parts.append(part)
        if len(parts) == count:
            self._last[sender] = number
            return "".join(parts)
        if parts:
            self._parts[sender] = (number, parts)
        return None

    def forget(self, senders: Sequence[str]) -> None:
        """Drop what is known of senders that have ended."""
        for sender in senders:
            self._last.pop(sender, None)
            self._parts.pop(sender, None)
