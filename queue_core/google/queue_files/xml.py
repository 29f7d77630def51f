"""Reads the bytes of a queue.xml with defusedxml: no document type, no entities. Pure: opens no file."""

from dataclasses import dataclass, field
from typing import Final
from xml.sax import SAXParseException
from xml.sax.handler import ContentHandler, feature_namespaces
from xml.sax.xmlreader import AttributesNSImpl, Locator

from defusedxml import DefusedXmlException
from defusedxml.expatreader import create_parser

from queue_core.config.messages import did_you_mean
from queue_core.config.yaml_document import MAX_TEXT_BYTES, MAX_VALUES, DocumentError, Place, line_at
from queue_core.google.queue_files.entries import Group, Items, MappingItem, Node, QueueFileEntries, Text
from queue_core.google.queue_files.rules import entries_of, problem_lines

ROOT: Final = "queue-entries"
_GROUPS: Final = frozenset({ROOT, "queue", "retry_parameters", "acl"})
_DEPTH: Final = 4
"""The depth of the deepest element, `task-retry-limit`; the root is 1."""
_SCHEMA_ATTRIBUTES: Final = frozenset({"http://www.w3.org/2001/XMLSchema-instance"})


def read_queue_xml(data: bytes, *, name: str = "queue.xml") -> QueueFileEntries:
    """Return the entries of `data`, a file called `name`, in the encoding of its BOM or XML declaration.

    Elements may be in any order and spelt with hyphens or underscores. Raises `DocumentError` with a line for the first
    syntax error, or for each other problem: `queue.xml:12:9: queue[2].rate: ...`.
    """
    if len(data) > MAX_TEXT_BYTES:
        message = f"{name}:1:1: must be at most {MAX_TEXT_BYTES} bytes: {len(data)}; is this the right file?"
        raise DocumentError((message,))
    parser = create_parser(forbid_dtd=True)
    parser.setFeature(feature_namespaces, 1)
    reading = _Reading(parser)
    parser.setContentHandler(reading)
    try:
        parser.feed(data)
        parser.close()
    except SAXParseException as error:
        line, column = error.getLineNumber() or 1, (error.getColumnNumber() or 0) + 1
        raise DocumentError((f"{name}:{line}:{column}: not a queue.xml: {error.getMessage()}",)) from None
    except DefusedXmlException:
        place = reading.place()
        message = "a document type (<!DOCTYPE ...>) is not supported, as its entities can hide content: remove it"
        raise DocumentError((line_at(name, place, message),)) from None
    except (ValueError, LookupError) as error:
        raise DocumentError((f"{name}:1:1: the encoding can't be read ({error}): save the file as UTF-8",)) from None
    if reading.root is None:  # another root element, reported already
        raise DocumentError(problem_lines(reading.problems, name=name))
    return entries_of(reading.root, problems=reading.problems, name=name, spelling="xml")


@dataclass(slots=True)
class _Open:
    """An element that is not closed yet."""

    key: str
    place: Place
    text: list[str] = field(default_factory=list)
    members: list[MappingItem] = field(default_factory=list)


class _Reading(ContentHandler):
    """Builds the tree; reports and skips misplaced elements."""

    def __init__(self, parser: Locator) -> None:
        super().__init__()
        self._parser = parser
        self.root: Node | None = None
        self.problems: list[tuple[Place, str]] = []
        self._open: list[_Open] = []
        self._skipping = 0
        self._left = MAX_VALUES

    def place(self) -> Place:
        """Return the parser's place."""
        return Place(self._parser.getLineNumber() or 1, (self._parser.getColumnNumber() or 0) + 1)

    def startElementNS(  # noqa: N802  SAX's name
        self,
        name: tuple[str | None, str],
        qname: str | None,  # noqa: ARG002
        attrs: AttributesNSImpl,
    ) -> None:
        """Handle the start of an element."""
        self._left -= 1
        if not self._left:
            raise SAXParseException(f"more than {MAX_VALUES} elements: is this the right file?", None, self._parser)
        tag = name[1]
        inner = _Open(tag if not self._open else tag.replace("-", "_"), self.place())
        if self._skipping or not self._may_begin(inner, tag):
            self._skipping += 1
            return
        for uri, attribute in attrs.getNames():
            if uri not in _SCHEMA_ATTRIBUTES:
                self.problems.append((inner.place, f"<{tag}>: unknown attribute {attribute[:60]!r}: remove it"))
        self._open.append(inner)

    def characters(self, content: str) -> None:
        """Handle text."""
        if self._open and not self._skipping:
            inner = self._open[-1]
            if inner.key in _GROUPS and content.strip():
                self.problems.append((self.place(), f"text has no place here: {content.strip()[:60]!r}"))
            inner.text.append(content)

    def endElementNS(self, name: tuple[str | None, str], qname: str | None) -> None:  # noqa: ARG002, N802
        """Handle the end of an element."""
        if self._skipping:
            self._skipping -= 1
            return
        ended = self._open.pop()
        if not self._open:
            self.root = _root_of(ended)
        else:
            self._open[-1].members.append(MappingItem(ended.key, ended.place, _value_of(ended)))

    def _may_begin(self, inner: _Open, tag: str) -> bool:
        if not self._open:
            if tag == ROOT:
                return True
            message = f"<{tag[:60]}>: the outermost element must be <{ROOT}>{did_you_mean(tag, [ROOT])}"
        elif self._open[-1].key not in _GROUPS or len(self._open) >= _DEPTH:
            message = f"<{tag[:60]}>: no element may stand here"
        else:
            return True
        self.problems.append((inner.place, message))
        return False


def _value_of(element: _Open) -> Node:
    if element.key == "acl":
        return Items(tuple(Group((member,), member.place) for member in element.members), element.place)
    if element.key in _GROUPS:
        return Group(tuple(element.members), element.place)
    return Text("".join(element.text).strip(), element.place, "plain")  # Google's reader makes unquoted YAML of it


def _root_of(element: _Open) -> Node:
    """Return the root with its queues as one list, as in a queue.yaml."""
    queues = [member.value for member in element.members if member.key == "queue"]
    others = [member for member in element.members if member.key != "queue"]
    listed = MappingItem("queue", element.place, Items(tuple(queues), element.place))
    return Group((*others, listed), element.place)
