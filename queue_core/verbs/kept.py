"""Texts that the supervisors of a store keep in it: their names, which are few, and their size. Pure."""

from typing import Final

from queue_core.errors import InvalidRequestError

NAMES: Final = ("supervisor",)
"""The names of kept texts. `supervisor`: what the leading supervisor knows, for the one that leads next."""
MAX_KEPT_BYTES: Final = 512 * 1024
"""Size of a kept text in UTF-8, at most: with `NAMES` it bounds what a caller can have a store keep."""


def check_kept(name: str, text: str = "") -> None:
    """Raise `InvalidRequestError` for another name, or a text beyond the bound."""
    if name not in NAMES:
        raise InvalidRequestError(f"a kept text is one of {', '.join(NAMES)}: {name[:60]!a}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError("a kept text must be UTF-8 text, without lone surrogates") from None
    if size > MAX_KEPT_BYTES:
        raise InvalidRequestError(f"a kept text has at most {MAX_KEPT_BYTES:,} bytes in UTF-8: {size:,}")


def session_of(name: str) -> str:
    """Return the session under which a store keeps the text; no client's has a colon."""
    return f":kept:{name}"
