"""Decode and encode proto2 messages, groups included, by the tables of `schema`. Pure; knows no message by name.

Decoding takes time and memory at most proportional to the bytes, and ends in a record or a `CodecError`. As in Google's
own parser, unknown fields (also those of another wire type) are skipped, the last of several values counts, several
parts of a message are merged, and a missing required field is an error.
"""

import struct
from collections.abc import Mapping, Sequence

from queue_core.google.appengine.schema import (
    END,
    FIXED32,
    FIXED64,
    GROUP,
    LENGTH,
    VARINT,
    Kind,
    MessageTable,
    ProtoField,
    ProtoRecord,
    Value,
    varint,
)

MAX_DEPTH = 100
"""Deepest nesting of messages and groups, as in Google's parser."""
MAX_VALUES = 200_000
"""Values of repeated fields in one message, nested ones included: two encoded bytes take a hundred in memory."""
MAX_FIELDS = 1_000_000
"""Fields in one message, unknown and nested ones included: decoding so many takes half a second."""

EIGHT_BYTES, LAST_BITS = 0x0080_8080_8080_8080, 0x8080_8080_8080_8080
"""Continuation bits of an eight-byte varint, as instants in microseconds are: set in all bytes but the last."""

_DOUBLE = struct.Struct("<d")


class CodecError(Exception):
    """The bytes are not a valid message; the text names the error and the place."""


# -- bytes to record --------------------------------------------------------------------------------------------------


def decode(message: MessageTable, data: bytes, *, max_fields: int = MAX_FIELDS) -> ProtoRecord:
    """Decode a message. Raises `CodecError`."""
    record = ProtoRecord()
    _Reader(data, max_fields).fields(message, record, end=len(data), depth=0, group=0)
    _check_required(message, record)
    return record


def _check_required(message: MessageTable, record: ProtoRecord) -> None:
    """Raise for a missing required field; called at the end, because a message may come in several parts."""
    for name in message.required:
        if name not in record:
            raise CodecError(f"{message.name}: required field {name} is missing")
    for name, inner in message.nested:
        found = record.get(name)
        if found is not None:
            for one in found if isinstance(found, list) else (found,):
                assert isinstance(one, ProtoRecord)
                _check_required(inner, one)


