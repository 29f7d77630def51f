"""The page of the HTTP API: every path of a server and of a supervisor, and every value in their bodies."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from orchestrator.base.clock import ManualMonotonicClock
from orchestrator.http_api.fleet_now import OwnQueues
from orchestrator.http_api.paths import fleet_paths
from orchestrator.http_api.registry import SupervisorRegistry
from orchestrator.state.directory import StateDir
from orchestrator.supervisor.view import Heartbeat
from queue_core.server.app import served_endpoints
from queue_core.server.callers.auth import REQUIRED_ROLES
from queue_core.server.v1.endpoint import Endpoint
from queue_core.server.v1.openapi import document
from queue_core.verbs.roles import Role
from tests.support.reference.markdown import code, page, sentence, table
from tests.support.reference.schemas import Schema, in_words

NOWHERE: Final = Path("/nonexistent/towline")
"""A state directory that is never read: only the routes' descriptions are wanted."""

INTRODUCTION: Final = """\
A server answers these paths at its listener (`server.listen`), a supervisor those of its fleet beside them, or at
`supervisor.listen`. As OpenAPI 3.1: `GET /openapi.json`. [The queue's contract](protocol.md) says what the
verbs promise, [a supervisor's API](api.md) how its calls are used, [errors](errors.md) what a refusal looks like.

```console
$ towline serve
$ export ADD=http://127.0.0.1:7878/v1/queues/default/add
$ curl -s $ADD -H 'content-type: application/json' -d '{"tasks": [{"text": "hello"}]}'
```

A body is JSON (`content-type: application/json`); a member that a request does not know is refused. Payloads are
base64 in `payload`, or plain in `text`. A server with tokens requires `Authorization: Bearer TOKEN`; the last column
names the roles that are enough, and **all** stands for a token of any role. `{queue}`, `{pool}`, `{worker}` in a path
are percent-encoded."""

FURTHER: Final = """\
## Further paths

| path | answers |
| --- | --- |
| `GET /metrics` | [metrics](metrics.md) in Prometheus' text format |
| `GET /openapi.json` | this page for programs |
| `GET /healthz` | like `/readyz` |
| `GET /console/` | [the console](../how-to/console.md) |
| `GET /docs/` | this manual |
| `/v2beta2/...` | Google's [Cloud Tasks](cloudtasks.md) |
| `/taskqueue/v1beta2/...` | Google's [Task Queue](taskqueue-v1beta2.md) |
| `/rpc_http` | [App Engine's SDKs](../from/appengine-python.md) |"""


def fleet_endpoints() -> list[Endpoint]:
    """Return the endpoints of a supervisor that has everything."""
    clock = ManualMonotonicClock()
    heartbeat = Heartbeat(now=clock.monotonic())
    files = StateDir(NOWHERE)
    queues = OwnQueues()
    extensions = fleet_paths(
        heartbeat,
        clock,
        files=files,
        queues=queues,
        registry=SupervisorRegistry(queues, heartbeat, clock, files, version=""),
        settings=dict,  # type: ignore[arg-type]
        file=NOWHERE,
    )
    return [route.endpoint for route in extensions.routes]


def http_api_page() -> str:
    """Return the page."""
    fleet = fleet_endpoints()
    described = json.loads(json.dumps(document((*served_endpoints(), *fleet), version="")))
    schemas: Mapping[str, Schema] = described["components"]["schemas"]
    tables = [_table(endpoints, described["paths"]) for endpoints in (served_endpoints(), fleet)]
    values = [_value(name, schemas[name]) for name in sorted(schemas)]
    return page(
        "HTTP API",
        "the tables of endpoints",
        INTRODUCTION,
        "## Queues",
        tables[0],
        "## The supervisor",
        tables[1],
        FURTHER,
        "## Values",
        "Members without a default are required in requests; answers have all their members.",
        *values,
    )


def _table(endpoints: Sequence[Endpoint], paths: Mapping[str, Mapping[str, Schema]]) -> str:
    rows = []
    for one in endpoints:
        operation = paths[one.path][one.method.lower()]
        rows.append((code(f"{one.method} {one.path}"), _purpose(one), _bodies(operation), _roles(one)))
    return table(("path", "purpose", "body and answer", "roles"), rows)


def _purpose(one: Endpoint) -> str:
    """Return what an endpoint does, and its parameters."""
    parameters = "".join(f" {code(f'?{each.name}=')} {sentence(each.description)}" for each in one.query)
    return f"{sentence(one.summary)}{parameters}"


def _bodies(operation: Schema) -> str:
    return " → ".join(filter(None, (_body(operation), _answer(operation))))


def _body(operation: Schema) -> str:
    body = operation.get("requestBody")
    if not isinstance(body, Mapping):
        return ""
    found = in_words(body["content"]["application/json"]["schema"])
    return code("{}") if "EmptyBody" in found else found


def _answer(operation: Schema) -> str:
    answers = operation["responses"]
    assert isinstance(answers, Mapping)
    return in_words(answers["200"]["content"]["application/json"]["schema"])


def _roles(one: Endpoint) -> str:
    if one.permission is None:
        return "no token"
    needed = REQUIRED_ROLES[one.permission]
    enough = [str(role.name).lower() for role in Role if role & needed]
    return "all" if len(enough) == len(Role) else ", ".join(enough)


def _value(name: str, schema: Schema) -> str:
    text = sentence(str(schema.get("description", "")))
    properties = schema.get("properties")
    heading = f"### {name}\n"
    if not isinstance(properties, Mapping) or not properties:
        return f"{heading}\n{text or sentence(in_words(schema))}"
    rows = [
        (code(key), in_words(one), _default(one), sentence(str(one.get("description", ""))))
        for key, one in properties.items()
    ]
    return f"{heading}\n{text}\n\n{table(('member', 'takes', 'default', 'meaning'), rows)}"


def _default(schema: Schema) -> str:
    return "" if "default" not in schema else code(json.dumps(schema["default"]))
