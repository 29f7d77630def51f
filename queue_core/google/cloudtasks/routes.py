"""Routes of Cloud Tasks v2beta2 over HTTP, with errors in the service's own form."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

from pydantic_core import to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from queue_core.google.cloudtasks import rest
from queue_core.google.cloudtasks.call import Values
from queue_core.google.cloudtasks.failures import CloudTasksError, RpcStatus, failure_of, invalid
from queue_core.google.cloudtasks.json_codec import json_of
from queue_core.google.cloudtasks.masks import partial
from queue_core.google.cloudtasks.methods import METHODS, CloudTasks
from queue_core.google.cloudtasks.queues import http_body
from queue_core.server.base.bodies.value_count import SHORT_BODY_BYTES
from queue_core.server.callers.auth import check_role
from queue_core.server.fast_path import MAX_PLAIN_BODY_BYTES
from queue_core.server.http.request_body import body_length, read_body
from queue_core.server.state import ServerState

View = Callable[[CloudTasks, Request], Awaitable[Response]]

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def routes(core: ServerState) -> Sequence[BaseRoute]:
    """Return the routes of the API."""
    api = CloudTasks(core)

    def view(answer: View) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                return await answer(api, request)
            except ClientDisconnect:
                raise
            except Exception as error:  # noqa: BLE001 - the top of a request
                return error_response(failure_of(error))

        return serve

    return [
        Route(f"{rest.PREFIX}{{path:path}}", view(_call_method), methods=_METHODS),
        Route(rest.UPLOAD, view(_upload), methods=["POST"]),
        *(
            Route(f"/{other}/projects/{{path:path}}", view(_other_version), methods=_METHODS)
            for other in rest.PUSH_VERSIONS
        ),
    ]


async def _call_method(api: CloudTasks, request: Request) -> Response:
    core = api.core
    caller = core.authorizer.caller(request.headers.raw)
    bound = rest.bind(request.method, request.path_params["path"])
    check_role(caller, bound.method.verb)
    query = request.query_params.multi_items()
    shape = rest.shape_of(query)
    _check_json(request)
    limit = MAX_PLAIN_BODY_BYTES
    if bound.rule.method in rest.WITH_PAYLOAD:
        limit = core.body_limit.single_task_limit(body_length(request.headers.raw))
    body = await _body(request, limit=limit)
    if len(body) <= SHORT_BODY_BYTES:
        given = rest.request_of(bound, query, body)
    else:
        given = await asyncio.to_thread(rest.request_of, bound, query, body)
    values = await api.run(bound.method, given, caller, request.is_disconnected)
    return _shaped(json_of(bound.method.gives, values, enums=shape.enums), shape)


async def _upload(api: CloudTasks, request: Request) -> Response:
    """Upload a queue.yaml: the body is the file, whatever its content type, or JSON that contains it."""
    core = api.core
    caller = core.authorizer.caller(request.headers.raw)
    method = METHODS["UploadQueueYaml"]
    check_role(caller, method.verb)
    shape = rest.shape_of(request.query_params.multi_items())
    body = await _body(request, limit=MAX_PLAIN_BODY_BYTES)
    kind = request.headers.get("content-type", "")
    data = rest.json_of_body(body) if kind.startswith("application/json") and body.lstrip()[:1] == b"{" else None
    values: Values = {"httpBody": http_body(kind, body, data=data)}
    answer = await api.run(method, values, caller, request.is_disconnected)
    return _shaped(json_of(method.gives, answer, enums=shape.enums), shape)


async def _other_version(api: CloudTasks, request: Request) -> Response:
    api.core.authorizer.caller(request.headers.raw)
    version = request.url.path.split("/")[1]
    raise CloudTasksError(
        RpcStatus.UNIMPLEMENTED,
        f"Cloud Tasks {version} has no pull queues; use v2beta2: in Python, from google.cloud import tasks_v2beta2",
    )


def _shaped(answer: dict[str, object], shape: rest.ReplyShape) -> Response:
    return json_response(partial(answer, shape.fields) if shape.fields else answer, is_pretty=shape.is_pretty)


def _check_json(request: Request) -> None:
    """Refuse a body whose content type is not JSON; a body without a content type is taken for JSON."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind not in ("application/json", "") and request.headers.get("content-length", "0") != "0":
        raise invalid(f"the body must be JSON: send Content-Type: application/json, not {kind[:60]!r}")


async def _body(request: Request, *, limit: int) -> bytes:
    return await read_body(request.headers.raw, request.receive, limit=limit, too_large=_too_large)


def _too_large(limit: int) -> CloudTasksError:
    return invalid(f"Request payload size exceeds the limit: {limit} bytes.")


def json_response(answer: dict[str, object], *, status: int = 200, is_pretty: bool = False) -> Response:
    """Return a JSON response."""
    body = json.dumps(answer, indent=2).encode() + b"\n" if is_pretty else to_json(answer)
    return Response(body, status, media_type="application/json; charset=UTF-8")


def error_response(failure: CloudTasksError) -> Response:
    """Return an error in the service's JSON form."""
    status = failure.code.http_status
    error = {"code": status, "message": failure.message, "status": failure.code.name}
    response = json_response({"error": error}, status=status)
    if status == 401:
        response.headers["www-authenticate"] = 'Bearer realm="towline"'
    elif status == 503:
        response.headers["retry-after"] = "1"
    return response