class _Reader:
    """A reader of `data`. Its main loop is long for speed: it takes most of the time of a call of this API."""

    __slots__ = ("at", "data", "fields_left", "values_left")

    def __init__(self, data: bytes, max_fields: int) -> None:
        self.data = data
        self.at = 0
        self.fields_left = max_fields
        self.values_left = MAX_VALUES

    def fields(self, message: MessageTable, record: ProtoRecord, *, end: int, depth: int, group: int) -> None:
        """Decode fields up to `end`, or up to the end of group number `group`."""
        data, by_tag, at = self.data, message.by_tag, self.at
        while at < end and self.fields_left > 0:
            self.fields_left -= 1
            tag = data[at]
            at += 1
            if tag >= 0x80:
                self.at = at - 1
                tag = self._tag(end)
                at = self.at
            field = by_tag.get(tag)
            if field is None:
                self.at = at
                if group and tag == group << 3 | END:
                    return
                self._skip(message, tag, end, depth)
                at = self.at
                continue
            if field.is_bytes:
                if at < end and data[at] < 0x80:
                    stop = at + 1 + data[at]
                    at += 1
                else:
                    self.at = at
                    stop = self._length(message, field, end)
                    at = self.at
                if stop > end:
                    raise CodecError(f"{message.name}.{field.name}: ends after its message, at byte {at}")
                value: Value | None = data[at:stop]
                at = stop
            elif tag & 7 == VARINT and at < end and data[at] < 0x80 and not field.values:
                value = data[at] if field.kind is not Kind.BOOL else data[at] != 0
                at += 1
            else:
                self.at = at
                value = self._other(message, record, field, tag & 7, end=end, depth=depth)
                at = self.at
            if value is None:
                continue
            if field.is_repeated:
                self._append(record, field, value)
            else:
                record[field.name] = value
        self.at = at
        self._check_end(message, end, group)

    def _check_end(self, message: MessageTable, end: int, group: int) -> None:
        """Raise unless all fields were read and no group is open."""
        if self.at < end:
            self._count_field(message)
        if group:
            raise CodecError(f"{message.name}: a group without its end")

    def _count_field(self, message: MessageTable) -> None:
        self.fields_left -= 1
        if self.fields_left < 0:
            raise CodecError(f"{message.name}: too many fields, at byte {self.at}")

    def _other(
        self, message: MessageTable, record: ProtoRecord, field: ProtoField, wire: int, *, end: int, depth: int
    ) -> "Value | None":
        """Return the value of a field of any type but bytes; None when there is nothing left to store."""
        if wire == VARINT:
            return _number(field, self._varint(end)) if field.kind is not Kind.INT64 else self._long(end)
        if wire == FIXED64:
            if self.at + 8 > end:
                raise CodecError(f"{message.name}.{field.name}: ends after its message, at byte {self.at}")
            self.at += 8
            value: float = _DOUBLE.unpack_from(self.data, self.at - 8)[0]
            return value
        if wire == GROUP:
            return self._nested(message, record, field, end=end, depth=depth, group=field.number)
        stop = self._length(message, field, end)
        if field.kind is Kind.STRING:
            begin, self.at = self.at, stop
            try:
                return self.data[begin:stop].decode()
            except UnicodeDecodeError as error:
                raise CodecError(f"{message.name}.{field.name}: not UTF-8: {error.reason}") from None
        if field.message is not None:
            return self._nested(message, record, field, end=stop, depth=depth, group=0)
        while self.at < stop:
            self._count_field(message)
            number = _number(field, self._varint(stop))
            if number is not None:
                self._append(record, field, number)
        return None

    def _nested(
        self, outer: MessageTable, record: ProtoRecord, field: ProtoField, *, end: int, depth: int, group: int
    ) -> "Value | None":
        if depth >= MAX_DEPTH:
            raise CodecError(f"{outer.name}: more than {MAX_DEPTH} messages inside each other")
        assert field.message is not None
        found = None if field.is_repeated else record.record(field.name)
        part = ProtoRecord() if found is None else found
        self.fields(field.message, part, end=end, depth=depth + 1, group=group)
        return part

    def _append(self, record: ProtoRecord, field: ProtoField, value: Value) -> None:
        self.values_left -= 1
        if self.values_left < 0:
            raise CodecError(f"{field.name}: more than {MAX_VALUES} values")
        values = record.setdefault(field.name, [])
        assert isinstance(values, list)
        values.append(value)

    def _length(self, message: MessageTable, field: ProtoField, end: int) -> int:
        """Return the end of a length-prefixed value."""
        stop = self._varint(end) + self.at
        if stop > end:
            raise CodecError(f"{message.name}.{field.name}: ends after its message, at byte {self.at}")
        return stop

    def _tag(self, end: int) -> int:
        began_at = self.at
        if began_at + 1 < end and 0 < self.data[began_at + 1] < 0x80 <= self.data[began_at]:
            self.at += 2  # most field numbers from 16 on take two bytes
            return self.data[began_at] & 0x7F | self.data[began_at + 1] << 7
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

    def _long(self, end: int) -> int:
        """Return a signed integer, fast for the eight bytes of an instant."""
        at = self.at
        raw = int.from_bytes(self.data[at : at + 8], "little")
        if raw & LAST_BITS == EIGHT_BYTES and at + 8 <= end:
            self.at = at + 8
            return seven_bits_each(raw)
        raw = self._varint(end)
        return raw - (1 << 64) if raw >> 63 else raw

    def _skip(self, message: MessageTable, tag: int, end: int, depth: int) -> None:
        """Skip an unknown field; groups without recursion."""
        groups: list[int] = []
        while True:
            number, wire = tag >> 3, tag & 7
            self._count_field(message)
            if number == 0:
                raise CodecError(f"{message.name}: a field numbered 0, at byte {self.at}")
            if wire == GROUP:
                groups.append(number)
                if depth + len(groups) > MAX_DEPTH:
                    raise CodecError(f"{message.name}: more than {MAX_DEPTH} messages inside each other")
            elif wire == END:
                if not groups or groups.pop() != number:
                    raise CodecError(f"{message.name}: end of a group that was not started, at byte {self.at}")
            else:
                self._pass_over(message, wire, end)
            if not groups:
                return
            if self.at >= end:
                raise CodecError(f"{message.name}: a group without its end")
            tag = self._tag(end)

    def _pass_over(self, message: MessageTable, wire: int, end: int) -> None:
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


