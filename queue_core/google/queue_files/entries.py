"""The entries of a queue.yaml or queue.xml, and the tree with places that both readers build. Pure.

`rules` validates the tree.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from queue_core.config.yaml_document import Place
from queue_core.task import QueueSpec

Spelling = Literal["yaml", "xml"]
"""The spelling of a file's keys: `task_retry_limit` or `task-retry-limit`."""


@dataclass(frozen=True, slots=True)
class QueueFileEntries:
    """The contents of a valid file.

    Args:
        queues: the pull queues, in the file's order; a task is deleted after `task_retry_limit` leases.
        push_queues: names of the push queues; only their names are used.
        total_storage_limit_bytes: limit on the payload bytes of all queues together; None: no limit.
        resume_paused_queues: whether applying the file resumes paused queues that it lists.
    """

    queues: tuple[QueueSpec, ...] = ()
    push_queues: tuple[str, ...] = ()
    total_storage_limit_bytes: int | None = None
    resume_paused_queues: bool = True


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar. `plain`: unquoted in YAML, or an XML's, where `010` and `yes` have special meanings."""

    value: str
    place: Place
    style: Literal["plain", "quoted"] = "quoted"


@dataclass(frozen=True, slots=True)
class EmptyItem:
    """A key or list item without a value."""

    place: Place


@dataclass(frozen=True, slots=True)
class UnreadableItem:
    """An item that can't be read and has been reported."""

    place: Place


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: tuple["Node", ...]
    place: Place


@dataclass(frozen=True, slots=True)
class MappingItem:
    """A key and its value; `place` is the key's."""

    key: str
    place: Place
    value: "Node"


@dataclass(frozen=True, slots=True)
class Group:
    """A mapping, which may still have duplicate keys."""

    members: tuple[MappingItem, ...]
    place: Place


Node: TypeAlias = Text | EmptyItem | UnreadableItem | Items | Group


def shown_key(key: str, spelling: Spelling) -> str:
    """Return a key as the file spells it; in quotes if it is empty or has surrounding blanks."""
    spelt = key if spelling == "yaml" else key.replace("_", "-")
    return spelt if spelt == spelt.strip() and spelt else repr(spelt)
