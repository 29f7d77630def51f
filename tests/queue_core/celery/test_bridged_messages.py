"""What a bridge makes of a message: the task, its name, and what is left of its broker."""

import json
from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from queue_core.celery.bridge.message import BridgedMessage, bridged_task, from_list, from_parts, name_of
from queue_core.clock import MICROSECONDS, Instant

NOW = Instant(1_700_000_000 * MICROSECONDS)
BODY = '[[1, 2], {}, {"chord": null}]'


def of_redis(**changes: Any) -> dict[str, Any]:
    """A message as Celery has it in a list of Redis."""
    message = {
        "body": b64encode(BODY.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"task": "shop.add", "id": "i-1", "retries": 0, "eta": None, "expires": None},
        "properties": {
            "delivery_tag": "tag-1",
            "correlation_id": "i-1",
            "priority": 3,
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": "celery"},
        },
    }
    return {**message, **changes}


def of_amqp(*, body: bytes | str = BODY, headers: dict[str, Any] | None = None, **properties: Any) -> BridgedMessage:
    """A message as a consumer of RabbitMQ gets it."""
    return from_parts(
        "celery",
        body=body,
        content_type="application/json",
        content_encoding="utf-8",
        headers={"task": "shop.add", "id": "i-1", "retries": 0} | (headers or {}),
        properties={"correlation_id": "i-1", "priority": 4, "content_type": "application/json", **properties},
        delivery_info={"exchange": "celery", "routing_key": "celery", "redelivered": False, "consumer_tag": "1"},
    )


def taken(**changes: Any) -> BridgedMessage:
    return from_list("celery", json.dumps(of_redis(**changes)).encode())


def payload(message: BridgedMessage, *, to_queue: str = "celery") -> Any:
    return json.loads(bridged_task(message, to_queue=to_queue, now=NOW).payload)


def test_a_message_of_redis_is_a_task_with_its_tag_priority_and_text() -> None:
    task = bridged_task(taken(), to_queue="celery", now=NOW)
    assert (task.tag, task.priority, task.eta) == ("shop.add", 3, None)
    kept = json.loads(task.payload)
    assert (kept["body"], kept["properties"]["body_encoding"]) == (BODY, "utf-8")
    assert kept["headers"] == of_redis()["headers"]


def test_a_message_of_rabbitmq_is_the_same_without_what_belongs_to_its_delivery() -> None:
    message = payload(of_amqp())
    assert message["body"] == BODY
    assert message["properties"] == {
        "correlation_id": "i-1",
        "priority": 4,
        "body_encoding": "utf-8",
        "delivery_info": {"exchange": "celery", "routing_key": "celery"},
    }


def test_an_eta_is_kept_by_the_store() -> None:
    headers = of_redis()["headers"] | {"eta": "2023-11-14T22:23:20+00:00", "expires": "2023-11-15T00:00:00+00:00"}
    task = bridged_task(taken(headers=headers), to_queue="celery", now=NOW)
    assert task.eta == NOW + 600 * MICROSECONDS
    assert json.loads(task.payload)["headers"]["expires"] == "2023-11-15T00:00:00+00:00"


@pytest.mark.parametrize(
    ("given", "priorities", "found"),
    [
        pytest.param(0, "kept", 0, id="kept"),
        pytest.param(9, "kept", 9, id="kept, the highest"),
        pytest.param(0, "reversed", 9, id="the first of Redis is the highest"),
        pytest.param(9, "reversed", 0, id="its last is the lowest"),
    ],
)
def test_priorities_are_kept_or_reversed(given: int, priorities: Any, found: int) -> None:
    message = taken(properties=of_redis()["properties"] | {"priority": given})
    task = bridged_task(message, to_queue="celery", now=NOW, priorities=priorities)
    assert (task.priority, json.loads(task.payload)["properties"]["priority"]) == (found, found)


def test_a_message_that_changes_queues_is_retried_where_it_went() -> None:
    assert payload(taken())["properties"]["delivery_info"] == {"exchange": "", "routing_key": "celery"}
    moved = payload(taken(), to_queue="old")
    assert moved["properties"]["delivery_info"] == {"exchange": "", "routing_key": "old"}


RETRY = {"retries": 1}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        pytest.param(taken(), taken(), True, id="Redis: delivered again"),
        pytest.param(
            taken(), taken(headers=of_redis()["headers"] | {"redelivered": True}), True, id="Redis: given back"
        ),
        pytest.param(
            taken(), taken(properties=of_redis()["properties"] | {"delivery_tag": "tag-2"}), False, id="Redis: a retry"
        ),
        pytest.param(of_amqp(), of_amqp(), True, id="RabbitMQ: delivered again"),
        pytest.param(of_amqp(), of_amqp(headers={"x-delivery-count": 2}), True, id="RabbitMQ: a quorum queue counts"),
        pytest.param(of_amqp(), of_amqp(headers=RETRY), False, id="RabbitMQ: a retry"),
        pytest.param(of_amqp(), of_amqp(body="[[2], {}, {}]"), False, id="RabbitMQ: another body"),
    ],
)
def test_a_task_is_named_after_its_message_and_no_other(
    one: BridgedMessage, other: BridgedMessage, is_same: bool
) -> None:
    assert (name_of(one) == name_of(other)) is is_same


def test_a_publication_for_two_queues_is_two_tasks() -> None:
    raw = json.dumps(of_redis()).encode()
    assert name_of(from_list("a", raw)) != name_of(from_list("b", raw))


def test_messages_without_an_id_get_no_name_as_two_may_be_alike() -> None:
    message = from_parts(
        "q",
        body=b"ping",
        content_type=None,
        content_encoding="binary",
        headers={},
        properties={},
        delivery_info={"routing_key": "q"},
    )
    task = bridged_task(message, to_queue="q", now=NOW)
    assert (task.name, task.tag) == (None, None)
    assert json.loads(task.payload)["body"] == b64encode(b"ping").decode()


def test_values_that_only_amqp_has_are_written_as_text() -> None:
    at = datetime(2023, 1, 2, tzinfo=UTC)
    headers = {"x-death": [{"time": at, "count": 1}], "price": Decimal("1.50"), "raw": b"\xff"}
    kept = payload(of_amqp(headers=headers))["headers"]
    assert kept["x-death"] == [{"time": "2023-01-02T00:00:00+00:00", "count": 1}]
    assert (kept["price"], kept["raw"]) == ("1.50", "\\xff")


def test_a_body_that_is_compressed_stays_so() -> None:
    message = of_redis(headers=of_redis()["headers"] | {"compression": "application/x-gzip"})
    assert payload(from_list("celery", json.dumps(message).encode()))["body"] == message["body"]


@pytest.mark.parametrize("raw", [b"not json", b"[]", b'{"body": 1}', b'{"properties": 3}', b"\xff\xfe", b"[" * 50_000])
def test_what_is_no_message_has_a_flaw(raw: bytes) -> None:
    found = from_list("celery", raw)
    assert found.flaw.startswith("it is no message of kombu's")
    assert found.handle == raw
