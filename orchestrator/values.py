"""Values that are made by the thousand: frozen to the type checker, and as quick to make as anything that is not.

A frozen dataclass sets each field by a call of its own, and one decision makes some forty values: see doc/adr/0008.
"""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(kind: type[Kind]) -> type[Kind]:
    """A slotted dataclass that is compared and hashed by its fields; mypy refuses whoever would change one."""
    return dataclass(slots=True, unsafe_hash=True)(kind)
