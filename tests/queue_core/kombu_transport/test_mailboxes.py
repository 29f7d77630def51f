"""Messages that are no tasks: delivery by exchange, lifetimes and bounds."""

import pytest

from queue_core.clock import START, Instant, after
from queue_core.mailboxes import mailboxes
from queue_core.mailboxes.exchanges import Binding, matches
from queue_core.mailboxes.mailboxes import Mailboxes, Popped
from queue_core.mailboxes.news import Posted

SPACE = "shop"


def boxes(*queues: str, expires_seconds: float | None = 10.0, ttl_seconds: float | None = None) -> Mailboxes:
    made = Mailboxes()
    for queue in queues:
        made.declare(SPACE, queue, expires_seconds=expires_seconds, ttl_seconds=ttl_seconds, now=START)
    return made


def texts(made: Mailboxes, *queues: str, now: Instant = START, count: int = 100) -> list[str]:
    return [one.text for one in made.pop(SPACE, queues, count, now=now)]


@pytest.mark.parametrize(
    ("kind", "bound", "key", "is_match"),
    [
        ("direct", "a", "a", True),
        ("direct", "a", "a.b", False),
        ("fanout", "x", "y", True),
        ("topic", "#", "worker.heartbeat", True),
        ("topic", "#", "", True),
        ("topic", "a.#", "a", True),
        ("topic", "a.#", "a.b.c", True),
        ("topic", "a.*", "a.b", True),
        ("topic", "a.*", "a.b.c", False),
        ("topic", "#.c", "c", True),
        ("topic", "*.b.#", "a.b", True),
        ("topic", "a.#.c", "a.b.b.c", True),
        ("topic", "a.b", "a+b", False),
    ],
)
def test_exchanges_match_as_amqp_says(kind: str, bound: str, key: str, is_match: bool) -> None:
    assert matches(kind, bound, key) is is_match


def test_an_exchange_delivers_to_mailboxes_and_names_task_queues() -> None:
    made = boxes("one", "two")
    made.declare_exchange(SPACE, "all", "fanout")
    for queue in ("one", "two"):
        made.bind(SPACE, "all", Binding("", queue, is_task_queue=False))
    made.bind(SPACE, "all", Binding("", "jobs", is_task_queue=True))
    assert made.publish(SPACE, "all", "", Posted("hello"), now=START) == ["jobs"]
    assert made.pop(SPACE, ["two"], 10, now=START) == [Popped("two", START, "hello")]
    assert texts(made, "one", "two") == ["hello"]


def test_namespaces_are_apart() -> None:
    made = boxes("one")
    assert not made.put("other", "one", Posted("lost"), now=START)
    assert texts(made, "one") == []


def test_the_higher_priority_comes_first_and_the_older_of_one() -> None:
    made = boxes("one", "two")
    for number, (queue, text, priority) in enumerate(
        [("one", "a", 0), ("two", "b", 5), ("one", "c", 5), ("two", "d", 0)]
    ):
        made.put(SPACE, queue, Posted(text, priority=priority), now=after(START, number))
    assert texts(made, "one", "two", count=3) == ["b", "c", "a"]
    assert texts(made, "one", "two") == ["d"]


def test_a_message_is_dropped_when_its_time_is_over() -> None:
    made = boxes("one", ttl_seconds=5.0)
    made.put(SPACE, "one", Posted("short", ttl_seconds=1.0), now=START)
    made.put(SPACE, "one", Posted("long"), now=START)
    assert made.size(SPACE, "one", now=after(START, 2)) == 1
    assert texts(made, "one", now=after(START, 6)) == []


def test_a_mailbox_that_nobody_reads_is_dropped_with_its_bindings() -> None:
    made = boxes("one")
    made.bind(SPACE, "all", Binding("k", "one", is_task_queue=False))
    assert made.size(SPACE, "one", now=after(START, 10)) == 0
    assert made.size(SPACE, "one", now=after(START, 10.1)) is None
    assert made.bindings(SPACE, "all") == []


def test_reading_and_waiting_keep_a_mailbox() -> None:
    made = boxes("one")
    made.pop(SPACE, ["one"], 1, now=after(START, 9))
    assert made.size(SPACE, "one", now=after(START, 18)) == 0
    woken: list[str] = []
    wake = lambda: woken.append("now")  # noqa: E731
    made.watch(SPACE, ["one"], wake)
    assert made.put(SPACE, "one", Posted("late"), now=after(START, 100))
    made.unwatch(wake)
    assert woken == ["now"]


def test_the_oldest_go_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "MAX_MESSAGES", 2)
    made = boxes("one")
    for text in "abc":
        made.put(SPACE, "one", Posted(text), now=START)
    assert texts(made, "one") == ["b", "c"]
    monkeypatch.setattr(mailboxes, "MAX_BYTES", 3)
    for text in ("aa", "bb"):
        made.put(SPACE, "one", Posted(text), now=START)
    assert texts(made, "one") == ["bb"]
