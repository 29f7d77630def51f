"""Texts of errors and logs as pages show them: what rules mask in payloads is masked in these texts, too. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from queue_core.console.payload import is_redacted
from queue_core.verbs.wire import Json

MASK: Final = "***"
TEXTS: Final = frozenset(
    {"reason", "message", "text", "detail", "line", "lines", "last_lines", "stack", "traceback", "why"}
)
"""The members of replies that handlers wrote, or that quote what they wrote."""
_NAME: Final = re.compile(r"""(?P<quote>\\?["'])?(?P<name>[A-Za-z_][\w.-]{0,99})(?(quote)(?P=quote))[ ]?[:=][ ]?""")
"""A name before its value: `name=`, `name: `, `"name": `, also where the quotes are escaped."""
_VALUE: Final = re.compile(r"""\\?"[^"\n]{0,9999}"|\\?'[^'\n]{0,9999}'|[^\s,;&)}\]]{1,9999}""")


def masked_text(text: str, redact: Sequence[str]) -> str:
    """Return a text with `***` in place of the values that have one of these names before them."""
    parts: list[str] = []
    end = 0
    for found in _NAME.finditer(text):
        if found.start() < end or not is_redacted(f".{found['name']}", redact):
            continue
        value = _VALUE.match(text, found.end())
        if value is not None:
            parts += (text[end : value.start()], MASK)
            end = value.end()
    return "".join([*parts, text[end:]])


def masked_reply(body: Json, redact: Sequence[str]) -> Json:
    """Return a reply of the API with its texts masked."""
    return {name: _masked(one, redact, is_text=name in TEXTS) for name, one in body.items()}


def _masked(found: object, redact: Sequence[str], *, is_text: bool) -> object:
    if isinstance(found, str):
        return masked_text(found, redact) if is_text else found
    if isinstance(found, list):
        return [_masked(one, redact, is_text=is_text) for one in found]
    if isinstance(found, Mapping):
        return {name: _masked(one, redact, is_text=name in TEXTS) for name, one in found.items()}
    return found
