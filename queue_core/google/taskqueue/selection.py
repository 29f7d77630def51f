"""Partial responses: keep the fields that a parameter such as `fields=kind,items(id,tag)` selects. Pure.

Source: Google's JSON APIs. `a,b` selects several fields, `a/b` and `a(b,c)` nested ones, `*` all fields of a level.
"""

import re
from collections.abc import Mapping
from typing import TypeAlias

from queue_core.google.taskqueue.responses import TaskqueueError, invalid

Selection: TypeAlias = Mapping[str, "Selection"]
"""Selected fields by name, each with the selection below it. An empty selection selects everything."""
Shape: TypeAlias = Mapping[str, "Shape"]
"""Fields that may be selected, by name, each with the shape below it."""

EVERYTHING: Selection = {}
MAX_CHARACTERS = 2000
"""Longest `fields` parameter."""
_WORDS = re.compile(r"[A-Za-z0-9_]+|[*,/()]|.", re.DOTALL)


def parse_selection(text: str | None, shape: Shape) -> Selection:
    """Parse a `fields` parameter; without one, select everything. Raises `TaskqueueError`."""
    if not text:
        return EVERYTHING
    if len(text) > MAX_CHARACTERS:
        raise invalid(f"fields must be at most {MAX_CHARACTERS} characters: {len(text)}", location="fields")
    reader = _Reader(text)
    selection = reader.paths(shape)
    if reader.word:
        raise reader.error()
    return selection


def select(value: object, selection: Selection) -> object:
    """Return the selected fields of a JSON value; of a list, those of each item."""
    if not selection:
        return value
    if isinstance(value, dict):
        return {name: select(below, selection[name]) for name, below in value.items() if name in selection}
    if isinstance(value, list):
        return [select(item, selection) for item in value]
    return value


class _Reader:
    """A parser of selections that goes at most as deep as the shape."""

    def __init__(self, text: str) -> None:
        self._words = iter(_WORDS.findall(text))
        self.word = next(self._words, "")

    def paths(self, shape: Shape) -> Selection:
        """Parse `path,path,...`."""
        found = self._path(shape)
        while self.word == ",":
            self._next()
            found = _both(found, self._path(shape))
        return found

    def error(self) -> TaskqueueError:
        """Return the error for an unexpected word."""
        return invalid(f"Invalid field selection {self.word[:60]}".rstrip(), location="fields")

    def _path(self, shape: Shape) -> Selection:
        if self.word == "*" and shape:
            self._next()
            return EVERYTHING
        if self.word not in shape:
            raise self.error()
        name = self.word
        self._next()
        if self.word == "/":
            self._next()
            return {name: self._path(shape[name])}
        if self.word == "(":
            self._next()
            below = self.paths(shape[name])
            if self.word != ")":
                raise self.error()
            self._next()
            return {name: below}
        return {name: EVERYTHING}

    def _next(self) -> None:
        self.word = next(self._words, "")


def _both(one: Selection, other: Selection) -> Selection:
    if not one or not other:
        return EVERYTHING
    joined = dict(one)
    for name, below in other.items():
        joined[name] = _both(joined[name], below) if name in joined else below
    return joined
