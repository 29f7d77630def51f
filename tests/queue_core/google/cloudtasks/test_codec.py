"""Cloud Tasks' messages on both wires, and its times: by table, and any input at all."""

import base64

import pytest
from google.cloud.tasks_v2beta2.types import cloudtasks, queue, task
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from queue_core.google.cloudtasks import grpc_server, json_codec
from queue_core.google.cloudtasks.failures import CloudTasksError, RpcStatus
from queue_core.google.cloudtasks.json_codec import format_duration, format_timestamp, parse_duration, parse_timestamp
from queue_core.google.cloudtasks.messages import MESSAGES, camel, snake
from queue_core.google.cloudtasks.names import parse_queue
from queue_core.google.cloudtasks.queues import queue_values
from queue_core.task import QueueSpec

TIMES = [
    ("1970-01-01T00:00:00Z", 0),
    ("2026-01-31T12:30:00.123456Z", 1_769_862_600_123_456),
    ("2026-01-31T12:30:00.123456789Z", 1_769_862_600_123_456),
    ("2026-01-31T12:30:00.1Z", 1_769_862_600_100_000),
    ("2026-01-31t12:30:00z", 1_769_862_600_000_000),
    ("2026-01-31T14:30:00+02:00", 1_769_862_600_000_000),
    ("2026-01-31T11:00:00-01:30", 1_769_862_600_000_000),
    ("1969-12-31T23:59:59.9999995Z", -1),
    ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
    ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
    ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
]


@pytest.mark.parametrize(("text", "instant"), TIMES)
def test_a_timestamp_is_read_to_the_microsecond(text: str, instant: int) -> None:
    assert parse_timestamp(text) == instant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-31",
        "2026-01-31T12:30:00",
        "2026-02-30T12:30:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:30:00.1234567890Z",
        "2026-01-31T12:30:00+25:00",
        "2026-01-31T12:30:61Z",
        "0000-01-01T00:00:00Z",
        "٢٠٢٦-01-31T12:30:00Z",
    ],
)
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_timestamp(text)


@given(st.integers(0, 253_402_300_799_999_999))
def test_a_timestamp_that_was_written_is_read_again(instant: int) -> None:
    assert parse_timestamp(format_timestamp(instant)) == instant


def test_a_timestamp_is_written_with_0_3_or_6_digits() -> None:
    assert [format_timestamp(moment) for moment in (0, 1_500_000, 1)] == [
        "1970-01-01T00:00:00Z",
        "1970-01-01T00:00:01.500Z",
        "1970-01-01T00:00:00.000001Z",
    ]


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("0s", 0),
        ("3.5s", 3_500_000),
        ("-0.5s", -500_000),
        ("1.1234567s", 1_123_456),
        ("315576000000s", 315576 * 10**12),
    ],
)
def test_a_duration_is_read_to_the_microsecond(text: str, microseconds: int) -> None:
    assert parse_duration(text) == microseconds


