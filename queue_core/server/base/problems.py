"""The one table from error to HTTP status, and the problem documents (RFC 9457) of refused requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails, to_json

from queue_core import errors, limits
from queue_core.client.http.problem_types import PREFIX, problem_type
from queue_core.errors import LeaseLostError, QueueError, TaskTooLargeError

MEDIA_TYPE = b"application/problem+json"
MAX_SHOWN_CHARACTERS = 62
"""Characters of an invalid value that is shown; a longer one is left out."""
SHOWN_INPUT_ERRORS = {"int_type", "float_type", "bool_type", "literal_error"}
"""Errors of pydantic whose invalid value is shown even if it is text."""
PAYLOAD_FIELDS = {"payload", "text", "headers", "checkpoint", "message"}
"""Fields whose values are never shown."""

STATUS: Mapping[type[QueueError], int] = MappingProxyType(
    {
        errors.InvalidRequestError: 422,
        errors.TaskTooLargeError: 413,
        errors.UnknownQueueError: 404,
        errors.UnknownScheduleError: 404,
        errors.LeaseLostError: 409,
        errors.WorkerRetiredError: 410,
        errors.PermissionDeniedError: 403,
        errors.UnauthenticatedError: 401,
        errors.StoreUnavailableError: 503,
        errors.StoreFullError: 507,
        errors.StorageLimitError: 507,
        errors.StoreError: 500,
        errors.QueueError: 500,
    }
)
"""The status of an error: that of its own class, else of the nearest class above it."""

TITLES: Mapping[int, str] = MappingProxyType(
    {
        400: "The request is malformed",
        401: "A token is needed",
        403: "The token does not allow this",
        404: "Not found",
        405: "The method does not fit the path",
        408: "The request took too long",
        409: "The lease is no longer current",
        410: "The worker is retired",
        412: "The outcome is not known",
        413: "Too large",
        414: "The path or query is too long",
        415: "The body must be JSON",
        421: "The server is not known by this name",
        422: "The request is invalid",
        431: "The head is too large",
        500: "The server failed",
        501: "Not supported",
        503: "Not available now; try again",
        507: "No space is left",
    }
)
"""The title of each status in a problem document."""

LIMITS: Mapping[type[QueueError], Mapping[str, object]] = MappingProxyType(
    {
        errors.TooManyTasksError: {"limit": limits.MAX_TASKS_PER_ADD, "unit": "tasks"},
        errors.TooManyTagsError: {"limit": limits.MAX_TAGS_PER_LEASE, "unit": "tags"},
    }
)
"""Members of the problem documents of some errors."""


@dataclass(frozen=True, slots=True)
class Problem(Exception):  # noqa: N818 - the RFC's word
    """An error answer. Raised where a request is refused for a reason of HTTP."""

    status: int
    detail: str
    type: str = "about:blank"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    members: Mapping[str, object] = field(default_factory=dict)

    def body(self) -> bytes:
        """Return the problem document."""
        title = TITLES.get(self.status, "Error")
        return to_json(
            {"type": self.type, "title": title, "status": self.status, "detail": self.detail, **self.members}
        )


def status_of(error: type[QueueError]) -> int:
    """Return the status of an error of this class."""
    return next(STATUS[above] for above in error.__mro__ if above in STATUS)


def problem_of(error: QueueError) -> Problem:
    """Return the problem that describes an error."""
    kind = type(error)
    status = status_of(kind)
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if status == 401:
        headers = ((b"www-authenticate", b'Bearer realm="towline"'),)
    elif status == 503:
        headers = ((b"retry-after", b"1"),)
    members: Mapping[str, object] = LIMITS.get(kind, {})
    if isinstance(error, TaskTooLargeError):
        members = {"limit": error.most, "unit": "bytes"}
    elif isinstance(error, LeaseLostError):
        members = {"tokens": list(error.tokens)}
    return Problem(status, str(error), problem_type(kind), headers, members)


def refusal(status: int, name: str, detail: str, *, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Problem:
    """Return a problem that has no `QueueError` behind it, such as a wrong content type."""
    return Problem(status, detail, PREFIX + name, headers)


def given_twice(header: str) -> Problem:
    """Return the refusal of a request with two values of a header where nobody knows which was meant."""
    return refusal(400, "header-given-twice", f"a request must have one {header} header: more than one given")


def body_too_large(limit: int) -> Problem:
    """Return the problem of a body over the limit."""
    return refusal(
        413,
        "body-too-large",
        f"a request must be at most {limit} bytes; split the batch, or raise max_payload of the queue of a larger task",
    )


MAX_BUILT_ERRORS: Final = 200
"""Errors of one body that are built."""
BRANCHES: Final = frozenset({"FailureIn", "str"})
"""Parts that pydantic puts into the place of a value which may be of two types; they are no members of the body."""


def invalid(error: ValidationError, *, first_task: int = 0) -> Problem:
    """Return the problem of a body that does not fit its model: its errors by place, and of a list the first.

    An object with very many of them gets none by place: each would take time and memory.

    Args:
        first_task: the place of its first task, where the body is a piece of another.
    """
    if error.error_count() > MAX_BUILT_ERRORS:
        return refusal(422, "invalid-request", f"{error.error_count()} members of the body are unknown or wrong")
    details = error.errors(include_url=False, include_context=False)
    first = details[0]
    if first["type"] == "json_invalid" and first_task:
        return refusal(400, "malformed-json", f"the body is not JSON, behind the task at /tasks/{first_task - 1}")
    if first["type"] == "json_invalid":
        return refusal(400, "malformed-json", first["msg"].replace("Invalid JSON", "the body is not JSON"))
    shown = [
        {
            "pointer": "/" + "/".join(str(part) for part in _place(one["loc"], first_task) if part not in BRANCHES),
            "detail": one["msg"] + _shown_input(one),
        }
        for one in details[:20]
    ]
    summary = "; ".join(f"{one['pointer']}: {one['detail']}" for one in shown[:3])
    more = f"; and {len(details) - 3} more" if len(details) > 3 else ""
    plain = refusal(422, "invalid-request", summary + more)
    return Problem(plain.status, plain.detail, plain.type, plain.headers, {"errors": shown})


def _place(found: tuple[int | str, ...], first_task: int) -> tuple[int | str, ...]:
    match found:
        case ("tasks", int(number), *inner):
            return "tasks", first_task + number, *inner
    return found


def _shown_input(one: ErrorDetails) -> str:
    """Return the invalid value if it is short: a number, or text where a number or choice belongs. Never a payload."""
    value = one["input"]
    is_plain = isinstance(value, int | float) or (isinstance(value, str) and one["type"] in SHOWN_INPUT_ERRORS)
    if not is_plain or not PAYLOAD_FIELDS.isdisjoint(one["loc"]) or one["type"] == "extra_forbidden":
        return ""
    shown = to_json(value).decode()
    return f": {shown}" if len(shown) <= MAX_SHOWN_CHARACTERS else ""
