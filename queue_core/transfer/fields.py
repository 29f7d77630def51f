"""The fields of one JSON object, each held to its limits; what is wrong is told by the field's name."""

from collections.abc import Callable
from typing import TypeVar, cast

from queue_core.errors import InvalidRequestError

MAX_NUMBER = 10**17
"""Instants and ids are below it: a token has room for 18 digits. In microseconds it is the year 5138."""

T = TypeVar("T")

_REQUIRED = object()


class BadFieldError(Exception):
    """A field that can't be right: which, why, and what it may be. The reader adds the file and the line."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class RecordFields:
    """Takes the fields out of an object one by one; `end` complains of what is left."""

    __slots__ = ("_left",)

    def __init__(self, json: object) -> None:
        """Raises `BadFieldError` for anything but an object."""
        if not isinstance(json, dict):
            raise BadFieldError("the line", f"must be a JSON object: {_shown(json)}")
        self._left: dict[str, object] = json

    def has(self, name: str) -> bool:
        """Whether the field is there and was not taken yet."""
        return name in self._left

    def is_null(self, name: str) -> bool:
        """Take the field if it is null, and say whether it was."""
        if self._left.get(name, _REQUIRED) is not None:
            return False
        del self._left[name]
        return True

    def text(self, name: str, default: object = _REQUIRED, *, most: int) -> str:
        """A string of at most so many characters."""
        value = self._take(name, default)
        if type(value) is not str:
            raise BadFieldError(name, f"must be a string: {_shown(value)}")
        if len(value) > most:
            raise BadFieldError(name, f"must have at most {most} characters: {len(value)}; shorten it")
        return value

    def number(self, name: str, default: object = _REQUIRED, *, least: int = 0, most: int = MAX_NUMBER) -> int:
        """A whole number within bounds."""
        value = self._take(name, default)
        if type(value) is not int:
            raise BadFieldError(name, f"must be a whole number: {_shown(value)}")
        if not least <= value <= most:
            raise BadFieldError(name, f"must be in [{least}, {most}]: {value}")
        return value

    def seconds(self, name: str) -> float:
        """A duration that is not negative."""
        value = self._take(name, _REQUIRED)
        if type(value) not in (int, float) or not 0 <= cast("float", value) <= MAX_NUMBER:
            raise BadFieldError(name, f"must be seconds, 0 or more: {_shown(value)}")
        return float(cast("float", value))

    def flag(self, name: str, default: object = _REQUIRED) -> bool:
        """True or false."""
        value = self._take(name, default)
        if type(value) is not bool:
            raise BadFieldError(name, f"must be true or false: {_shown(value)}")
        return value

    def many(self, name: str, default: object = _REQUIRED) -> list[object]:
        """A list."""
        value = self._take(name, default)
        if not isinstance(value, list):
            raise BadFieldError(name, f"must be a list: {_shown(value)}")
        return value

    def end(self) -> None:
        """Raise `BadFieldError` for a field that nobody asked for."""
        for name in self._left:
            raise BadFieldError(name, "is not a field of this kind of line; leave it out, or upgrade towline")

    def _take(self, name: str, default: object) -> object:
        value = self._left.pop(name, default)
        if value is _REQUIRED:
            raise BadFieldError(name, "is missing")
        return value


def checked(field: str, check: Callable[[T], object], value: T) -> T:
    """The value, once a check of `limits` let it pass; its error is told of the field."""
    try:
        check(value)
    except InvalidRequestError as error:
        raise BadFieldError(field, str(error)) from None
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
