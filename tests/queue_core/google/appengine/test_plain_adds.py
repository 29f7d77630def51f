"""Adds by the short way: the same tasks and answers as by the long one, whatever the bytes."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queue_core.clock import MICROSECONDS, Instant, ManualClock
from queue_core.google.appengine import adds, fast_adds, messages
from queue_core.google.appengine.codec import CodecError, encode
from queue_core.google.appengine.codes import ApplicationError
from queue_core.google.appengine.queues import QueueSettingsCache
from queue_core.google.appengine.schema import MessageTable, ProtoRecord
from queue_core.stores.memory.store import MemoryStore
from queue_core.task import ALL_STATES, ANY, NewTask, QueueSpec, StoredTask
from queue_core.unit.service import Operation, QueueService
from tests.support.google.appengine_sdk import service_pb2

NOW = Instant(1_800_000_000 * MICROSECONDS)
DAY = 86_400 * MICROSECONDS

ETAS = st.sampled_from([-1, 0, 1, (1 << 49) - 1, 1 << 49, NOW - 1, NOW, NOW + 1, NOW + DAY, NOW + 31 * DAY, 1 << 56])
PLAIN = {
    "queue_name": st.sampled_from([b"q", b"other", b"nowhere", b"a b", b"", b"q" * 130]),
    "task_name": st.sampled_from([b"", b"", b"a", b"b", b"_1", b"a b", b"n" * 127, b"n" * 128, b"n" * 501]),
    "eta_usec": ETAS,
    "body": st.sampled_from([b"", b"x", b"x" * 127, b"x" * 128, b"x" * 16_300, b"x" * 20_000]),
    "mode": st.sampled_from([messages.PULL, messages.PULL, messages.PUSH]),
}
OPTIONAL = {
    "tag": st.sampled_from([b"", b"t", b"u", b"t" * 501, b"\xff"]),
    "header": st.lists(
        st.builds(ProtoRecord, key=st.sampled_from([b"", b"k", b"k" * 128]), value=st.sampled_from([b"", b"v"])),
        max_size=2,
    ),
    "url": st.just(b"/x"),
    "method": st.just(2),
    "description": st.just(b"d"),
    "transaction": st.just(b""),
    "retry_parameters": st.builds(ProtoRecord, retry_limit=st.integers(-1, 2)),
}


def an_add(**changed: object) -> ProtoRecord:
    fields: dict[str, object] = {"queue_name": b"q", "task_name": b"", "eta_usec": NOW, "body": b"", "mode": 1}
    return ProtoRecord(fields | changed)  # type: ignore[arg-type]


def a_batch(*adds: ProtoRecord) -> bytes:
    return encode(messages.BULK_ADD_REQUEST, {"add_request": [encode(messages.ADD_REQUEST, add) for add in adds]})


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Plain ones, most of them; with a few oddities, fields in other orders, bytes changed, cut."""
    adds = []
    for _ in range(draw(st.integers(0, 5))):
        record = an_add()
        for name in draw(st.sets(st.sampled_from(sorted(PLAIN)), max_size=2)):
            record[name] = draw(PLAIN[name])
        for name in draw(st.sets(st.sampled_from(sorted(OPTIONAL)), max_size=2)):
            record[name] = draw(OPTIONAL[name])
        parts = [encode(_one(name), {name: value}) for name, value in sorted(record.items(), key=_number)]
        parts = draw(st.one_of(st.just(parts), st.permutations(parts), st.just([*parts, parts[0], parts[-1]])))
        adds.append(b"".join(parts))
    payload = encode(messages.BULK_ADD_REQUEST, {"add_request": adds})
    if payload and draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(payload) - 1))
        payload = draw(
            st.sampled_from(
                [
                    payload[:at],
                    payload[:at] + bytes((draw(st.integers(0, 255)),)) + payload[at + 1 :],
                    payload + b"\x12\0",
                ]
            )
        )
    return payload


_FIELDS = {field.name: field for field in messages.ADD_REQUEST.fields}


def _number(item: tuple[str, object]) -> int:
    return _FIELDS[item[0]].number


def _one(name: str) -> MessageTable:
    return MessageTable("one field", (_FIELDS[name],))


def _outcome(way: Callable[[bytes], Operation[bytes]], payload: bytes) -> tuple[object, list[StoredTask]]:
    """What a new store answers, and what it holds then."""
    service = QueueService(MemoryStore(), clock=ManualClock(NOW))
    service.run(lambda turn: turn.put_queue(QueueSpec("q")))
    service.run(lambda turn: turn.put_queue(QueueSpec("other")))
    service.run(lambda turn: turn.add("q", [NewTask(name="b")]))
    answer: object
    try:
        answer = service.run(way(payload))
    except ApplicationError as error:
        answer = (error.code, error.detail)
    except CodecError as error:
        answer = str(error)
    with service.store.read() as transaction:
        pages = [
            transaction.peek(queue, ANY, ALL_STATES, limit=1000, payload_bytes=1 << 20, now=NOW)
            for queue in ("q", "other")
        ]
    return answer, [task for page in pages for task in page.tasks]


@given(batches())
@example(a_batch())
@example(a_batch(*[an_add()] * 101))
@example(a_batch(an_add(task_name=b"a"), an_add(task_name=b"a")))
@example(a_batch(an_add(), an_add(queue_name=b"other")))
@example(a_batch(an_add(url=b"/x")))
@settings(max_examples=250, deadline=None)
def test_the_short_way_answers_and_adds_what_the_long_one_does(payload: bytes) -> None:
    each = partial(adds.bulk_add_each, settings=QueueSettingsCache())
    assert _outcome(adds.bulk_add(QueueSettingsCache()), payload) == _outcome(each, payload)


@pytest.mark.parametrize(
    "adds",
    [
        pytest.param([an_add()], id="one"),
        pytest.param([an_add()] * 100, id="a hundred"),
        pytest.param([an_add(task_name=b"a"), an_add(task_name=b"b" * 127)], id="named"),
        pytest.param([an_add(tag=b"t"), an_add(), an_add(tag=b"u")], id="of several tags"),
        pytest.param([an_add(body=b"x" * 16_300)], id="long"),
        pytest.param([an_add(header=[]), an_add(task_name=b"a", header=[])], id="of Java"),
        pytest.param([an_add(eta_usec=NOW + DAY), an_add(eta_usec=NOW - DAY)], id="of several etas"),
    ],
)
def test_what_googles_clients_write_takes_the_short_way(adds: list[ProtoRecord]) -> None:
    googles = service_pb2.TaskQueueBulkAddRequest()
    for add in adds:
        request = googles.add_request.add()
        for name, value in add.items():
            if name == "header":
                request.header.add(key=b"X-AppEngine-Current-Namespace", value=b"")  # as Java's does
            else:
                setattr(request, name, value)
    plain = fast_adds.read(googles.SerializeToString())
    assert plain is not None
    assert [(task.payload, task.name, task.tag) for task in plain.tasks] == [
        (add.octets("body"), add.octets("task_name").decode() or None, add.octets("tag").decode() or None)
        for add in adds
    ]
    assert plain.etas == [add.integer("eta_usec") for add in adds]


@given(st.lists(st.binary(max_size=40), max_size=4))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_the_short_way_fail(requests: list[bytes]) -> None:
    for payload in (b"".join(requests), encode(messages.BULK_ADD_REQUEST, {"add_request": requests})):
        fast_adds.read(payload)
