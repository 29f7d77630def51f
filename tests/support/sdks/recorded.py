"""Recorded calls of an SDK in a text file: read by Google's classes, compared, sent again."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import Message

from queue_core.clock import Instant
from tests.support.commands import ROOT
from tests.support.google.appengine_sdk import remote_pb2, service_pb2
from tests.support.sdks.relay import Exchange

Told: TypeAlias = "Mapping[str, Told] | Sequence[Told] | str | bytes | int | float | bool"

JAVA = ROOT / "tests" / "support" / "sdks" / "java" / "recorded.txt"
PRESENT_AFTER = Instant(1_500_000_000_000_000)
"""Etas after this are relative to the recording's time; earlier ones were chosen."""
_ETAS = frozenset({"eta_usec", "updated_eta_usec", "oldest_eta_usec"})
_CHOSEN = re.compile(rb"_[0-9]+")


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The bodies of one request to `/rpc_http` and of its reply."""

    request: bytes
    answer: bytes

    @property
    def method(self) -> str:
        return str(_remote(self.request).method)

    @property
    def service_request(self) -> Message:
        """The service's own request."""
        return _parsed(f"TaskQueue{self.method}Request", _remote(self.request).request)

    @property
    def service_response(self) -> Message:
        """The service's own response; the API host's when it is an error."""
        answer = remote_pb2.Response()
        answer.ParseFromString(self.answer)
        if answer.HasField("response"):
            return _parsed(f"TaskQueue{self.method}Response", answer.response)
        return answer


def _remote(request: bytes) -> remote_pb2.Request:
    message = remote_pb2.Request()
    message.ParseFromString(request)
    return message


def _parsed(name: str, data: bytes) -> Message:
    message: Message = getattr(service_pb2, name)()
    message.ParseFromString(data)
    assert message.IsInitialized()
    return message


# -- the file ---------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[RecordedCall]:
    """Return the calls in a file: `>` marks a request in hexadecimal, `<` its reply, `#` their fields."""
    requests, answers = (
        [bytes.fromhex(line[2:]) for line in path.read_text().splitlines() if line.startswith(mark)] for mark in "><"
    )
    return [RecordedCall(request, answer) for request, answer in zip(requests, answers, strict=True)]


def written(exchanges: Sequence[Exchange], *, title: str) -> str:
    """Return the file of these exchanges, with every field in comments."""
    lines = [f"# {title}"]
    for exchange in exchanges:
        call = RecordedCall(exchange.request, exchange.answer)
        outer = _remote(call.request)
        outer.ClearField("request")
        lines.append("")
        for message, mark in ((outer, ">"), (call.service_request, ">"), (call.service_response, "<")):
            lines += [f"# {mark} {line}" for line in str(message).splitlines()]
        lines += [f"> {call.request.hex()}", f"< {call.answer.hex()}"]
    return "\n".join([*lines, ""])


# -- what is the same in every run ------------------------------------------------------------------------------------


def fields_of(message: Message) -> Told:
    """Return a message's fields without those that differ between runs and without error texts."""
    return {field.name: _field_lines(field.name, value) for field, value in message.ListFields()}


def _field_lines(name: str, value: object) -> Told:
    if isinstance(value, Message):
        return fields_of(value)
    if isinstance(value, bytes):
        return "a chosen name" if name.endswith("task_name") and _CHOSEN.fullmatch(value) else value
    if name == "detail":
        return "words"
    if name in _ETAS and isinstance(value, int) and value >= PRESENT_AFTER:
        return "an instant"
    if isinstance(value, (str, int, float)):
        return value
    assert isinstance(value, Sequence) or hasattr(value, "__iter__")
    return [_field_lines(name, item) for item in value]


# -- sent again -------------------------------------------------------------------------------------------------------


def etas(message: Message) -> list[int]:
    """Return every eta of the recording's own time, in the order of the fields."""
    found: list[int] = []
    for field, value in message.ListFields():
        if field.name in _ETAS:
            found += [value] if value >= PRESENT_AFTER else []
        elif isinstance(value, Message):
            found += etas(value)
        elif not isinstance(value, (str, bytes, int, float)):
            found += [eta for item in value if isinstance(item, Message) for eta in etas(item)]
    return found


def with_etas(request: bytes, instead: Mapping[int, int]) -> bytes:
    """Replace these etas in the bytes by others of the same encoded length."""
    for recorded, current in instead.items():
        old, new = _varint(recorded), _varint(current)
        assert len(old) == len(new)
        request = request.replace(old, new)
    return request


def _varint(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)
