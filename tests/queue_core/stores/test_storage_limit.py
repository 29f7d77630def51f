"""A limit of all payloads as its callers meet it: each door's own error, the settings that set it, and the commands."""

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from queue_core.cli.serving import prepared_store
from queue_core.client.http_calls import HttpQueues
from queue_core.config.settings import parse_queue_file
from queue_core.errors import StorageLimitError
from queue_core.google.appengine.codes import RpcCode
from queue_core.google.cloudtasks.rest import UPLOAD
from queue_core.task import NewTask
from queue_core.verbs import Storage
from tests.support.commands import Commands
from tests.support.google.appengine_calls import an_add, bulk_add, call, rpc_code_of
from tests.support.google.cloud_tasks import PARENT
from tests.support.servers import QUEUE, RunningServer, a_server

LIMITED = "total_storage_limit: 1K\nqueue:\n- {name: thumbs, mode: pull}\n"
OPEN = "queue:\n- {name: thumbs, mode: pull}\n"


@pytest.fixture
def full() -> Iterator[tuple[RunningServer, HttpQueues]]:
    """A server whose tasks come to 9 bytes of 10."""
    with a_server() as server:
        queues = HttpQueues(server.url)
        queues.set_storage_limit(10)
        queues.queue(QUEUE).add(b"123456789")
        yield server, queues
        queues.close()


def _json(server: RunningServer, path: str, body: object) -> tuple[int, dict[str, object]]:
    reply = server.ask("POST", path, json.dumps(body).encode())
    return reply.status, reply.json()


def test_the_native_api_tells_the_limit_the_use_and_what_to_do(full: tuple[RunningServer, HttpQueues]) -> None:
    server, queues = full
    assert queues.storage() == Storage(10, 9)
    with pytest.raises(StorageLimitError, match=r"10 bytes, 9 are used, 2 .*delete or purge tasks, or raise the limit"):
        queues.queue(QUEUE).add(b"12")
    status, problem = _json(server, f"/v1/queues/{QUEUE}/add", {"tasks": [{"text": "12"}]})
    assert (status, problem["type"]) == (507, "urn:towline:problem:storage-limit")
    assert len(queues.queue(QUEUE).add(b"1")) == 1
    assert queues.storage() == Storage(10, 10)


def test_a_stage_hands_over_though_the_store_is_full(full: tuple[RunningServer, HttpQueues]) -> None:
    _, queues = full
    (held,) = queues.queue(QUEUE).lease()
    queues.queue(QUEUE).delete(held, then=[NewTask(b"x" * 20)])
    assert queues.storage() == Storage(10, 20)


def test_app_engines_clients_are_over_their_quota(full: tuple[RunningServer, HttpQueues]) -> None:
    server, queues = full
    assert rpc_code_of(bulk_add(server, [an_add(body=b"12")])) == RpcCode.OVER_QUOTA
    assert rpc_code_of(bulk_add(server, [an_add(body=b"12", description=b"by the long way")])) == RpcCode.OVER_QUOTA
    assert rpc_code_of(call(server, "Add", an_add(body=b"12"))) == RpcCode.OVER_QUOTA
    assert queues.storage() == Storage(10, 9)


def test_the_rest_apis_have_words_for_it_too(full: tuple[RunningServer, HttpQueues]) -> None:
    server, _ = full
    payload = b64encode(b"12").decode()
    status, answer = _json(server, f"/v2beta2/{PARENT}/tasks", {"task": {"pullMessage": {"payload": payload}}})
    assert (status, answer["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")  # type: ignore[index]
    status, answer = _json(
        server,
        f"/taskqueue/v1beta2/projects/p/taskqueues/{QUEUE}/tasks",
        {"payloadBase64": payload, "queueName": QUEUE},
    )
    assert (status, answer["error"]["errors"][0]["reason"]) == (403, "quotaExceeded")  # type: ignore[index]


def test_an_uploaded_queue_yaml_sets_and_lifts_the_limit(full: tuple[RunningServer, HttpQueues]) -> None:
    server, queues = full
    for text, limit_bytes in ((LIMITED, 1024), (OPEN, None)):
        reply = server.ask("POST", UPLOAD, text.encode())
        assert reply.status == 200
        assert queues.storage().limit_bytes == limit_bytes


def test_the_settings_file_sets_the_limit_as_a_server_starts(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    for setting, expected in (({"total_storage_limit": "2KiB"}, 2048), ({}, 2048), ({"total_storage_limit": 0}, 0)):
        settings, mistakes = parse_queue_file({"store": url, **setting})
        assert settings is not None
        assert not mistakes
        with prepared_store(settings, tmp_path) as store, store.read() as transaction:
            assert transaction.storage() == Storage(expected, 0)


@pytest.fixture
def towline(towline: Commands) -> Commands:
    (towline.folder / "towline.yaml").write_text(
        'store: sqlite:///queue.db\nserver: {listen: "unix:none.sock"}\nqueues: {thumbs: {}}\n'
    )
    (towline.folder / "queue.yaml").write_text(LIMITED)
    (towline.folder / "open.yaml").write_text(OPEN)
    return towline


def test_a_file_that_is_applied_sets_the_limit_and_one_without_lifts_it(towline: Commands) -> None:
    told = towline("queues", "apply", "queue.yaml", "--yes")
    assert told.code == 0
    assert told.out.splitlines()[1].split() == ["(all)", "update", "total_storage_limit", "-", "1KiB"]
    assert "not enforced" not in told.err
    assert towline("queues", "storage", "--json").json == {"limit_bytes": 1024, "used_bytes": 0}
    assert "nothing to do" in towline("queues", "apply", "queue.yaml", "--yes").err
    assert towline("add", "thumbs", "x" * 1025).code != 0
    lifted = towline("queues", "apply", "open.yaml", "--yes", "--json").json
    assert isinstance(lifted, dict)
    assert lifted["storage_limit"] == {"from": 1024, "to": None}
    assert towline("add", "thumbs", "x" * 1025).code == 0


def test_the_limit_is_set_and_lifted_by_hand(towline: Commands) -> None:
    towline("add", "thumbs", "12345")
    assert "no limit" in towline("queues", "storage").err
    assert "5 bytes of 10KiB" in towline("queues", "storage", "--limit", "10KiB").err
    assert towline("queues", "storage", "--limit", "1B", "--no-limit").code == 2
    assert towline("queues", "storage", "--no-limit", "--json").json == {"limit_bytes": None, "used_bytes": 0}
