"""A request's fields as values, whichever wire they came by: what is unset reads as protobuf's default."""

from collections.abc import Mapping

from queue_core.clock import MICROSECONDS, Instant
from queue_core.server.cloudtasks.failures import invalid

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
