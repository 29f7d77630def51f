"""Values that an application keeps of its import and that are of one moment or one process: clocks, ids, tokens.

They are found by what they are, wherever the clock was read or the id was made: a number that is the time of the
import, an id with random bytes that a library drew meanwhile. A time that is read and not kept is none (ADR 127). No
code of the application runs.
"""

import datetime as dt
import gc
import itertools
import os
import re
import uuid
import zoneinfo
from base64 import urlsafe_b64decode
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import FunctionType, MethodType, ModuleType
from typing import Final

from queue_core.worker.template.hazard import REMEDY, ForkHazard
from queue_core.worker.template.imported_files import application_modules

MAX_VISITED: Final = 50_000
"""Values that are looked at, at most: a table has none."""
MAX_CHARACTERS: Final = 200
"""Characters of a text that is looked at; an id or a line with one is no longer."""
MAX_SECONDS: Final = 600
_CONTAINERS: Final = (dict, list, tuple, set, frozenset, deque)
_ZONES: Final = (type(None), dt.timezone, zoneinfo.ZoneInfo)
_UNITS: Final = (1, 10**3, 10**6, 10**9)
_DIGITS: Final = re.compile(r"\d{10,19}")
_TIME: Final = re.compile(r"(\d{4})\D?(\d\d)\D?(\d\d)\D{0,2}(\d\d)\D?(\d\d)\D?(\d\d)")
_HEX: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9a-fA-F]{16,}")
_BASE64: Final = re.compile(r"[A-Za-z0-9_-]{16,}")
_ULID: Final = re.compile(r"(?<![0-9A-Z])[0-7][0-9A-HJKMNP-TV-Z]{25}(?![0-9A-Z])")
_CROCKFORD: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VERSION_MASK: Final = ~((0xF000 << 64) | (0xC000 << 48)) & ((1 << 128) - 1)
_THE_TIME: Final = "the time of the import"
_AN_ID: Final = "an id that was made in the import"
_LEAST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ImportSpan:
    """The time of an import: in seconds since the epoch, and of the monotonic clock."""

    began_at: float
    ended_at: float
    began: float
    ended: float

    def has_number(self, number: float) -> bool:
        """Return whether a number is a time of the import, in seconds to nanoseconds of one of the clocks."""
        if type(number) is int:
            return any(
                int(self.began_at) * unit <= number <= (int(self.ended_at) + 1) * unit - 1 for unit in _UNITS
            ) or (number % 1000 != 0 and self.began * 10**9 <= number <= self.ended * 10**9)
        is_plain = (number * 1000).is_integer()  # a setting, as 30.0, shortly after the start of the host
        return self.began_at <= number <= self.ended_at or (not is_plain and self.began <= number <= self.ended)

    def texts(self) -> frozenset[str]:
        """Return the seconds of the import as digits, `20260131235959`, in the host's zone and in UTC."""
        first, last = int(self.began_at), int(self.ended_at)
        zones = (dt.UTC, None)
        return frozenset(
            dt.datetime.fromtimestamp(second, zone).strftime("%Y%m%d%H%M%S")
            for second in range(first, min(last, first + MAX_SECONDS) + 1)
            for zone in zones
        )


def kept_value_hazards(span: ImportSpan, drawn: Collection[bytes]) -> Iterator[ForkHazard]:
    """Return a hazard for each name under which application modules keep a value of the import.

    Args:
        span: when the application was imported.
        drawn: random bytes that libraries drew meanwhile, also to make ids of.
    """
    reader = _Reader(span, drawn)
    found: dict[str, str] = {}
    for name, value in _kept():
        if name not in found and (what := reader.what_is(value)):
            found[name] = what
    for name, what in found.items():
        yield ForkHazard(
            "identity",
            f"{what}, in {name}",
            f"{name} keeps {what}, which would be the same in all forked workers: make it {REMEDY}",
        )


