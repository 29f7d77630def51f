"""What callers make a store keep beside their tasks is bounded, in number and in bytes."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from queue_core.clock import START, Instant
from queue_core.errors import OutcomeUnknownError, WorkerRetiredError
from queue_core.store import Store
from queue_core.stores.memory import transaction as memory
from queue_core.stores.redis import calls as redis_calls
from queue_core.stores.sqlite import idempotency as sqlite_idempotency
from queue_core.stores.sqlite import session as sqlite_session
from queue_core.stores.sqlite import workers as sqlite_workers
from queue_core.task import NewTask
from queue_core.unit.locally import pieces_of
from queue_core.unit.once import once
from queue_core.unit.pieces import CallProgress, next_piece
from queue_core.unit.queue_verbs import Purge
from queue_core.unit.service import QueueService
from queue_core.verbs import ClientCall, meaning_of
from tests.support.stores.stores import STORES, opened
from tests.support.stores.task_builders import QUEUE, a_queue, at, lease, stats

DAY = 86_400


def seen(store: Store, *workers: str) -> set[str]:
    with store.read() as transaction:
        return set(transaction.workers_seen(workers))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Bounds of a Redis queue that are reached soon: 20 workers, 8 sessions, 20,000 bytes of answers."""
    for bound, number in (("MAX_SEEN_WORKERS", 20), ("MAX_SESSIONS", 8), ("MAX_ANSWER_BYTES", 20_000)):
        monkeypatch.setattr(redis_calls, bound, number)
    redis_calls.library.cache_clear()
    yield monkeypatch
    redis_calls.library.cache_clear()


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


def test_the_names_of_workers_that_lease_from_redis_are_bounded(tmp_path: Path, small: pytest.MonkeyPatch) -> None:
    names = [f"worker-{number:03}" for number in range(60)]
    with opened("redis", tmp_path) as store:
        a_queue(store)
        with store.begin() as transaction:
            assert transaction.retire_worker("retired", now=at(0))
        for number, worker in enumerate(names):
            lease(store, worker=worker, now=at(number))
            assert worker in seen(store, worker)
        assert len(seen(store, *names)) <= 24
        with pytest.raises(WorkerRetiredError):
            lease(store, worker="retired", now=at(100))


def test_the_names_of_workers_that_lease_from_postgresql_are_bounded(tmp_path: Path) -> None:
    names = [f"worker-{number:03}" for number in range(20)]
    with opened("postgresql", tmp_path) as store:
        a_queue(store)
        with store.begin() as transaction:
            assert transaction.retire_worker("retired", now=at(0))
        for number, worker in enumerate(names):
            lease(store, worker=worker, now=at(number))
        with psycopg.connect(store.url) as operator:
            operator.execute("SELECT setval('towline.worker_places', 100020)")
        for number in range(5):
            lease(store, worker=f"new-{number}", now=at(30 + number))
        assert seen(store, *names) == set()
        assert len(seen(store, *[f"new-{number}" for number in range(5)])) == 5
        with pytest.raises(WorkerRetiredError):
            lease(store, worker="retired", now=at(100))


def add_once(store: Store, number: int, *, is_repeat: bool = False, name: str = "", tasks: int = 1) -> object:
    """An add by call 1 of a client's session, or its repeat half a minute later."""
    call = ClientCall(f"client-{number}", 1, is_repeat, 30 if is_repeat else 0, meaning_of(f"add {number}", b""))
    given = [NewTask(b"x", name=f"{name}-{number}-{place}" if name else None) for place in range(tasks)]
    return QueueService(store, clock=store.clock).run(lambda work: work.add(QUEUE, given, call=call), unit="verb")


def pause_once(store: Store, number: int, *, is_repeat: bool = False) -> object:
    """The same for a verb whose answer is kept beside it."""
    call = ClientCall(f"client-{number}", 1, is_repeat, 30 if is_repeat else 0, meaning_of(f"pause {number}", b""))
    return QueueService(store, clock=store.clock).run(
        lambda work: once(work, call, lambda _: True, encode=lambda _: b"true", decode=lambda _: True)
    )


@pytest.mark.parametrize("name", ["", "x" * 400], ids=["in number", "in bytes"])
def test_answers_that_a_queue_of_redis_keeps_are_bounded(tmp_path: Path, small: pytest.MonkeyPatch, name: str) -> None:
    with opened("redis", tmp_path) as store:
        a_queue(store)
        for number in range(40):
            add_once(store, number, name=name, tasks=5)
        before = stats(store).added_total
        assert before == 200
        forgotten = 0
        for number in range(40):
            try:
                add_once(store, number, is_repeat=True, name=name, tasks=5)
            except OutcomeUnknownError:
                forgotten += 1
        assert (stats(store).added_total, forgotten >= 30) == (before, True)
        assert add_once(store, 39, is_repeat=True, name=name, tasks=5) is not None
        assert len(str(add_once(store, 100, name=name, tasks=5))) > 0  # a new call is none of those


