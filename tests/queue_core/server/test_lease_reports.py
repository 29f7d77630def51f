"""The JSON of headers, progress, checkpoints, errors and history: its forms, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from queue_core.clock import ManualClock
from queue_core.server import schemas
from queue_core.server.leases import reports
from queue_core.server.v1.verb_endpoints import request_of
from queue_core.task import QueueSpec
from queue_core.unit.queue_verbs import ReadHistory
from tests.support.servers import QUEUE, RunningServer, a_timed_server

HERE = f"/v1/queues/{QUEUE}"
SPEC = QueueSpec(QUEUE, retry_min_seconds=0.0, retry_max_seconds=0.0, max_leases=2)


@pytest.fixture
def running() -> Iterator[tuple[RunningServer, ManualClock]]:
    with a_timed_server(SPEC) as (server, clock):
        yield server, clock


@pytest.fixture
def server(running: tuple[RunningServer, ManualClock]) -> RunningServer:
    return running[0]


def post(server: RunningServer, path: str, body: object) -> dict[str, Any]:
    reply = server.ask("POST", path, json.dumps(body).encode())
    assert reply.status == 200, reply.body
    return reply.json()


def lease_one(server: RunningServer, **members: object) -> dict[str, Any]:
    (lease,) = post(server, f"{HERE}/lease", {"worker": "w", **members})["leases"]
    assert isinstance(lease, dict)
    return lease


def peek_one(server: RunningServer) -> dict[str, Any]:
    (task,) = post(server, f"{HERE}/peek", {})["tasks"]
    assert isinstance(task, dict)
    return task


def test_a_plain_task_has_no_member_more(server: RunningServer) -> None:
    post(server, f"{HERE}/add", {"tasks": [{"text": "x", "headers": {}}]})
    laden = {"headers", "checkpoint", "checkpoint_bytes", "attempts", "progress"}
    assert not laden & set(peek_one(server))
    assert not laden & set(lease_one(server))


def test_the_life_of_a_laden_task_in_json(server: RunningServer, running: tuple[RunningServer, ManualClock]) -> None:
    post(server, f"{HERE}/add", {"tasks": [{"text": "x", "name": "cat", "headers": {"trace-id": "1"}}]})
    lease = lease_one(server)
    assert (lease["headers"], "checkpoint" in lease) == ({"trace-id": "1"}, False)
    running[1].advance(2.0)
    renewal = {"token": lease["token"], "progress": {"fraction": 0.4, "text": "page 12"}, "checkpoint": "cGFnZSAxMg=="}
    (renewed,) = post(server, f"{HERE}/renew", {"renewals": [renewal], "seconds": 90})["renewed"]
    assert (renewed["token"], renewed["expires_at"]) == (lease["token"], running[1].now() + 90_000_000)
    error = {"error": "ValueError", "message": "bad width", "place": "tasks.py:14", "host": "h-1"}
    (released,) = post(server, f"{HERE}/release", {"tokens": [lease["token"]], "error": error})["released"]
    assert (released["outcome"], released["reason"]) == ("released", "ValueError: bad width (tasks.py:14)")
    task = peek_one(server)
    began, ended = lease["leased_at"], running[1].now()
    assert {name: task[name] for name in ("headers", "attempts", "progress", "checkpoint_bytes", "checkpoint")} == {
        "headers": {"trace-id": "1"},
        "attempts": [
            {"lease_number": 1, "worker": "w", "began_at": began, "ended_at": ended, "outcome": "raised"}
            | error
            | {"error_path": "", "traceback": ""}
        ],
        "progress": {"fraction": 0.4, "text": "page 12"},
        "checkpoint_bytes": 7,
        "checkpoint": "cGFnZSAxMg==",
    }
    again = lease_one(server)
    assert (again["headers"], again["checkpoint"]) == ({"trace-id": "1"}, "cGFnZSAxMg==")
    died = post(server, f"/v1/workers/{again['worker']}/release", {"failure": {"error": "SIGKILL", "host": "h-1"}})
    assert [(one["died"], one["reason"]) for one in died["released"]] == [(True, "SIGKILL")]
    assert peek_one(server)["reason"] == "SIGKILL"
    page = post(server, f"{HERE}/history", {"limit": 1})
    assert [(one["name"], one["lease_number"], one["reason"]) for one in page["leases"]] == [("cat", 2, "SIGKILL")]
    rest = post(server, f"{HERE}/history", {"names": ["cat"], "before": page["next_before"]})
    assert ([one["lease_number"] for one in rest["leases"]], rest["next_before"]) == ([1], None)


def test_an_error_as_a_text_is_redacted_and_has_no_host(server: RunningServer) -> None:
    post(server, f"{HERE}/add", {"tasks": [{"text": "x"}]})
    body = {"tokens": [lease_one(server)["token"]], "error": "no cat: password=hunter2"}
    post(server, f"{HERE}/release", body)
    (attempt,) = peek_one(server)["attempts"]
    assert (attempt["message"], attempt["host"], attempt["outcome"]) == ("no cat: password=***", "", "raised")


@pytest.mark.parametrize("lifecycle_reason", ["told", None])
def test_a_released_event_has_the_reason_that_was_told(server: RunningServer, lifecycle_reason: str | None) -> None:
    post(server, f"{HERE}/add", {"tasks": [{"text": "x"}]})
    body = {"tokens": [lease_one(server)["token"]]} | ({"error": lifecycle_reason} if lifecycle_reason else {})
    post(server, f"{HERE}/release", body)
    events = server.ask("GET", "/v1/events").json()["events"]
    assert isinstance(events, list)
    (released,) = [event for event in events if event["event"] == "lease.released"]
    assert released.get("reason") == lifecycle_reason


@pytest.mark.parametrize(
    ("verb", "body", "told"),
    [
        ("add", {"tasks": [{"headers": {"a": 1}}]}, "/tasks/0/headers/a: Input should be a valid string"),
        ("add", {"tasks": [{"headers": []}]}, "/tasks/0/headers: Input should be"),
        ("add", {"tasks": [{"headers": {"a b": ""}}]}, "a header's name must be 1 to 64 letters, digits"),
        ("add", {"tasks": [{"headers": {"a": "x" * 4096}}]}, "headers must be at most 4096 bytes (4 KiB) together"),
        ("renew", {}, "a renew has `tokens` or `renewals`"),
        ("renew", {"renewals": [{"token": "1.1", "checkpoint": "%"}]}, "the checkpoint of '1.1' is not base64"),
        ("renew", {"renewals": [{"token": "1.1", "checkpoint": "é"}]}, "the checkpoint of '1.1' is not base64"),
        ("renew", {"renewals": [{"token": "1.1", "checkpoint": 5}]}, "/renewals/0/checkpoint: Input should be"),
        ("renew", {"renewals": [{"token": "1.1", "progress": 0.5}]}, "/renewals/0/progress: Input should be"),
        ("renew", {"renewals": [{"token": "1.1", "progress": {"fraction": 2}}]}, "progress must be a number in [0, 1]"),
        ("renew", {"renewals": [{"checkpoint": ""}]}, "/renewals/0/token: Field required"),
        ("release", {"tokens": [], "error": 5}, "/error: Input should be"),
        ("release", {"tokens": [], "error": {"outcome": "expired"}}, "/error/outcome: Input should be"),
        ("release", {"tokens": ["1.1"], "error": {"host": "h" * 254}}, "host of a failure must be at most 253"),
        ("history", {"limit": 1001}, "limit must be a whole number in [1, 1000]: 1001"),
        ("history", {"before": -1}, "/before: Input should be greater than or equal to 0"),
        ("history", {"names": "a"}, "/names: Input should be a valid"),
    ],
)
def test_what_is_refused(server: RunningServer, verb: str, body: object, told: str) -> None:
    reply = server.ask("POST", f"{HERE}/{verb}", json.dumps(body).encode())
    assert reply.status == 422
    assert told in str(reply.json()["detail"])


def test_a_header_of_the_wrong_type_is_not_shown(server: RunningServer) -> None:
    reply = server.ask("POST", f"{HERE}/add", b'{"tasks":[{"headers":{"authorization":123456}}]}')
    assert reply.status == 422
    assert b"123456" not in reply.body


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (schemas.AddRequest, {"tasks": [{"text": "x", "headers": {"a": "1", "b": "2"}}, {"headers": {}}, {}]}),
        (schemas.DeleteRequest, {"deletions": [{"token": "1.1", "then": [{"headers": {"a": "1"}}]}]}),
        (reports.RenewRequest, {"tokens": ["1.1"], "seconds": 5}),
        (
            reports.RenewRequest,
            {
                "renewals": [
                    {"token": "1.1", "progress": {"fraction": 1, "text": "x"}},
                    {"token": "1", "checkpoint": ""},
                ]
            },
        ),
        (
            reports.ReleaseRequest,
            {"tokens": [], "error": {"outcome": "raised", "message": "a: b", "place": "t:1"}},
        ),
        (reports.ReleaseRequest, {"tokens": [], "error": "a: b"}),
        (reports.ReleaseWorkerRequest, {"failure": {"error": "SIGKILL", "host": "::1"}}),
        (request_of(ReadHistory), {"names": None, "before": None, "limit": 1}),
    ],
)
def test_keys_are_counted_exactly_so_that_no_body_is_parsed_twice(
    model: type[schemas.RequestBody], body: object
) -> None:
    text = json.dumps(body)
    params = model.model_validate_json(text)
    assert params.keys() + params.colons() == text.count(":")