def _kept() -> Iterator[tuple[str, object]]:
    """Yield values that application modules keep: their own, those of their classes and instances, in containers."""
    modules = application_modules()
    own = {name for name, _, _ in modules if not name.startswith(("queue_core.", "orchestrator."))}
    seen: set[int] = set()
    ahead: deque[tuple[str, object]] = deque(
        (f"{module}.{name}", value)
        for module, _, values in modules
        if module in own
        for name, value in list(values.items())
        if not name.startswith("__")
    )
    while ahead and len(seen) < MAX_VISITED:
        name, value = ahead.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kind = type(value)
        if issubclass(kind, (ModuleType, MethodType)):
            continue
        if kind is FunctionType:
            if value.__module__ in own:
                ahead.extend((name, each) for each in _held_by(value))  # type: ignore[arg-type]
            continue
        if kind in _CONTAINERS:
            ahead.extend((name, each) for each in gc.get_referents(value))
        elif issubclass(kind, type):
            if value.__dict__.get("__module__") in own:
                ahead.extend((name, each) for each in type.__dict__["__dict__"].__get__(value).values())
        elif type.__dict__["__module__"].__get__(kind) in own:
            ahead.extend((name, each) for each in gc.get_referents(value) if each is not kind)
        yield name, value


def _held_by(function: FunctionType) -> Iterator[object]:
    """Yield the defaults of a function and the variables around it."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from gc.get_referents(*function.__closure__ or ())


class _Reader:
    """Tells what a value is."""

    def __init__(self, span: ImportSpan, drawn: Collection[bytes]) -> None:
        self._span = span
        self._texts = span.texts()
        self._drawn = frozenset(each for each in drawn if len(each) >= _LEAST_BYTES)
        self._uuids = frozenset(int.from_bytes(each) & _VERSION_MASK for each in self._drawn if len(each) == 16)

    def what_is(self, value: object) -> str:
        """Return what of the import a value has; "" for nothing."""
        kind = type(value)
        if kind is float or kind is int:
            return _THE_TIME if self._span.has_number(value) else ""  # type: ignore[arg-type]
        if kind is str and len(value) <= MAX_CHARACTERS:  # type: ignore[arg-type]
            return self._in_text(value)  # type: ignore[arg-type]
        if kind is bytes and len(value) <= MAX_CHARACTERS:  # type: ignore[arg-type]
            return _AN_ID if value in self._drawn else self._in_text(value.decode("latin-1"))  # type: ignore[attr-defined]
        if kind is uuid.UUID:
            return self._in_uuid(value.int)  # type: ignore[attr-defined]
        if issubclass(kind, dt.datetime) and type(value.tzinfo) in _ZONES:  # type: ignore[attr-defined]
            at = dt.datetime.timestamp(value)  # type: ignore[arg-type]
            return _THE_TIME if int(self._span.began_at) <= at <= self._span.ended_at else ""
        if kind is itertools.count:
            return self.what_is(value.__reduce__()[1][0])
        if (type.__dict__["__module__"].__get__(kind), kind.__name__) == ("psutil", "Process"):
            return "the process of the import" if object.__getattribute__(value, "_pid") == os.getpid() else ""
        return ""

    def _in_text(self, text: str) -> str:
        if any(self._span.has_number(int(digits)) for digits in _DIGITS.findall(text)):
            return _THE_TIME
        if any("".join(parts) in self._texts for parts in _TIME.findall(text)):
            return _THE_TIME
        if any(self._has_milliseconds(_milliseconds_of(ulid)) for ulid in _ULID.findall(text)):
            return _AN_ID
        for each in _HEX.findall(text):
            digits = each.replace("-", "")
            if len(digits) % 2 == 0 and bytes.fromhex(digits) in self._drawn:
                return _AN_ID
            if len(digits) == 32 and self._in_uuid(int(digits, 16)):
                return _AN_ID
            if len(digits) == 24 and self._span.has_number(int(digits[:8], 16)):  # MongoDB's ObjectId
                return _AN_ID
        return _AN_ID if any(_decoded(each) in self._drawn for each in _BASE64.findall(text)) else ""

    def _in_uuid(self, number: int) -> str:
        made = uuid.UUID(int=number)
        is_of_span = (made.version == 7 and self._has_milliseconds(number >> 80)) or (
            made.version == 1 and self._span.has_number(made.time / 10**7 - 12_219_292_800)
        )
        return _AN_ID if is_of_span or number & _VERSION_MASK in self._uuids else ""

    def _has_milliseconds(self, number: int) -> bool:
        return int(self._span.began_at * 1000) <= number <= self._span.ended_at * 1000


def _milliseconds_of(ulid: str) -> int:
    number = 0
    for character in ulid[:10]:
        number = number * 32 + _CROCKFORD.index(character)
    return number


def _decoded(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
