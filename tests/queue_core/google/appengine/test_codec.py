"""The codec beside Google's own: the same tables, the same bytes, the same refusals; and hostile bytes."""

import struct
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queue_core.google.appengine import messages
from queue_core.google.appengine.codec import MAX_DEPTH, MAX_VALUES, CodecError, decode, encode
from queue_core.google.appengine.codes import RpcCode, TaskQueueErrorCode
from queue_core.google.appengine.schema import Kind, Label, MessageTable, ProtoField, ProtoRecord
from tests.support.google.appengine_sdk import remote_pb2, service_pb2

GOOGLES: Mapping[str, tuple[MessageTable, type]] = {
    name: (message, google)
    for name, message, google in (
        ("remote request", messages.REMOTE_REQUEST, remote_pb2.Request),
        ("remote response", messages.REMOTE_RESPONSE, remote_pb2.Response),
        ("add", messages.ADD_REQUEST, service_pb2.TaskQueueAddRequest),
        ("added", messages.ADD_RESPONSE, service_pb2.TaskQueueAddResponse),
        ("bulk add", messages.BULK_ADD_REQUEST, service_pb2.TaskQueueBulkAddRequest),
        ("bulk added", messages.BULK_ADD_RESPONSE, service_pb2.TaskQueueBulkAddResponse),
        ("lease", messages.LEASE_REQUEST, service_pb2.TaskQueueQueryAndOwnTasksRequest),
        ("leased", messages.LEASE_RESPONSE, service_pb2.TaskQueueQueryAndOwnTasksResponse),
        ("modify", messages.MODIFY_REQUEST, service_pb2.TaskQueueModifyTaskLeaseRequest),
        ("modified", messages.MODIFY_RESPONSE, service_pb2.TaskQueueModifyTaskLeaseResponse),
        ("delete", messages.DELETE_REQUEST, service_pb2.TaskQueueDeleteRequest),
        ("deleted", messages.DELETE_RESPONSE, service_pb2.TaskQueueDeleteResponse),
        ("purge", messages.QUEUE_REQUEST, service_pb2.TaskQueuePurgeQueueRequest),
        ("pause", messages.PAUSE_REQUEST, service_pb2.TaskQueuePauseQueueRequest),
        ("stats", messages.STATS_REQUEST, service_pb2.TaskQueueFetchQueueStatsRequest),
        ("stats told", messages.STATS_RESPONSE, service_pb2.TaskQueueFetchQueueStatsResponse),
        ("update", messages.UPDATE_QUEUE_REQUEST, service_pb2.TaskQueueUpdateQueueRequest),
        ("queues", messages.QUEUES_REQUEST, service_pb2.TaskQueueFetchQueuesRequest),
        ("queues told", messages.QUEUES_RESPONSE, service_pb2.TaskQueueFetchQueuesResponse),
        ("tasks", messages.TASKS_REQUEST, service_pb2.TaskQueueQueryTasksRequest),
        ("tasks told", messages.TASKS_RESPONSE, service_pb2.TaskQueueQueryTasksResponse),
        ("task", messages.TASK_REQUEST, service_pb2.TaskQueueFetchTaskRequest),
        ("task told", messages.TASK_RESPONSE, service_pb2.TaskQueueFetchTaskResponse),
    )
}
WHOLE = (
    "lease",
    "leased",
    "modify",
    "modified",
    "delete",
    "deleted",
    "bulk added",
    "stats",
    "stats told",
    "remote response",
)
"""Messages whose every field is in our table too, so that both sides must agree on any bytes."""

_TYPES = {
    1: Kind.DOUBLE,
    3: Kind.INT64,
    5: Kind.INT32,
    8: Kind.BOOL,
    9: Kind.STRING,
    10: Kind.GROUP,
    11: Kind.MESSAGE,
    12: Kind.BYTES,
    14: Kind.ENUM,
}
OPAQUE = {
    ("TaskQueueAddRequest", "transaction"),
    ("TaskQueueAddRequest", "payload"),
    ("TaskQueueBulkAddRequest", "add_request"),
}

pairs = pytest.mark.parametrize(("message", "google"), [pytest.param(*GOOGLES[name], id=name) for name in GOOGLES])
few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


# -- the tables -------------------------------------------------------------------------------------------------------


@pairs
def test_every_table_is_as_googles_descriptor_says(message: MessageTable, google: type) -> None:
    _compare(message, google.DESCRIPTOR)  # type: ignore[attr-defined]


