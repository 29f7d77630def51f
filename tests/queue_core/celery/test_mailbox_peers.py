"""Processes that tell each other about their mailboxes: who gets a message, whatever crosses on the way."""

from collections.abc import Sequence

import pytest

from queue_core.celery.mailboxes.exchanges import Binding
from queue_core.celery.mailboxes.mailboxes import Mailboxes
from queue_core.celery.mailboxes.news import (
    EVERYBODY,
    Announcement,
    Clearing,
    Echo,
    Joiner,
    Mail,
    News,
    Posted,
    Removal,
    decoded,
    encoded,
    pieces,
)
from queue_core.clock import START, after

SPACE = "shop"
ONE = Binding("k", "one", is_task_queue=False)


class Peers:
    """Processes whose news are delivered when the test says so, in the order of sending of each."""

    def __init__(self, *nodes: str) -> None:
        self.at = {node: Mailboxes(node) for node in nodes}
        self.sent: list[tuple[str, str, str]] = []
        for boxes in self.at.values():
            boxes.announce()
        self.deliver()

    def collect(self) -> None:
        """Send what the processes have to say, by the wire's form."""
        for node, boxes in self.at.items():
            self.sent += [(node, to, encoded(node, [news])) for to, news in boxes.take_outgoing()]

    def deliver(self, *senders: str) -> None:
        """Deliver what was sent, of these senders or of all, and what comes of it."""
        while True:
            self.collect()
            wanted = [one for one in self.sent if not senders or one[0] in senders]
            if not wanted:
                return
            self.sent = [one for one in self.sent if one not in wanted]
            for _, to, text in wanted:
                sender, news = decoded(text)
                for node in [to] if to else list(self.at):
                    self.at[node].receive(sender, news, now=START)

    def declare(self, node: str, queue: str = "one", *, seconds: float = 0.0) -> None:
        self.at[node].declare(SPACE, queue, expires_seconds=10.0, ttl_seconds=None, now=after(START, seconds))

    def texts(self, node: str, queue: str = "one") -> list[str]:
        return [one.text for one in self.at[node].pop(SPACE, [queue], 100, now=START)]


def test_a_message_goes_where_its_mailbox_was_declared_last() -> None:
    peers = Peers("a", "b", "c")
    for node in ("a", "b"):
        peers.declare(node)
        peers.deliver()
    assert peers.at["c"].put(SPACE, "one", Posted("hello"), now=START)
    peers.deliver()
    assert (peers.texts("a"), peers.texts("b")) == ([], ["hello"])
    assert peers.at["a"].missing(SPACE, ["one"]) == []
    assert peers.at["a"].missing(SPACE, ["one"], moved=True) == ["one"]


def test_a_message_that_is_on_its_way_to_the_old_place_goes_on_to_the_new_one() -> None:
    peers = Peers("a", "b", "c")
    peers.declare("a")
    peers.deliver()
    peers.at["c"].put(SPACE, "one", Posted("hello"), now=START)
    peers.collect()
    peers.declare("b")
    peers.deliver("b")
    peers.deliver()
    assert (peers.texts("a"), peers.texts("b")) == ([], ["hello"])


def test_a_mailbox_that_is_declared_while_its_deletion_is_on_its_way_stays_with_its_bindings() -> None:
    peers = Peers("a", "b", "c")
    peers.declare("a")
    peers.at["a"].bind(SPACE, "replies", ONE)
    peers.deliver()
    peers.at["a"].delete(SPACE, "one")
    peers.declare("b")
    peers.at["b"].bind(SPACE, "replies", ONE)
    peers.deliver()
    for number, node in enumerate("abc"):
        peers.at[node].publish(SPACE, "replies", "k", Posted(f"{number}"), now=START)
    peers.deliver()
    assert sorted(peers.texts("b")) == ["0", "1", "2"]


def test_a_deletion_ends_a_mailbox_everywhere() -> None:
    peers = Peers("a", "b")
    peers.declare("a")
    peers.at["a"].bind(SPACE, "replies", ONE)
    peers.deliver()
    assert peers.at["b"].delete(SPACE, "one") == 0
    peers.deliver()
    assert [boxes.size(SPACE, "one", now=START) for boxes in peers.at.values()] == [None, None]
    assert [boxes.bindings(SPACE, "replies") for boxes in peers.at.values()] == [[], []]


def test_an_event_is_sent_once_where_it_is_wanted_and_not_at_all_where_it_is_not() -> None:
    peers = Peers("a", "b", "c")
    peers.at["a"].declare_exchange(SPACE, "events", "topic")
    peers.deliver()
    peers.at["a"].publish(SPACE, "events", "worker.heartbeat", Posted("beat"), now=START)
    assert not peers.at["a"].has_outgoing
    for node, queue in (("b", "one"), ("c", "two")):
        peers.declare(node, queue)
        peers.at[node].bind(SPACE, "events", Binding("#", queue, is_task_queue=False))
    peers.deliver()
    peers.at["a"].publish(SPACE, "events", "worker.heartbeat", Posted("beat"), now=START)
    ((recipient, news),) = peers.at["a"].take_outgoing()
    assert recipient == EVERYBODY
    assert isinstance(news, Mail)


