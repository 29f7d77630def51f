"""Page sizes and tokens of the methods that list. Pure."""

import base64
import binascii

from queue_core.server.cloudtasks.failures import invalid
from queue_core.server.cloudtasks.fields import MessageReader

_MARK = "after:"


def page_size(fields: MessageReader, *, most: int) -> int:
    """Entries of a page: as asked, `most` when not asked or for more. Raises `ApiError` below 0."""
    size = fields.number("pageSize")
    if size < 0:
        raise invalid(f"page_size must be in [0, {most}]: {size}")
    return min(size or most, most)


def page_token(after: str) -> str:
    """The token of the page that begins after this entry; opaque to callers."""
    return base64.urlsafe_b64encode(f"{_MARK}{after}".encode()).decode().rstrip("=")


def parse_page_token(fields: MessageReader) -> str:
    """The entry a page begins after; "" for the first page. Raises `ApiError` for a token of nobody's."""
    token = fields.text("pageToken")
    if not token:
        return ""
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise invalid(f"page_token is not one that was returned as next_page_token: {token[:60]!r}") from error
    if not text.startswith(_MARK):
        raise invalid(f"page_token is not one that was returned as next_page_token: {token[:60]!r}")
    return text.removeprefix(_MARK)