def _compare(message: MessageTable, descriptor: object) -> None:
    theirs = {one.number: one for one in descriptor.fields}  # type: ignore[attr-defined]
    for ours in message.fields:
        their = theirs[ours.number]
        assert their.name == ours.name
        label = Label.REPEATED if their.is_repeated else Label.REQUIRED if their.is_required else Label.OPTIONAL
        # one table serves a request that requires the app's id and one that does not; nobody reads it
        assert label is ours.label or ours.name == "app_id"
        if (their.containing_type.name, their.name) in OPAQUE:
            assert ours.kind is Kind.BYTES
        else:
            assert _TYPES[their.type] is ours.kind
        if ours.kind is Kind.ENUM and ours.name in ("mode", "method"):
            assert ours.values == set(their.enum_type.values_by_number)
        if ours.message is not None:
            _compare(ours.message, their.message_type)


def test_every_code_is_googles() -> None:
    assert {code.name: int(code) for code in TaskQueueErrorCode}.items() <= dict(
        service_pb2.TaskQueueServiceError.ErrorCode.items()
    ).items()
    assert {code.name: int(code) for code in RpcCode}.items() <= dict(remote_pb2.RpcError.ErrorCode.items()).items()


# -- right messages ---------------------------------------------------------------------------------------------------

_SCALARS = {
    Kind.INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    Kind.INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    Kind.BOOL: st.booleans(),
    Kind.DOUBLE: st.floats(allow_nan=False),
    Kind.BYTES: st.binary(max_size=300),
    Kind.STRING: st.text(max_size=60),
}


def _values(field: ProtoField) -> st.SearchStrategy[object]:
    if field.message is not None:
        return records(field.message)
    if field.kind is Kind.ENUM:
        return st.sampled_from(sorted(field.values))
    return _SCALARS[field.kind]


def records(message: MessageTable) -> st.SearchStrategy[ProtoRecord]:
    """Any record of a message; fields that are bytes here and a message at Google's are left out."""
    required, optional = {}, {}
    for field in message.fields:
        if (message.name, field.name) in OPAQUE:
            continue
        if field.label is Label.REPEATED:
            optional[field.name] = st.lists(_values(field), min_size=1, max_size=4)
        elif field.label is Label.REQUIRED:
            required[field.name] = _values(field)
        else:
            optional[field.name] = _values(field)
    return st.fixed_dictionaries(required, optional=optional).map(ProtoRecord)


@pairs
@given(data=st.data())
@few
def test_a_record_is_the_same_bytes_as_at_googles(message: MessageTable, google: type, data: st.DataObject) -> None:
    record = data.draw(records(message))
    ours = encode(message, record)
    theirs = google()
    theirs.ParseFromString(ours)  # type: ignore[attr-defined]
    if theirs.IsInitialized():  # type: ignore[attr-defined]
        assert theirs.SerializeToString() == ours  # type: ignore[attr-defined]
    assert decode(message, ours) == record


def test_groups_are_written_as_google_writes_them() -> None:
    google = service_pb2.TaskQueueQueryAndOwnTasksResponse()
    task = google.task.add()
    task.task_name, task.eta_usec, task.retry_count, task.body = b"n", 1 << 50, 0, b""
    record = {"task": [ProtoRecord(task_name=b"n", eta_usec=1 << 50, retry_count=0, body=b"")]}
    assert encode(messages.LEASE_RESPONSE, record) == google.SerializeToString()


# -- any bytes --------------------------------------------------------------------------------------------------------