@pytest.mark.parametrize("verb", [add_once, pause_once], ids=["marker", "answer"])
def test_answers_that_postgresql_keeps_are_bounded(tmp_path: Path, verb: Callable[..., object]) -> None:
    with opened("postgresql", tmp_path) as store:
        a_queue(store)
        with store.begin() as transaction:
            transaction.keep_answer("a move", 1, b"{}", now=at(0), kept="days")
        for number in range(8):
            verb(store, number)
        with psycopg.connect(store.url) as operator:
            operator.execute("SELECT setval('towline.answer_places', 100100)")
        for number in range(10, 14):
            verb(store, number)
        added = stats(store).added_total
        for number in range(8):
            with pytest.raises(OutcomeUnknownError, match="check before repeating"):
                verb(store, number, is_repeat=True)
        for number in range(10, 14):
            verb(store, number, is_repeat=True)
        assert stats(store).added_total == added
        with store.begin() as transaction:
            assert transaction.last_answer("a move") == (1, b"{}")


def test_a_large_answer_takes_as_many_places_of_postgresql_as_it_has_kibibytes(tmp_path: Path) -> None:
    with opened("postgresql", tmp_path) as store, psycopg.connect(store.url, autocommit=True) as operator:
        a_queue(store)

        def places(taking: Callable[[], object]) -> int:
            before = operator.execute("SELECT last_value FROM towline.answer_places").fetchone()
            taking()
            after = operator.execute("SELECT last_value FROM towline.answer_places").fetchone()
            assert before is not None and after is not None
            return int(after[0] - before[0])

        def keep(number: int, size: int) -> Callable[[], None]:
            def kept() -> None:
                with store.begin() as transaction:
                    transaction.keep_answer("s", number, b"#" * size, now=at(0))

            return kept

        assert [places(keep(1, 10)), places(keep(2, 10)), places(keep(3, 10 << 10))] in ([1, 0, 11], [0, 0, 11])
        assert places(lambda: add_once(store, 1, tasks=1_000)) == 8


def test_what_a_file_keeps_of_calls_in_pieces_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_idempotency, "MAX_KEPT_SESSIONS", 10)
    monkeypatch.setattr(sqlite_idempotency, "DELETED_AT_ONCE", 4)

    def purge(store: Store, number: int, *, is_repeat: bool = False) -> CallProgress:
        call = ClientCall("s", number, is_repeat, 30, meaning_of("purge", b""))
        pieces = pieces_of(Purge(QUEUE), by="somebody")
        return QueueService(store).run(lambda work: next_piece(work, call, pieces, done=CallProgress()))

    with opened("sqlite", tmp_path) as store:
        a_queue(store)
        with store.begin() as transaction:
            transaction.keep_answer("schedules", 1, b"{}", now=at(0), kept="always")
            transaction.keep_answer("a move", 1, b"{}", now=store.clock.now())
        for number in range(1, 40):
            purge(store, number)
        with closing(sqlite3.connect(tmp_path / "queue.db")) as file:
            ((count,),) = file.execute("SELECT count(*) FROM sessions").fetchall()
        assert count <= 14
        with pytest.raises(OutcomeUnknownError):
            purge(store, 1, is_repeat=True)
        with store.begin() as transaction:
            assert transaction.last_answer("schedules") == transaction.last_answer("a move") == (1, b"{}")


def record(store: Store, number: int, answer: bytes) -> None:
    with store.begin() as transaction:
        transaction.record_answer(ClientCall(f"client-{number}", 1, is_repeat=False), answer, now=at(number))


def kept(store: Store, number: int) -> bytes | None:
    with store.begin() as transaction:
        try:
            return transaction.answer_of(ClientCall(f"client-{number}", 1, is_repeat=True), now=at(number))
        except OutcomeUnknownError:
            return None


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


def forget_first_calls(store: Store, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., object]) -> None:
    """Have a store forget what it kept of calls 0 to 7, as it does of calls that very many others followed."""
    if store.url.startswith("postgresql"):
        with psycopg.connect(store.url) as operator:
            operator.execute("SELECT setval('towline.answer_places', 100100)")
    monkeypatch.setattr(sqlite_idempotency, "KEPT_ROWS", 5)
    monkeypatch.setattr(sqlite_idempotency, "MAX_KEPT_SESSIONS", 10)
    monkeypatch.setattr(sqlite_idempotency, "TRIM_EVERY", 1)
    monkeypatch.setattr(memory, "MAX_SESSIONS", 8)
    for number in range(10, 50):
        verb(store, number)


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        (name, verb)
        for name in STORES
        for verb in (add_once, pause_once)
        if (name, verb) != ("redis", pause_once)  # kept for an hour, however many follow
    ],
)
def test_under_a_key_whose_answer_is_forgotten_a_first_try_is_a_new_call_and_a_repeat_is_refused(
    name: str, verb: Callable[..., object], tmp_path: Path, small: pytest.MonkeyPatch
) -> None:
    with opened(name, tmp_path) as store:
        a_queue(store)
        for number in range(8):
            verb(store, number)
        forget_first_calls(store, small, verb)
        before = stats(store).added_total
        with pytest.raises(OutcomeUnknownError, match="check before repeating"):
            verb(store, 0, is_repeat=True)
        assert stats(store).added_total == before
        assert verb(store, 0)
        assert stats(store).added_total == before + (1 if verb is add_once else 0)
        verb(store, 0, is_repeat=True)  # the key is in use again: its answer is that of the new call
        assert stats(store).added_total == before + (1 if verb is add_once else 0)
