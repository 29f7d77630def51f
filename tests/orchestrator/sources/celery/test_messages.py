"""What Celery writes is read leniently: a stranger's broken message is left out, and nothing else is lost."""

import json

import pytest

from orchestrator.sources.celery.messages import (
    ActiveTask,
    HeldMessage,
    MessageHead,
    NodeSignal,
    active_in,
    answers_in,
    epoch_of,
    etas_in,
    head_of,
    held_message,
    queues_in,
    restored,
    sampled_future,
    signals_in,
    totals_in,
    uses_one_thread,
    worker_of,
)

MESSAGE = {"body": "W10=", "headers": {"id": "a1", "task": "t", "eta": "2026-11-26T08:00:00+00:00"}, "properties": {}}
ETA = 1_795_680_000.0


@pytest.mark.parametrize(
    ("raw", "head"),
    [
        (json.dumps(MESSAGE), MessageHead("a1", ETA)),
        (json.dumps({"headers": {"id": "a1", "eta": None}}), MessageHead("a1")),
        (json.dumps({"headers": {}, "properties": {"correlation_id": "b2"}}), MessageHead("b2")),
        (json.dumps({"headers": {"id": 5}}), None),
        (json.dumps([1]), None),
        (b"\xff\xfe", None),
        ("", None),
        ("[" * 50_000, None),
    ],
)
def test_the_headers_of_a_message(raw: str | bytes, head: MessageHead | None) -> None:
    assert head_of(raw) == head


def test_an_unacknowledged_message_and_how_it_is_put_back() -> None:
    raw = json.dumps([MESSAGE, "", "images"])
    assert held_message(b"tag", raw) == HeldMessage("tag", "images", "a1")
    back = json.loads(restored(raw) or "")
    assert back["body"] == MESSAGE["body"]
    assert back["headers"]["redelivered"] is True
    assert back["properties"]["delivery_info"] == {"redelivered": True}
    for broken in ("{}", "[]", "[1, 2, 3]", '[{"headers": 1}, "", "q"]', "x"):
        assert held_message("tag", broken) is None
        assert restored(broken) is None


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("2026-11-26T08:00:00+00:00", ETA),
        ("2026-11-26T09:00:00+01:00", ETA),
        ("2026-11-26T08:00:00", ETA),
        ("soon", None),
        (5, None),
        (None, None),
    ],
)
def test_times(text: object, epoch: float | None) -> None:
    assert epoch_of(text) == epoch


def test_events_come_alone_or_in_lists() -> None:
    beat = {"type": "worker-heartbeat", "hostname": "w@h", "active": 2, "processed": 7, "pid": 9, "freq": 2}
    assert list(signals_in(beat)) == [NodeSignal("heartbeat", "w@h", 2, 7, 9)]
    started = {"type": "task-started", "hostname": "w@h", "uuid": "a1"}
    done = {"type": "task-succeeded", "hostname": "w@h", "uuid": "a1", "runtime": 1.5}
    assert list(signals_in([started, done])) == [
        NodeSignal("started", "w@h", task="a1"),
        NodeSignal("succeeded", "w@h", task="a1", run_seconds=1.5),
    ]
    broken = [
        {"type": "worker-heartbeat", "hostname": "w\x1b[2J@h"},
        {"type": "worker-heartbeat", "hostname": "w" * 256},
        {"type": "worker-heartbeat"},
        {"type": "task-started", "hostname": "w@h"},
        {"type": "task-sent", "hostname": "w@h", "uuid": "a1"},
        "text",
        None,
    ]
    assert list(signals_in(broken)) == []
    odd = {"type": "worker-heartbeat", "hostname": "w@h", "active": -1, "processed": "7", "pid": True}
    assert list(signals_in(odd)) == [NodeSignal("heartbeat", "w@h")]


def test_answers_of_nodes() -> None:
    assert answers_in([{"w@h": {"ok": "pong"}}, {"v@h": []}, 5, {"\n": 1}]) == {"w@h": {"ok": "pong"}, "v@h": []}
    assert answers_in(None) == {}
    assert active_in([{"id": "a", "time_start": 5.0}, {"id": "b"}, {}, 7]) == (ActiveTask("a", 5.0), ActiveTask("b"))
    assert etas_in([{"eta": "2026-11-26T08:00:01"}, {"eta": "2026-11-26T08:00:00"}, {}]) == (ETA, ETA + 1)
    assert queues_in([{"name": "celery"}, {"name": 5}, {}]) == ("celery",)
    assert totals_in({"pid": 5, "total": {"t": 3, "u": 4, "v": "x"}}) == (5, 7)
    for error in ({"error": "no"}, None, "text"):
        assert (active_in(error), etas_in(error), queues_in(error), totals_in(error)) == (None, None, None, None)


def test_names_and_kinds() -> None:
    assert worker_of("shop-7f3k2q@host") == "shop-7f3k2q"
    assert uses_one_thread({"pool": {"implementation": "celery.concurrency.solo:TaskPool"}})
    assert not uses_one_thread({"pool": {"implementation": "celery.concurrency.prefork:TaskPool"}})
    assert sampled_future([None, MessageHead("a"), MessageHead("b", 5.0), MessageHead("c", 9.0)], now=5.0) == (9.0,)
