"""Bodies, queries and headers that are made to be slow. Pure: chance comes from outside."""

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from urllib.parse import quote

HEAD_BYTES = 60_000
UNITS: Mapping[str, tuple[bytes, bytes, bytes, bytes]] = {
    "deep lists": (b"", b"[", b"", b""),
    "deep objects": (b"", b'{"a":', b"", b""),
    "deep, closed": (b"[" * 150, b"1,", b"1", b"]" * 150),
    "numbers": (b"[", b"1,", b"1", b"]"),
    "objects": (b"[", b"{},", b"{}", b"]"),
    "empty lists": (b"[", b"[],", b"[]", b"]"),
    "empty texts": (b"[", b'"",', b'""', b"]"),
    "a long text": (b'"', b"[", b"", b'"'),
    "quotes in a text": (b'"', b'\\"', b"", b'"'),
    "escapes in a text": (b'"', b"\\u00e9", b"", b'"'),
    "letters": (b'"', "é€".encode(), b"", b'"'),
    "colons in a text": (b'"', b":,", b"", b'"'),
    "digits": (b"", b"9", b"", b""),
    "a fraction": (b"0.", b"1", b"", b""),
    "blanks": (b"", b" \n", b"", b"{}"),
    "no end": (b'{"a":"', b"a", b"", b""),
    "backslashes": (b'{"a":"', b"\\\\", b"", b'"}'),
    "bytes": (b"", b"\xff\xfe", b"", b""),
    "brackets": (b"", b"}]", b"", b""),
    "members": (b"{", b'"a":1,', b'"a":1', b"}"),
}
"""Values of any size: begin, what is repeated, what closes the repetition, end."""