@pytest.mark.parametrize("text", ["", "3", "3m", "s", "1e3s", "+3s", "315576000001s", " 3s", "9" * 400 + "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_duration(text)


@given(st.integers(-(10**15), 10**15))
def test_a_duration_that_was_written_is_read_again(microseconds: int) -> None:
    assert parse_duration(format_duration(microseconds)) == microseconds


# -- JSON -------------------------------------------------------------------------------------------------------------

READ = [
    pytest.param({"responseView": "FULL"}, {"responseView": 2}, id="an enum by name"),
    pytest.param({"responseView": 2}, {"responseView": 2}, id="an enum by number"),
    pytest.param({"response_view": "2"}, {"responseView": 2}, id="an enum's number as text, spelled as in protobuf"),
    pytest.param({"maxTasks": "7"}, {"maxTasks": 7}, id="a number as text"),
    pytest.param({"maxTasks": 7.0}, {"maxTasks": 7}, id="a whole number with a point"),
    pytest.param({"maxTasks": None}, {}, id="null is unset"),
    pytest.param({"leaseDuration": "1.5s"}, {"leaseDuration": 1_500_000}, id="a duration"),
]


@pytest.mark.parametrize(("data", "values"), READ)
def test_a_field_is_read_however_a_client_spells_it(data: object, values: object) -> None:
    assert json_codec.values_of("LeaseTasksRequest", data) == values


BAD = [
    pytest.param({"max_Tasks": 1}, 'Unknown name "max_Tasks"', id="a field spelled both ways"),
    pytest.param({"tasks": 1}, 'Unknown name "tasks"', id="a field of nobody's"),
    pytest.param({"maxTasks": 1, "max_tasks": 2}, "given twice", id="a field twice"),
    pytest.param({"maxTasks": "many"}, "maxTasks must be a whole number of 32 bits", id="a number that is none"),
    pytest.param({"maxTasks": True}, "maxTasks must be a whole number", id="a truth value for a number"),
    pytest.param({"maxTasks": 1 << 31}, "32 bits", id="a number beyond 32 bits"),
    pytest.param({"maxTasks": 1.5}, "whole", id="half a task"),
    pytest.param({"responseView": "ALL"}, "VIEW_UNSPECIFIED, BASIC, FULL", id="an unknown value of an enum"),
    pytest.param({"responseView": 3}, "VIEW_UNSPECIFIED, BASIC, FULL", id="an unknown number of an enum"),
    pytest.param({"leaseDuration": 60}, "leaseDuration must be a string", id="a bare number of seconds"),
    pytest.param({"leaseDuration": "1m"}, "in seconds, as 600s", id="minutes"),
    pytest.param({"filter": 1}, "filter must be a string", id="a number for text"),
    pytest.param([], "must be a JSON object", id="a list"),
]


@pytest.mark.parametrize(("data", "told"), BAD)
def test_a_field_that_is_wrong_is_named(data: object, told: str) -> None:
    with pytest.raises(CloudTasksError) as caught:
        json_codec.values_of("LeaseTasksRequest", data)
    assert caught.value.code is RpcStatus.INVALID_ARGUMENT
    assert told in caught.value.message


def test_a_field_within_is_named_with_what_leads_to_it() -> None:
    with pytest.raises(CloudTasksError, match=r"task\.pullMessage\.payload must be base64"):
        json_codec.values_of("CreateTaskRequest", {"task": {"pullMessage": {"payload": "a"}}})
    with pytest.raises(CloudTasksError, match=r"Unknown name .tags. at .task\.pullMessage."):
        json_codec.values_of("CreateTaskRequest", {"task": {"pullMessage": {"tags": "a"}}})


@given(st.binary(max_size=50), st.booleans(), st.booleans())
def test_a_payload_is_read_from_either_base64(payload: bytes, url_safe: bool, padded: bool) -> None:
    text = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(payload).decode()
    data = {"payload": text if padded else text.rstrip("=")}
    assert json_codec.values_of("PullMessage", data) == {"payload": payload}


def _field_names() -> st.SearchStrategy[str]:
    names = sorted({name for fields in MESSAGES.values() for name in fields})
    return st.sampled_from([*names, *(snake(name) for name in names)])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_field_names() | st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.sampled_from(sorted(MESSAGES)), ANYTHING)
def test_any_json_is_read_or_refused(message: str, data: object) -> None:
    try:
        values = json_codec.values_of(message, data)
    except CloudTasksError as error:
        assert error.code is RpcStatus.INVALID_ARGUMENT
    else:
        json_codec.json_of(message, values, enums="names")


def test_both_wires_mean_the_same_by_a_message() -> None:
    """Those of the fields that both have, of every message that the client has."""
    sample = {
        "task": {
            "name": "n",
            "pullMessage": {"payload": "AP8=", "tag": "t"},
            "scheduleTime": "2026-01-31T12:30:00.123456Z",
            "status": {"attemptDispatchCount": 3},
            "view": "FULL",
        },
        "responseView": "BASIC",
    }
    message = json_format.ParseDict(sample, cloudtasks.CreateTaskRequest.pb()())
    values = json_codec.values_of("CreateTaskRequest", sample)
    assert grpc_server.values_of("CreateTaskRequest", message) == values
    again = cloudtasks.CreateTaskRequest.pb()()
    grpc_server.fill(again, "CreateTaskRequest", values)
    assert again == message
    assert json_codec.json_of("CreateTaskRequest", values, enums="names") == sample
    shown = queue_values(QueueSpec("q", max_leases=4), parse_queue("projects/p/locations/l/queues/q", field="name"))
    filled = queue.Queue.pb()()
    grpc_server.fill(filled, "Queue", shown)
    assert json_format.MessageToDict(filled) == json_codec.json_of("Queue", shown, enums="names")
    assert filled.WhichOneof("target_type") == "pull_target"


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_every_field_is_one_that_the_client_has_too(name: str) -> None:
    """But those that only the discovery document has."""
    wrapped = next((getattr(module, name) for module in (cloudtasks, queue, task) if hasattr(module, name)), None)
    if wrapped is None:
        return
    descriptor = wrapped.pb().DESCRIPTOR
    only_here = {("Task", "retryConfig"), ("UpdateQueueRequest", "name")}
    for field_name, field in MESSAGES[name].items():
        if (name, field_name) in only_here:
            continue
        known = next(known for known in descriptor.fields if known.json_name == field_name)
        assert known.is_repeated == field.is_repeated
        assert camel(known.name) == field_name
        assert snake(field_name) == known.name
