"""CloudTasksCall: a method call with its caller, request fields and page token, from JSON and protobuf alike."""

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from queue_core.clock import MICROSECONDS, Instant
from queue_core.errors import PermissionDeniedError
from queue_core.google.cloudtasks.failures import invalid
from queue_core.server.callers.access import check_access, check_queue, check_scope
from queue_core.server.callers.auth import Principal, check_role
from queue_core.server.leases.rates import LeaseRate
from queue_core.task import QueueSpec
from queue_core.unit.unit_of_work import UnitOfWork
from queue_core.verbs.roles import Access

Values = dict[str, object]
"""A message: fields by JSON name. Timestamps and durations are microseconds, enums numbers, masks tuples of paths."""


class MessageReader:
    """The fields of one message; an unset field reads as protobuf's default. `place` prefixes names in errors."""

    def __init__(self, values: Mapping[str, object], place: str = "") -> None:
        self._values = values
        self._place = place

    def __contains__(self, name: str) -> bool:
        """Return whether the caller set the field."""
        return name in self._values

    def named(self, name: str) -> str:
        """Return the field's name with the prefix `place`, for an error."""
        return f"{self._place}{name}"

    def text(self, name: str) -> str:
        """Return a string, "" when unset."""
        value = self._values.get(name, "")
        assert isinstance(value, str)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return strings, or the paths of a mask; () when unset."""
        value = self._values.get(name, ())
        assert isinstance(value, tuple)
        return value

    def data(self, name: str) -> bytes:
        """Return bytes, b"" when unset."""
        value = self._values.get(name, b"")
        assert isinstance(value, bytes)
        return value

    def number(self, name: str) -> int:
        """Return an integer or an enum's number, 0 when unset."""
        value = self._values.get(name, 0)
        assert isinstance(value, int)
        return value

    def instant(self, name: str) -> Instant:
        """Return a required timestamp. Raises `CloudTasksError`."""
        value = self._values.get(name)
        if value is None:
            raise invalid(f"{self.named(name)} is required: give the scheduleTime of the lease unchanged")
        assert isinstance(value, int)
        return Instant(value)

    def duration_seconds(self, name: str) -> int:
        """Return a required duration, cut to whole seconds. Raises `CloudTasksError`."""
        value = self._values.get(name)
        if value is None:
            raise invalid(f"{self.named(name)} is required, such as 60s")
        assert isinstance(value, int)
        return value // MICROSECONDS  # rounded down, so that a negative duration stays negative

    def fields(self, name: str) -> "MessageReader":
        """Return a reader of a nested message, empty when unset."""
        value = self._values.get(name, {})
        assert isinstance(value, dict)
        return MessageReader(value, f"{self.named(name)}.")


IsGone = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class CloudTasksCall:
    """A call of one method.

    Args:
        rate: the rate limit of lease calls, for all queues.
        is_gone: returns whether the caller has disconnected or its deadline is over.
    """

    fields: MessageReader
    caller: Principal
    rate: LeaseRate
    is_gone: IsGone

    def authorize(self, unit: UnitOfWork, queue: str, access: Access) -> QueueSpec:
        """Return the queue's settings if its acl permits the access.

        Raises `UnknownQueueError`, `PermissionDeniedError`.
        """
        check_scope(self.caller, queue)
        spec = unit.transaction.queue(queue)
        check_access(self.caller, spec, access)
        return spec

    def authorize_change(self, unit: UnitOfWork, queue: str) -> None:
        """Raise `PermissionDeniedError` unless scope and acl let the caller change the queue's state.

        The role is checked by the method's verb.
        """
        check_scope(self.caller, queue)
        check_queue(self.caller, unit.transaction.queue(queue), "update")

    def is_allowed(self, verb: str) -> bool:
        """Return whether the caller's role allows a verb."""
        try:
            check_role(self.caller, verb)
        except PermissionDeniedError:
            return False
        return True


_MARK = "after:"


def page_size(fields: MessageReader, *, most: int) -> int:
    """Return the page size: as requested, at most and by default `most`. Raises `CloudTasksError` below 0."""
    size = fields.number("pageSize")
    if size < 0:
        raise invalid(f"page_size must be in [0, {most}]: {size}")
    return min(size or most, most)


def page_token(after: str) -> str:
    """Return the token of the page that begins after this entry; opaque to callers."""
    return base64.urlsafe_b64encode(f"{_MARK}{after}".encode()).decode().rstrip("=")


def parse_page_token(fields: MessageReader) -> str:
    """Return the entry that the page begins after; "" for the first page. Raises `CloudTasksError`."""
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
