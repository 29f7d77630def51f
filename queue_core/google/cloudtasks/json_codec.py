"""Convert messages between JSON and values, as protobuf maps them, timestamps and durations included. Pure.

Names, types and ranges are checked strictly.
"""

import base64
import binascii
import re
import reprlib
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from queue_core.clock import MICROSECONDS, Instant
from queue_core.google.cloudtasks.call import Values
from queue_core.google.cloudtasks.failures import CloudTasksError, invalid
from queue_core.google.cloudtasks.messages import ENUMS, MESSAGES, MessageField, camel, snake

_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_DURATION = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{1,9}))?s")
MAX_SHOWN_CHARACTERS = 80
"""Characters of a wrong value that an error shows."""
_BOUNDED = reprlib.Repr()
MAX_DURATION_MICROSECONDS = 315_576_000_000 * MICROSECONDS
"""10,000 years: protobuf's longest duration, which stands for no limit."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = int((datetime.max.replace(tzinfo=UTC) - _EPOCH) / timedelta(microseconds=1))


def parse_timestamp(text: str) -> Instant:
    """Parse RFC 3339 with up to 9 digits of a second, truncated to microseconds. Raises `ValueError`."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError("write it as 2026-01-31T12:30:00.123456Z")
    year, month, day, hour, minute, second = (int(part) for part in match.group(1, 2, 3, 4, 5, 6))
    fraction = int((match[7] or "").ljust(6, "0")[:6])
    moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
    if second > 60:
        raise ValueError("second must be in 0..59")
    past = (moment - _EPOCH) // timedelta(microseconds=1) + (second == 60) * MICROSECONDS
    if match[8]:
        if int(match[9]) > 23 or int(match[10]) > 59:
            raise ValueError("offset must be below 24:00")
        offset = (int(match[9]) * 60 + int(match[10])) * 60 * MICROSECONDS
        past += offset if match[8] == "-" else -offset
    return Instant(past + fraction)


def format_timestamp(instant: Instant) -> str:
    """Format as RFC 3339 in UTC with 0, 3 or 6 digits, as protobuf does."""
    seconds, microseconds = divmod(instant if 0 <= instant <= _LAST else _nearest(instant), MICROSECONDS)
    return f"{_whole_second(seconds)}{_fraction(microseconds)}Z"


def _nearest(instant: int) -> int:
    """Clamp an instant to the range from 1970 to the year 9999, where protobuf's timestamps end."""
    return 0 if instant < 0 else _LAST


@lru_cache(maxsize=256)
def _whole_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")


def parse_duration(text: str) -> int:
    """Parse a duration such as `3.5s`, truncated to microseconds. Raises `ValueError`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("write it in seconds, as 600s or 1.5s")
    size = int(match[2]) * MICROSECONDS + int((match[3] or "").ljust(6, "0")[:6])
    if size > MAX_DURATION_MICROSECONDS:
        raise ValueError("at most 315576000000s")
    return -size if match[1] else size


def format_duration(microseconds: int) -> str:
    """Format a duration such as `3.500s`, with 0, 3 or 6 digits."""
    seconds, fraction = divmod(abs(microseconds), MICROSECONDS)
    return f"{'-' if microseconds < 0 else ''}{seconds}{_fraction(fraction)}s"


def _fraction(microseconds: int) -> str:
    if microseconds == 0:
        return ""
    if microseconds % 1000 == 0:
        return f".{microseconds // 1000:03d}"
    return f".{microseconds:06d}"


_WHOLE = re.compile(r"-?[0-9]{1,19}")
_BITS = {"int32": 31, "int64": 63}


def values_of(message: str, data: object, *, place: str = "") -> Values:
    """Convert a JSON object to the values of a message; a null field is unset.

    Raises `CloudTasksError` for the first field that is unknown, of another type or out of range, and names it with
    the prefix `place`.
    """
    if not isinstance(data, Mapping):
        raise invalid(f"{place.rstrip('.') or 'the body'} must be a JSON object, not {_shown(data)}")
    fields = MESSAGES[message]
    values: Values = {}
    for name, value in data.items():
        json_name = name if name in fields else camel(name)
        field = fields.get(json_name)
        if field is None or (json_name != name and snake(json_name) != name):
            raise unknown_name(name, place=place)
        if json_name in values:
            raise invalid(f"{place}{json_name} is given twice: as {json_name} and as {snake(json_name)}")
        if value is not None:
            values[json_name] = _value(field, value, f"{place}{json_name}")
    return values


def unknown_name(name: str, *, place: str = "") -> CloudTasksError:
    """Return the error for an unknown field."""
    at = f" at '{place.rstrip('.')}'" if place else ""
    return invalid(f'Invalid JSON payload received. Unknown name "{name[:100]}"{at}: Cannot find field.')


def from_text(field: MessageField, text: str, *, place: str) -> object:
    """Convert a value from a query string. Raises `CloudTasksError`."""
    if field.kind == "bool":
        if text not in ("true", "false"):
            raise invalid(f"{place} must be true or false: {_shown(text)}")
        return text == "true"
    return _one(field, text, place)


def json_of(message: str, values: Mapping[str, object], *, enums: str) -> dict[str, object]:
    """Convert a message's values to JSON; `enums`: as `names` or as `numbers`."""
    fields = MESSAGES[message]
    return {name: _json(fields[name], value, enums) for name, value in values.items()}


