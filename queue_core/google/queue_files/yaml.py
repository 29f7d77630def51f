"""Reads the text of a queue.yaml. Pure: opens no file.

Scalars are kept as text, as App Engine reads YAML 1.1, where `010` and `yes` differ from YAML 1.2.
"""

import yaml

from queue_core.config.yaml_document import DocumentError, Place, place_of, read_tree
from queue_core.google.queue_files.entries import (
    EmptyItem,
    Group,
    Items,
    MappingItem,
    Node,
    QueueFileEntries,
    Text,
    UnreadableItem,
)
from queue_core.google.queue_files.rules import entries_of

_STANDARD_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = frozenset(f"{_STANDARD_TAG}{kind}" for kind in ("null", "bool", "int", "float", "str"))
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


def read_queue_yaml(text: str, *, name: str = "queue.yaml") -> QueueFileEntries:
    """Return the entries of `text`, a file called `name`.

    Raises `DocumentError` with a line for the first syntax error, or for each other problem:
    `queue.yaml:12:9: queue[2].rate: ...`.
    """
    root = read_tree(text, name=name)
    if root is None:
        raise DocumentError((f"{name}:1:1: the file is empty; `queue:` with nothing under it means no queues",))
    walk = _Walk()
    tree = walk.node(root)
    return entries_of(tree, problems=walk.problems, name=name, spelling="yaml")


class _Walk:
    """Converts YAML nodes to the tree; without anchors, which App Engine refuses, each node is visited once."""

    def __init__(self) -> None:
        self.problems: list[tuple[Place, str]] = []

    def node(self, node: yaml.Node) -> Node:
        place = place_of(node)
        if not _is_plain_value(node):
            message = node.tag.replace(_STANDARD_TAG, "!!")[:60]
            self.problems.append((place, f"a value of type {message!a} is not allowed: use text, lists and mappings"))
            return UnreadableItem(place)
        if isinstance(node, yaml.ScalarNode):
            if node.style is None and node.value in _NULLS and node.tag != f"{_STANDARD_TAG}str":
                return EmptyItem(place)
            return Text(node.value, place, "plain" if node.style is None else "quoted")
        if isinstance(node, yaml.SequenceNode):
            return Items(tuple(self.node(item) for item in node.value), place)
        if isinstance(node, yaml.MappingNode):
            return Group(tuple(self._members(node)), place)
        return EmptyItem(place)

    def _members(self, node: yaml.MappingNode) -> list[MappingItem]:
        members = []
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                members.append(MappingItem(key.value, place_of(key), self.node(value)))
            else:
                self.problems.append((place_of(key), "a key must be text, not a list or a mapping"))
        return members


def _is_plain_value(node: yaml.Node) -> bool:
    """Return whether a node is a plain scalar, list or mapping, without a tag of another type."""
    if isinstance(node, yaml.ScalarNode):
        return node.tag in _SCALAR_TAGS
    return bool(node.tag == f"{_STANDARD_TAG}{'seq' if isinstance(node, yaml.SequenceNode) else 'map'}")
