"""Routes of the Task Queue REST API, its discovery document and its batches: convert HTTP to calls of `methods`."""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from email.message import Message
from functools import partial
from http import HTTPStatus
from urllib.parse import unquote

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from queue_core.google.taskqueue import discovery
from queue_core.google.taskqueue.call import (
    PREFIX,
    TaskqueueCall,
    TaskqueueRequest,
    method_of,
    parameters_of,
    parse_path,
)
from queue_core.google.taskqueue.methods import METHODS
from queue_core.google.taskqueue.multipart import MAX_HEAD_BYTES, MimePart, MultipartError, parts_of, split_head
from queue_core.google.taskqueue.responses import (
    TaskqueueError,
    TaskqueueResponse,
    error_response,
    invalid,
    is_expected,
    json_response,
    not_found,
)
from queue_core.google.taskqueue.selection import parse_selection, select
from queue_core.limits import check_queue_name
from queue_core.log import get_logger
from queue_core.server.base import events
from queue_core.server.callers.access import VERB_OF_ACCESS
from queue_core.server.callers.auth import check_role
from queue_core.server.http.request_body import body_length, read_body
from queue_core.server.state import ServerState
from queue_core.verbs.wire import Json

MAX_CALLS = 1000
"""Calls in one batch. Source: Google's client library sends no more."""
_LINE = re.compile(r"([A-Z]{1,10}) (\S{1,4000}) HTTP/1\.[01]")
_OUTER = (b"host", b"origin")
_AUTHORIZATION = b"authorization"


def split(batch: TaskqueueRequest) -> list[tuple[str, TaskqueueRequest]]:
    """Return the calls of a batch with their `Content-ID`s, in order. Raises `TaskqueueError`.

    A call's own `Authorization` overrides that of the batch; host and origin are always those of the batch.
    """
    try:
        parts = parts_of(batch.header(b"content-type"), batch.body, most=MAX_CALLS)
    except MultipartError as error:
        raise invalid(str(error)) from None
    if not parts:
        raise invalid("a batch must have an application/http part for every call")
    return [(_id_of(part.head), _request_of(part, batch, number)) for number, part in enumerate(parts, start=1)]


def join(answers: Iterable[tuple[str, TaskqueueResponse]], *, boundary: str) -> TaskqueueResponse:
    """Join the responses of a batch, each under the `Content-ID` of its call. No body may contain the boundary."""
    delimiter = f"--{boundary}".encode()
    parts = [b"\r\n".join([delimiter, _part(content_id, answer)]) for content_id, answer in answers]
    body = b"\r\n".join([*parts, delimiter + b"--", b""])
    return TaskqueueResponse(200, body, media_type=f"multipart/mixed; boundary={boundary}")


def _request_of(part: MimePart, batch: TaskqueueRequest, number: int) -> TaskqueueRequest:
    kind = part.head.get_content_type()
    if kind != "application/http":
        raise invalid(f"call {number} of the batch must be application/http: {kind[:60]}")
    cut = split_head(part.content.lstrip(b"\r\n"))
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
    return TaskqueueRequest(match[1], unquote(path), query.encode("latin-1"), own, body.rstrip(b"\r\n"))


def _id_of(part: Message) -> str:
    """Return the response's `Content-ID`, `<response-ID>`; "" for an id that is not printable ASCII."""
    name = " ".join(str(part.get("Content-ID", "")).split()).strip("<>")
    return f"<response-{name}>" if name.isprintable() and name.isascii() else ""


