"""Many calls in one request, as Google's clients batch them: multipart/mixed of application/http, and back. Pure."""

import re
from collections.abc import Iterable
from email.message import Message
from http import HTTPStatus
from urllib.parse import unquote

from queue_core.server.taskqueue.answer import Answer, ApiError, invalid
from queue_core.server.taskqueue.call import Request
from queue_core.server.taskqueue.parts import MAX_HEAD_BYTES, Part, PartsError, head_and_rest, parts_of

MAX_CALLS = 1000
"""What Google's client puts into one batch at most."""
_LINE = re.compile(r"([A-Z]{1,10}) (\S{1,4000}) HTTP/1\.[01]")
_OUTER = (b"host", b"origin")
_AUTHORIZATION = b"authorization"


def split(batch: Request) -> list[tuple[str, Request]]:
    """The calls of a batch with their `Content-ID`s, in order. Raises `ApiError`.

    A call's own `Authorization` counts before that of the batch; where it came from is always that of the batch.
    """
    try:
        parts = parts_of(batch.header(b"content-type"), batch.body, most=MAX_CALLS)
    except PartsError as error:
        raise invalid(str(error)) from None
    if not parts:
        raise invalid("a batch must have an application/http part for every call")
    return [(_id_of(part.head), _request_of(part, batch, number)) for number, part in enumerate(parts, start=1)]


def join(answers: Iterable[tuple[str, Answer]], *, boundary: str) -> Answer:
    """The answers of a batch, each under the `Content-ID` of its call. No body may have the boundary in it."""
    line = f"--{boundary}".encode()
    parts = [b"\r\n".join([line, _part(content_id, answer)]) for content_id, answer in answers]
    body = b"\r\n".join([*parts, line + b"--", b""])
    return Answer(200, body, media_type=f"multipart/mixed; boundary={boundary}")


def _request_of(part: Part, batch: Request, number: int) -> Request:
    kind = part.head.get_content_type()
    if kind != "application/http":
        raise invalid(f"call {number} of the batch must be application/http: {kind[:60]}")
    cut = head_and_rest(part.content.lstrip(b"\r\n"))
    if cut is None:
        raise invalid(f"the head of call {number} of the batch must be at most {MAX_HEAD_BYTES} bytes")
    head, body = cut
    line, *lines = head.decode("latin-1").splitlines() or [""]
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise invalid(f"call {number} of the batch must begin with a line such as `GET /path HTTP/1.1`: {line[:60]!r}")
    headers = [
        (name.strip().lower().encode("latin-1"), value.strip().encode("latin-1"))
        for name, colon, value in (one.partition(":") for one in lines)
        if colon
    ]
    own = [(name, value) for name, value in headers if name not in _OUTER]
    inherited = _OUTER if any(name == _AUTHORIZATION for name, _ in own) else (*_OUTER, _AUTHORIZATION)
    own += [(name, value) for name, value in batch.headers if name in inherited]
    path, _, query = match[2].partition("?")
    return Request(match[1], unquote(path), query.encode("latin-1"), own, body.rstrip(b"\r\n"))


def _id_of(part: Message) -> str:
    """`<response-...>` to what the call was named; a name with a line end in it is none."""
    name = " ".join(str(part.get("Content-ID", "")).split()).strip("<>")
    return f"<response-{name}>" if name.isprintable() and name.isascii() else ""


def _part(content_id: str, answer: Answer) -> bytes:
    head = ["Content-Type: application/http"]
    head += [f"Content-ID: {content_id}"] if content_id else []
    head += ["", f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    head += [f"Content-Type: {answer.media_type}"] if answer.body else []
    head += [f"{name}: {value}" for name, value in answer.headers]
    head += [f"Content-Length: {len(answer.body)}", "", ""]
    return "\r\n".join(head).encode("latin-1") + answer.body


def too_much(limit: int) -> ApiError:
    """For a call that was not made, as the answers before it are large enough."""
    return ApiError(
        413,
        "responseTooLarge",
        f"not run: the answers before it in this batch have {limit} bytes or more; send it again in another",
    )
