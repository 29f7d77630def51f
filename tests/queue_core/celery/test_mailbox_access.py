"""Mailboxes of two programs of one broker, however they reach it: what one sends the other gets, once."""

from collections.abc import Iterator
from itertools import count

import pytest

from queue_core.celery.mailboxes.exchanges import Binding
from queue_core.celery.mailboxes.news import Posted
from queue_core.celery.transport.mailbox_access import MailboxAccess
from tests.support.eventually import eventually
from tests.support.mailboxes import LAYOUTS, TwoPrograms, two_programs

Pair = tuple[MailboxAccess, MailboxAccess]
NUMBERS = count(1)


@pytest.fixture(scope="module", params=LAYOUTS)
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoPrograms]:
    with two_programs(request.param, tmp_path_factory.mktemp("mail")) as both:
        yield both


@pytest.fixture
def pair(programs: TwoPrograms) -> Pair:
    """Two programs' mailboxes in a namespace of the test's own."""
    return programs.mailboxes(f"space-{next(NUMBERS)}")


def declared(at: MailboxAccess, queue: str) -> None:
    at.declare(queue, expires_seconds=60.0, ttl_seconds=None)


def taken(at: MailboxAccess, *queues: str) -> list[str]:
    return [one.text for one in at.pop(queues, 100)]


def arrived(at: MailboxAccess, queue: str, number: int = 1) -> list[str]:
    """Return what has come to a mailbox, when there are so many."""
    found: list[str] = []

    def is_all() -> bool:
        at.wait([queue], wait_seconds=0.2)
        found.extend(taken(at, queue))
        return len(found) >= number

    eventually(is_all)
    return found


def test_a_broadcast_reaches_the_mailboxes_of_both_programs(pair: Pair) -> None:
    for at, queue in zip(pair, ("one", "two"), strict=True):
        at.declare_exchange("all", "fanout")
        declared(at, queue)
        at.bind("all", Binding("", queue, is_task_queue=False))
    assert pair[0].publish("all", "", Posted("hello")) == []
    assert arrived(pair[0], "one") == ["hello"]
    assert arrived(pair[1], "two") == ["hello"]


def test_a_reply_reaches_the_program_that_asked_though_it_came_last(pair: Pair) -> None:
    worker, client = pair
    worker.declare_exchange("control", "fanout")
    declared(worker, "worker")
    worker.bind("control", Binding("", "worker", is_task_queue=False))
    client.declare_exchange("reply", "direct")
    declared(client, "replies")
    client.bind("reply", Binding("ticket", "replies", is_task_queue=False))
    client.publish("control", "", Posted("ping"))
    assert arrived(worker, "worker") == ["ping"]
    worker.publish("reply", "ticket", Posted("pong"))
    assert arrived(client, "replies") == ["pong"]
    assert taken(worker, "worker", "replies") == []


@pytest.mark.parametrize("text", ["", "ü€\u2028\x7f", "é" * 500_000], ids=["empty", "odd", "long"])
def test_a_message_arrives_as_it_was_sent(pair: Pair, text: str) -> None:
    declared(pair[1], "one")
    assert pair[0].put("one", Posted(text))
    assert arrived(pair[1], "one") == [text]


def test_messages_arrive_in_the_order_of_sending(pair: Pair) -> None:
    declared(pair[1], "one")
    numbers = [str(number) for number in range(50)]
    for number in numbers:
        pair[0].put("one", Posted(number))
    assert arrived(pair[1], "one", 50) == numbers


def test_a_mailbox_with_a_consumer_in_each_program_delivers_each_message_once(pair: Pair) -> None:
    for at in pair:
        declared(at, "shared")
    for number in range(20):
        assert pair[number % 2].put("shared", Posted(str(number)))
    found: list[str] = []

    def take() -> bool:
        for at in pair:
            at.wait(["shared"], wait_seconds=0.05)
            found.extend(taken(at, "shared"))
        return len(found) >= 20

    eventually(take)
    assert sorted(found, key=int) == [str(number) for number in range(20)]


def test_a_mailbox_takes_its_messages_along_when_its_consumer_comes_elsewhere(pair: Pair) -> None:
    declared(pair[0], "one")
    for text in "abc":
        pair[0].put("one", Posted(text))
    declared(pair[1], "one")
    assert arrived(pair[1], "one", 3) == ["a", "b", "c"]
    assert pair[0].put("one", Posted("d"))
    assert arrived(pair[1], "one") == ["d"]


def test_bindings_of_task_queues_are_known_to_publishers_of_the_other_program(pair: Pair) -> None:
    bound = Binding("mail.#", "jobs", is_task_queue=True)
    pair[0].declare_exchange("topics", "topic")
    pair[0].bind("topics", bound)
    eventually(lambda: pair[1].publish("topics", "mail.new", Posted("x")) == ["jobs"])
    assert pair[1].publish("topics", "post.new", Posted("x")) == []
    pair[1].unbind("topics", bound)
    eventually(lambda: pair[0].bindings("topics") == [])


def test_a_mailbox_is_emptied_and_deleted_through_the_other_program(pair: Pair) -> None:
    declared(pair[0], "one")
    pair[0].bind("all", Binding("k", "one", is_task_queue=False))
    pair[0].put("one", Posted("a"))
    eventually(lambda: pair[1].size("one") is not None)
    pair[1].purge("one")
    eventually(lambda: pair[0].size("one") == 0)
    pair[1].delete("one")
    eventually(lambda: pair[0].size("one") is None and pair[0].bindings("all") == [])
    assert not pair[1].put("one", Posted("lost"))


def test_namespaces_do_not_hear_each_other(programs: TwoPrograms) -> None:
    (first, _), (_, other) = programs.mailboxes("apart-1"), programs.mailboxes("apart-2")
    for at in (first, other):
        at.declare_exchange("all", "fanout")
        declared(at, "one")
        at.bind("all", Binding("", "one", is_task_queue=False))
    first.publish("all", "", Posted("mine"))
    other.publish("all", "", Posted("yours"))
    assert arrived(first, "one") == ["mine"]
    assert arrived(other, "one") == ["yours"]


def test_a_consumer_declares_its_mailbox_again_where_it_is_gone(pair: Pair) -> None:
    declared(pair[0], "one")
    pair[0].declare_exchange("all", "topic")
    pair[0].bind("all", Binding("a.*", "one", is_task_queue=False))
    eventually(lambda: pair[1].size("one") is not None)
    pair[1].delete("one")
    eventually(lambda: pair[0].size("one") is None)
    assert not pair[0].wait(["one"], wait_seconds=0.001)
    eventually(lambda: pair[1].size("one") is not None and pair[1].bindings("all"))
    pair[1].publish("all", "a.b", Posted("again"))
    assert arrived(pair[0], "one") == ["again"]