def value(name: str, size: int) -> bytes:
    """A hostile value of about `size` bytes."""
    begin, unit, last, end = UNITS[name]
    return begin + unit * max(1, (size - len(begin) - len(last) - len(end)) // len(unit)) + last + end


def other_members(size: int) -> bytes:
    """An object of as many different members as there is room for."""
    return b"{" + b",".join(b'"%x":1' % number for number in range(size // 10)) + b"}"


def body(names: Sequence[str], size: int, chance: Random) -> tuple[str, bytes]:
    """A body for an endpoint that has members of these names."""
    kind = chance.choice([*UNITS, "other members"])
    if kind == "other members":
        return kind, other_members(size)
    whole = value(kind, size)
    if not names or chance.random() < 0.2:
        return kind, whole
    name = chance.choice(names)
    if name in ("tasks", "deletions", "renewals", "schedules", "looks") and chance.random() < 0.5:
        inner = chance.choice(["text", "payload", "headers", "then", "token", "name", "tag", "eta", "x"])
        return f"{name}.{inner}: {kind}", b'{"%b":[{"%b":%b}]}' % (name.encode(), inner.encode(), whole)
    return f"{name}: {kind}", b'{"%b":%b}' % (name.encode(), whole)


QUERIES: Mapping[str, Callable[[], str]] = {
    "fields": lambda: "a=1&" * (HEAD_BYTES // 4),
    "some fields": lambda: "tag=a&" * 999,
    "escapes": lambda: "tag=" + "%C3%A9" * (HEAD_BYTES // 6),
    "a number": lambda: "limit=" + "9" * HEAD_BYTES + "&after=" + "1" * 20,
    "plain": lambda: "q=" + "a" * HEAD_BYTES,
    "brackets": lambda: "fields=" + "a(" * (HEAD_BYTES // 2),
    "many names": lambda: "fields=" + "a," * 1_900 + "a",
    "filter": lambda: "filter=" + quote('name="a" AND ' * (HEAD_BYTES // 40)),
    "spaces": lambda: "filter=" + "%20" * (HEAD_BYTES // 3) + "x",
    "quotes": lambda: "filter=tag%3D%22" + "%5C%22" * (HEAD_BYTES // 6),
    "search": lambda: "contains=" + "a" * 150 + "&error=x&worker=y",
    "once": lambda: "once=" + "a" * HEAD_BYTES,
    "back": lambda: "back=" + "../" * (HEAD_BYTES // 3),
}
HEADERS: Mapping[str, Callable[[], Sequence[tuple[str, str]]]] = {
    "quoted cookie": lambda: [("cookie", 'towline_said="' + '\\"' * (HEAD_BYTES // 2) + '"')],
    "octal cookie": lambda: [("cookie", 'towline_session="' + "\\101" * (HEAD_BYTES // 4) + '"')],
    "cookies": lambda: [("cookie", "towline_session=1.a.b;" * (HEAD_BYTES // 22))],
    "parameters": lambda: [("content-type", "multipart/form-data; boundary=b" + "; a*=b" * (HEAD_BYTES // 6))],
    "comments": lambda: [("content-type", "multipart/form-data; boundary=b" + "(" * HEAD_BYTES)],
    "accept": lambda: [("accept", "text/html;q=0.1," * (HEAD_BYTES // 17))],
    "ranges": lambda: [("range", "bytes=" + "0-," * (HEAD_BYTES // 3))],
    "tags": lambda: [("if-none-match", '"a",' * (HEAD_BYTES // 4))],
    "headers": lambda: [("x", "y")] * (HEAD_BYTES // 5),
    "host": lambda: [("host", "a." * (HEAD_BYTES // 2))],
    "address": lambda: [("host", "[" + ":" * HEAD_BYTES + "]")],
    "origin": lambda: [("origin", "http://" + "[" * HEAD_BYTES)],
    "forwarded": lambda: [("x-forwarded-for", "1.1.1.1," * (HEAD_BYTES // 8)), ("forwarded", "for=a," * 100)],
    "token": lambda: [("authorization", "Bearer " + "a" * HEAD_BYTES)],
    "key": lambda: [("idempotency-key", "a" * HEAD_BYTES)],
    "key of digits": lambda: [("idempotency-key", "a/" + "9" * HEAD_BYTES + "/0")],
    "last event": lambda: [("last-event-id", "9" * HEAD_BYTES)],
    "upgrade": lambda: [("connection", "upgrade, " * (HEAD_BYTES // 10)), ("upgrade", "h2c")],
    "override": lambda: [("x-http-method-override", "PATCH" * (HEAD_BYTES // 5))],
    "modified": lambda: [("if-modified-since", "Mon, " * (HEAD_BYTES // 5))],
}
PATHS: Mapping[str, Callable[[], str]] = {
    "long": lambda: "a" * HEAD_BYTES,
    "slashes": lambda: "/" * 8_000,
    "escapes": lambda: "%C3%A9" * 1_300,
    "dots": lambda: "%2e%2e%2f" * 880,
    "tildes": lambda: "s~" * 4_000,
}
"""What takes the place of a name in a path."""


MANY = 10_000


def streams(path: str, token: str) -> Mapping[str, bytes]:
    """What one connection may be sent, by name; `token` is a line of each head, or nothing."""

    def made(more: str = "", *, method: str = "POST", version: str = "HTTP/1.1") -> bytes:
        return f"{method} {path} {version}\r\nhost: localhost\r\n{token}{more}\r\n".encode()

    chunked = made("content-type: application/json\r\ntransfer-encoding: chunked\r\n")
    long = made("content-length: 60000\r\n")
    return {
        "requests at once": made(method="GET") * 2 * MANY,
        "posts at once": made("content-length: 0\r\n") * 2 * MANY,
        "bodies at once": (made("content-type: application/json\r\ncontent-length: 2\r\n") + b"{}") * MANY,
        "closed at once": made("connection: close\r\n", method="GET") * MANY,
        "methods at once": b"".join(made(method=one) for one in ("PUT", "DELETE", "OPTIONS", "HEAD", "PATCH")) * 2_000,
        "HTTP/1.0 at once": made("connection: keep-alive\r\n", method="GET", version="HTTP/1.0") * MANY,
        "upgrades at once": made("connection: upgrade\r\nupgrade: h2c\r\n", method="GET") * MANY,
        "web sockets at once": made(
            "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: YQ==\r\n",
            method="GET",
        )
        * MANY,
        "expectations at once": made("expect: 100-continue\r\ncontent-length: 1\r\n") * MANY,
        "an expectation": made("expect: 100-continue\r\ncontent-length: 1000\r\n"),
        "chunks of a byte": chunked + b"1\r\na\r\n" * 40 * MANY,
        "chunks with extensions": chunked + (b"1;" + b"a=b;" * 100 + b"\r\na\r\n") * 1_000,
        "a long extension": chunked + b"1;" + b"a" * 80_000,
        "trailers": chunked + b"1\r\na\r\n0\r\n" + b"a: b\r\n" * MANY + b"\r\n",
        "a long chunk": chunked + b"ffffffffffffffff\r\n" + b"a" * MANY,
        "messages in chunks": (chunked + b"2\r\n{}\r\n0\r\n\r\n") * MANY,
        "lines": made("a: b\r\n" * MANY, method="GET"),
        "empty lines": b"\r\n" * 40 * MANY + made(method="GET"),
        "a line without an end": made(method="GET").rstrip() + b"\r\na: " + b"b" * 80_000,
        "blanks in a value": made(f"a:{' ' * 60_000}b\r\n", method="GET"),
        "two lengths": made("content-length: 1\r\ncontent-length: 2\r\n"),
        "a length of digits": made(f"content-length: {'9' * 60_000}\r\n"),
        "a body of another length": long + b"{}" * 30_000 + made(method="GET") * 1_000,
        "CONNECT": made(method="CONNECT") * MANY,
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 60_000,
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 60_000,
        "zeros": b"\0" * 60_000,
    }


def form(size: int, chance: Random) -> tuple[str, str, bytes]:
    """A form: what it is, its media type, and its body."""
    part = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n'
    csv = part.replace(b'"a"', b'"csv"').removesuffix(b"x\r\n") + b"arrival_s,service_s"
    plain, parts = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
    forms = [
        ("fields", plain, b"a=1&" * (size // 4)),
        ("escaped", plain, b"contains=" + b"%41" * (size // 3)),
        ("back", plain, b"back=" + b"..%2f" * (size // 5)),
        ("parts", parts, part * (size // len(part)) + b"--b--\r\n"),
        ("line ends", parts, part.removesuffix(b"x\r\n") + b"\r\n--" * (size // 4) + b"\r\n--b--\r\n"),
        ("returns", parts, part.removesuffix(b"x\r\n") + b"\r" * size + b"\r\n--b--\r\n"),
        ("nearly ends", parts, part.removesuffix(b"x\r\n") + b"\r\n--a" * (size // 5) + b"\r\n--b--\r\n"),
        ("headers", parts, b"--b\r\n" + b"a: b\r\n" * (size // 6)),
        ("a header", parts, b"--b\r\nContent-Disposition: " + b'form-data; name="' * (size // 17)),
        ("csv", parts, csv + b"\r\n" + b"1,1\n" * (size // 4) + b"\r\n--b--\r\n"),
        ("wide csv", parts, csv + b",a" * (size // 2) + b"\r\n--b--\r\n"),
    ]
    return chance.choice(forms)


def json_text(given: object) -> bytes:
    """A JSON body."""
    return json.dumps(given).encode()
