"""The parameters of a call, from its query and, as some clients send them, from a form in its body. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from queue_core.server.taskqueue.answer import TaskqueueError, invalid

FORM = "application/x-www-form-urlencoded"
MAX_FORM_BYTES = 8192
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names and values in order; the first of a name counts."""

    pairs: Sequence[tuple[str, str]]

    def text(self, name: str) -> str | None:
        """The value of a parameter, or None when it was not given."""
        return next((value for key, value in self.pairs if key == name), None)

    def integer(self, name: str, *, least: int, most: int) -> int:
        """A whole number that must be given, in [least, most]. Raises `TaskqueueError`."""
        text = self.text(name)
        if text is None:
            raise TaskqueueError(400, "required", f"Required parameter {name} not specified.", name)
        if not _INTEGER.fullmatch(text):
            raise invalid(f"{name} must be an integer: {text[:40]!r}", location=name)
        if not least <= int(text) <= most:
            raise invalid(f"{name} must be in [{least}, {most}]: {text}", location=name)
        return int(text)

    def flag(self, name: str) -> bool:
        """A truth value; False when it was not given. Raises `TaskqueueError`."""
        text = self.text(name)
        if text is None:
            return False
        if text.lower() not in _FLAGS:
            raise invalid(f"{name} must be a boolean, true or false: {text[:40]!r}", location=name)
        return _FLAGS[text.lower()]


def parameters_of(query: bytes, body: bytes, media_type: str) -> Parameters:
    """The query's parameters before those of a form, which a body is that says so, or says nothing of itself.

    Raises `TaskqueueError` for what can't be read.
    """
    pairs = _pairs(query, "query")
    if media_type.partition(";")[0].strip().lower() in (FORM, "") and len(body) <= MAX_FORM_BYTES:
        pairs += _pairs(body, "form")
    return Parameters(pairs)


def _pairs(encoded: bytes, what: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(encoded.decode(), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise invalid(f"the {what} can't be read: {error}") from None
