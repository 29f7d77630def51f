"""Protobuf messages to a message's values and back, field by field as their descriptors say."""

from collections.abc import Mapping

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from queue_core.clock import MICROSECONDS
from queue_core.server.cloudtasks.fields import Values
from queue_core.server.cloudtasks.messages import MESSAGES, Field

NANOSECONDS = 1000


def values_of(name: str, message: Message) -> Values:
    """A protobuf message as the values of the message `name`; fields that nobody here knows are passed over."""
    fields = MESSAGES[name]
    return {
        descriptor.json_name: _value(fields[descriptor.json_name], value)
        for descriptor, value in message.ListFields()
        if descriptor.json_name in fields
    }


def fill(message: Message, name: str, values: Mapping[str, object]) -> None:
    """Set the fields of an empty protobuf message; those it does not have are left out."""
    fields = MESSAGES[name]
    known = {descriptor.json_name: descriptor for descriptor in message.DESCRIPTOR.fields}
    for json_name, value in values.items():
        if json_name in known:
            _set(message, known[json_name], fields[json_name], value)


def _value(field: Field, value: object) -> object:
    if not field.is_repeated:
        return _one(field, value)
    return tuple(_one(field, one) for one in value)  # type: ignore[attr-defined]


def _one(field: Field, value: object) -> object:
    match field.kind:
        case "message":
            return values_of(field.of, value)
        case "opaque":
            return {}
        case "timestamp" | "duration":
            # Nanoseconds have the sign of the seconds, or of a timestamp none: what is beyond a microsecond is cut.
            return value.seconds * MICROSECONDS + int(value.nanos / NANOSECONDS)  # type: ignore[attr-defined]
        case "mask":
            return tuple(value.paths)  # type: ignore[attr-defined]
    return value


def _set(message: Message, descriptor: FieldDescriptor, field: Field, value: object) -> None:
    target = getattr(message, descriptor.name)
    if field.is_repeated:
        assert isinstance(value, list | tuple)
        for one in value:
            if isinstance(one, dict):
                fill(target.add(), field.of, one)
            else:
                target.append(one)
    elif isinstance(value, dict):
        target.SetInParent()
        fill(target, field.of, value)
    elif field.kind in ("timestamp", "duration"):
        assert isinstance(value, int)
        target.seconds, fraction = divmod(value, MICROSECONDS)
        target.nanos = fraction * NANOSECONDS
    else:
        setattr(message, descriptor.name, value)
