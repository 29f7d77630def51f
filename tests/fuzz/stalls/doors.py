"""Every way in: the endpoints of the route table as the server describes them, Google's doors, pages and the rest."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from queue_core.console.pages import ACTIONS, FILES, PAGES
from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import encode
from queue_core.google.appengine.schema import ProtoRecord
from tests.fuzz.stalls.server import POOL, ProbedServer

NAMES = {"queue": "work", "pool": POOL, "task": "bomb", "worker": "w", "schedule": "s", "kind": "k", "name": "x"}
TASKQUEUE = "/taskqueue/v1beta2/projects/p/taskqueues"
CLOUDTASKS = "/v2beta2/projects/p/locations/l/queues"


@dataclass(frozen=True, slots=True)
class Door:
    """A method of a path, with names in braces.

    Args:
        takes: the form of its body.
        members: the names of a JSON body's members.
    """

    method: str
    path: str
    takes: Literal["nothing", "json", "form", "rpc", "batch", "yaml"] = "nothing"
    members: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name in a table."""
        return f"{self.method} {self.path}"

    def address(self, *, odd: str = "") -> str:
        """The path with names in it; `odd` takes the place of the last one."""
        path = self.path
        last = path.rpartition("{")[2].partition("}")[0] if "{" in path else ""
        for part in [one.partition("}")[0] for one in path.split("{")[1:]]:
            path = path.replace(f"{{{part}}}", odd if odd and part == last else NAMES.get(part, "x"))
        return path if not odd or last else f"{path.rstrip('/')}/{odd}"


def doors(server: ProbedServer) -> list[Door]:
    """Return all of them."""
    return [*_api(server), *_console(), *_google(), *_others()]


def _api(server: ProbedServer) -> Iterator[Door]:
    described = json.loads(server.ask("GET", "/openapi.json")[2])
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if not content:
                yield Door(method.upper(), path)
                continue
            schema = content["application/json"]["schema"]
            if "$ref" in schema:
                schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            members = tuple(cast("dict[str, object]", schema.get("properties", {})))
            yield Door(method.upper(), path, "json", members)


def _console() -> Iterator[Door]:
    for page in PAGES:
        yield Door("GET", f"/console{page.path}")
        if page.max_form_bytes:
            yield Door("POST", f"/console{page.path}", "form")
        if page.is_live:
            yield Door("GET", f"/console/live{page.path}")
    for path in ACTIONS:
        yield Door("POST", f"/console{path}", "form")
    for path in FILES:
        yield Door("GET", f"/console{path}")
    yield Door("GET", "/console/login")
    yield Door("POST", "/console/login", "form")
    yield Door("POST", "/console/logout", "form")
    yield Door("GET", "/console/static/console.css")


def _google() -> Iterator[Door]:
    task = ("payloadBase64", "queueName", "id", "leaseTimestamp", "tag")
    for method, path in (("GET", ""), ("GET", "/tasks"), ("POST", "/tasks"), ("POST", "/tasks/lease")):
        yield Door(method, f"{TASKQUEUE}/{{queue}}{path}", "json" if method == "POST" else "nothing", task)
    for method in ("GET", "PATCH", "POST", "DELETE"):
        yield Door(method, f"{TASKQUEUE}/{{queue}}/tasks/{{task}}", "json", task)
    yield Door("POST", "/batch/taskqueue/v1beta2", "batch")
    yield Door("GET", "/discovery/v1/apis/taskqueue/v1beta2/rest")
    yield Door("POST", f"{CLOUDTASKS}", "json", ("name", "pullTarget", "rateLimits", "retryConfig", "state"))
    yield Door("PATCH", f"{CLOUDTASKS}/{{queue}}", "json", ("name", "rateLimits", "retryConfig", "state"))
    yield Door("GET", f"{CLOUDTASKS}/{{queue}}")
    yield Door("GET", f"{CLOUDTASKS}")
    yield Door("GET", f"{CLOUDTASKS}/{{queue}}/tasks")
    yield Door("POST", f"{CLOUDTASKS}/{{queue}}/tasks", "json", ("task", "responseView"))
    for verb, members in (
        ("tasks:lease", ("maxTasks", "leaseDuration", "filter", "responseView")),
        ("tasks:batchCreate", ("requests",)),
        ("tasks:batchDelete", ("names",)),
        ("tasks:buffer", ("body",)),
        ("tasks/{task}:acknowledge", ("scheduleTime",)),
        ("tasks/{task}:renewLease", ("scheduleTime", "leaseDuration")),
    ):
        yield Door("POST", f"{CLOUDTASKS}/{{queue}}/{verb}", "json", members)
    for verb in ("pause", "getIamPolicy", "setIamPolicy", "testIamPermissions"):
        yield Door("POST", f"{CLOUDTASKS}/{{queue}}:{verb}", "json", ("policy", "permissions", "options"))
    yield Door("POST", "/api/queue/update", "yaml")
    yield Door("POST", "/rpc_http", "rpc")
    yield Door("POST", "/v2/projects/x", "json")


def _others() -> Iterator[Door]:
    for path in ("/", "/docs/{name}", "/openapi.json", "/metrics", "/healthz", "/{name}"):
        yield Door("GET", path)
    yield Door("POST", "/{name}", "json")
    yield Door("GET", "/v1/events?follow=true")


def rpc_body(inner: bytes, method: str) -> bytes:
    """A call of App Engine's API."""
    return encode(messages.REMOTE_REQUEST, ProtoRecord(service_name="taskqueue", method=method, request=inner))
