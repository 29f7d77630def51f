"""History in the file: read from rows of several finished leases each, found by any name, and bounded in size."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from queue_core.clock import START, Instant
from queue_core.stats import FinishedLease
from queue_core.stores.sqlite.counters import (
    KEPT_SAMPLES,
    MAX_NAMES_SOUGHT,
    MAX_TRIMMED,
    TRIM_EVERY,
    sample_of,
    write_samples,
)
from queue_core.stores.sqlite.store import SqliteStore
from queue_core.task import NewTask
from queue_core.verbs import Deletion
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, lease

FINISHED = FinishedLease(QUEUE, "_1", None, "w", 1, "deleted", 0.5, 1.5, at(5), added_at=START)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "queue.db")) as store:
        a_queue(store)
        yield store


def finish(store: SqliteStore, *names: str, now: Instant = START) -> None:
    """Add, lease and delete tasks of these names, in one row of samples."""
    add(store, *[NewTask(name=name) for name in names], now=now)
    held = lease(store, len(names), now=now)
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(one.token) for one in held], now=now)


def found(store: SqliteStore, *names: str, now: Instant = START, limit: int = 100) -> list[str]:
    """The names in the history of these tasks, of all of its pages."""
    told: list[str] = []
    before: int | None = None
    with store.read() as transaction:
        while True:
            page = transaction.history(QUEUE, names=names or None, before=before, limit=limit, now=now)
            told += [one.name for one in page.leases]
            before = page.next_before
            if before is None:
                return told


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_end_within_a_row_and_go_on_there(store: SqliteStore, limit: int) -> None:
    finish(store, "a")
    finish(store, "b", "c", "d", "e")
    finish(store, "f", "g")
    assert found(store, limit=limit) == ["g", "f", "e", "d", "c", "b", "a"]
    assert found(store, "g", "d", "b", "never", limit=limit) == ["g", "d", "b"]


def test_the_oldest_that_history_finds_may_be_within_a_row(store: SqliteStore) -> None:
    a_queue(store, history_keep=3)
    finish(store, "a", "b", "c", "d")
    assert found(store) == ["d", "c", "b"]
    finish(store, "e", "f")
    assert found(store) == ["f", "e", "d"]
    assert found(store, "a", "d") == ["d"]


@pytest.mark.parametrize("together", [1, 2])
def test_any_name_is_found(store: SqliteStore, together: int) -> None:
    names = ['quo"te', "back\\slash", "ü", "\u2028", "a/b", "%_", "'", "new\nline", "\x7f\x1f", "_1x", "\U0001f600"]
    for name in names:
        finish(store, *[name, f"{name}!"][:together])
    for name in names:
        assert found(store, name) == [name]
    assert sorted(found(store, *names)) == sorted(names)
    assert len(names) > MAX_NAMES_SOUGHT


def test_a_task_without_a_given_name_is_found_by_its_generated_one(store: SqliteStore) -> None:
    add(store, *[NewTask()] * 12)
    held = lease(store, 12)
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(one.token) for one in held], now=at(2))
    assert found(store, "_1", now=at(2)) == ["_1"]


def test_a_transaction_finds_what_it_has_ended_itself(store: SqliteStore) -> None:
    add(store, NewTask(name="one"))
    (held,) = lease(store)
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(held.token)], now=at(3))
        (done,) = transaction.history(QUEUE, names=["one"], limit=9, now=at(3)).leases
    assert (done.added_at, done.leased_at, done.ended_at) == (START, START, at(3))


def test_history_of_one_queue_has_none_of_another(store: SqliteStore) -> None:
    a_queue(store, "other")
    finish(store, "a")
    with store.read() as transaction:
        assert transaction.history("other", limit=9, now=START).leases == ()
        assert transaction.history("other", names=["a"], limit=9, now=START).leases == ()


def test_a_longer_history_is_kept_and_one_that_is_cut_is_dropped_in_parts(store: SqliteStore) -> None:
    sample = sample_of(FINISHED)
    last = 0

    def write(number: int, keep: int) -> int:
        nonlocal last
        for _ in range(number):
            last = write_samples(store._writer, 1, [sample], before=last, keep=keep)
        ((rows,),) = store._writer.execute("SELECT count(*) FROM samples").fetchall()
        return int(rows)

    longer = KEPT_SAMPLES + 4 * TRIM_EVERY
    store._writer.execute("BEGIN")
    assert write(longer, keep=1_000_000) == longer
    assert write(TRIM_EVERY, keep=0) == longer + TRIM_EVERY - MAX_TRIMMED
    assert KEPT_SAMPLES <= write(8 * TRIM_EVERY, keep=0) < KEPT_SAMPLES + TRIM_EVERY
    store._writer.execute("ROLLBACK")


def test_rows_of_many_finished_leases_are_dropped_as_fast_as_they_come(store: SqliteStore) -> None:
    samples = [sample_of(FINISHED)] * 4000
    last = 0
    store._writer.execute("BEGIN")
    for _ in range(20):
        last = write_samples(store._writer, 1, samples, before=last, keep=0)
        ((rows, kept),) = store._writer.execute("SELECT count(*), sum(size) FROM samples").fetchall()
        assert min(last, KEPT_SAMPLES) <= kept <= KEPT_SAMPLES + len(samples)
        assert rows * len(samples) == kept
    store._writer.execute("ROLLBACK")


def test_a_finished_lease_of_a_task_whose_age_is_not_known_is_read_as_it_was_written(store: SqliteStore) -> None:
    unknown = FinishedLease(QUEUE, "_1", None, "w", 1, "deleted", 0.5, 1.5, at(5))
    write_samples(store._writer, 1, [sample_of(FINISHED), sample_of(unknown)], before=None, keep=0)
    with store.read() as transaction:
        assert transaction.history(QUEUE, limit=9, now=at(5)).leases == (unknown, FINISHED)
        assert transaction.samples(QUEUE, after=0, limit=9).finished == (FINISHED, unknown)
