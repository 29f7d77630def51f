"""The fields of a form that a page has sent, within a bound: as a query, or in parts where a file is among them."""

from email.parser import BytesParser
from email.policy import HTTP
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request

MAX_FORM_BYTES: Final = 65_536
MAX_FIELDS: Final = 2_000


class FormTooLargeError(Exception):
    """A form has more bytes than the page takes."""


async def read_form(request: Request, *, limit_bytes: int = MAX_FORM_BYTES) -> dict[str, str]:
    """Return the fields, each once. Raises `FormTooLargeError`."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > limit_bytes:
            raise FormTooLargeError(f"the form has more than {limit_bytes:,} B, which is all that this page takes")
    media_type = request.headers.get("content-type", "")
    return form_fields(media_type, bytes(data))


def form_fields(media_type: str, data: bytes) -> dict[str, str]:
    """Return the fields of a form's body; what is no form has none."""
    if not media_type.lower().startswith("multipart/form-data"):
        try:
            return dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS))
        except ValueError:  # more fields than any page has
            return {}
    head = f"content-type: {media_type}\r\n\r\n".encode("latin-1", "replace")
    message = BytesParser(policy=HTTP).parsebytes(head + data)
    fields: dict[str, str] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        payload = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(payload, bytes) and len(fields) < MAX_FIELDS:
            fields[name] = payload.decode("utf-8-sig", "replace")
    return fields
