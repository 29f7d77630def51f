"""A message that nobody can run is dead with its reason; the worker that met it goes on."""

import base64
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import Celery

from queue_core.celery.transport.broker import close_brokers
from queue_core.celery.transport.options import DEFAULT_MAX_LEASES
from queue_core.client.connect import open_queues
from queue_core.task import NewTask, TaskState
from tests.queue_core.celery.conftest import Connect
from tests.queue_core.celery.test_channels import Inbox, jobs, publish, stored
from tests.support.commands import program_environment
from tests.support.eventually import eventually
from tests.support.servers import a_server

SECRET = "tell-nobody"
CALL = json.dumps([[SECRET], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])


def message(**changes: Any) -> dict[str, Any]:
    """A call of a task as Celery writes it, but for some members."""
    whole: dict[str, Any] = {
        "body": CALL,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "work", "id": "1", "retries": 0, "timelimit": [None, None], "root_id": "1"},
        "properties": {"body_encoding": "utf-8", "delivery_info": {}, "priority": 0, "correlation_id": "1"},
    }
    for name, value in changes.items():
        whole[name.replace("_", "-") if name.startswith("content") else name] = value
    return {name: value for name, value in whole.items() if value is not ...}


def headers(**changes: Any) -> dict[str, Any]:
    own = {**message()["headers"], **changes}
    return message(headers={name: value for name, value in own.items() if value is not ...})


def encoded(body: object) -> str:
    return base64.b64encode(json.dumps(body).encode()).decode()


def properties(**changes: Any) -> dict[str, Any]:
    return message(properties={**message()["properties"], **changes})


ENVELOPES: dict[str, bytes | object] = {
    "text": b"hello",
    "nothing": b"",
    "no UTF-8": b"\xff\xfe",
    "nested too deep": b"[" * 100_000 + b"]" * 100_000,
    "a list": [],
    "a number": 5,
    "null": None,
    "an empty object": {},
    "no properties": message(properties=...),
    "properties null": message(properties=None),
    "properties a list": message(properties=[1]),
    "delivery_info text": properties(delivery_info="x"),
    "headers text": message(headers="x"),
    "headers a list": message(headers=[1]),
    "no body": message(body=...),
    "a body that is a number": message(body=5),
    "a body that is an object": message(body={"a": 1}),
    "a content type that is a number": message(content_type=5),
    "a content encoding that is a list": message(content_encoding=["utf-8"]),
    "an unknown body_encoding": properties(body_encoding="x"),
    "a body_encoding that is a number": properties(body_encoding=5),
    "no base64": message(body="%%%", properties={**message()["properties"], "body_encoding": "base64"}),
}
"""What no program of kombu's can take."""
CALLS: dict[str, bytes | object] = {
    "a body that is no JSON": message(body="{"),
    "a body nested too deep": message(body="[" * 100_000),
    "an unknown content type": message(content_type="application/x-nothing"),
    "a content type that is not accepted": message(content_type="application/x-python-serialize"),
    "a body that is not compressed": headers(compression="application/x-gzip"),
    "an unknown compression": headers(compression="application/x-nothing"),
    "a body that is a text": message(body=json.dumps(SECRET)),
    "a body that is null": message(body="null"),
    "two parts": message(body=json.dumps([[SECRET], {}])),
    "arguments that are a number": message(body=json.dumps([5, {}, {}])),
    "named arguments that are a list": message(body=json.dumps([[], [], {}])),
    "an embed that is text": message(body=json.dumps([[], {}, "x"])),
    "no id": headers(id=...),
    "an id that is a number": headers(id=5),
    "an id that is a list": headers(id=[1]),
    "a name that is a list": headers(task=[1]),
    "a name that is null": headers(task=None),
    "an unknown name": headers(task="nobody.knows"),
    "an eta that is text": headers(eta="soon"),
    "an eta that is a number": headers(eta=5),
    "an eta that is an object": headers(eta={}),
    "expires that is text": headers(expires="soon"),
    "expires that is a list": headers(expires=[1]),
    "a time limit that is a number": headers(timelimit=5),
    "a time limit that is text": headers(timelimit=["x", None]),
    "a time limit of very many digits": headers(timelimit=[10**400, None]),
    "a time limit that is no number": headers(timelimit=[float("nan"), None]),
    "a time limit that is endless": headers(timelimit=[float("inf"), 1]),
    "a time limit below zero": headers(timelimit=[-1, -1]),
    "headers without a task": message(headers={}),
    "version 1 without an id": message(headers={}, body=json.dumps({"task": "work", "args": [], "kwargs": {}})),
    "version 1 with a name that is a list": message(headers={}, body=json.dumps({"task": [1], "id": "1"})),
    "version 1 with arguments that are text": message(
        headers={}, body=json.dumps({"task": "work", "id": "1", "args": 5, "kwargs": 5})
    ),
}
"""What a worker of Celery's can't take."""