def seven_bits_each(raw: int) -> int:
    """Return the value of an eight-byte varint: seven bits of each byte, the lowest first."""
    raw = raw & 0x007F_007F_007F_007F | (raw & 0x7F00_7F00_7F00_7F00) >> 1
    raw = raw & 0x0000_3FFF_0000_3FFF | (raw & 0x3FFF_0000_3FFF_0000) >> 2
    return raw & 0x0000_0000_0FFF_FFFF | (raw & 0x0FFF_FFFF_0000_0000) >> 4


def _number(field: ProtoField, raw: int) -> int | None:
    """Return the value of a varint; None for a number that is not in the enum."""
    if field.kind is Kind.INT64:
        return raw - (1 << 64) if raw >> 63 else raw
    if field.kind is Kind.BOOL:
        return raw != 0
    low = raw & 0xFFFF_FFFF
    value = low - (1 << 32) if low >> 31 else low
    return value if field.kind is not Kind.ENUM or value in field.values else None


# -- record to bytes --------------------------------------------------------------------------------------------------


def encode(message: MessageTable, record: Mapping[str, "Value | Sequence[Value]"]) -> bytes:
    """Encode a record, fields in the order of their numbers. Raises `CodecError` for an incomplete one."""
    parts: list[bytes] = []
    _write(message, record, parts)
    return b"".join(parts)


def _write(message: MessageTable, record: Mapping[str, "Value | Sequence[Value]"], parts: list[bytes]) -> None:
    written = 0
    for field, head in message.heads:
        value = record.get(field.name)
        if value is None:
            if field.is_required:
                raise CodecError(f"{message.name}: required field {field.name} is missing")
            continue
        written += 1
        if not field.is_repeated:
            _write_value(field, head, value, parts)
        elif isinstance(value, list):
            for one in value:
                _write_value(field, head, one, parts)
        else:
            raise CodecError(f"{message.name}.{field.name}: not a list: {type(value).__name__}")
    if written != len(record):
        raise CodecError(f"{message.name}: no such field: {sorted(set(record) - {one.name for one in message.fields})}")


def _write_value(field: ProtoField, head: bytes, value: object, parts: list[bytes]) -> None:
    wire = field.wire
    if wire == LENGTH and isinstance(value, bytes):
        parts += (head, varint(len(value)), value)
    elif wire == VARINT and isinstance(value, int):
        parts += (head, varint(value & 0xFFFF_FFFF_FFFF_FFFF))
    elif wire == GROUP and isinstance(value, Mapping) and field.message is not None:
        parts.append(head)
        _write(field.message, value, parts)
        parts.append(varint(field.number << 3 | END))
    elif wire == FIXED64 and isinstance(value, int | float):
        parts += (head, _DOUBLE.pack(value))
    elif wire == LENGTH and isinstance(value, Mapping) and field.message is not None:
        data = encode(field.message, value)
        parts += (head, varint(len(data)), data)
    elif wire == LENGTH and isinstance(value, str):
        data = value.encode()
        parts += (head, varint(len(data)), data)
    else:
        raise CodecError(f"{field.name}: not a {field.kind.value}: {type(value).__name__}")
