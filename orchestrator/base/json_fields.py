"""Read fields of parsed JSON leniently: one that is missing, or of another kind, is empty or zero. Pure."""

from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = dict[str, object]


def mapping_of(value: object) -> Json:
    """Return `value` if it is a JSON object."""
    return value if isinstance(value, dict) else {}


def mappings_of(value: object) -> list[Json]:
    """Return the JSON objects of a list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def list_in(values: Mapping[str, object], name: str) -> list[object]:
    """Return the list in this field."""
    found = values.get(name)
    return found if isinstance(found, list) else []


def text_in(values: Mapping[str, object], name: str) -> str:
    """Return the field as text."""
    found = values.get(name)
    return "" if found is None else str(found)


def number_in(values: Mapping[str, object], name: str) -> float:
    """Return the number in this field."""
    found = values.get(name)
    return float(found) if isinstance(found, int | float) else 0.0


def count_in(values: Mapping[str, object], name: str) -> int:
    """Return the number in this field, without a fraction."""
    return int(number_in(values, name))


def known_count_in(values: Mapping[str, object], name: str) -> int | None:
    """Return the whole number in this field; None where it has none."""
    found = values.get(name)
    return found if isinstance(found, int) else None
