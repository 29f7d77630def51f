"""Partial responses: what `fields=kind,items(id,tag)` leaves of an answer. Pure.

Source: Google's JSON APIs. `a,b` takes several, `a/b` and `a(b,c)` go down, `*` is all there is at that place.
"""

import re
from collections.abc import Mapping
from typing import TypeAlias

from queue_core.server.taskqueue.answer import TaskqueueError, invalid

Selection: TypeAlias = Mapping[str, "Selection"]
"""What is wanted at a place, by name. An empty one wants all of it."""
Shape: TypeAlias = Mapping[str, "Shape"]
"""What may be asked for at a place, by name."""

EVERYTHING: Selection = {}
MAX_CHARACTERS = 2000
_WORDS = re.compile(r"[A-Za-z0-9_]+|[*,/()]|.", re.DOTALL)


def parse_selection(text: str | None, shape: Shape) -> Selection:
    """The selection that a `fields` parameter means; without one, everything. Raises `TaskqueueError`."""
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
    """What is left of a JSON value; a list is selected from item by item."""
    if not selection:
        return value
    if isinstance(value, dict):
        return {name: select(below, selection[name]) for name, below in value.items() if name in selection}
    if isinstance(value, list):
        return [select(item, selection) for item in value]
    return value


class _Reader:
    """Reads the words of a selection from left to right; it goes as deep as the shape does, and no deeper."""

    def __init__(self, text: str) -> None:
        self._words = iter(_WORDS.findall(text))
        self.word = next(self._words, "")

    def paths(self, shape: Shape) -> Selection:
        """`path,path,...`"""
        found = self._path(shape)
        while self.word == ",":
            self._next()
            found = _both(found, self._path(shape))
        return found

    def error(self) -> TaskqueueError:
        """The word that is at hand can't stand there."""
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
