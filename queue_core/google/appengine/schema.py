"""Tables that describe proto2 messages, and records that hold their values. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

VARINT, FIXED64, LENGTH, GROUP, END, FIXED32 = range(6)
"""Wire types."""

Value: TypeAlias = "int | float | bool | bytes | str | ProtoRecord"


class Kind(Enum):
    """The type of a field, as in a `.proto` file."""

    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    ENUM = "enum"
    DOUBLE = "double"
    BYTES = "bytes"
    STRING = "string"
    MESSAGE = "message"
    GROUP = "group"


_WIRE = {
    Kind.INT32: VARINT,
    Kind.INT64: VARINT,
    Kind.BOOL: VARINT,
    Kind.ENUM: VARINT,
    Kind.DOUBLE: FIXED64,
    Kind.BYTES: LENGTH,
    Kind.STRING: LENGTH,
    Kind.MESSAGE: LENGTH,
    Kind.GROUP: GROUP,
}


class Label(Enum):
    """The label of a field, as in a `.proto` file."""

    OPTIONAL = "optional"
    REQUIRED = "required"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class ProtoField:
    """A field of a message's table.

    Args:
        values: the numbers of an enum; another number is skipped like an unknown field.
        message: the table of a message or a group.
        wire: the wire type; together with the number it is the tag before each value.
    """

    number: int
    name: str
    kind: Kind
    label: Label = Label.OPTIONAL
    values: frozenset[int] = frozenset()
    message: "MessageTable | None" = None
    wire: int = field(init=False, repr=False, compare=False)
    is_bytes: bool = field(init=False, repr=False, compare=False)
    is_repeated: bool = field(init=False, repr=False, compare=False)
    is_required: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wire", _WIRE[self.kind])
        object.__setattr__(self, "is_bytes", self.kind is Kind.BYTES)
        object.__setattr__(self, "is_repeated", self.label is Label.REPEATED)
        object.__setattr__(self, "is_required", self.label is Label.REQUIRED)

    @property
    def tag(self) -> int:
        """The wire tag before each value."""
        return self.number << 3 | self.wire

    @property
    def is_packable(self) -> bool:
        """Return whether its values may be packed."""
        return self.is_repeated and self.wire == VARINT


@dataclass(frozen=True, slots=True)
class MessageTable:
    """The table of a message: fields by wire tag, and in the order of their numbers."""

    name: str
    fields: tuple[ProtoField, ...]
    by_tag: Mapping[int, ProtoField] = field(init=False, repr=False, compare=False)
    required: tuple[str, ...] = field(init=False, repr=False, compare=False)
    nested: "tuple[tuple[str, MessageTable], ...]" = field(init=False, repr=False, compare=False)
    heads: tuple[tuple[ProtoField, bytes], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_tag = {one.tag: one for one in self.fields}
        by_tag |= {one.number << 3 | LENGTH: one for one in self.fields if one.is_packable}
        in_order = sorted(self.fields, key=lambda one: one.number)
        object.__setattr__(self, "by_tag", by_tag)
        object.__setattr__(self, "required", tuple(one.name for one in in_order if one.is_required))
        nested = tuple((one.name, one.message) for one in in_order if one.message is not None)
        object.__setattr__(self, "nested", nested)
        object.__setattr__(self, "heads", tuple((one, varint(one.tag)) for one in in_order))


class ProtoRecord(dict[str, "Value | list[Value]"]):
    """A message: its present fields by name."""

    __slots__ = ()

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer or a boolean."""
        value = self.get(name, default)
        assert isinstance(value, int)
        return value

    def real(self, name: str, default: float = 0.0) -> float:
        """Return a double."""
        value = self.get(name, default)
        assert isinstance(value, float)
        return value

    def octets(self, name: str, default: bytes = b"") -> bytes:
        """Return bytes."""
        value = self.get(name, default)
        assert isinstance(value, bytes)
        return value

    def text(self, name: str, default: str = "") -> str:
        """Return a string."""
        value = self.get(name, default)
        assert isinstance(value, str)
        return value

    def record(self, name: str) -> "ProtoRecord | None":
        """Return a message or group, or None."""
        value = self.get(name)
        assert value is None or isinstance(value, ProtoRecord)
        return value

    def all_octets(self, name: str) -> list[bytes]:
        """Return the values of a repeated field of bytes."""
        values = self.get(name, [])
        assert isinstance(values, list)
        return [value for value in values if isinstance(value, bytes)]

    def all_records(self, name: str) -> "list[ProtoRecord]":
        """Return the messages of a repeated field."""
        values = self.get(name, [])
        assert isinstance(values, list)
        return [value for value in values if isinstance(value, ProtoRecord)]


_SMALL = tuple(bytes((number,)) for number in range(0x80))


def varint(value: int) -> bytes:
    """Encode a number in [0, 2^64) as a varint."""
    if value < 0x80:
        return _SMALL[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
