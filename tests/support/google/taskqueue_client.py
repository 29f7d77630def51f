"""Google's own client of the Task Queue REST API, with short helpers."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any  # the client's classes are made at run time and have no types

import pytest
from google.oauth2.credentials import Credentials
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from queue_core.task import QueueSpec
from queue_core.unit.service import QueueService
from tests.support.servers import QUEUE, RunningServer

HERE = {"project": "s~app", "taskqueue": QUEUE}


@contextmanager
def a_client(server: RunningServer, *, token: str | None = None) -> Iterator[Any]:
    """Return the stock client; it reads the API's address from the document."""
    url = server.url + "/discovery/v1/apis/{api}/{apiVersion}/rest"
    credentials = None if token is None else Credentials(token=token)
    with build(
        "taskqueue", "v1beta2", discoveryServiceUrl=url, credentials=credentials, cache_discovery=False
    ) as client:
        yield client


def put(server: RunningServer, spec: QueueSpec) -> None:
    QueueService(server.store).run(lambda turn: turn.put_queue(spec))


def payload(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()


def insert(client: Any, data: bytes = b"", **more: object) -> dict[str, Any]:
    task: dict[str, Any] = client.tasks().insert(**HERE, body={"payloadBase64": payload(data), **more}).execute()
    return task


def lease(client: Any, *, count: int = 1, seconds: int = 60, **more: object) -> list[dict[str, Any]]:
    told = client.tasks().lease(**HERE, numTasks=count, leaseSecs=seconds, **more).execute()
    assert told["kind"] == "taskqueue#tasks"
    items: list[dict[str, Any]] = told.get("items", [])
    return items


def names(tasks: list[dict[str, Any]]) -> list[str]:
    return [task["id"] for task in tasks]


@contextmanager
def refused(status: int, reason: str, about: str = "") -> Iterator[None]:
    with pytest.raises(HttpError) as raised:
        yield
    error = json.loads(raised.value.content)["error"]
    assert (raised.value.status_code, error["code"], error["errors"][0]["reason"]) == (status, status, reason)
    assert about in error["message"]
    assert raised.value.reason == error["message"]
