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
    Kind,
    MessageTable,
    ProtoField,
    ProtoRecord,
    Value,
    varint,
)

MAX_DEPTH = 100
"""Messages and groups inside each other, as Google's parser."""
MAX_VALUES = 200_000
"""Values of repeated fields in one message, those inside it included: two bytes on the wire are a hundred in memory."""
MAX_FIELDS = 1_000_000
"""Fields in one message, unknown ones and those inside it included: so many take half a second."""

EIGHT_BYTES, LAST_BITS = 0x0080_8080_8080_8080, 0x8080_8080_8080_8080
"""How the number of microseconds of any present lies on the wire: in eight bytes, of which all but the last go on."""

_DOUBLE = struct.Struct("<d")


class CodecError(Exception):
    """Bytes that are no such message; the text says what is wrong, and where."""


# -- bytes to record --------------------------------------------------------------------------------------------------


def decode(message: MessageTable, data: bytes, *, max_fields: int = MAX_FIELDS) -> ProtoRecord:
    """The record that `data` is. Raises `CodecError`."""
    record = ProtoRecord()
    _Reader(data, max_fields).fields(message, record, end=len(data), depth=0, group=0)
    _check_required(message, record)
    return record


def _check_required(message: MessageTable, record: ProtoRecord) -> None:
    """At the end, as the parts of a message may come apart."""
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
    """Reads along `data`. Its one loop is long for a reason: it is most of what a call through this door costs."""

    __slots__ = ("at", "data", "fields_left", "values_left")

    def __init__(self, data: bytes, max_fields: int) -> None:
        self.data = data
        self.at = 0
        self.fields_left = max_fields
        self.values_left = MAX_VALUES

    def fields(self, message: MessageTable, record: ProtoRecord, *, end: int, depth: int, group: int) -> None:
        """Fields up to `end`, or up to the end of the group of that number."""
        data, by_tag, at = self.data, message.by_tag, self.at
        while at < end and self.fields_left > 0:
            self.fields_left -= 1
            tag = data[at]
            at += 1
            if tag >= 0x80:
                self.at = at - 1
                tag = self._tag(end)
                at = self.at
            known = by_tag.get(tag)
            if known is None:
                self.at = at
                if group and tag == group << 3 | END:
                    return
                self._skip(message, tag, end, depth)
                at = self.at
                continue
            if known.is_bytes:
                if at < end and data[at] < 0x80:
                    stop = at + 1 + data[at]
                    at += 1
                else:
                    self.at = at
                    stop = self._length(message, known, end)
                    at = self.at
                if stop > end:
                    raise CodecError(f"{message.name}.{known.name}: ends after its message, at byte {at}")
                value: Value | None = data[at:stop]
                at = stop
            elif tag & 7 == VARINT and at < end and data[at] < 0x80 and not known.values:
                value = data[at] if known.kind is not Kind.BOOL else data[at] != 0
                at += 1
            else:
                self.at = at
                value = self._other(message, record, known, tag & 7, end=end, depth=depth)
                at = self.at
            if value is None:
                continue
            if known.is_repeated:
                self._append(record, known, value)
            else:
                record[known.name] = value
        self.at = at
        self._check_end(message, end, group)

    def _check_end(self, message: MessageTable, end: int, group: int) -> None:
        """Raise unless all fields were read, and no group is left open."""
        if self.at < end:
            self._count_field(message)
        if group:
            raise CodecError(f"{message.name}: a group without its end")

    def _count_field(self, message: MessageTable) -> None:
        self.fields_left -= 1
        if self.fields_left < 0:
            raise CodecError(f"{message.name}: too many fields, at byte {self.at}")

    def _other(
        self, message: MessageTable, record: ProtoRecord, known: ProtoField, wire: int, *, end: int, depth: int
    ) -> "Value | None":
        """The value of a field that is no bytes; None when there is none to keep, or it was kept already."""
        if wire == VARINT:
            return _number(known, self._varint(end)) if known.kind is not Kind.INT64 else self._long(end)
        if wire == FIXED64:
            if self.at + 8 > end:
                raise CodecError(f"{message.name}.{known.name}: ends after its message, at byte {self.at}")
            self.at += 8
            value: float = _DOUBLE.unpack_from(self.data, self.at - 8)[0]
            return value
        if wire == GROUP:
            return self._nested(message, record, known, end=end, depth=depth, group=known.number)
        stop = self._length(message, known, end)
        if known.kind is Kind.STRING:
            begin, self.at = self.at, stop
            try:
                return self.data[begin:stop].decode()
            except UnicodeDecodeError as error:
                raise CodecError(f"{message.name}.{known.name}: not UTF-8: {error.reason}") from None
        if known.message is not None:
            return self._nested(message, record, known, end=stop, depth=depth, group=0)
        while self.at < stop:
            self._count_field(message)
            number = _number(known, self._varint(stop))
            if number is not None:
                self._append(record, known, number)
        return None

    def _nested(
        self, outer: MessageTable, record: ProtoRecord, known: ProtoField, *, end: int, depth: int, group: int
    ) -> "Value | None":
        if depth >= MAX_DEPTH:
            raise CodecError(f"{outer.name}: more than {MAX_DEPTH} messages inside each other")
        assert known.message is not None
        found = None if known.is_repeated else record.record(known.name)
        part = ProtoRecord() if found is None else found
        self.fields(known.message, part, end=end, depth=depth + 1, group=group)
        return part

    def _append(self, record: ProtoRecord, known: ProtoField, value: Value) -> None:
        self.values_left -= 1
        if self.values_left < 0:
            raise CodecError(f"{known.name}: more than {MAX_VALUES} values")
        values = record.setdefault(known.name, [])
        assert isinstance(values, list)
        values.append(value)

    def _length(self, message: MessageTable, known: ProtoField, end: int) -> int:
        """Where a value ends that says how long it is."""
        stop = self._varint(end) + self.at
        if stop > end:
            raise CodecError(f"{message.name}.{known.name}: ends after its message, at byte {self.at}")
        return stop

    def _tag(self, end: int) -> int:
        began_at = self.at
        if began_at + 1 < end and 0 < self.data[began_at + 1] < 0x80 <= self.data[began_at]:
            self.at += 2  # as most numbers from 16 on
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
        """A signed number that is an instant, most often."""
        at = self.at
        raw = int.from_bytes(self.data[at : at + 8], "little")
        if raw & LAST_BITS == EIGHT_BYTES and at + 8 <= end:
            self.at = at + 8
            return seven_bits_each(raw)
        raw = self._varint(end)
        return raw - (1 << 64) if raw >> 63 else raw

    def _skip(self, message: MessageTable, tag: int, end: int, depth: int) -> None:
        """Pass over an unknown field; groups without recursion."""
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
                    raise CodecError(f"{message.name}: end of a group that was not begun, at byte {self.at}")
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
    """The number that eight bytes stand for: seven bits of each, the lowest first."""
    raw = raw & 0x007F_007F_007F_007F | (raw & 0x7F00_7F00_7F00_7F00) >> 1
    raw = raw & 0x0000_3FFF_0000_3FFF | (raw & 0x3FFF_0000_3FFF_0000) >> 2
    return raw & 0x0000_0000_0FFF_FFFF | (raw & 0x0FFF_FFFF_0000_0000) >> 4


