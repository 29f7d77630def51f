"""Readers of a console's streams, byte by byte over a bare socket, and logins without a browser."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlencode

OWN_FORM: Final = ("sec-fetch-site", "same-origin")


@dataclass(frozen=True, slots=True)
class StreamedEvent:
    """One server-sent event; `name` is `page`, `over`, or "" for a comment and for `retry`."""

    name: str
    id: str
    data: str


class StreamReader:
    """A viewer that follows a page. The reply is in chunks; `is_whole` tells whether it ended as it should."""

    def __init__(self, connection: socket.socket, path: str, headers: Mapping[str, str]) -> None:
        self._connection = connection
        self._raw = b""
        self._text = b""
        self.is_whole = False
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if "host" not in headers:
            lines.insert(1, "host: localhost")
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        while b"\r\n\r\n" not in self._raw:
            self._receive()
        head, _, self._raw = self._raw.partition(b"\r\n\r\n")
        self.head = head.decode()
        self.status = int(self.head.split(" ")[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        with suppress(OSError):
            self._connection.close()

    def next(self, name: str) -> StreamedEvent:
        """Return the next event of a name. Raises `EOFError` when the stream ends before."""
        while True:
            while b"\n\n" not in self._text:
                self._more()
            block, _, self._text = self._text.partition(b"\n\n")
            event = _event(block.decode())
            if event.name == name:
                return event

    def rest(self) -> None:
        """Read until the stream ends."""
        with suppress(EOFError):
            while True:
                self._more()

    def _more(self) -> None:
        while True:
            size, found, rest = self._raw.partition(b"\r\n")
            if found and len(rest) >= (length := int(size, 16)) + 2:
                self._text += rest[:length]
                self._raw = rest[length + 2 :]
                self.is_whole = length == 0
                if self.is_whole:
                    raise EOFError
                return
            self._receive()

    def _receive(self) -> None:
        data = self._connection.recv(1 << 16)
        if not data:
            raise EOFError
        self._raw += data


def _event(block: str) -> StreamedEvent:
    fields: dict[str, list[str]] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(": ")
        fields.setdefault(name, []).append(value)
    name, number = (fields.get(key, [""])[0] for key in ("event", "id"))
    return StreamedEvent(name, number, "\n".join(fields.get("data", [])))


def follow(port: int, page: str, *, seen: str = "", cookie: str = "") -> StreamReader:
    """Follow a page of the console at this port."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    given = {"cookie": cookie, "last-event-id": seen}
    return StreamReader(connection, f"/console/live/{page}", {name: value for name, value in given.items() if value})


def form(fields: Mapping[str, str]) -> bytes:
    """Return the body of a form."""
    return urlencode(fields).encode()