def test_mailboxes_of_a_process_that_ended_are_forgotten_and_those_of_a_new_one_known() -> None:
    peers = Peers("a", "b")
    peers.declare("a")
    peers.at["a"].declare_exchange(SPACE, "all", "fanout")
    peers.at["a"].bind(SPACE, "all", ONE)
    peers.deliver()
    assert peers.at["b"].keep_only(["a", "b"]) == []
    assert peers.at["b"].keep_only(["b"]) == ["a"]
    assert peers.at["b"].bindings(SPACE, "all") == []
    peers.at["c"] = Mailboxes("c")
    peers.at["c"].announce()
    assert peers.at["c"].unknown(["a", "b", "c"]) == {"a", "b"}
    peers.deliver()
    assert peers.at["c"].unknown(["a", "b", "c"]) == set()
    peers.at["c"].publish(SPACE, "all", "", Posted("hello"), now=START)
    peers.deliver()
    assert peers.texts("a") == ["hello"]


def test_an_expired_mailbox_leaves_the_bindings_to_the_process_that_has_it_too() -> None:
    peers = Peers("a", "b")
    for node in ("a", "b"):
        peers.declare(node)
        peers.at[node].bind(SPACE, "replies", ONE)
        peers.deliver()
    assert peers.at["a"].size(SPACE, "one", now=after(START, 11)) == 0
    peers.deliver()
    peers.at["a"].publish(SPACE, "replies", "k", Posted("hello"), now=START)
    peers.deliver()
    assert peers.texts("b") == ["hello"]


def test_a_whole_announcement_replaces_what_was_known() -> None:
    boxes = Mailboxes("a")
    boxes.receive("b", [Announcement(boxes=(((SPACE, "old"), START),), is_whole=True)], now=START)
    boxes.receive("b", [Announcement(boxes=(((SPACE, "new"), START),), is_whole=True)], now=START)
    assert boxes.size(SPACE, "old", now=START) is None
    assert boxes.size(SPACE, "new", now=START) == 0


def test_the_child_of_a_fork_has_none_of_its_parents_mailboxes() -> None:
    boxes = Mailboxes("a")
    boxes.declare(SPACE, "one", expires_seconds=None, ttl_seconds=None, now=START)
    boxes.bind(SPACE, "topics", Binding("#", "jobs", is_task_queue=True))
    boxes.bind(SPACE, "topics", ONE)
    boxes.renew_after_fork("b")
    assert boxes.node == "b"
    assert boxes.size(SPACE, "one", now=START) is None
    assert [one.queue for one in boxes.bindings(SPACE, "topics")] == ["jobs"]
    assert not boxes.has_outgoing


EVERY_KIND: list[News] = [
    Announcement((((SPACE, "one"), START),), ((SPACE, "all", "fanout"),), ((SPACE, "all", ONE),), is_whole=True),
    Removal(((SPACE, "one"),), ((SPACE, "all", ONE),)),
    Mail(SPACE, {"b": ["one", "two"]}, Posted("ü", 1.5, 9)),
    Clearing(SPACE, "one"),
    Clearing(SPACE, "one", START),
    Echo(7),
]


def test_news_come_back_from_their_text() -> None:
    sender, news = decoded(encoded("a", EVERY_KIND))
    assert sender == "a"
    assert news == EVERY_KIND


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"from": "a", "news": [{}]}',
        '{"from": "a", "news": [{"kind": "else"}]}',
        '{"from": "a", "news": [{"kind": "mail", "space": "", "queues": [], "posted": []}]}',
        '{"from": "a", "news": [{"kind": "clearing", "space": "", "queue": "", "until": "x"}]}',
    ],
)
def test_what_is_no_news_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decoded(text)


def joined(parts: Sequence[str]) -> list[str]:
    joiner = Joiner()
    return [text for part in parts if (text := joiner.take(part)) is not None]


def test_pieces_are_within_their_size_and_make_the_text_again() -> None:
    text = "0123456789" * 30
    cut = pieces(text, sender="a", number=1, size=50)
    assert len(cut) > 1
    assert max(map(len, cut)) <= 50
    assert joined(cut) == [text]
    assert joined(pieces("", sender="a", number=1, size=50)) == [""]


def test_a_piece_that_comes_twice_counts_once_and_a_text_with_one_missing_is_dropped() -> None:
    first, second = (pieces(text * 30, sender="a", number=number, size=30) for number, text in ((1, "ab"), (2, "cd")))
    assert joined([one for part in first for one in (part, part)] + first) == ["ab" * 30]
    assert joined([*first[:1], *first[2:], *second]) == ["cd" * 30]
    other = pieces("x", sender="b", number=1, size=30)
    assert joined([first[0], *other, *first[1:]]) == ["x", "ab" * 30]


def test_a_sender_that_ended_is_forgotten() -> None:
    joiner = Joiner()
    (piece,) = pieces("x", sender="a", number=5, size=30)
    assert joiner.take(piece) == "x"
    assert joiner.take(piece) is None
    joiner.forget(["a"])
    assert joiner.take(piece) == "x"
