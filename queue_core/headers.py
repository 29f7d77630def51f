"""Headers of a task: a small map of text to text for traces, content types and a program's own ids. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Final, TypeAlias, cast

from queue_core.errors import InvalidRequestError
from queue_core.limits import check_text

MAX_HEADERS_BYTES: Final = 4096
"""Bytes of all names and values of a task's headers together, as UTF-8."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

Headers: TypeAlias = Mapping[str, str]


def check_headers(headers: object) -> None:
    """Raise `InvalidRequestError` unless these are headers: legal names, text values, at most 4 KiB together."""
    if not isinstance(headers, Mapping):
        raise InvalidRequestError(f"headers must be a map of text to text: {type(headers).__name__} given")
    total_bytes = 0
    for name, text in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequestError(
                f"a header's name must be 1 to 64 letters, digits, '_', '.' or '-': {str(name)[:70]!r}"
            )
        if not isinstance(text, str):
            raise InvalidRequestError(f"header {name!r} must be text: {type(text).__name__} given; str(value) makes it")
        check_text(f"header {name!r}", text)
        total_bytes += len(name) + len(text.encode())
    if total_bytes > MAX_HEADERS_BYTES:
        raise InvalidRequestError(
            f"headers must be at most {MAX_HEADERS_BYTES} bytes (4 KiB) together: {total_bytes}; "
            "put the data into the payload"
        )


def headers_text(headers: Headers | None) -> str | None:
    """Return headers as stored, a JSON object; None for none."""
    return json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":")) if headers else None


def headers_of(text: str | None) -> dict[str, str] | None:
    """Parse what `headers_text` wrote."""
    return cast("dict[str, str]", json.loads(text)) if text else None
