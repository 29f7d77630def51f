"""A decorator for values that are created by the thousand: frozen to the type checker, quick to create (ADR 8).

A frozen dataclass sets each field with a function call, and one decision creates some forty values.
"""

from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, dataclass_transform

Kind = TypeVar("Kind")
ServedTags: TypeAlias = tuple[str | None, ...]
"""Tags that workers lease; () for all tasks, None in it for those without a tag."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(kind: type[Kind]) -> type[Kind]:
    """Make a slotted dataclass that is compared and hashed by its fields; mypy rejects code that changes a field."""
    return dataclass(slots=True, unsafe_hash=True)(kind)
