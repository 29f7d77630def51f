"""What a connection for gRPC may be sent, byte by byte: floods of frames, and heads that are made to be slow. Pure."""

from collections.abc import Iterator, Mapping, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
SERVICE = "/google.cloud.tasks.v2beta2.CloudTasks"
MAX_FRAME_BYTES = 16_384
MANY = 10_000


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def field(name: bytes, value: bytes, *, kind: int = 0x00) -> bytes:
    """A header of HPACK with its name; `kind` 0x40 keeps it in the table of the connection."""
    return bytes([kind]) + _number(len(name)) + name + _number(len(value)) + value


def _number(value: int) -> bytes:
    """A number of HPACK with a prefix of 7 bits."""
    if value < 127:
        return bytes([value])
    rest, made = value - 127, bytearray([127])
    while rest >= 128:
        made.append(rest % 128 + 128)
        rest //= 128
    return bytes([*made, rest])


def head(method: str, metadata: Sequence[tuple[str, str]] = ()) -> bytes:
    """The head of a call."""
    names = [(":method", "POST"), (":scheme", "http"), (":path", f"{SERVICE}/{method}"), (":authority", "localhost")]
    whole = [*names, ("te", "trailers"), ("content-type", "application/grpc"), *metadata]
    return b"".join(field(name.encode(), value.encode()) for name, value in whole)


def openings() -> Mapping[str, bytes]:
    """What a connection may begin with: it takes up the limits of the server, or never does."""
    plain = PREFACE + frame(SETTINGS, 0, 0)
    return {"": plain + frame(SETTINGS, ACK, 0), ", limits not taken up": plain}


def _streams(count: int = MANY) -> Iterator[int]:
    return iter(range(1, 2 * count, 2))


def _cut(block: bytes) -> bytes:
    """A long head in frames."""
    parts = [block[at : at + MAX_FRAME_BYTES] for at in range(0, len(block), MAX_FRAME_BYTES)]
    kinds = [HEADERS, *[CONTINUATION] * (len(parts) - 1)]
    last = len(parts) - 1
    return b"".join(
        frame(kind, END_HEADERS if number == last else 0, 1, part)
        for number, (kind, part) in enumerate(zip(kinds, parts, strict=True))
    )


def floods(metadata: Sequence[tuple[str, str]] = ()) -> Mapping[str, bytes]:
    """Everything a connection may be sent at once, by name; `metadata` is that of each call."""
    call = head("GetQueue", metadata)
    whole = frame(HEADERS, END_HEADERS, 1, call)
    empty_message = frame(DATA, END_STREAM, 1, b"\0\0\0\0\0")
    kept = field(b"x", b"y" * 3_900, kind=0x40)
    calls = b"".join(
        frame(HEADERS, END_HEADERS, stream, call) + frame(DATA, END_STREAM, stream, b"\0\0\0\0\0")
        for stream in _streams(1_000)
    )
    return {
        "reset at once": b"".join(
            frame(HEADERS, END_HEADERS, stream, call) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
            for stream in _streams()
        ),
        "calls at once": calls,
        "calls without an end": b"".join(frame(HEADERS, END_HEADERS, stream, call) for stream in _streams()),
        "empty continuations": frame(HEADERS, 0, 1, call) + frame(CONTINUATION, 0, 1) * (10 * MANY),
        "continuations": frame(HEADERS, 0, 1, call) + frame(CONTINUATION, 0, 1, field(b"a", b"b")) * MANY,
        "long metadata": _cut(call + field(b"x", b"y" * 60_000)),
        "much metadata": _cut(call + field(b"x", b"y") * 15_000),
        "metadata from the table": _cut(call + kept + b"\xbe" * 60_000),
        "half a million fields": _cut(call + field(b"x", b"y", kind=0x40) + b"\xbe" * (5 * 10 * MANY)),
        "most fields": _cut(call + field(b"x", b"y", kind=0x40) + b"\xbe" * 230),
        "many heads of most fields": b"".join(
            frame(HEADERS, END_HEADERS, stream, call + field(b"x", b"y", kind=0x40) + b"\xbe" * 230)
            for stream in _streams(1_000)
        ),
        "many binary values": _cut(call + field(b"x-bin", b"////", kind=0x40) + b"\xbe" * 60_000),
        "most binary values": _cut(call + field(b"x-bin", b"////" * 2, kind=0x40) + b"\xbe" * 180),
        "a long binary value": _cut(call + field(b"x-bin", b"////" * 1_900)),
        "binary without padding": _cut(call + field(b"x-bin", b"/" * 7_001)),
        "binary that is none": _cut(call + field(b"x-bin", b"\xff=" * 3_500)),
        "names": _cut(call + b"".join(field(b"x%d" % number, b"") for number in range(7_000))),
        "binary metadata": _cut(call + field(b"x-bin", b"////" * 15_000)),
        "tokens": _cut(call + field(b"authorization", b"Bearer " + b"a" * 60_000)),
        "many tokens": _cut(call + field(b"authorization", b"Bearer a") * 3_000),
        "paths": _cut(head("x" * 8_000)),
        "pings": frame(PING, 0, 0, b"12345678") * (10 * MANY),
        "settings": frame(SETTINGS, 0, 0) * (10 * MANY),
        "many settings": frame(SETTINGS, 0, 0, b"\0\x04\0\0\xff\xff" * 2_700) * 20,
        "priorities": b"".join(frame(PRIORITY, 0, stream, b"\0\0\0\0\x10") for stream in _streams(10 * MANY)),
        "windows": frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x01") * (10 * MANY),
        "empty data": whole + frame(DATA, 0, 1) * (10 * MANY),
        "empty messages": whole + frame(DATA, 0, 1, b"\0\0\0\0\0" * 3_000) * 4,
        "bytes one by one": whole + b"".join(frame(DATA, 0, 1, b"\0") for _ in range(MANY)),
        "a length of 4 GiB": whole + frame(DATA, 0, 1, b"\0\xff\xff\xff\xff" + b"x" * 1_000),
        "compressed": whole + frame(DATA, END_STREAM, 1, b"\1\0\0\0\x0a" + b"x" * 10),
        "unknown frames": frame(0x4A, 0, 0, b"x" * 100) * MANY,
        "promises": frame(PUSH_PROMISE, 4, 1, b"\0\0\0\2" + call) * 1_000,
        "two answers": whole + empty_message * 2,
        "HTTP/1.1": b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * MANY,
    }


def messages(size: int) -> Mapping[str, bytes]:
    """Messages that are made to be slow to read, of about `size` bytes."""
    return {
        "empty fields": b"\x12\x00" * (size // 2),
        "unknown fields": b"\x98\x06\x01" * (size // 3),
        "numbers": b"\x10" + b"\xff" * (size - 1),
        "groups": b"\x0b" * size,
        "deep": _deep(size),
        "a text": b"\x0a" + _varint(size) + b"x" * size,
        "no text": b"\x0a" + _varint(size) + b"\xff" * size,
        "a payload": b"\x12"
        + _varint(size + 20)
        + b"\x22"
        + _varint(size + 10)
        + b"\x0a"
        + _varint(size)
        + b"x" * size,
    }


def _deep(size: int) -> bytes:
    made = b""
    while len(made) < min(size, 60_000):
        made = b"\x12" + _varint(len(made)) + made
    return made


def _varint(value: int) -> bytes:
    made = bytearray()
    while value >= 128:
        made.append(value % 128 + 128)
        value //= 128
    return bytes([*made, value])
