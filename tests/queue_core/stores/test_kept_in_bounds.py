"""What callers make a store keep beside their tasks is bounded, in number and in bytes."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from queue_core.clock import START, Instant
from queue_core.store import Store
from queue_core.stores.memory import transaction as memory
from queue_core.stores.sqlite import session as sqlite_session
from queue_core.stores.sqlite import workers as sqlite_workers
from queue_core.verbs import ClientCall
from tests.support.stores.stores import opened
from tests.support.stores.task_builders import a_queue, at, lease

DAY = 86_400


def seen(store: Store, *workers: str) -> set[str]:
    with store.read() as transaction:
        return set(transaction.workers_seen(workers))


@pytest.mark.parametrize("name", ["memory", "sqlite"])
def test_the_names_of_workers_that_lease_are_bounded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (memory, sqlite_workers):
        monkeypatch.setattr(module, "MAX_SEEN_WORKERS", 20)
    names = [f"worker-{number:03}" for number in range(200)]
    with opened(name, tmp_path) as store:
        a_queue(store)
        for number, worker in enumerate(names):
            lease(store, worker=worker, now=at(number))
        known = seen(store, *names)
        assert names[-1] in known
        assert len(known) <= 20 + sqlite_workers.FORGOTTEN_PER_NEW_WORKER
        lease(store, worker=names[0], now=at(500))
        assert names[0] in seen(store, *names)  # one that was forgotten is seen anew


def test_workers_that_leased_a_month_ago_are_forgotten_and_retired_ones_stay_fenced(tmp_path: Path) -> None:
    with opened("sqlite", tmp_path) as store:
        a_queue(store)
        for number in range(20):
            lease(store, worker=f"old-{number:02}", now=START)
        with store.begin() as transaction:
            transaction.retire_worker("old-07", busy="keep", now=at(20 * DAY))
        later = Instant(START + 31 * DAY * 1_000_000)
        for number in range(20):
            lease(store, worker=f"new-{number:02}", now=later)
        assert seen(store, *[f"old-{number:02}" for number in range(20)]) <= {"old-07"}
        assert len(seen(store, *[f"new-{number:02}" for number in range(20)])) == 20
        with store.begin() as transaction:
            assert transaction.retire_worker("old-07", busy="keep", now=later)


def record(store: Store, number: int, answer: bytes) -> None:
    with store.begin() as transaction:
        transaction.record_answer(ClientCall(f"client-{number}", 1, is_repeat=False), answer, now=at(number))


def kept(store: Store, number: int) -> bytes | None:
    with store.begin() as transaction:
        return transaction.answer_of(ClientCall(f"client-{number}", 1, is_repeat=True), now=at(number))


def test_answers_that_a_memory_store_keeps_are_bounded_in_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "MAX_ANSWER_BYTES", 50_000)
    answer = b'"' + b"x" * 10_000 + b'"'
    with opened("memory", tmp_path) as store:
        a_queue(store)
        for number in range(20):
            record(store, number, answer)
        assert [number for number in range(20) if kept(store, number)] == [16, 17, 18, 19]
        for number in range(50):  # small ones, of which there is room for many
            record(store, 100 + number, b"[]")
        assert sum(kept(store, 100 + number) == b"[]" for number in range(50)) == 50


def test_answers_that_a_file_keeps_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sqlite_session, "ANSWER_BYTES_PER_MARK", 20_000)
    monkeypatch.setattr(sqlite_session, "MAX_ANSWER_BYTES", 100_000)
    answer = b'"' + b"x" * 10_000 + b'"'
    with opened("sqlite", tmp_path) as store:
        a_queue(store)
        for number in range(60):
            record(store, number, answer)
        with closing(sqlite3.connect(tmp_path / "queue.db")) as file:
            ((total,),) = file.execute("SELECT sum(length(kept)) FROM answers").fetchall()
        assert 60_000 < total <= 140_000
        assert kept(store, 59) == answer