def _value(field: MessageField, value: object, place: str) -> object:
    if not field.is_repeated:
        return _one(field, value, place)
    if not isinstance(value, list):
        raise invalid(f"{place} must be an array, not {_shown(value)}")
    return tuple(_one(field, one, f"{place}[{index}]") for index, one in enumerate(value))


def _one(field: MessageField, value: object, place: str) -> object:  # noqa: C901 - a table in code: a kind a line
    match field.kind:
        case "message":
            return values_of(field.of, value, place=f"{place}.")
        case "opaque":
            return {}
        case "int32" | "int64":
            return _integer(value, place, bits=_BITS[field.kind])
        case "enum":
            return _enum(field.of, value, place)
        case "bool":
            if not isinstance(value, bool):
                raise invalid(f"{place} must be true or false: {_shown(value)}")
            return value
        case "double":
            return _double(value, place)
    if not isinstance(value, str):
        raise invalid(f"{place} must be a string: {_shown(value)}")
    match field.kind:
        case "bytes":
            return _bytes(value, place)
        case "timestamp":
            return _timed(parse_timestamp, value, place)
        case "duration":
            return _timed(parse_duration, value, place)
        case "mask":
            return tuple(mask_path(path) for path in value.split(",") if path.strip())
    return value


def mask_path(path: str) -> str:
    """Return a mask's path in protobuf's spelling: `retryConfig.maxAttempts` as `retry_config.max_attempts`."""
    return ".".join(snake(part) for part in path.strip().split("."))


def _integer(value: object, place: str, *, bits: int) -> int:
    number: int | None = None
    if (isinstance(value, str) and _WHOLE.fullmatch(value)) or (isinstance(value, float) and value.is_integer()):
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    if number is None or not -(1 << bits) <= number < 1 << bits:
        raise invalid(f"{place} must be a whole number of {bits + 1} bits: {_shown(value)}")
    return number


def _double(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise invalid(f"{place} must be a number: {_shown(value)}")
    return float(value)


def _enum(enum: str, value: object, place: str) -> int:
    names = ENUMS[enum]
    if isinstance(value, str) and value in names:
        return names.index(value)
    number = int(value) if isinstance(value, str) and re.fullmatch("[0-9]", value) else value
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < len(names):
        return number
    raise invalid(f"{place} must be one of {', '.join(names)} (or its number): {_shown(value)}")


def _bytes(value: str, place: str) -> bytes:
    """Decode base64 of either alphabet, padded or not."""
    text = value.translate(_STANDARD).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise invalid(f"{place} must be base64, standard or URL-safe: {error}") from error


_STANDARD = str.maketrans("-_", "+/")


def _timed(parse: object, value: str, place: str) -> int:
    assert callable(parse)
    try:
        moment = parse(value)
    except ValueError as error:
        raise invalid(f"{place} {_shown(value)}: {error}") from error
    assert isinstance(moment, int)
    return moment


def _json(field: MessageField, value: object, enums: str) -> object:
    if field.kind in _AS_IT_IS:
        return list(value) if isinstance(value, tuple) else value
    if field.is_repeated:
        assert isinstance(value, list | tuple)
        return [_json_one(field, one, enums) for one in value]
    return _json_one(field, value, enums)


_AS_IT_IS = frozenset({"text", "bool", "int32", "double", "opaque"})


def _json_one(field: MessageField, value: object, enums: str) -> object:
    kind = field.kind
    if isinstance(value, dict):
        return json_of(field.of, value, enums=enums)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple):
        return ",".join(camel(path) for path in value)
    assert isinstance(value, int)
    if kind == "timestamp":
        return format_timestamp(Instant(value))
    if kind == "duration":
        return format_duration(value)
    if kind == "enum" and enums == "names":
        return ENUMS[field.of][value]
    return str(value) if kind == "int64" else value


def _shown(value: object) -> str:
    """Return the beginning of a value; of a large one no more than that is looked at."""
    if isinstance(value, str):
        text = repr(value[:MAX_SHOWN_CHARACTERS])
        return text if len(value) <= MAX_SHOWN_CHARACTERS and len(text) <= MAX_SHOWN_CHARACTERS else text[:77] + "..."
    if isinstance(value, int) and abs(value) >= 1 << 256:
        return "a number of very many digits"
    text = _BOUNDED.repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:77] + "..."
