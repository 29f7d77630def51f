"""proto2 from tables, groups included: bytes to records and back. Pure; knows no message by name.

Whatever the bytes are, decoding costs at most time and memory in proportion to them, and ends in a record or a
`CodecError`. As Google's own parser does: unknown fields (those of another wire type too) are skipped, the last of
several values counts, several parts of a message are merged, a required field that is missing is an error.
"""

import struct
from collections.abc import Mapping, Sequence

from queue_core.server.appengine.schema import (
    END,
    FIXED32,
    FIXED64,
    GROUP,
    LENGTH,
    VARINT,
    Field,
    Kind,
    Label,
    Message,
    Record,
    Value,
)

MAX_DEPTH = 100
"""Messages and groups inside each other, as Google's parser."""
MAX_FIELDS = 200_000
"""Fields of one message, those inside it included: a few bytes on the wire would be a hundred in memory."""

_DOUBLE = struct.Struct("<d")
_MAX_LENGTH = (1 << 31) - 1


class CodecError(Exception):
    """Bytes that are no such message; the text says what is wrong, and where."""


# -- bytes to record --------------------------------------------------------------------------------------------------


def decode(message: Message, data: bytes) -> Record:
    """The record that `data` is. Raises `CodecError`."""
    record = Record()
    _Reader(data).fields(message, record, end=len(data), depth=0, group=0)
    _check_required(message, record)
    return record


def _check_required(message: Message, record: Record) -> None:
    """At the end, as the parts of a message may come apart."""
    for name in message.required:
        if name not in record:
            raise CodecError(f"{message.name}: required field {name} is missing")
    for name, inner in message.nested:
        found = record.get(name)
        if found is not None:
            for one in found if isinstance(found, list) else (found,):
                assert isinstance(one, Record)
                _check_required(inner, one)


