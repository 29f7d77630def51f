"""The rare fields of a task: few tasks have one; it is given with the add and comes back as it was given.

A new one is an entry in `FIELDS` and a word in `has_rare_fields`; an attribute of `NewTask`, `StoredTask` and `Lease`,
None where nothing was given; and a member of the forms in `server/schemas.py`. All else goes by the table: the check,
the wires, the lines of an export, what commands show. A store keeps the rare fields of a task as one text
(`stores/rare_text.py`), NULL for nearly all: a new field changes no store (ADR 131).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from queue_core.limits import check_headers


@dataclass(frozen=True, slots=True)
class RareField:
    """A rare field.

    Args:
        name: as an attribute and on every wire.
        check: raises an `InvalidRequestError` for a value that no task may have.
        as_json: returns the value as JSON; read back, that is the value.
    """

    name: str
    check: Callable[[Any], None]
    as_json: Callable[[Any], object]


class HasRareFields(Protocol):
    """A task, new or stored, or a lease of one."""

    @property
    def headers(self) -> Mapping[str, str] | None: ...


T = TypeVar("T", bound=HasRareFields)

HEADERS: Final = RareField("headers", check_headers, dict)
FIELDS: Final[tuple[RareField, ...]] = (HEADERS,)
"""All rare fields, in the order in which they are written. Together, as JSON, they take at most 65,535 bytes."""


def has_rare_fields(task: HasRareFields) -> bool:
    """Return whether a task has any. It is asked of every task: no loop."""
    return task.headers is not None


def check_rare_fields(task: HasRareFields) -> None:
    """Raise an `InvalidRequestError` for a value that no task may have."""
    for field in FIELDS:
        value = getattr(task, field.name)
        if value is not None:
            field.check(value)


def rare_json(task: HasRareFields) -> dict[str, object]:
    """Return the rare fields that a task has as JSON, by name."""
    values = ((field, getattr(task, field.name)) for field in FIELDS)
    return {field.name: field.as_json(value) for field, value in values if value is not None}


def set_rare_json(task: T, found: Mapping[str, object]) -> T:
    """Set the rare fields of a task that was just made from JSON which has them by name; return the task.

    One that is empty is as if it were not given.
    """
    for field in FIELDS:
        if found.get(field.name):
            setattr(task, field.name, found[field.name])
    return task


def copy_rare_fields(task: HasRareFields, to: T) -> T:
    """Give a task or a lease that was just made the rare fields of a task, and return it."""
    return set_rare_json(to, rare_json(task))


def shown_rare_fields(task: HasRareFields) -> dict[str, str]:
    """Return the rare fields that a task has as people read them, by name."""
    return {
        name: ", ".join(f"{one}={text}" for one, text in value.items()) if isinstance(value, dict) else str(value)
        for name, value in rare_json(task).items()
        if value
    }
