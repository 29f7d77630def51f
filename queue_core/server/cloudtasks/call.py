"""A call of one method: its fields, and who makes it."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import PermissionDeniedError
from queue_core.server.auth import Access, Principal, check_access, check_role
from queue_core.server.cloudtasks.failures import invalid
from queue_core.server.leases.rates import LeaseRate
from queue_core.task import QueueSpec
from queue_core.unit_of_work import UnitOfWork

Values = dict[str, object]
"""A message: fields by their JSON name; timestamps and durations in microseconds, enums as numbers, masks as paths."""


class MessageReader:
    """Reads of one message. `place` is what leads to it, for messages."""

    def __init__(self, values: Mapping[str, object], place: str = "") -> None:
        self._values = values
        self._place = place

    def __contains__(self, name: str) -> bool:
        """Whether the caller set it."""
        return name in self._values

    def named(self, name: str) -> str:
        """A field's name with what leads to it, for messages."""
        return f"{self._place}{name}"

    def text(self, name: str) -> str:
        """A string, "" when unset."""
        value = self._values.get(name, "")
        assert isinstance(value, str)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Strings, or the paths of a mask; none when unset."""
        value = self._values.get(name, ())
        assert isinstance(value, tuple)
        return value

    def data(self, name: str) -> bytes:
        """Bytes, none when unset."""
        value = self._values.get(name, b"")
        assert isinstance(value, bytes)
        return value

    def number(self, name: str) -> int:
        """A whole number or an enum's, 0 when unset."""
        value = self._values.get(name, 0)
        assert isinstance(value, int)
        return value

    def instant(self, name: str) -> Instant:
        """A timestamp that must be set. Raises `ApiError`."""
        value = self._values.get(name)
        if value is None:
            raise invalid(f"{self.named(name)} is required: give the scheduleTime of the lease unchanged")
        assert isinstance(value, int)
        return Instant(value)

    def duration_seconds(self, name: str) -> int:
        """A duration that must be set, cut to whole seconds. Raises `ApiError`."""
        value = self._values.get(name)
        if value is None:
            raise invalid(f"{self.named(name)} is required, such as 60s")
        assert isinstance(value, int)
        return value // MICROSECONDS  # downwards, so that what is below zero stays there

    def fields(self, name: str) -> "MessageReader":
        """A message within, empty when unset."""
        value = self._values.get(name, {})
        assert isinstance(value, dict)
        return MessageReader(value, f"{self.named(name)}.")


IsGone = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class CloudTasksCall:
    """What a method is given.

    Args:
        rate: that of the lease calls of all queues.
        is_gone: whether the caller has hung up, or does not wait any longer.
    """

    fields: MessageReader
    caller: Principal
    rate: LeaseRate
    is_gone: IsGone

    def enter(self, turn: UnitOfWork, queue: str, access: Access) -> QueueSpec:
        """The queue's settings, for a caller whom its acl lets in.

        Raises `UnknownQueueError`, `PermissionDeniedError`.
        """
        spec = turn.transaction.queue(queue)
        check_access(self.caller, spec, access)
        return spec

    def may(self, verb: str) -> bool:
        """Whether the caller's role allows a verb."""
        try:
            check_role(self.caller, verb)
        except PermissionDeniedError:
            return False
        return True


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
