"""Raw Cloud Tasks calls over REST, without Google's client."""

import json

from tests.support.google.cloud_tasks import PARENT
from tests.support.servers import Reply, RunningServer

TASKS = f"/v2beta2/{PARENT}/tasks"


def call(
    server: RunningServer, method: str, path: str, body: object = None, *, secret: str = "", **headers: str
) -> Reply:
    """Return the reply to one call; a `body` of bytes is sent as it is."""
    sent = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    given = [(name.replace("_", "-"), value) for name, value in {"content_type": "application/json", **headers}.items()]
    if secret:
        given.append(("authorization", f"Bearer {secret}"))
    return server.ask(method, path, sent, headers=given)


def error_of(reply: Reply) -> tuple[int, str, str]:
    """Return HTTP status, status in words and message, after checking the error's whole shape."""
    error = reply.json()["error"]
    assert isinstance(error, dict)
    assert reply.headers["content-type"] == "application/json; charset=UTF-8"
    assert error["code"] == reply.status
    return reply.status, error["status"], error["message"]