def payload_of(given: bytes | object) -> bytes:
    return given if isinstance(given, bytes) else json.dumps(given).encode()


@pytest.mark.parametrize("payload", [pytest.param(one, id=name) for name, one in ENVELOPES.items()])
def test_a_payload_that_is_no_message_is_dead_and_the_next_message_comes(connect: Connect, payload: object) -> None:
    connection = connect()
    publish(connection, jobs(), "before")
    queue = stored(connection, "my_jobs")
    queue.add(NewTask(payload_of(payload)))
    publish(connection, jobs(), "after")
    inbox = Inbox(connection, jobs())
    assert inbox.drain() == ["before", "after"]
    (dead,) = eventually(lambda: queue.peek(states=frozenset({TaskState.DEAD})).tasks)
    assert dead.reason.startswith("malformed message: ")
    assert queue.stats().in_flight == 2


def test_a_payload_that_is_no_message_is_none_for_basic_get(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(), "before")
    queue = stored(connection, "my_jobs")
    queue.purge()
    queue.add(NewTask(b"hello"))
    channel = connection.channel()
    assert channel.basic_get("my_jobs") is None
    channel.close()
    eventually(lambda: queue.stats().dead == 1)


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_a_worker_of_celerys_goes_on_whatever_a_message_is(tmp_path: Path, pool: str) -> None:
    with a_server() as server:
        url = f"towline+{server.url}"
        (tmp_path / "shop.py").write_text(
            f"from celery import Celery\napp = Celery(broker={url!r})\n"
            "@app.task(name='work')\ndef work(text):\n    open(text + '.done', 'w').close()\n"
        )
        app = Celery(broker=url)
        app.send_task("work", ("first",))
        given = {**ENVELOPES, **CALLS}
        with closing(open_queues(server.url)) as queues, (tmp_path / "log").open("wb") as log:
            queue = queues.queue("celery")
            for one in given.values():
                queue.add(NewTask(payload_of(one)))
            app.send_task("work", ("last",))
            command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", pool, "-c", "1", "-l", "INFO"]
            worker = subprocess.Popen(
                command, cwd=tmp_path, env=program_environment(), stdout=log, stderr=subprocess.STDOUT
            )
            try:
                eventually(lambda: (tmp_path / "last.done").exists() or worker.poll() is not None)
                assert worker.poll() is None, (tmp_path / "log").read_text()[-3000:]
                eventually(lambda: queue.stats().in_flight == 0)
                dead = queue.peek(states=frozenset({TaskState.DEAD}), limit=1000, payload_bytes=200_000).tasks
                left = {one.payload for one in dead}
                assert [name for name, one in given.items() if payload_of(one) not in left] == []
                assert not [one.reason for one in dead if SECRET in one.reason]
                assert queue.stats().ready == 0
            finally:
                worker.terminate()
                worker.wait()
        app.close()
        close_brokers()


def test_a_queue_that_a_declaration_made_has_a_bound_of_leases(connect: Connect) -> None:
    connection = connect()
    publish(connection, jobs(), "one")
    broker = connection.transport.broker
    specs = {spec.name: spec for spec in broker.queues.queues()}
    assert specs["my--5fjobs"].max_leases == DEFAULT_MAX_LEASES


def test_a_queue_without_a_bound_of_leases_has_to_be_asked_for(connect: Connect) -> None:
    connection = connect(max_leases=None)
    kombu.Queue("endless")(connection.channel()).declare()
    specs = {spec.name: spec for spec in connection.transport.broker.queues.queues()}
    assert specs["endless"].max_leases is None
