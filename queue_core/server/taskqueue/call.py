"""One call of the Task Queue REST API, as it arrived by itself or in a batch, before its body is looked into. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl

from queue_core.server.auth import Headers, Principal
from queue_core.server.taskqueue.answer import TaskqueueError, invalid

FORM = "application/x-www-form-urlencoded"
MAX_FORM_BYTES = 8192
_INTEGER = re.compile(r"-?[0-9]{1,10}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Parameters:
    """Names and values in order; the first of a name counts."""

    pairs: Sequence[tuple[str, str]]

    def text(self, name: str) -> str | None:
        """The value of a parameter, or None when it was not given."""
        return next((value for key, value in self.pairs if key == name), None)

    def integer(self, name: str, *, least: int, most: int) -> int:
        """A whole number that must be given, in [least, most]. Raises `TaskqueueError`."""
        text = self.text(name)
        if text is None:
            raise TaskqueueError(400, "required", f"Required parameter {name} not specified.", name)
        if not _INTEGER.fullmatch(text):
            raise invalid(f"{name} must be an integer: {text[:40]!r}", location=name)
        if not least <= int(text) <= most:
            raise invalid(f"{name} must be in [{least}, {most}]: {text}", location=name)
        return int(text)

    def flag(self, name: str) -> bool:
        """A truth value; False when it was not given. Raises `TaskqueueError`."""
        text = self.text(name)
        if text is None:
            return False
        if text.lower() not in _FLAGS:
            raise invalid(f"{name} must be a boolean, true or false: {text[:40]!r}", location=name)
        return _FLAGS[text.lower()]


def parameters_of(query: bytes, body: bytes, media_type: str) -> Parameters:
    """The query's parameters before those of a form, which a body is that says so, or says nothing of itself.

    Raises `TaskqueueError` for what can't be read.
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
Place: TypeAlias = Literal["queue", "tasks", "lease", "task"]

_PATH = re.compile(r"/taskqueue/v1beta2/projects/([^/]+)/taskqueues/([^/]+)(?:/(tasks)(?:/([^/]+))?)?")
_PARTITION = re.compile(r"[a-z]~")
_OVERRIDES = ("GET", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class TaskqueueRequest:
    """What arrived. `path` is decoded, `query` is not."""

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> str:
        """A header's value, "" without one."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """What a path leads to. `project` is without the partition that App Engine puts before it (`s~app` is `app`)."""

    project: str
    queue: str
    task: str
    places: Sequence[Place]
    """More than one where a task's name may be a verb: the first that takes the method is meant."""


@dataclass(frozen=True, slots=True)
class TaskqueueCall:
    """A request that was let in."""

    caller: Principal
    address: ResourcePath
    parameters: Parameters
    body: bytes

    @property
    def queue(self) -> str:
        """The queue in the path."""
        return self.address.queue


def address_of(path: str) -> ResourcePath | None:
    """Where a path leads; None when there is nothing."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    project, queue, tasks, task = match.groups()
    places: tuple[Place, ...]
    if tasks is None:
        places = ("queue",)
    elif task is None:
        places = ("tasks",)
    else:
        places = ("lease", "task") if task == "lease" else ("task",)
    return ResourcePath(_PARTITION.sub("", project, count=1) if "~" in project else project, queue, task or "", places)


def method_of(request: TaskqueueRequest) -> str:
    """The method that is meant: clients whose library knows no PATCH send POST and say so in a header."""
    said = request.header(b"x-http-method-override").upper()
    if request.method == "POST" and said in _OVERRIDES:
        return said
    return "GET" if request.method == "HEAD" else request.method
