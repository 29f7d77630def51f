"""A comparison of the arguments that a worker will read with those that were given (ADR 96). Pure; no value is shown.

Types and what values are made of are compared, as `==` says that 1 is True, and that a subclass is its base.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PurePath
from typing import Final
from uuid import UUID

PLAIN: Final = frozenset((str, int, bool, bytes, bytearray, type(None)))
"""Exact types that are compared by `==`."""
MAX_DEPTH: Final = 300
"""Levels that are compared; pydantic writes fewer."""
LARGEST_EXACT: Final = 2**53
"""Integers up to this have a float of their own each."""
_VALUES: Final = (
    *(Enum, PurePath, UUID, date, timedelta, tzinfo, range),
    *(IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network),
)
"""Classes of the standard library that are values, with caches in them or with no attributes of their own."""
_SEQUENCES: Final = (list, tuple, deque)
_SETS: Final = (set, frozenset)
_HIDDEN: Final = frozenset(("__weakref__", "__dict__", "__pydantic_fields_set__"))
"""Attributes that are not part of a value; JSON has no word for which fields of a model were left out."""


def difference(sent: object, arrived: object, *, place: str = "", depth: int = 0) -> str | None:
    """Return where and how `arrived` is another value than `sent`, in words without any value; None: it is the same."""
    kind = type(sent)
    if kind is not type(arrived):
        return f"{place}: of type {kind.__qualname__}, it would arrive as {type(arrived).__qualname__}"
    if depth > MAX_DEPTH:
        return f"{place}: it is nested too deeply to be compared with what would arrive"
    if kind in PLAIN:
        is_same: bool = sent == arrived
    elif isinstance(sent, float) and isinstance(arrived, float):
        is_same = sent == arrived and math.copysign(1, sent) == math.copysign(1, arrived)
        is_same = is_same or (sent != sent and arrived != arrived)
    elif isinstance(sent, Decimal) and isinstance(arrived, Decimal):
        is_same = sent.as_tuple() == arrived.as_tuple()
    elif isinstance(sent, datetime | time) and isinstance(arrived, datetime | time):
        is_same = sent.replace(tzinfo=None, fold=0) == arrived.replace(tzinfo=None, fold=0)
        is_same = is_same and sent.utcoffset() == arrived.utcoffset()
    elif isinstance(sent, _VALUES):
        is_same = bool(sent == arrived)
    else:
        return _compare_parts(sent, arrived, place=place, depth=depth + 1)
    return None if is_same else f"{place}: another {kind.__qualname__} would arrive"


def is_rounded(given: object, checked: object) -> bool:
    """Return whether an integer became a float that is another number: one beyond 2 to the power of 53."""
    if isinstance(given, int) and isinstance(checked, float):
        is_large = abs(given) > LARGEST_EXACT and math.isfinite(checked)
        return is_large and given != checked and abs(given - int(checked)) <= math.ulp(checked)
    if isinstance(given, Mapping) and isinstance(checked, Mapping):
        return any(name in checked and is_rounded(value, checked[name]) for name, value in given.items())
    if isinstance(given, _SEQUENCES) and isinstance(checked, _SEQUENCES) and len(given) == len(checked):
        return any(is_rounded(one, other) for one, other in zip(given, checked, strict=True))
    return False


def _compare_parts(sent: object, arrived: object, *, place: str, depth: int) -> str | None:
    """Compare two values of one type by what they contain, and by their attributes."""
    if isinstance(sent, _SEQUENCES) and isinstance(arrived, _SEQUENCES):
        found = _compare_items(sent, arrived, place=place, depth=depth)
    elif isinstance(sent, Mapping) and isinstance(arrived, Mapping):
        found = _compare_entries(sent, arrived, place=place, depth=depth)
    elif isinstance(sent, _SETS) and isinstance(arrived, _SETS):
        twins = {item: item for item in arrived}
        if sent != arrived:
            return f"{place}: another {type(sent).__qualname__} would arrive"
        found = _compare_items(sent, [twins[item] for item in sent], place=place, depth=depth)
    elif type(sent).__name__ == "ValidatorIterator" and isinstance(sent, Iterable) and isinstance(arrived, Iterable):
        return _compare_items([*sent], [*arrived], place=place, depth=depth)
    else:
        found = None
    if found is not None:
        return found
    mine, other = _attributes(sent), _attributes(arrived)
    if mine is None or other is None:
        is_container = isinstance(sent, (*_SEQUENCES, *_SETS, Mapping))
        return (
            None
            if is_container or _equal(sent, arrived)
            else f"{place}: another {type(sent).__qualname__} would arrive"
        )
    if mine.keys() != other.keys():
        return f"{place}: another {type(sent).__qualname__} would arrive"
    for name, value in mine.items():
        shown = f"{place}.{name}" if not name.startswith("__") else place
        found = difference(value, other[name], place=shown, depth=depth)
        if found is not None:
            return found
    return None


def _compare_items(sent: Iterable[object], arrived: Iterable[object], *, place: str, depth: int) -> str | None:
    mine, other = [*sent], [*arrived]
    if len(mine) != len(other):
        return f"{place}: {len(other)} of {len(mine)} items would arrive"
    for number, (one, twin) in enumerate(zip(mine, other, strict=True)):
        if type(one) is type(twin) and type(one) in PLAIN and one == twin:
            continue
        found = difference(one, twin, place=f"{place}[{number}]", depth=depth)
        if found is not None:
            return found
    return None


def _compare_entries(
    sent: Mapping[object, object], arrived: Mapping[object, object], *, place: str, depth: int
) -> str | None:
    if len(sent) != len(arrived):
        return f"{place}: {len(arrived)} of {len(sent)} entries would arrive"
    for (key, value), (other_key, other) in zip(sent.items(), arrived.items(), strict=True):
        found = difference(key, other_key, place=f"{place}: a key", depth=depth)
        found = found or difference(value, other, place=f"{place}[...]", depth=depth)
        if found is not None:
            return found
    return None


def _attributes(value: object) -> dict[str, object] | None:
    """Return a value's attributes without what `cached_property` keeps; None: it can have none."""
    kind = type(value)
    slots = [name for base in kind.__mro__ for name in _slots(base)]
    held = getattr(value, "__dict__", None)
    if held is None and not slots:
        return None
    found: dict[str, object] = {
        name: each for name, each in (held or {}).items() if not isinstance(getattr(kind, name, None), cached_property)
    }
    for name in slots:
        if name not in _HIDDEN and hasattr(value, name):
            found[name] = getattr(value, name)
    return found


def _slots(base: type) -> tuple[str, ...]:
    """Return the names of a class's slots as attributes; those with two leading underscores carry the class's name."""
    slots = base.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    own = base.__name__.lstrip("_")
    return tuple(f"_{own}{name}" if name.startswith("__") and not name.endswith("__") else name for name in names)


def _equal(sent: object, arrived: object) -> bool:
    try:
        return bool(sent == arrived)
    except Exception:  # noqa: BLE001  a type that can't be compared: not shown to be the same
        return False
