"""Messages that are no tasks: delivery by exchange, lifetimes and bounds."""

import sys
from collections.abc import Callable, Sequence
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_core.celery.mailboxes import table
from queue_core.celery.mailboxes.exchanges import Binding, matches
from queue_core.celery.mailboxes.mailbox import Letter, Popped
from queue_core.celery.mailboxes.mailboxes import Mailboxes
from queue_core.celery.mailboxes.news import Posted
from queue_core.celery.mailboxes.topics import Topics, words_of
from queue_core.clock import START, Instant, after
from queue_core.errors import InvalidRequestError

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
    made.unwatch(wake, now=after(START, 100))
    assert woken == ["now"]


def test_the_oldest_go_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_MESSAGES", 2)
    made = boxes("one")
    for text in "abc":
        made.put(SPACE, "one", Posted(text), now=START)
    assert texts(made, "one") == ["b", "c"]


def a_letter(text: str) -> int:
    return Letter(START, text).size


def test_of_the_fullest_mailbox_the_oldest_go_where_messages_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_SPACE_BYTES", 4 * a_letter(""))
    made = boxes("one", "two")
    made.put(SPACE, "two", Posted(""), now=START)
    for number in range(4):
        made.put(SPACE, "one", Posted("", priority=int(number == 0)), now=after(START, number))
    assert made.pop(SPACE, ["one", "two"], 10, now=START) == [
        Popped("one", START, ""),  # of higher priority
        Popped("two", START, ""),
        Popped("one", after(START, 3), ""),
    ]


def test_a_message_for_too_many_mailboxes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_SPACE_BYTES", 4 * a_letter("long"))
    made = boxes(*"abcde")
    made.declare_exchange(SPACE, "all", "fanout")
    for queue in "abcd":
        made.bind(SPACE, "all", Binding("", queue, is_task_queue=False))
    made.publish(SPACE, "all", "", Posted("long"), now=START)
    made.bind(SPACE, "all", Binding("", "e", is_task_queue=False))
    with pytest.raises(InvalidRequestError, match="is for 5 mailboxes"):
        made.publish(SPACE, "all", "", Posted("more"), now=START)
    assert texts(made, *"abcde") == ["long"] * 4


def test_mailboxes_that_nobody_reads_are_dropped_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "EXPIRED_PER_CALL", 2)
    made = boxes("one", "two", "three")
    assert [made.size(SPACE, "two", now=after(START, 11)) for _ in range(2)] == [0, None]


def test_a_namespace_that_takes_most_makes_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_BYTES", 4 * a_letter(""))
    made = boxes("one")
    made.declare("other", "one", expires_seconds=10.0, ttl_seconds=None, now=START)
    for _ in range(4):
        made.put(SPACE, "one", Posted(""), now=START)
    made.put("other", "one", Posted(""), now=START)
    assert made.size("other", "one", now=START) == 1
    assert made.size(SPACE, "one", now=START) == 2


def test_what_a_namespace_declares_is_bounded_and_counted_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_SPACE_NAMES_BYTES", 100_000)
    made = boxes()
    makers: list[Callable[[int], None]] = [
        lambda n: made.declare(SPACE, f"q{n}", expires_seconds=10.0, ttl_seconds=None, now=START),
        lambda n: made.bind(SPACE, "all", Binding(f"k{n}", "q", is_task_queue=True)),
        lambda n: made.watch(SPACE, [f"w{n}"], lambda: None),
        lambda n: made.bind(SPACE, f"e{n}", Binding("", "e", is_task_queue=False)),
    ]
    for make in makers:
        count = 0
        with pytest.raises(InvalidRequestError, match="may take at most"):
            for count in range(1000):
                make(count)
        assert 50 < count < 350
        made.declare("other", "q", expires_seconds=10.0, ttl_seconds=None, now=START)
        for number in range(count):
            made.delete(SPACE, f"q{number}")
        for queue in ("q", "e"):
            made.declare("x", queue, expires_seconds=10.0, ttl_seconds=None, now=START)
            made._exchanges.drop_queue(SPACE, queue)
        for wake in made._boxes.all_watchers():
            made.unwatch(wake, now=START)


def test_all_namespaces_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_NAMES_BYTES", 100_000)
    made = boxes()
    with pytest.raises(InvalidRequestError, match="of all namespaces may take"):
        for number in range(1000):
            made.declare_exchange(f"space{number}", "all", "topic")


