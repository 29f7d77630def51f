"""One scalar of a queue.yaml or queue.xml to its value, or a `ValueError` that tells what it must be. Pure."""

import math
import re
from typing import Final

from queue_core.limits import MAX_EMAIL_CHARACTERS, MAX_QUEUE_NAME_CHARACTERS
from queue_core.queue_file import Text

MAX_STORAGE_LIMIT_BYTES: Final = (1 << 63) - 1  # our own: what a store's column holds
_MAX_DIGITS: Final = 19

_NAME = re.compile(r"[a-zA-Z0-9-]{1,100}")
_RATE = re.compile(r"0|([0-9]+(?:\.[0-9]*)?)/([smhd])")
_AGE = re.compile(r"(.*)([smhd])", re.DOTALL)
_SIZE = re.compile(r"([0-9]+)(?:\.([0-9]*))?([BKMGT]?)")
_TARGET = re.compile(r"(?:(?!-)[a-z0-9-]{1,100}\.)?(?!-)[a-z0-9-]{1,63}")
_APPLICATION = re.compile(r"(?:[a-z0-9-]{1,100}~)?(?:(?!-)[a-z0-9.-]{1,100}:)?(?!-)[a-z0-9-]{0,99}[a-z0-9]")
_EMAIL = re.compile(rf"[^\s]{{1,{MAX_EMAIL_CHARACTERS}}}")
_WHOLE = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*")
_HEXADECIMAL = re.compile(r"[-+]?0x[0-9a-fA-F]+")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_BYTES_PER: Final = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS_PER: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

# What App Engine's reader, of YAML 1.1, makes of a scalar without quotes.
_TRUE: Final = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE: Final = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_NUMBER_UNLIKE_ITSELF = re.compile(r"-?0[0-7]+|0b[01]+|0x[0-9a-fA-F]+|-?[0-9]+[eE]-?[0-9]+|-0")


def name_of(text: Text) -> str:
    """A queue's name."""
    return _matched(_NAME, text, f"must be 1 to {MAX_QUEUE_NAME_CHARACTERS} letters, digits or '-'")


def mode_of(text: Text) -> str:
    """`push` or `pull`."""
    if text.value not in {"push", "pull"}:
        raise ValueError(f"must be push or pull, in lower case: {_shown(text.value)}")
    return text.value


def rate_of(text: Text) -> float:
    """Calls a second."""
    match = _RATE.fullmatch(text.value)
    if match is None:
        raise ValueError(f"must be 0, or a number and a unit, such as 5/s, 10.5/m, 1/h: {_shown(text.value)}")
    return float(match[1]) / _SECONDS_PER[match[2]] if match[1] else 0.0


def whole_of(text: Text) -> int:
    """A whole number; 5.0 is one, 010 without quotes is not: it is eight in one YAML and ten in the other."""
    value = text.value.strip()
    if text.style == "plain" and _OCTAL.fullmatch(value) and value.strip("+-0_"):
        raise ValueError(f"begins with 0, which App Engine takes for an octal number: {_shown(value)}")
    if text.style == "plain" and _HEXADECIMAL.fullmatch(value) and len(value) <= _MAX_DIGITS:
        return int(value, 16)
    if _WHOLE.fullmatch(value) and len(value) <= _MAX_DIGITS:
        return int(value)
    number = _float(value) if text.style == "plain" else None
    if number is None or not number.is_integer() or abs(number) >= 10**_MAX_DIGITS:
        raise ValueError(f"must be a whole number: {_shown(value)}")
    return int(number)


def number_of(text: Text) -> float:
    """A number, not an endless one."""
    number = _float(text.value)
    if number is None:
        raise ValueError(f"must be a number: {_shown(text.value)}")
    return number


def age_of(text: Text) -> float:
    """Seconds, from `1h`, `3.5d`; a unit is a must."""
    match = _AGE.fullmatch(text.value)
    number = _float(match[1]) if match else None
    if match is None or number is None or number < 0:
        raise ValueError(f"must be a number and a unit (s, m, h, d), such as 1h or 3.5d: {_shown(text.value)}")
    return number * _SECONDS_PER[match[2]]


def size_of(text: Text) -> int:
    """Bytes, from `120M`: the units are powers of 1024; a part of a byte is dropped."""
    match = _SIZE.fullmatch(text.value)
    if match is None:
        raise ValueError(f"must be a size such as 120M, with B, K, M, G, T or no unit: {_shown(text.value)}")
    whole, part, unit = match[1].lstrip("0") or "0", (match[2] or "")[:_MAX_DIGITS], match[3]
    if not unit and "." in text.value:
        raise ValueError(f"must be a whole number, or have a unit such as K or M: {_shown(text.value)}")
    scale = _BYTES_PER[unit]
    size = int(whole[: _MAX_DIGITS + 1]) * scale + int(int(part or "0") * scale // 10 ** len(part))
    if size > MAX_STORAGE_LIMIT_BYTES:
        raise ValueError(f"must be less than 8388608T ({MAX_STORAGE_LIMIT_BYTES + 1} bytes): {_shown(text.value)}")
    return size


def truth_of(text: Text) -> bool:
    """`True` or `False`, and without quotes whatever YAML 1.1 takes for them."""
    if text.value in ({"True"} if text.style == "quoted" else _TRUE):
        return True
    if text.value in ({"False"} if text.style == "quoted" else _FALSE):
        return False
    raise ValueError(f"must be True or False: {_shown(text.value)}")


def target_of(text: Text) -> str:
    """`service`, or `version.service`."""
    return _matched(_TARGET, text, "must be a service, or version.service, in lower case")


def application_of(text: Text) -> str:
    """An application's id, with its partition and domain."""
    return _matched(_APPLICATION, text, "must be an application's id, such as my-app")


def email_of(text: Text) -> str:
    """An address; App Engine asks for no more than text."""
    limit = f"must be an address of 1 to {MAX_EMAIL_CHARACTERS} visible characters"
    email = _matched(_EMAIL, text, limit)
    if not email.isprintable():
        raise ValueError(f"{limit}: {email[:60]!a}")
    return email


def _matched(pattern: re.Pattern[str], text: Text, limit: str) -> str:
    words = _TRUE | _FALSE
    if text.style == "plain" and (text.value in words or _NUMBER_UNLIKE_ITSELF.fullmatch(text.value)):
        raise ValueError(f"without quotes App Engine takes it for a number or a truth value: {_shown(text.value)}")
    if pattern.fullmatch(text.value) is None:
        length = f" ({len(text.value)} characters)" if len(text.value) > 60 else ""
        raise ValueError(f"{limit}: {_shown(text.value)}{length}")
    return text.value


def _float(text: str) -> float | None:
    """Python's idea of a number, as App Engine's reader has; None for no number, and for an endless one."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}...")
