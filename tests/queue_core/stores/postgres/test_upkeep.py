"""What a PostgreSQL store forgets and clears away by itself, a bounded amount at a time."""

from collections.abc import Iterator
from contextlib import closing
from math import inf
from threading import Thread

import psycopg
import pytest

from queue_core.store import Store
from queue_core.stores import open_store
from queue_core.stores.postgres import maintenance
from queue_core.stores.postgres.store import PostgresStore
from queue_core.task import NewTask, TagFilter
from tests.support.eventually import eventually
from tests.support.stores.stores import new_store_url
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, delete, lease, samples, stats

DAY = 86_400.0


@pytest.fixture
def url() -> str:
    return new_store_url("postgresql")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as opened:
        a_queue(opened)
        yield opened
        assert opened.check().problems == ()


def number(url: str, query: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def tags(store: Store) -> list[str | None]:
    with store.read() as transaction:
        return [each.tag for each in transaction.tag_stats(QUEUE, after=None, limit=1000, now=at(9 * DAY))]


def test_tags_without_a_task_for_a_day_are_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TAGGED_BETWEEN", 3)
    monkeypatch.setattr(maintenance, "TAGS_EXAMINED", 2)
    add(store, *[NewTask(tag=f"old-{number}") for number in range(5)], NewTask(tag="kept"), NewTask())
    gone = lease(store, 5)
    delete(store, *gone)
    add(store, NewTask(tag="old-3"), now=at(2 * DAY))
    for turn in range(12):
        add(store, NewTask(tag="new"), NewTask(tag="new"), NewTask(tag="new"), now=at(2 * DAY + turn))
    assert tags(store) == [None, "kept", "new", "old-3"]
    assert stats(store, TagFilter.of("kept", "old-3"), now=at(3 * DAY)).ready == 2
    add(store, NewTask(tag="old-1"), now=at(3 * DAY))
    assert stats(store, TagFilter.of("old-1"), now=at(3 * DAY)).added_total == 1


def test_a_tag_that_another_transaction_counts_is_kept(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "TAGGED_BETWEEN", 1)
    add(store, NewTask(tag="old"))
    delete(store, *lease(store))
    with psycopg.connect(url) as connection:
        with store.within(connection) as transaction:
            transaction.add(QUEUE, [NewTask(tag="old")], now=at(2 * DAY))
        add(store, NewTask(tag="new"), now=at(2 * DAY))
        connection.commit()
    assert stats(store, TagFilter.of("old"), now=at(2 * DAY)).ready == 1


def test_a_tag_that_is_forgotten_while_another_transaction_counts_it_is_counted_right(store: Store, url: str) -> None:
    add(store, NewTask(tag="old"))
    delete(store, *lease(store))
    adding = Thread(target=lambda: add(store, NewTask(tag="old"), NewTask(tag="old"), now=at(2 * DAY)))
    with psycopg.connect(url) as forgetting:
        forgetting.execute("SELECT towline.forget_tags(id, %s, '', 10) FROM towline.queues", (at(2 * DAY),))
        adding.start()
        eventually(lambda: number(url, "SELECT count(*) FROM pg_locks WHERE NOT granted"))
        forgetting.commit()
    adding.join()
    found = stats(store, TagFilter.of("old"), now=at(2 * DAY))
    assert (found.ready, found.added_total) == (2, 2)


def test_a_tag_in_use_is_looked_at_without_a_lock_which_would_be_written_to_its_row(store: Store, url: str) -> None:
    rows = "SELECT string_agg(concat_ws(' ', ctid, xmax, tag), ',' ORDER BY tag, slot) FROM towline.counts"
    add(store, NewTask(tag="used"), NewTask(tag="unused"))
    delete(store, *lease(store, tags=TagFilter.of("unused")))
    with psycopg.connect(url) as connection:
        before = connection.execute(rows).fetchone()
        forget = "SELECT towline.forget_tags(id, %s, '', 10) FROM towline.queues"
        connection.execute(forget, (at(DAY - 1),))
        assert connection.execute(rows).fetchone() == before
        connection.execute(forget, (at(2 * DAY),))
    assert tags(store) == ["used"]


def test_thousands_of_tags_at_a_time_are_looked_over_in_time(store: Store) -> None:
    for first in range(0, 4000, 1000):
        add(store, *[NewTask(tag=f"tag-{number}") for number in range(first, first + 1000)])
    assert stats(store).ready == 4000


def test_samples_are_trimmed_by_whoever_finishes_many(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "KEPT_SAMPLES", 20)
    monkeypatch.setattr(maintenance, "SAMPLES_BETWEEN", 10)
    for _ in range(8):
        add(store, *[NewTask() for _ in range(10)])
        delete(store, *lease(store, 10))
    found = samples(store)
    assert found.missed
    assert 20 <= len(found.finished) <= 30
    assert number(url, "SELECT sum(size) FROM towline.samples") == len(found.finished)


def test_a_longer_history_is_kept_whole(store: Store, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "KEPT_SAMPLES", 20)
    monkeypatch.setattr(maintenance, "SAMPLES_BETWEEN", 10)
    a_queue(store, history_keep=45)
    for _ in range(8):
        add(store, *[NewTask() for _ in range(10)])
        delete(store, *lease(store, 10))
    with store.read() as transaction:
        pages = [transaction.history(QUEUE, limit=40, now=at(1))]
        pages.append(transaction.history(QUEUE, limit=40, before=pages[0].next_before, now=at(1)))
    assert [len(page.leases) for page in pages] == [40, 5]
    assert len({lease.name for page in pages for lease in page.leases}) == 45
    assert 45 <= number(url, "SELECT sum(size) FROM towline.samples") <= 55


def test_samples_of_a_transaction_that_commits_late_are_not_passed_over(store: Store, url: str) -> None:
    add(store, NewTask(name="early"), NewTask(name="late"))
    early, late = lease(store, 2)
    with psycopg.connect(url) as connection:
        with store.within(connection) as transaction:
            transaction.release(QUEUE, [], now=at(1))
            transaction.delete_by_name(QUEUE, ["late"], now=at(1))
        delete(store, early, now=at(2))
        first = samples(store)
        connection.commit()
    rest = samples(store, after=first.cursor)
    assert late.name == "late"
    assert sorted(each.name for each in (*first.finished, *rest.finished)) == ["early", "late"]


_DEAD = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'tasks'"
_CLEARED = "SELECT vacuum_count FROM pg_stat_user_tables WHERE relname = 'tasks'"


def leave_dead(store: Store, tasks: int) -> None:
    add(store, *[NewTask() for _ in range(tasks)])
    delete(store, *lease(store, tasks))


def test_dead_rows_are_cleared_away_without_waiting_for_the_server(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "DEAD_ROWS", 100)
    leave_dead(store, 1000)
    eventually(store._vacuum.run_if_due, seconds=30)
    eventually(lambda: number(url, _DEAD) == 0, seconds=30)
    assert number(url, _CLEARED) == 1
    monkeypatch.setattr(maintenance, "SECONDS_BETWEEN", 0.0)
    assert not store._vacuum.run_if_due()


def test_dead_rows_wait_for_a_while_after_a_pass_by_whomever(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "DEAD_ROWS", 100)
    monkeypatch.setattr(maintenance, "SECONDS_BETWEEN", 3600.0)
    with psycopg.connect(url, autocommit=True) as another:
        another.execute("VACUUM towline.tasks")
    leave_dead(store, 1000)
    eventually(lambda: number(url, _DEAD) > 100, seconds=30)
    assert not store._vacuum.run_if_due()
    monkeypatch.setattr(maintenance, "SECONDS_BETWEEN", 0.0)
    assert store._vacuum.run_if_due()


def test_a_large_table_is_cleared_for_a_share_of_it_only(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "DEAD_ROWS", 100)
    monkeypatch.setattr(maintenance, "DEAD_SHARE", 10.0)
    add(store, *[NewTask() for _ in range(1000)])
    delete(store, *lease(store, 100))
    eventually(lambda: number(url, _DEAD) > 100, seconds=30)
    assert not store._vacuum.run_if_due()
    monkeypatch.setattr(maintenance, "DEAD_SHARE", 0.01)
    assert store._vacuum.run_if_due()


def test_who_finishes_much_looks_whether_it_is_time_to_clear(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SAMPLES_BETWEEN", 100)
    monkeypatch.setattr(maintenance, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(maintenance, "DEAD_ROWS", 50)

    def is_cleared() -> bool:
        leave_dead(store, 100)
        return number(url, _CLEARED) > 0

    eventually(is_cleared, seconds=30)


def test_nobody_looks_who_finishes_little(store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(maintenance, "DEAD_ROWS", 50)
    monkeypatch.setattr(maintenance.random, "randrange", lambda _between: 0)
    leave_dead(store, 100)
    eventually(lambda: number(url, _DEAD) > 100, seconds=30)
    leave_dead(store, 100)
    assert number(url, _CLEARED) == 0
    assert store._vacuum._started_at == -inf  # no thread was begun that might clear later