def test_an_exchange_that_delivers_to_nothing_goes_where_room_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_SPACE_NAMES_BYTES", 10_000)
    made = boxes("one")
    made.declare_exchange(SPACE, "kept", "fanout")
    made.bind(SPACE, "kept", Binding("", "one", is_task_queue=False))
    for number in range(1000):
        made.declare_exchange(SPACE, f"e{number}", "direct")
    made.publish(SPACE, "kept", "any", Posted("here"), now=START)
    assert texts(made, "one") == ["here"]


def test_the_bindings_of_one_exchange_are_bounded() -> None:
    made = boxes()
    with pytest.raises(InvalidRequestError, match="the bindings of exchange 'all' take 8 MiB"):
        for number in range(12_000):
            made.bind(SPACE, "all", Binding(f"k{number}", "q", is_task_queue=False))


def test_a_topic_has_a_bounded_number_of_words() -> None:
    made = boxes("one")
    made.declare_exchange(SPACE, "topics", "topic")
    longest = ".".join(["w"] * 128)
    made.bind(SPACE, "topics", Binding(longest, "one", is_task_queue=False))
    made.publish(SPACE, "topics", longest, Posted("x"), now=START)
    assert texts(made, "one") == ["x"]
    with pytest.raises(InvalidRequestError, match="at most 128 words: 129"):
        made.bind(SPACE, "topics", Binding(f"{longest}.w", "one", is_task_queue=False))
    with pytest.raises(InvalidRequestError, match="at most 128 words: 129"):
        made.publish(SPACE, "topics", f"{longest}.w", Posted("x"), now=START)


@pytest.mark.parametrize("seconds", [1e305, float("inf"), float("nan"), -1.0, 2.0**63])
def test_a_lifetime_is_bounded(seconds: float) -> None:
    made = boxes("one")
    with pytest.raises(InvalidRequestError, match="expires_seconds must be a number in"):
        made.declare(SPACE, "two", expires_seconds=seconds, ttl_seconds=None, now=START)
    with pytest.raises(InvalidRequestError, match="ttl_seconds must be a number in"):
        made.declare(SPACE, "two", expires_seconds=None, ttl_seconds=seconds, now=START)
    with pytest.raises(InvalidRequestError, match="ttl_seconds must be a number in"):
        made.put(SPACE, "one", Posted("x", seconds), now=START)
    assert texts(made, "one", "two") == []


def test_an_answer_has_a_bounded_size() -> None:
    made = boxes("one")
    for _ in range(20):
        made.put(SPACE, "one", Posted("x" * (1 << 20)), now=START)
    assert len(texts(made, "one")) == 7  # 8 MiB with what a text takes beside its characters


# -- topics ---------------------------------------------------------------------------------------------------------

ELEMENTS = st.sampled_from(["a", "b", "*", "#"])


def slow_match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """AMQP's topics, by their definition."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(slow_match(pattern[1:], words[start:]) for start in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and slow_match(pattern[1:], words[1:])


@given(
    st.lists(st.lists(ELEMENTS, max_size=5).map(".".join), max_size=12),
    st.lists(st.sampled_from(["a", "b", "c", "#"]), max_size=5),
)
def test_topics_match_by_their_definition(patterns: list[str], words: list[str]) -> None:
    matching = Topics(dict.fromkeys(patterns)).matching(".".join(words))
    assert sorted(matching) == sorted({one for one in patterns if slow_match(words_of(one), words)})


@given(st.lists(ELEMENTS, max_size=4).map(".".join), st.lists(ELEMENTS, max_size=4).map(".".join))
def test_an_exchange_of_topics_finds_what_one_pattern_matches(pattern: str, key: str) -> None:
    assert matches("topic", pattern, key) is slow_match(
        pattern.split(".") if pattern else [], key.split(".") if key else []
    )


def steps(call: Callable[[], object]) -> int:
    """Count the lines of Python that a call runs."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> object:
        nonlocal count
        count += 1
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def test_the_work_for_a_message_does_not_grow_with_patterns_times_words() -> None:
    def work(patterns: int, words: int) -> int:
        topics = Topics(".".join(["#", "w"] * (words // 2) + [f"end{number}"]) for number in range(patterns))
        return steps(lambda: topics.matching(".".join(["w"] * words)))

    assert work(100, 100) < 4 * work(1, 100) + 4 * work(100, 1) + 4 * 100 * 50
