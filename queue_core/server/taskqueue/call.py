"""One call of the Task Queue REST API, as it arrived by itself or in a batch, before its body is looked into. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from queue_core.server.auth import Headers, Principal
from queue_core.server.taskqueue.parameters import Parameters

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