def _number(known: ProtoField, raw: int) -> int | None:
    """What a varint stands for; None for a number that the enum does not know."""
    if known.kind is Kind.INT64:
        return raw - (1 << 64) if raw >> 63 else raw
    if known.kind is Kind.BOOL:
        return raw != 0
    low = raw & 0xFFFF_FFFF
    value = low - (1 << 32) if low >> 31 else low
    return value if known.kind is not Kind.ENUM or value in known.values else None


# -- record to bytes --------------------------------------------------------------------------------------------------


def encode(message: MessageTable, record: Mapping[str, "Value | Sequence[Value]"]) -> bytes:
    """The bytes of a record, fields in the order of their numbers. Raises `CodecError` for one that is not complete."""
    parts: list[bytes] = []
    _write(message, record, parts)
    return b"".join(parts)


def _write(message: MessageTable, record: Mapping[str, "Value | Sequence[Value]"], parts: list[bytes]) -> None:
    written = 0
    for known, head in message.heads:
        value = record.get(known.name)
        if value is None:
            if known.is_required:
                raise CodecError(f"{message.name}: required field {known.name} is missing")
            continue
        written += 1
        if not known.is_repeated:
            _write_value(known, head, value, parts)
        elif isinstance(value, list):
            for one in value:
                _write_value(known, head, one, parts)
        else:
            raise CodecError(f"{message.name}.{known.name}: not a list: {type(value).__name__}")
    if written != len(record):
        raise CodecError(f"{message.name}: no such field: {sorted(set(record) - {one.name for one in message.fields})}")


def _write_value(known: ProtoField, head: bytes, value: object, parts: list[bytes]) -> None:
    wire = known.wire
    if wire == LENGTH and isinstance(value, bytes):
        parts += (head, varint(len(value)), value)
    elif wire == VARINT and isinstance(value, int):
        parts += (head, varint(value & 0xFFFF_FFFF_FFFF_FFFF))
    elif wire == GROUP and isinstance(value, Mapping) and known.message is not None:
        parts.append(head)
        _write(known.message, value, parts)
        parts.append(varint(known.number << 3 | END))
    elif wire == FIXED64 and isinstance(value, int | float):
        parts += (head, _DOUBLE.pack(value))
    elif wire == LENGTH and isinstance(value, Mapping) and known.message is not None:
        data = encode(known.message, value)
        parts += (head, varint(len(data)), data)
    elif wire == LENGTH and isinstance(value, str):
        data = value.encode()
        parts += (head, varint(len(data)), data)
    else:
        raise CodecError(f"{known.name}: not a {known.kind.value}: {type(value).__name__}")
