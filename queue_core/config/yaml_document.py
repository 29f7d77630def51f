"""Parses YAML 1.2 text to plain values with their lines and columns, and reports all errors at once.

Reads no file and knows no setting.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import yaml

MAX_TEXT_BYTES: Final = 256 << 10
MAX_VALUES: Final = 20_000
"""Limit on the values of one document; an alias counts as all the values it expands to."""
MAX_DEPTH: Final = 40
MAX_DIGITS: Final = 300
"""Limit on the digits of a number: a longer one exceeds a float, or is too long to show in an error."""

Path = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""

_TOO_MANY: Final = f"keys and values are more than {MAX_VALUES} here: is this the right file?"
_TAG: Final = "tag:yaml.org,2002:"
_PLAIN_TAGS: Final = frozenset({f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "str")})
_NUMBERS: Final = frozenset({f"{_TAG}int", f"{_TAG}float"})
# YAML 1.2.2, section 10.3.2 (core schema): 12:30, yes and 010 differ from YAML 1.1.
_CORE_SCALARS: Final = (
    ("null", re.compile(r"~|null|Null|NULL|"), "~nN"),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    ("int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), "-+0123456789"),
    (
        "float",
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
        ),
        "-+0123456789.",
    ),
)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line and a column of a text, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, order=True)
class Flaw:
    """A syntactic error of a text, and its place."""

    place: Place
    message: str


_LONG_WORD: Final = re.compile(r"(\S{160})\S{80,}")
"""A value that nobody meant to be so long: its begin tells which it is."""


class DocumentError(Exception):
    """A document has errors: one of `lines` for each, beginning with its place."""

    def __init__(self, lines: tuple[str, ...]) -> None:
        self.lines = tuple(_LONG_WORD.sub(r"\1...", line) for line in lines)
        super().__init__("\n".join(self.lines))


@dataclass(frozen=True, slots=True)
class Document:
    """The values of a text called `name`; `places` has the place of each key or list item.

    `repeats`: duplicate keys, if they are to be reported with other problems; `data` has the first of each.
    """

    name: str
    data: object = None
    places: Mapping[Path, Place] = field(default_factory=dict)
    repeats: Sequence[Flaw] = ()

    def place(self, path: Path) -> Place:
        """Return the place of `path`, or of the nearest parent that is written in the text."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return Place(1, 1)

    def line_about(self, path: Path, message: str) -> str:
        """Return a line such as `towline.yaml:12:9: pools.resize.slo: ...`."""
        return self.line_at(self.place(path), f"{shown_path(path)}: {message}" if path else message)

    def line_at(self, place: Place, message: str) -> str:
        """Return a message after its place."""
        return line_at(self.name, place, message)


def line_at(name: str, place: Place, message: str) -> str:
    """Return a line such as `towline.yaml:12:9: ...`."""
    return f"{name}:{place.line}:{place.column}: {message}"


def shown_path(path: Path) -> str:
    """Return a path as text: `("server", "tokens", 0)` is `server.tokens[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


def read_document(text: str, *, name: str, repeats: Literal["refused", "kept"] = "refused") -> Document:
    """Return the values of `text`; `None` for an empty text.

    Args:
        repeats: refuse duplicate keys, or keep them in `Document.repeats` to report them with other problems.

    Raises `DocumentError` for broken syntax (the first place), and for duplicate keys, tags of other types, aliases
    that expand too far and the like (all of them).
    """
    root = read_tree(text, name=name, anchors="allowed")
    reading = _Reading()
    data = reading.value(root, ()) if root is not None else None
    if reading.flaws or (reading.repeats and repeats == "refused"):
        message = sorted({*reading.flaws, *reading.repeats})
        raise DocumentError(tuple(line_at(name, flaw.place, flaw.message) for flaw in message))
    return Document(name, data, reading.places, tuple(dict.fromkeys(reading.repeats)))


def read_tree(text: str, *, name: str, anchors: Literal["allowed", "refused"] = "refused") -> yaml.Node | None:
    """Return the nodes of `text`, which show how each value was written; `None` for an empty text.

    Nested at most 40 deep. With anchors refused there are at most `MAX_VALUES` nodes. With anchors allowed an alias is
    its anchor's node, and the caller must bound its walk. Raises `DocumentError` for broken syntax.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_TEXT_BYTES:
        raise DocumentError((f"{name}:1:1: must be at most {MAX_TEXT_BYTES} bytes: {size}; is this the right file?",))
    try:
        composer = _Composer(text)
        composer.aliasing = anchors
        return composer.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise DocumentError((_syntax_line(name, error),)) from None
    except yaml.reader.ReaderError as error:
        place = _place_of_offset(text, error.position)
        found = f"a control character (U+{ord(text[error.position]):04X}) is not allowed"
        raise DocumentError((line_at(name, place, found),)) from None


