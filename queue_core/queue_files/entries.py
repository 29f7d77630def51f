"""What a queue.yaml or queue.xml says, as values, and its text as a tree that remembers places. Pure.

The tree is what the two readers have in common; what it may hold is told by `queue_file_rules`.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from queue_core.config.yaml_document import Place
from queue_core.task import QueueSpec

Spelling = Literal["yaml", "xml"]
"""A file's own words: `task_retry_limit`, or `task-retry-limit`."""


@dataclass(frozen=True, slots=True)
class QueueFileEntries:
    """A file that is right.

    Args:
        queues: the pull queues, in the file's order; a task is deleted after `task_retry_limit` leases.
        push_queues: names of the push queues, which are known by these, as nothing here calls handlers.
        total_storage_limit_bytes: of the payloads of all queues together; None: no limit.
        resume_paused_queues: whether applying the file lets a paused queue that it lists go on.
    """

    queues: tuple[QueueSpec, ...] = ()
    push_queues: tuple[str, ...] = ()
    total_storage_limit_bytes: int | None = None
    resume_paused_queues: bool = True


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar. `plain`: written without quotes in YAML, where `010` and `yes` are not what they look like."""

    value: str
    place: Place
    style: Literal["plain", "quoted"] = "quoted"


@dataclass(frozen=True, slots=True)
class EmptyItem:
    """A key, or a list item, with nothing after it."""

    place: Place


@dataclass(frozen=True, slots=True)
class UnreadableItem:
    """What can't be read at all; that it can't is among the mistakes already."""

    place: Place


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple["Node", ...]
    place: Place


@dataclass(frozen=True, slots=True)
class MappingItem:
    """A key and what it holds; `place` is the key's."""

    key: str
    place: Place
    value: "Node"


@dataclass(frozen=True, slots=True)
class Group:
    """Keys with values; a key may still stand there twice."""

    members: tuple[MappingItem, ...]
    place: Place


Node: TypeAlias = Text | EmptyItem | UnreadableItem | Items | Group


def shown_key(key: str, spelling: Spelling) -> str:
    """A key as the file spells it; in quotes where it begins or ends in nothing that is seen."""
    spelt = key if spelling == "yaml" else key.replace("_", "-")
    return spelt if spelt == spelt.strip() and spelt else repr(spelt)
