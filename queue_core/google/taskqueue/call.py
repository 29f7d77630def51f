"""TaskqueueCall: a call of the Task Queue REST API, its path and its parameters; from a request or a batch. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl

from queue_core.google.taskqueue.responses import TaskqueueError, invalid
from queue_core.server.callers.auth import Headers, Principal

FORM = "application/x-www-form-urlencoded"
MAX_FORM_BYTES = 8192
"""Bodies larger than this are not parsed as a form."""
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names and values in order; the first value of a name counts."""

    pairs: Sequence[tuple[str, str]]

    def text(self, name: str) -> str | None:
        """Return the value of a parameter, or None when it is absent."""
        return next((value for key, value in self.pairs if key == name), None)

    def integer(self, name: str, *, least: int, most: int) -> int:
        """Return a required integer in [least, most]. Raises `TaskqueueError`."""
        text = self.text(name)
        if text is None:
            raise TaskqueueError(400, "required", f"Required parameter {name} not specified.", name)
        if not _INTEGER.fullmatch(text):
            raise invalid(f"{name} must be an integer: {text[:40]!r}", location=name)
        if not least <= int(text) <= most:
            raise invalid(f"{name} must be in [{least}, {most}]: {text}", location=name)
        return int(text)

    def flag(self, name: str) -> bool:
        """Return a boolean, False when it is absent. Raises `TaskqueueError`."""
        text = self.text(name)
        if text is None:
            return False
        if text.lower() not in _FLAGS:
            raise invalid(f"{name} must be a boolean, true or false: {text[:40]!r}", location=name)
        return _FLAGS[text.lower()]


def parameters_of(query: bytes, body: bytes, media_type: str) -> Parameters:
    """Return the parameters of the query, then those of a form in the body (of form type, or of no type).

    Raises `TaskqueueError` for a query or form that can't be parsed.
    """
    pairs = _pairs(query, "query")
    if media_type.partition(";")[0].strip().lower() in (FORM, "") and len(body) <= MAX_FORM_BYTES:
        pairs += _pairs(body, "form")
    return Parameters(pairs)


def _pairs(encoded: bytes, what: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(encoded.decode(), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise invalid(f"the {what} can't be read: {error}") from None


PREFIX = "/taskqueue/v1beta2/"
ResourceKind: TypeAlias = Literal["queue", "tasks", "lease", "task"]

_PATH = re.compile(r"/taskqueue/v1beta2/projects/([^/]+)/taskqueues/([^/]+)(?:/(tasks)(?:/([^/]+))?)?")
_PARTITION = re.compile(r"[a-z]~")
_OVERRIDES = ("GET", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class TaskqueueRequest:
    """A request, of its own or from a batch. `path` is percent-decoded, `query` is not."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> str:
        """Return a header's value, "" when it is absent."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """The resource of a path. `project` lacks the partition that App Engine puts before it (`s~app` is `app`)."""

    project: str
    queue: str
    task: str
    kinds: Sequence[ResourceKind]
    """Kinds in order of preference: `tasks/lease` is the lease verb, or a task of that name for other methods."""


@dataclass(frozen=True, slots=True)
class TaskqueueCall:
    """A request of an authenticated caller."""

    caller: Principal
    resource: ResourcePath
    parameters: Parameters
    body: bytes

    @property
    def queue(self) -> str:
        """The queue named in the path."""
        return self.resource.queue


def parse_path(path: str) -> ResourcePath | None:
    """Return the resource of a path, or None."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    project, queue, tasks, task = match.groups()
    kinds: tuple[ResourceKind, ...]
    if tasks is None:
        kinds = ("queue",)
    elif task is None:
        kinds = ("tasks",)
    else:
        kinds = ("lease", "task") if task == "lease" else ("task",)
    return ResourcePath(_PARTITION.sub("", project, count=1) if "~" in project else project, queue, task or "", kinds)


def method_of(request: TaskqueueRequest) -> str:
    """Return the HTTP method; clients whose library lacks PATCH send POST with an override header."""
    override = request.header(b"x-http-method-override").upper()
    if request.method == "POST" and override in _OVERRIDES:
        return override
    return "GET" if request.method == "HEAD" else request.method
