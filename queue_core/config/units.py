"""Durations, sizes, rates and fractions as people write them ("30s", "512MiB", "10/s", "0.5%"), and back. Pure."""

import re
import sys
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from queue_core.limits import shown_value
from queue_core.process.wording import format_rate

_SECONDS_PER: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_BYTES_PER: Final = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_LOOSE_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)")
_UNIT_WORDS: Final = {
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]+)")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) */ *(s|m|min|h|d)")

_SHOWN_CHARACTERS: Final = 40
_WRITE_A_RATE: Final = "write a rate such as 10/s, 600/min, 5/h"
_WRITE_A_DURATION: Final = "write a duration such as 500ms, 30s, 5m, 6h, 2d"
_WRITE_A_SIZE: Final = "write a size such as 64KiB, 512MiB, 1GB"
_WRITE_A_FRACTION: Final = "write a fraction such as 0.5% or 0.005"


def parse_seconds(value: object) -> float:
    """Return the seconds of "500ms", "30s", "1m30s", "2h", "7d", or from a number of seconds.

    Raises `ValueError` for anything else, including booleans, and for a negative or infinite number.
    """
    if isinstance(value, str):
        if not _DURATION.fullmatch(value):
            raise ValueError(f"{_cut(value)}: {_WRITE_A_DURATION}{_nearest_duration(_cut(value))}")
        seconds = sum(float(number) * _SECONDS_PER[unit] for number, unit in _DURATION_PART.findall(value))
        return _number(round(seconds, 9), _WRITE_A_DURATION, written=value)
    return _number(value, _WRITE_A_DURATION)


def parse_bytes(value: object) -> int:
    """Return the bytes of "64KiB", "512MiB" (powers of 1024), "1GB" (powers of 1000), or a whole number of bytes.

    Raises `ValueError` for anything else, including booleans, and for a negative or fractional number of bytes.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None or match[2] not in _BYTES_PER:
            raise ValueError(f"{_cut(value)}: {_WRITE_A_SIZE}")
        size = _number(float(match[1]) * _BYTES_PER[match[2]], _WRITE_A_SIZE, written=value)
    else:
        size = _number(value, _WRITE_A_SIZE)
    if not size.is_integer():
        raise ValueError(f"{_cut(value)}: not a whole number of bytes; {_WRITE_A_SIZE}")
    return int(size)


def parse_fraction(value: object) -> float:
    """Return a fraction in [0, 1] from "0.5%" or 0.005. Raises `ValueError` for anything else."""
    if isinstance(value, str):
        match = _PERCENT.fullmatch(value)
        if match is None:
            raise ValueError(f"{_cut(value)}: {_WRITE_A_FRACTION}")
        fraction = float(match[1]) / 100
    else:
        fraction = _number(value, _WRITE_A_FRACTION)
    if fraction > 1:
        raise ValueError(f"{_cut(value)}: more than 100%; {_WRITE_A_FRACTION}")
    return fraction


def parse_rate(value: object) -> float:
    """Return the times a second of "10/s", "600/min", "2.5/h", "1/d". Raises `ValueError` for anything else."""
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{_cut(value)}: {_WRITE_A_RATE}")
    return _number(float(match[1]) / _SECONDS_PER[match[2].removesuffix("in")], _WRITE_A_RATE, written=value)


def format_seconds(seconds: float) -> str:
    """Return the shortest way to write `seconds`, exact to the millisecond: 90 is "1m30s", 0.5 is "500ms"."""
    milliseconds = round(seconds * 1_000)
    if milliseconds == 0:
        return "0s"
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def format_bytes(count: int) -> str:
    """Return the shortest exact way to write `count` bytes in powers of 1024: 536870912 is "512MiB"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if count and count % _BYTES_PER[unit] == 0:
            return f"{count // _BYTES_PER[unit]}{unit}"
    return f"{count}B"


def format_fraction(fraction: float) -> str:
    """Return a fraction as a percentage: 0.005 is "0.5%"."""
    return f"{fraction * 100:.10g}%"


def _nearest_duration(text: str) -> str:
    """Return `"; did you mean 5s?"` for a duration with spaces or with a unit's whole name, else ""."""
    parts = _LOOSE_DURATION_PART.findall(text.lower())
    if not parts or _LOOSE_DURATION_PART.sub("", text.lower()).strip():
        return ""
    units = [next((unit for unit, words in _UNIT_WORDS.items() if word in words), "") for _, word in parts]
    if not all(units):
        return ""
    return f"; did you mean {''.join(number + unit for (number, _), unit in zip(parts, units, strict=True))}?"


def _number(value: object, advice: str, *, written: object = None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{_cut(value)}: {advice}")  # noqa: TRY004  pydantic reports a ValueError, not a TypeError
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{_cut(value if written is None else written)}: must be 0 or more, and finite; {advice}")
    return float(value)


def _cut(value: object) -> str:
    return shown_value(value) if not isinstance(value, str) or len(value) > _SHOWN_CHARACTERS else value


Seconds = Annotated[
    float,
    BeforeValidator(parse_seconds),
    PlainSerializer(format_seconds, return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^{_DURATION.pattern}$"},
                {"type": "number", "minimum": 0},
            ],
            "examples": ["500ms", "30s", "1m30s", "6h"],
        }
    ),
]
"""A duration in seconds; a file may write "30s"."""

Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(format_bytes, return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^[0-9]+(?:\.[0-9]+)?(?:B|[kKMGT]B|[KMGT]iB)$"},
                {"type": "integer", "minimum": 0},
            ],
            "examples": ["64KiB", "512MiB", "1GB"],
        }
    ),
]
"""A size in bytes; a file may write "512MiB"."""

PerSecond = Annotated[
    float,
    BeforeValidator(parse_rate),
    PlainSerializer(format_rate, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^{_RATE.pattern}$", "examples": ["10/s", "600/min", "5/h"]}),
]
"""A number of times a second; a file writes "10/s"."""

Fraction = Annotated[
    float,
    BeforeValidator(parse_fraction),
    PlainSerializer(format_fraction, return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^{_PERCENT.pattern}$"},
                {"type": "number", "minimum": 0, "maximum": 1},
            ],
            "examples": ["0.5%", 0.005],
        }
    ),
]
"""A fraction in [0, 1]; a file may write "0.5%"."""