class _Composer(yaml.SafeLoader):
    """PyYAML's composer with YAML 1.2's implicit types and a limit on nesting."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  PyYAML's own name
    depth = 0
    left = MAX_VALUES
    aliasing: Literal["allowed", "refused"] = "refused"

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.left -= 1
        if self.aliasing == "refused" and (event.anchor or not self.left):
            message = "anchors and aliases are not supported here: write it out" if event.anchor else _TOO_MANY
            raise yaml.composer.ComposerError(None, None, message, event.start_mark)
        if self.depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


for _kind, _pattern, _first in _CORE_SCALARS:
    _whole = re.compile(f"(?:{_pattern.pattern})$")
    _Composer.add_implicit_resolver(f"{_TAG}{_kind}", _whole, [*_first, *([""] if _kind == "null" else [])])


class _Reading:
    """One walk over a tree of nodes."""

    def __init__(self) -> None:
        self.places: dict[Path, Place] = {}
        self.flaws: list[Flaw] = []
        self.repeats: list[Flaw] = []
        self._left = MAX_VALUES

    def value(self, node: yaml.Node, path: Path) -> object:
        if self._left == 0:
            return None
        self._left = 0 if len(path) > MAX_DEPTH else self._left - 1
        if self._left == 0:  # reported once; the rest is not read
            self._report(node, path[:4], f"aliases expand to more than {MAX_VALUES} values: use fewer, or none")
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in {f"{_TAG}map", f"{_TAG}seq"}:
            self._not_allowed(node, path)
            return None
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._mapping(node, path) if isinstance(node, yaml.MappingNode) else None

    def _item(self, node: yaml.Node, path: Path) -> object:
        self.places[path] = place_of(node)
        return self.value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, value in self._keys(node, path):
            inner = (*path, key.value)
            if key.value in values:
                first = self.places[inner]
                message = f"is given twice; first in line {first.line}: keep one of them"
                self.repeats.append(_flaw(key, inner, message))
                continue
            self.places[inner] = place_of(key)
            values[key.value] = self.value(value, inner)
        return values

    def _keys(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._report(key, path, "a key must be text, not a list or a mapping")
            elif key.value == "<<" and key.style is None:
                self._report(key, path, "merge keys (<<) are not part of YAML 1.2: write the settings out")
            else:
                yield key, value

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        if node.tag not in _PLAIN_TAGS:
            self._not_allowed(node, path)
            return None
        if len(node.value) > MAX_DIGITS and node.tag in _NUMBERS:
            shown = f"{node.value[:20]}..."
            self._report(node, path, f"{shown!r} has {len(node.value)} digits: a number may have {MAX_DIGITS}")
            return None
        try:
            return _SCALARS[node.tag.removeprefix(_TAG)](node.value)
        except (ValueError, KeyError):
            self._report(node, path, f"{node.value[:60]!r} is not a valid {_shown_tag(node)}")
            return None

    def _not_allowed(self, node: yaml.Node, path: Path) -> None:
        self._report(node, path, f"a value of type {_shown_tag(node)} is not allowed: use text, lists and mappings")

    def _report(self, node: yaml.Node, path: Path, message: str) -> None:
        self.flaws.append(_flaw(node, path, message))


def _flaw(node: yaml.Node, path: Path, message: str) -> Flaw:
    return Flaw(place_of(node), f"{shown_path(path)}: {message}" if path else message)


def _int(text: str) -> int:
    if text.startswith(("0o", "0x")):
        return int(text, 0)
    return int(text) if len(text) <= 40 else int(float(text))


def _float(text: str) -> float:
    return float(text.replace(".", "") if text.lower().endswith(("inf", "nan")) else text)


_SCALARS: Final[Mapping[str, Callable[[str], object]]] = {
    "null": lambda _text: None,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": _int,
    "float": _float,
    "str": str,
}


def place_of(node: yaml.Node) -> Place:
    """Return the place where a node begins."""
    return Place(node.start_mark.line + 1, node.start_mark.column + 1)


def _place_of_offset(text: str, offset: int) -> Place:
    before = text[:offset]
    return Place(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def _shown_tag(node: yaml.Node) -> str:
    return str(node.tag).replace(_TAG, "!!")


def _syntax_line(name: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
    problem = error.problem or "not YAML"
    hint = ""
    if "'\\t'" in problem:
        problem, hint = "a tab is not allowed here", "; indent with spaces"
    elif "single document" in (error.context or ""):
        problem, hint = "a second document begins here", "; put one document in a file, without another ---"
    elif "mapping values are not allowed" in problem:
        problem, hint = "a second ': ' in one line", "; put the value in quotes, or indent the line like its neighbours"
    elif "expected <block end>" in problem:
        problem, hint = "is not indented like the lines above it", "; align it with them"
    elif error.context and error.context_mark and error.context_mark.line != (mark.line if mark else -1):
        hint = f" ({error.context} in line {error.context_mark.line + 1})"
    return f"{name}:{place}: {problem}{hint}"