def _part(content_id: str, answer: TaskqueueResponse) -> bytes:
    head = ["Content-Type: application/http"]
    head += [f"Content-ID: {content_id}"] if content_id else []
    head += ["", f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    head += [f"Content-Type: {answer.media_type}"] if answer.body else []
    head += [f"{name}: {value}" for name, value in answer.headers]
    head += [f"Content-Length: {len(answer.body)}", "", ""]
    return "\r\n".join(head).encode("latin-1") + answer.body


def response_too_large(limit: int) -> TaskqueueError:
    """Return the error for a call that was not run, because the responses before it fill the batch."""
    return TaskqueueError(
        413,
        "responseTooLarge",
        f"not run: the responses before it in this batch have {limit} bytes or more; send it in another batch",
    )


CONCURRENT_CALLS = 50
"""Calls of a batch that run at a time."""
SHORT_BATCH_BYTES = 64 << 10
"""Larger batches are parsed in a thread, outside the event loop."""
MAX_BATCH_BYTES = 32 << 20
"""Bytes of a batch: it is joined, searched and cut by calls that nothing else can run beside."""
MAX_BATCH_RESPONSE_BYTES = 32 << 20
"""Bytes of a batch's responses after which no further call is run."""
_ALL = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

log = get_logger()


def routes(core: ServerState) -> Sequence[BaseRoute]:
    """Return the routes of the API; unknown paths below them get errors of the API."""
    return [
        Route(PREFIX + "{path:path}", _view(core, partial(answer, core)), methods=_ALL),
        Route(
            f"/{discovery.BATCH_PATH}",
            _view(core, partial(answer_batch, core), most=min(core.options.max_body_bytes, MAX_BATCH_BYTES)),
            methods=_ALL,
        ),
        Route(discovery.DIRECTORY_PATH, _document_view(core, discovery.directory), methods=_ALL),
        Route(discovery.DOCUMENT_PATH, _document_view(core, discovery.document), methods=_ALL),
    ]


async def answer(core: ServerState, request: TaskqueueRequest) -> TaskqueueResponse:
    """Run one call and return its response, an error's included."""
    try:
        return await _answer(core, request)
    except Exception as error:  # noqa: BLE001 - the top of a request
        return _error_response(error)


async def answer_batch(core: ServerState, request: TaskqueueRequest) -> TaskqueueResponse:
    """Run the calls of a batch, several at a time; the order in which they take effect is undefined."""
    if request.method != "POST":
        raise _wrong_method(request.method, ["POST"])
    if len(request.body) <= SHORT_BATCH_BYTES:
        calls = split(request)
    else:
        calls = await core.in_thread(lambda: split(request))
    answers: list[tuple[str, TaskqueueResponse]] = []
    size = 0
    for begin in range(0, len(calls), CONCURRENT_CALLS):
        some = calls[begin : begin + CONCURRENT_CALLS]
        if size < MAX_BATCH_RESPONSE_BYTES:
            made = await asyncio.gather(*(answer(core, one) for _, one in some))
        else:
            made = [error_response(response_too_large(MAX_BATCH_RESPONSE_BYTES)) for _ in some]
        size += sum(len(one.body) for one in made)
        answers += zip((name for name, _ in some), made, strict=True)
    return join(answers, boundary=f"batch_{secrets.token_hex(16)}")


async def _answer(core: ServerState, request: TaskqueueRequest) -> TaskqueueResponse:
    caller = core.authorizer.caller(request.headers)
    resource = parse_path(request.path)
    if resource is None:
        raise not_found(f"no such path: {request.path[:200]}; see {discovery.DOCUMENT_PATH}")
    method_name = method_of(request)
    kind = next((kind for kind in resource.kinds if (method_name, kind) in METHODS), None)
    if kind is None:
        raise _wrong_method(method_name, [one for one, where in METHODS if where in resource.kinds])
    method = METHODS[method_name, kind]
    check_role(caller, VERB_OF_ACCESS[method.access])
    check_queue_name(resource.queue)
    takes_form = kind == "lease" or method_name == "GET"
    parameters = parameters_of(request.query, request.body if takes_form else b"", request.header(b"content-type"))
    selection = parse_selection(parameters.text("fields"), method.shape)
    shown = await method.run(core, TaskqueueCall(caller, resource, parameters, request.body))
    return TaskqueueResponse(200) if shown is None else json_response(select(shown, selection))


def _wrong_method(method_name: str, allowed: Sequence[str]) -> TaskqueueError:
    return TaskqueueError(
        405, "httpMethodNotAllowed", f"{method_name} does not fit this path: use {', '.join(allowed)}"
    )


def _error_response(error: Exception) -> TaskqueueResponse:
    if not is_expected(error):
        log.error(events.REQUEST_FAILED, exc_info=error)
    return error_response(error)


def _view(
    core: ServerState,
    run: Callable[[TaskqueueRequest], Awaitable[TaskqueueResponse]],
    *,
    most: int | None = None,
) -> Callable[[HttpRequest], Awaitable[Response]]:
    async def view(request: HttpRequest) -> Response:
        try:
            core.authorizer.caller(request.headers.raw)  # before any of the body is read
            limit = core.body_limit.single_task_limit(body_length(request.headers.raw)) if most is None else most
            body = await read_body(request.headers.raw, request.receive, limit=limit, too_large=_too_large)
            query: bytes = request.scope["query_string"]
            response = await run(
                TaskqueueRequest(request.method, request.scope["path"], query, request.headers.raw, body)
            )
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - the top of a request
            response = _error_response(error)
        return _response(response)

    return view


def _too_large(limit: int) -> TaskqueueError:
    return TaskqueueError(413, "uploadTooLarge", f"a request must be at most {limit} bytes")


def _document_view(core: ServerState, made: Callable[[str], Json]) -> Callable[[HttpRequest], Awaitable[Response]]:
    """Return the view of a discovery document; it needs no token, because clients fetch it before they have one."""

    async def view(request: HttpRequest) -> Response:
        try:
            core.authorizer.check_host_and_origin(request.headers.raw)
            if request.method in ("GET", "HEAD"):
                response = json_response(made(f"{request.url.scheme}://{request.url.netloc}/"))
            else:
                response = error_response(_wrong_method(request.method, ["GET"]))
        except Exception as error:  # noqa: BLE001 - the top of a request
            response = _error_response(error)
        return _response(response)

    return view


def _response(response: TaskqueueResponse) -> Response:
    headers = {"cache-control": "no-store", **dict(response.headers)}
    return Response(response.body, response.status, headers, media_type=response.media_type if response.body else None)