@st.composite
def mangled(draw: st.DrawFn, message: MessageTable) -> bytes:
    """Bytes that were a message before something happened to them, or never were one."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=60))
    data = bytearray(encode(message, draw(records(message))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        change = draw(st.sampled_from(("insert", "remove", "set", "cut")))
        if change == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=6))
        elif change == "remove":
            del data[at : at + 1]
        elif change == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif change == "cut":
            del data[at:]
    return bytes(data)


@pytest.mark.parametrize(("message", "google"), [pytest.param(*GOOGLES[name], id=name) for name in WHOLE])
@given(data=st.data())
@many
def test_any_bytes_are_read_as_google_reads_them(message: MessageTable, google: type, data: st.DataObject) -> None:
    raw = data.draw(mangled(message))
    theirs = google()
    try:
        theirs.ParseFromString(raw)  # type: ignore[attr-defined]
        is_right = theirs.IsInitialized()  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - whatever it refuses with
        is_right = False
    try:
        ours = decode(message, raw)
    except CodecError as error:
        assert not is_right or "UTF-8" in str(error)
        return
    assert is_right
    theirs.DiscardUnknownFields()  # type: ignore[attr-defined]
    again = google()
    again.ParseFromString(encode(message, ours))  # type: ignore[attr-defined]
    assert again.SerializeToString() == theirs.SerializeToString()  # type: ignore[attr-defined]


@pairs
@given(data=st.data())
@few
def test_any_bytes_end_in_a_record_or_in_a_codec_error(
    message: MessageTable, google: type, data: st.DataObject
) -> None:
    try:
        decode(message, data.draw(mangled(message)))
    except CodecError as error:
        assert str(error)


HOSTILE = [
    pytest.param(b"\x0a\xff\xff\xff\xff\x0f", id="a field longer than its message"),
    pytest.param(b"\x0a" + b"\xff" * 9 + b"\x01", id="a length of 2^64"),
    pytest.param(b"\x18" + b"\xff" * 10 + b"\x01", id="a number of eleven bytes"),
    pytest.param(b"\x18\xff", id="a number cut short"),
    pytest.param(b"\x11\x00", id="a double cut short"),
    pytest.param(b"\x00\x00", id="a field numbered 0"),
    pytest.param(b"\xff\xff\xff\xff\xff\x0f\x00", id="a field's number over 2^32"),
    pytest.param(b"\x7e", id="wire type 6"),
    pytest.param(b"\x0c", id="the end of no group"),
    pytest.param(b"\x04", id="the end of group 0"),
    pytest.param(b"\x7b" * 100_000, id="groups inside groups without end"),
    pytest.param(b"\x7b" * (MAX_DEPTH + 1) + b"\x7c" * (MAX_DEPTH + 1), id="groups too deep"),
    pytest.param(b"\x7b\x84\x01", id="a group ended by another's end"),
    pytest.param(b"", id="required fields missing"),
]


@pytest.mark.parametrize("raw", HOSTILE)
def test_hostile_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(CodecError):
        decode(messages.LEASE_REQUEST, raw)


def test_unknown_fields_of_every_wire_type_are_skipped() -> None:
    right = encode(
        messages.MODIFY_REQUEST, {"queue_name": b"q", "task_name": b"t", "eta_usec": 1, "lease_seconds": 0.5}
    )
    unknown = b"\x98\x06\x05" + b"\x99\x06" + b"x" * 8 + b"\x9a\x06\x02hi" + b"\x9d\x06" + b"y" * 4
    group = b"\x9b\x06" + unknown + b"\x9b\x06\x9c\x06" + b"\x9c\x06"
    assert decode(messages.MODIFY_REQUEST, unknown + right + group) == decode(messages.MODIFY_REQUEST, right)


def test_a_known_number_of_another_wire_type_is_an_unknown_field() -> None:
    as_number = b"\x08\x01"  # queue_name is bytes
    with pytest.raises(CodecError, match="queue_name is missing"):
        decode(messages.QUEUE_REQUEST, as_number)


def test_the_last_value_counts_and_the_parts_of_a_message_are_merged() -> None:
    first = encode(messages.RETRY_PARAMETERS, {"retry_limit": 3, "max_doublings": 1})
    second = encode(messages.RETRY_PARAMETERS, {"retry_limit": 5})
    add = encode(messages.ADD_REQUEST, {"queue_name": b"a", "task_name": b"", "eta_usec": 0})
    parts = b"".join(b"\x8a\x01" + bytes([len(part)]) + part for part in (first, second))
    record = decode(messages.ADD_REQUEST, add + parts + b"\x0a\x01b")
    assert record.octets("queue_name") == b"b"
    assert record.record("retry_parameters") == {"retry_limit": 5, "max_doublings": 1}


def test_more_values_than_memory_should_hold_are_refused() -> None:
    with pytest.raises(CodecError, match="more than"):
        decode(messages.DELETE_REQUEST, b"\x0a\x00" + b"\x12\x00" * (MAX_VALUES + 1))
    with pytest.raises(CodecError, match="more than"):
        decode(messages.DELETE_RESPONSE, b"\x1a" + b"\xc1\x9a\x0c" + b"\x00" * 200_001)


def test_a_record_that_is_not_whole_is_not_written() -> None:
    with pytest.raises(CodecError, match="eta_usec is missing"):
        encode(messages.LEASE_RESPONSE, {"task": [ProtoRecord(task_name=b"n")]})
    with pytest.raises(CodecError, match="no such field"):
        encode(messages.MODIFY_RESPONSE, {"updated_eta_usec": 1, "eta": 2})
    with pytest.raises(CodecError, match="not a int64"):
        encode(messages.MODIFY_RESPONSE, {"updated_eta_usec": ProtoRecord()})


def test_a_double_is_eight_bytes_little_endian() -> None:
    raw = encode(messages.LEASE_REQUEST, {"queue_name": b"q", "lease_seconds": 0.001, "max_tasks": 1})
    assert b"\x11" + struct.pack("<d", 0.001) in raw
