"""What the SQLite store keeps to itself: quick values equal to slow ones, and a check that finds what is broken."""

from dataclasses import replace
from pathlib import Path

import pytest

from queue_core.attempts.attempt import Failure
from queue_core.clock import START, Instant
from queue_core.errors import InvalidTokenError
from queue_core.fast_values import LazyList, none_indexes
from queue_core.stats import FinishedLease
from queue_core.stores.sqlite.counters import pack, sample_of, unpack
from queue_core.stores.sqlite.lease_ends import fences_of
from queue_core.stores.sqlite.rows import LONG_PAYLOAD_BYTES
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import Lease, NewTask, Progress, TagFilter, parse_token
from queue_core.verbs import Deleted, LeaseRequest, Release, Renewal
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, lease

LEASE = Lease("q", "n", None, b"p", "1.2", "w", 3, START, at(1), at(2), at(3))
FINISHED = FinishedLease("q", "n", "ä", "w", 1, "released", 0.1, 1_234_567.890123, START, reason='quo"te')


@pytest.mark.parametrize("value", [LEASE, FINISHED, Deleted(FINISHED)], ids=lambda value: type(value).__name__)
def test_values_are_compared_and_hashed_by_their_fields_and_replaced(value: Lease | FinishedLease | Deleted) -> None:
    again = replace(value)
    assert (again, hash(again), repr(again), again is value) == (value, hash(value), repr(value), False)
    assert not hasattr(value, "__dict__")


def test_a_lazy_list_makes_its_values_when_one_is_looked_at_and_only_once() -> None:
    made: list[str] = []

    def make() -> list[str | None]:
        made.append("made")
        return ["a", None, "c"]

    lazy: LazyList[str | None] = LazyList(3, make, none_indexes=[1])
    assert (len(lazy), bool(lazy), none_indexes(lazy), made) == (3, True, [1], [])
    assert (lazy[0], lazy[1:], list(lazy), made) == ("a", [None, "c"], ["a", None, "c"], ["made"])
    assert lazy == ("a", None, "c")
    assert lazy != ["a"]
    assert none_indexes(list(lazy)) == [1]


@pytest.mark.parametrize("tokens", [["1.2"], ["1.2", "3.4"], ["999999999999999999.999999999999999999", "0.0"]])
def test_tokens_read_at_once_are_read_as_one_by_one(tokens: list[str]) -> None:
    assert fences_of(tokens) == [parse_token(token) for token in tokens]


@pytest.mark.parametrize("tokens", [[""], ["1.2 3.4"], ["1.2", "3.4 5.6"], ["1.2", ""], ["1.2 ", "3.4"], ["1.٣"]])
def test_what_is_no_token_is_refused_in_any_company(tokens: list[str]) -> None:
    with pytest.raises(InvalidTokenError):
        fences_of(tokens)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_samples_are_packed_without_loss(size: int) -> None:
    finished = [
        FinishedLease(
            "q", f"_{at}", None if at % 2 else "t", "w", at, "deleted", at / 3, 2.0, Instant(START + at), added_at=START
        )
        for at in range(size)
    ]
    rounded = [round(each.waited_seconds * 1e6) / 1e6 for each in finished]
    unpacked = unpack("q", pack([sample_of(each) for each in finished]), size)
    assert [each.waited_seconds for each in unpacked] == rounded
    assert [(each.name, each.tag, each.ended_at, each.added_at) for each in unpacked] == [
        (each.name, each.tag, each.ended_at, START) for each in finished
    ]


@pytest.mark.parametrize("together", [1, 2])
def test_a_payload_that_is_long_lies_apart_whether_or_not_its_task_is_added_alone(
    tmp_path: Path, together: int
) -> None:
    store = SqliteStore(tmp_path / "queue.db")
    a_queue(store)
    for size in (LONG_PAYLOAD_BYTES, LONG_PAYLOAD_BYTES + 1):
        add(store, *[NewTask(b"x" * size)] * together)
    apart = store._writer.execute(
        "SELECT t.id FROM payloads JOIN tasks t USING (id) WHERE t.payload IS NULL"
    ).fetchall()
    assert [row[0] for row in apart] == [together + number for number in range(1, together + 1)]
    assert [len(held.payload) for held in lease(store, 2 * together)] == sorted(
        [LONG_PAYLOAD_BYTES, LONG_PAYLOAD_BYTES + 1] * together
    )
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE counts SET ready = ready + 1 WHERE tag IS NULL AND id > 0",
        "UPDATE counts SET leased = 0 WHERE tag = 'a'",
        "UPDATE counts SET added = 1 WHERE id = 0",
        "DELETE FROM payloads",
        "INSERT INTO payloads VALUES (99, x'00')",
        "DELETE FROM names",
        "UPDATE names SET task = 99",
        "UPDATE tasks SET tag = 77 WHERE id = 1",
        "UPDATE tasks SET queue = 77 WHERE id = 1",
        "UPDATE tasks SET state = 7 WHERE id = 1",
        "UPDATE tasks SET leased_at = 0 WHERE state = 2",
        "DELETE FROM tasks WHERE id = 1",
        "UPDATE tasks SET headers = '[]' WHERE id = 1",
        "UPDATE tasks SET headers = '{' WHERE id = 1",
        "UPDATE tasks SET attempts = '' WHERE id = 1",
        "UPDATE tasks SET attempts = 'expired' WHERE id = 1",
        "UPDATE tasks SET attempts = '[1,\"w\"]' WHERE id = 1",
        "UPDATE tasks SET attempts = '1' WHERE id = 1",
        "UPDATE tasks SET attempts = attempts || char(10) || attempts WHERE id = 4",
        "UPDATE tasks SET progress = '[0.5]' WHERE id = 1",
        "UPDATE tasks SET progress = 'half' WHERE id = 1",
        "UPDATE tasks SET checkpoint = 'text' WHERE id = 1",
        "UPDATE samples SET finished = '['",
        "UPDATE samples SET finished = '[1,2]'",
    ],
)
def test_the_check_finds_what_is_broken(tmp_path: Path, damage: str) -> None:
    store = SqliteStore(tmp_path / "queue.db")
    a_queue(store)
    add(
        store,
        NewTask(tag="a"),
        NewTask(b"x" * 9000, name="big"),
        NewTask(tag="a"),
        NewTask(tag="b", headers={"a": "b"}),
    )
    tags = TagFilter.of("b")
    with store.begin() as transaction:
        for message in range(12):
            (held,) = transaction.lease(QUEUE, LeaseRequest(1, 60.0, tags, "w"), now=START).leases
            transaction.renew(QUEUE, [Renewal(held.token, 60.0, Progress(0.5, "half"), b"half")], now=START)
            transaction.release(QUEUE, [Release(held.token, 0.0, failure=Failure(message=f"{message}\n"))], now=START)
    lease(store)
    assert store.check().problems == ()
    assert store.check().tasks == 4
    store._writer.execute(damage).fetchall()
    assert len(store.check().problems) >= 1
    store.close()
