"""The fields of a form that a page has sent: as a query, or in parts where a page takes a file.

A login comes from strangers. All that is read of one is a short `Content-Type` and a query.
"""

import asyncio
import re
from typing import Final
from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser
from starlette.requests import Request

MAX_FORM_BYTES: Final = 65_536
MAX_FIELDS: Final = 2_000
MAX_PARTS: Final = 100
MAX_MEDIA_TYPE_BYTES: Final = 256
"""Bytes of a `Content-Type`; a browser's has about 70."""
MAX_HEADERS_OF_PART_BYTES: Final = 1_024
READ_BYTES: Final = 65_536
"""Bytes that the parser of parts gets at a time, so that other threads run in between."""
_BOUNDARY: Final = re.compile(r"multipart/form-data *; *boundary=\"?([0-9a-z'()+_,./:=? -]{1,70}?)\"?", re.IGNORECASE)
_NAME: Final = re.compile(
    rb'content-disposition *form-data *;(?: *filename="[^"]*" *;)? *name="([^"]{1,100})"', re.IGNORECASE
)


class FormError(Exception):
    """A form can't be read. `status`: that of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_form(request: Request, *, parts_bytes: int = 0) -> dict[str, str]:
    """Return the fields, each once. Raises `FormError`.

    `parts_bytes`: size of a form in parts; 0: none is taken.
    """
    media_type = request.headers.get("content-type", "")
    if len(media_type) > MAX_MEDIA_TYPE_BYTES:
        raise FormError(400, f"the Content-Type of a form has at most {MAX_MEDIA_TYPE_BYTES} bytes")
    if not media_type.lower().startswith("multipart/"):
        return query_fields(await _body(request, MAX_FORM_BYTES))
    found = _BOUNDARY.fullmatch(media_type.strip())
    if not parts_bytes or found is None:
        raise FormError(415, "this page takes a form as application/x-www-form-urlencoded")
    data = await _body(request, parts_bytes)
    return await asyncio.to_thread(parts_fields, found[1], data)


async def _body(request: Request, limit_bytes: int) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > limit_bytes:
            raise FormError(413, f"the form has more than {limit_bytes:,} B, which is all that this page takes")
    return bytes(data)


def query_fields(data: bytes) -> dict[str, str]:
    """Return the fields of a form that is written as a query; what is no form has none."""
    try:
        return dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:  # more fields than any page has
        return {}


def parts_fields(boundary: str, data: bytes) -> dict[str, str]:
    """Return the fields of a form in parts; a file is the text that it contains. Raises `FormError`."""
    parts = _Parts()
    callbacks = {
        "on_part_begin": parts.begin,
        "on_header_field": parts.read_header,
        "on_header_value": parts.read_header,
        "on_part_data": parts.read,
        "on_part_end": parts.end,
    }
    try:
        parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]  # a dictionary, as it says
        for at in range(0, len(data), READ_BYTES):
            parser.write(data[at : at + READ_BYTES])
    except FormParserError:
        raise FormError(400, "the form is not valid multipart/form-data") from None
    return parts.fields


class _Parts:
    """The parts of a form, as the parser comes to them."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self._head = bytearray()
        self._content = bytearray()
        self._count = 0

    def begin(self) -> None:
        self._count += 1
        if self._count > MAX_PARTS:
            raise FormError(400, f"the form has more than {MAX_PARTS} parts")
        self._head, self._content = bytearray(), bytearray()

    def read_header(self, data: bytes, start: int, end: int) -> None:
        if len(self._head) + end - start > MAX_HEADERS_OF_PART_BYTES:
            raise FormError(400, f"the headers of a part have more than {MAX_HEADERS_OF_PART_BYTES:,} B")
        self._head += data[start:end]

    def read(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]

    def end(self) -> None:
        name = _NAME.search(self._head)
        if name is not None:
            self.fields[name[1].decode("utf-8", "replace")] = self._content.decode("utf-8-sig", "replace")