class _Reader:
    __slots__ = ("at", "data", "fields_left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.fields_left = MAX_FIELDS

    def fields(self, message: Message, record: Record, *, end: int, depth: int, group: int) -> None:
        """Fields up to `end`, or up to the end of the group of that number."""
        data, by_tag = self.data, message.by_tag
        while self.at < end:
            tag = data[self.at]
            if tag < 0x80:
                self.at += 1
            else:
                tag = self._tag(end)
            known = by_tag.get(tag)
            if known is None:
                if tag & 7 == END:
                    if tag >> 3 != group or not group:
                        raise CodecError(f"{message.name}: end of a group that was not begun, at byte {self.at}")
                    break
                self._skip(message, tag, end, depth)
                continue
            self.fields_left -= 1
            if self.fields_left < 0:
                raise CodecError(f"{message.name}: more than {MAX_FIELDS} fields")
            self._known(message, record, known, tag & 7, end=end, depth=depth)
        else:
            if group:
                raise CodecError(f"{message.name}: a group without its end")

    def _known(self, message: Message, record: Record, known: Field, wire: int, *, end: int, depth: int) -> None:
        if wire == LENGTH:
            length = self._varint(end)
            begin, stop = self.at, self.at + length
            if length > _MAX_LENGTH or stop > end:
                raise CodecError(f"{message.name}.{known.name}: ends after its message, at byte {begin}")
            if known.kind is Kind.BYTES:
                _put(record, known, self.data[begin:stop])
                self.at = stop
            elif known.kind is Kind.STRING:
                try:
                    _put(record, known, self.data[begin:stop].decode())
                except UnicodeDecodeError as error:
                    raise CodecError(f"{message.name}.{known.name}: not UTF-8: {error.reason}") from None
                self.at = stop
            elif known.message is not None:
                self._nested(message, record, known, known.message, end=stop, depth=depth, group=0)
            else:
                self._packed(record, known, stop)
        elif wire == VARINT:
            _put(record, known, _number(known, self._varint(end)))
        elif wire == FIXED64:
            if self.at + 8 > end:
                raise CodecError(f"{message.name}.{known.name}: ends after its message, at byte {self.at}")
            _put(record, known, _DOUBLE.unpack_from(self.data, self.at)[0])
            self.at += 8
        else:
            assert known.message is not None
            self._nested(message, record, known, known.message, end=end, depth=depth, group=known.number)

    def _nested(
        self, outer: Message, record: Record, known: Field, inner: Message, *, end: int, depth: int, group: int
    ) -> None:
        if depth >= MAX_DEPTH:
            raise CodecError(f"{outer.name}: more than {MAX_DEPTH} messages inside each other")
        found = None if known.label is Label.REPEATED else record.record(known.name)
        part = Record() if found is None else found
        self.fields(inner, part, end=end, depth=depth + 1, group=group)
        if found is None:
            _put(record, known, part)

    def _packed(self, record: Record, known: Field, stop: int) -> None:
        while self.at < stop:
            self.fields_left -= 1
            if self.fields_left < 0:
                raise CodecError(f"{known.name}: more than {MAX_FIELDS} values")
            _put(record, known, _number(known, self._varint(stop)))

    def _tag(self, end: int) -> int:
        began_at = self.at
        tag = self._varint(end)
        if tag >> 32 or self.at - began_at > 5:
            raise CodecError(f"not a field's number, at byte {began_at}")
        return tag

    def _varint(self, end: int) -> int:
        data, at = self.data, self.at
        if at >= end:
            raise CodecError(f"a number is cut short, at byte {at}")
        byte = data[at]
        if byte < 0x80:
            self.at = at + 1
            return byte
        value, shift = byte & 0x7F, 7
        while True:
            at += 1
            if at >= end:
                raise CodecError(f"a number is cut short, at byte {at}")
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.at = at + 1
                return value & 0xFFFF_FFFF_FFFF_FFFF
            shift += 7
            if shift >= 70:
                raise CodecError(f"a number of more than 10 bytes, at byte {at}")

    def _skip(self, message: Message, tag: int, end: int, depth: int) -> None:
        """Pass over an unknown field; groups without recursion."""
        groups: list[int] = []
        while True:
            number, wire = tag >> 3, tag & 7
            if number == 0:
                raise CodecError(f"{message.name}: a field numbered 0, at byte {self.at}")
            if wire == GROUP:
                groups.append(number)
                if depth + len(groups) > MAX_DEPTH:
                    raise CodecError(f"{message.name}: more than {MAX_DEPTH} messages inside each other")
            elif wire == END:
                if not groups or groups.pop() != number:
                    raise CodecError(f"{message.name}: end of a group that was not begun, at byte {self.at}")
            else:
                self._pass_over(message, wire, end)
            if not groups:
                return
            if self.at >= end:
                raise CodecError(f"{message.name}: a group without its end")
            tag = self._tag(end)

    def _pass_over(self, message: Message, wire: int, end: int) -> None:
        if wire == VARINT:
            self._varint(end)
        elif wire == FIXED64:
            self.at += 8
        elif wire == FIXED32:
            self.at += 4
        elif wire == LENGTH:
            length = self._varint(end)
            self.at += length
        else:
            raise CodecError(f"{message.name}: wire type {wire} does not exist, at byte {self.at}")
        if self.at > end:
            raise CodecError(f"{message.name}: a field ends after its message")


def _put(record: Record, known: Field, value: "Value | None") -> None:
    if value is None:
        return
    if known.label is Label.REPEATED:
        values = record.setdefault(known.name, [])
        assert isinstance(values, list)
        values.append(value)
    else:
        record[known.name] = value


def _number(known: Field, raw: int) -> int | None:
    """What a varint stands for; None for a number that the enum does not know."""
    if known.kind is Kind.INT64:
        return raw - (1 << 64) if raw >> 63 else raw
    if known.kind is Kind.BOOL:
        return raw != 0
    low = raw & 0xFFFF_FFFF
    value = low - (1 << 32) if low >> 31 else low
    return value if known.kind is not Kind.ENUM or value in known.values else None


# -- record to bytes --------------------------------------------------------------------------------------------------


def encode(message: Message, record: Mapping[str, "Value | Sequence[Value]"]) -> bytes:
    """The bytes of a record, fields in the order of their numbers. Raises `CodecError` for one that is not complete."""
    parts: list[bytes] = []
    _write(message, record, parts)
    return b"".join(parts)


def _write(message: Message, record: Mapping[str, "Value | Sequence[Value]"], parts: list[bytes]) -> None:
    written = 0
    for known in message.fields:
        value = record.get(known.name)
        if value is None:
            if known.label is Label.REQUIRED:
                raise CodecError(f"{message.name}: required field {known.name} is missing")
            continue
        written += 1
        if known.label is Label.REPEATED:
            assert isinstance(value, list)
            for one in value:
                _write_field(known, one, parts)
        else:
            _write_field(known, value, parts)
    if written != len(record):
        raise CodecError(f"{message.name}: no such field: {sorted(set(record) - {one.name for one in message.fields})}")


def _write_field(known: Field, value: object, parts: list[bytes]) -> None:
    tag = known.tag
    wire = tag & 7
    parts.append(_varint(tag))
    if wire == VARINT and isinstance(value, int):
        parts.append(_varint(value & 0xFFFF_FFFF_FFFF_FFFF))
    elif wire == FIXED64 and isinstance(value, int | float):
        parts.append(_DOUBLE.pack(value))
    elif known.message is not None and isinstance(value, Mapping):
        if wire == GROUP:
            _write(known.message, value, parts)
            parts.append(_varint(known.number << 3 | END))
        else:
            data = encode(known.message, value)
            parts += (_varint(len(data)), data)
    elif wire == LENGTH and isinstance(value, bytes | str):
        data = value.encode() if isinstance(value, str) else value
        parts += (_varint(len(data)), data)
    else:
        raise CodecError(f"{known.name}: not a {known.kind.value}: {type(value).__name__}")


_SMALL = tuple(bytes((number,)) for number in range(0x80))


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _SMALL[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
