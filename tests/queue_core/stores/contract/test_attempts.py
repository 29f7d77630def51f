"""Every store keeps what a task has beside its payload: headers, attempts, progress, checkpoint, and its history."""

from contextlib import closing
from dataclasses import replace

import pytest

from queue_core.attempts.attempt import GIVEN_BACK, MAX_ATTEMPTS, MAX_TRACEBACK_CHARACTERS, WORDS, Attempt, Failure
from queue_core.clock import START, Instant
from queue_core.store import Store
from queue_core.task import ANY, Lease, NewTask, Progress, StoredTask, TagFilter, TaskState
from queue_core.verbs import Deletion, LeaseRequest, Release, Renewal
from tests.support.stores import changes
from tests.support.stores.restored_tasks import opened_again, peek, restore
from tests.support.stores.task_builders import QUEUE, a_queue, add, at, lease

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Content.Type": 'a "b"\n\\ ü'}
BAD_WIDTH = Failure("raised", "ValueError", "bad width: '-1'\n\"\\ ü", "tasks.py:14", "host-1")


def release(
    store: Store, token: str, failure: Failure = GIVEN_BACK, *, now: Instant = START, **settings: object
) -> None:
    with store.begin() as transaction:
        done = transaction.release(QUEUE, [Release(token, 0, failure=failure, **settings)], now=now)  # type: ignore[arg-type]
    assert None not in done


def renew(store: Store, renewal: Renewal, *, now: Instant = START) -> None:
    with store.begin() as transaction:
        assert transaction.renew(QUEUE, [renewal], now=now) != [None]


def only(store: Store, *, now: Instant = START) -> StoredTask:
    (task,) = peek(store, now=now)
    return task


def work(store: Store, *, now: Instant = START, worker: str = "w-1", seconds: float = 10) -> Lease:
    with store.begin() as transaction:
        granted = transaction.lease(QUEUE, LeaseRequest(1, seconds, ANY, worker), now=now)
    (held,) = granted.leases
    return held


# -- headers ---------------------------------------------------------------------------------------------------------


def test_headers_come_with_every_lease_and_every_look(store: Store) -> None:
    add(store, NewTask(b"x", headers=HEADERS), NewTask(b"y"), NewTask(b"z", headers={}))
    assert [task.headers for task in peek(store)] == [HEADERS, None, None]
    held = lease(store, 3)
    assert [one.headers for one in held] == [HEADERS, None, None]
    release(store, held[0].token)
    assert work(store).headers == HEADERS


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(NewTask(b"x", name="named", headers=HEADERS), id="with a name"),
        pytest.param(NewTask(b"x", tag="a", headers=HEADERS), id="with a tag"),
        pytest.param(NewTask(b"x", delay_seconds=0.0, headers=HEADERS), id="with a delay"),
        pytest.param(NewTask(b"x" * 5000, headers=HEADERS), id="with a long payload"),
    ],
)
def test_headers_are_kept_beside_all_else(store: Store, new: NewTask) -> None:
    add(store, NewTask(b"before", tag=new.tag))
    add(store, new)
    assert [one.headers for one in lease(store, 2)] == [None, HEADERS]


def test_one_add_at_a_time_keeps_headers(store: Store) -> None:
    for number in range(3):
        add(store, NewTask(b"x", headers={"n": str(number)}))
    assert [one.headers for one in lease(store, 3)] == [{"n": "0"}, {"n": "1"}, {"n": "2"}]


def test_a_task_that_is_handed_over_has_its_own_headers(store: Store) -> None:
    add(store, NewTask(b"first", headers={"stage": "1"}))
    (held,) = lease(store)
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(held.token, (NewTask(b"second", headers={"stage": "2"}),))], now=START)
    assert [(one.payload, one.headers) for one in lease(store)] == [(b"second", {"stage": "2"})]


def test_an_exchange_leases_headers_and_checkpoints(store: Store) -> None:
    add(store, NewTask(b"x"), NewTask(b"y", headers=HEADERS))
    held = work(store)
    with store.begin() as transaction:
        _, granted = transaction.exchange(QUEUE, [Deletion(held.token)], LeaseRequest(1, 10, ANY, "w-1"), now=START)
    assert granted.leases[0].headers == HEADERS
    renew(store, Renewal(granted.leases[0].token, 10, checkpoint=b"page 7"))
    release(store, granted.leases[0].token)
    with store.begin() as transaction:
        _, again = transaction.exchange(QUEUE, [], LeaseRequest(1, 10, ANY, "w-1"), now=START)
    assert [(one.headers, one.checkpoint) for one in again.leases] == [(HEADERS, b"page 7")]


# -- attempts --------------------------------------------------------------------------------------------------------


def test_a_release_is_kept_among_the_attempts(store: Store) -> None:
    add(store, NewTask(b"x"))
    held = work(store)
    release(store, held.token, BAD_WIDTH, now=at(3))
    attempt = Attempt(
        1, "w-1", START, at(3), "raised", BAD_WIDTH.error, BAD_WIDTH.message, BAD_WIDTH.place, BAD_WIDTH.host
    )
    assert only(store, now=at(3)).attempts == (attempt,)
    assert attempt.text == BAD_WIDTH.text == "ValueError: bad width: '-1'\n\"\\ ü (tasks.py:14)"


def test_a_release_that_says_nothing_was_given_back(store: Store) -> None:
    add(store, NewTask(b"x"))
    release(store, work(store, worker='w "1"').token, charge="uncounted")
    assert only(store).attempts == (Attempt(1, 'w "1"', START, START, "given_back"),)
    assert only(store).leases == 0


def test_a_lease_that_expired_is_an_attempt(store: Store) -> None:
    add(store, NewTask(b"x"))
    work(store, seconds=10)
    expected = (Attempt(1, "w-1", START, at(10), "expired"),)
    assert only(store, now=at(10)).attempts == expected  # as a look finds it, with nothing written yet
    held = work(store, now=at(12), seconds=10)
    assert only(store, now=at(12)).attempts == expected
    release(store, held.token, Failure("timed_out"), now=at(13))
    assert [one.outcome for one in only(store, now=at(13)).attempts] == ["expired", "timed_out"]


def test_the_leases_of_a_dead_worker_are_attempts_with_what_is_known_of_its_end(store: Store) -> None:
    add(store, NewTask(b"x"), NewTask(b"y"))
    held = [work(store), work(store)]
    died = Failure("worker_died", "SIGKILL", "killed; out of memory, limit 64 MiB", "", "host-1")
    with store.begin() as transaction:
        finished = transaction.release_worker("w-1", failure=died, now=at(2))
    assert sorted(one.name for one in finished) == sorted(one.name for one in held)
    assert {one.reason for one in finished} == {"SIGKILL: killed; out of memory, limit 64 MiB"}
    attempt = Attempt(1, "w-1", START, at(2), "worker_died", died.error, died.message, "", "host-1")
    assert [task.attempts for task in peek(store, now=at(2))] == [(attempt,), (attempt,)]


def test_the_last_ten_attempts_are_kept(store: Store) -> None:
    add(store, NewTask(b"x"))
    for number in range(1, MAX_ATTEMPTS + 4):
        release(store, work(store, now=at(number)).token, Failure(message=f"no {number}"), now=at(number))
    kept = only(store, now=at(99)).attempts
    assert [one.message for one in kept] == [f"no {number}" for number in range(4, MAX_ATTEMPTS + 4)]
    assert [one.lease_number for one in kept] == list(range(4, MAX_ATTEMPTS + 4))


@pytest.mark.parametrize(
    ("settings", "failure", "reason"),
    [
        pytest.param({}, BAD_WIDTH, BAD_WIDTH.text, id="its last error"),
        pytest.param({}, GIVEN_BACK, WORDS["given_back"], id="that it was given back"),
        pytest.param({"dead_reason": "no image"}, BAD_WIDTH, "no image", id="what its worker said"),
    ],
)
def test_the_reason_of_a_dead_task(store: Store, settings: dict[str, object], failure: Failure, reason: str) -> None:
    a_queue(store, max_leases=1)
    add(store, NewTask(b"x"))
    release(store, work(store).token, failure, **settings)
    task = only(store)
    assert (task.state, task.reason) == (TaskState.DEAD, reason)
    assert [one.text for one in task.attempts] == [failure.text]


def test_a_task_that_died_of_its_last_expiry_says_so(store: Store) -> None:
    a_queue(store, max_leases=1)
    add(store, NewTask(b"x"))
    work(store, seconds=10)
    assert (only(store, now=at(10)).reason, only(store, now=at(10)).state) == (WORDS["expired"], TaskState.DEAD)
    with store.begin() as transaction:
        finished, _ = transaction.expire(QUEUE, limit=10, now=at(10))
    assert [(one.died, one.reason) for one in finished] == [(True, WORDS["expired"])]
    assert [one.outcome for one in only(store, now=at(10)).attempts] == ["expired"]


def test_a_dead_task_keeps_its_attempts_when_it_is_redriven(store: Store) -> None:
    a_queue(store, max_leases=1)
    add(store, NewTask(b"x"))
    release(store, work(store).token, BAD_WIDTH)
    with store.begin() as transaction:
        assert len(changes.redrive(transaction, QUEUE, None, ANY, limit=9, now=at(5))) == 1
    task = only(store, now=at(5))
    assert (task.state, task.reason, len(task.attempts)) == (TaskState.READY, "", 1)


def test_the_record_of_a_release_says_why(store: Store) -> None:
    add(store, NewTask(b"x", tag="a"))
    held = work(store, now=at(1))
    with store.begin() as transaction:
        (finished,) = transaction.release(QUEUE, [Release(held.token, 0, failure=BAD_WIDTH)], now=at(3))
    assert finished is not None
    assert (finished.died, finished.reason, finished.added_at) == (False, BAD_WIDTH.text, START)
    with store.read() as transaction:
        assert transaction.samples(QUEUE, after=0, limit=9).finished == (finished,)


# -- progress and checkpoints ----------------------------------------------------------------------------------------


def test_progress_and_a_checkpoint_ride_on_a_renewal(store: Store) -> None:
    add(store, NewTask(b"x"))
    held = work(store)
    assert held.checkpoint is None
    renew(store, Renewal(held.token, 10, Progress(0.4, 'page 12 of "30"'), b"\x00\xff12"), now=at(1))
    assert (only(store).progress, only(store).checkpoint) == (Progress(0.4, 'page 12 of "30"'), b"\x00\xff12")
    renew(store, Renewal(held.token, 10), now=at(2))
    renew(store, Renewal(held.token, 10, Progress(1.0)), now=at(3))
    assert (only(store).progress, only(store).checkpoint) == (Progress(1.0), b"\x00\xff12")


@pytest.mark.parametrize("how", ["released", "expired", "its worker died"])
def test_the_next_lease_gets_the_checkpoint(store: Store, how: str) -> None:
    add(store, NewTask(b"x"))
    held = work(store)
    renew(store, Renewal(held.token, 10, checkpoint=b"c" * (16 << 10)))
    if how == "released":
        release(store, held.token)
    elif how == "its worker died":
        with store.begin() as transaction:
            transaction.release_worker("w-1", now=START)
    assert work(store, now=at(11), worker="w-2").checkpoint == b"c" * (16 << 10)


def test_a_lease_that_is_lost_leaves_no_checkpoint(store: Store) -> None:
    add(store, NewTask(b"x"))
    held = work(store, seconds=10)
    with store.begin() as transaction:
        assert transaction.renew(QUEUE, [Renewal(held.token, 10, checkpoint=b"late")], now=at(10)) == [None]
    assert work(store, now=at(10)).checkpoint is None


def test_all_of_it_survives_a_new_start_and_a_move(store: Store) -> None:
    a_queue(store, max_leases=2)
    add(store, NewTask(b"x", name="job", headers=HEADERS))
    held = work(store)
    renew(store, Renewal(held.token, 10, Progress(0.5, "half"), b"half"))
    release(store, held.token, BAD_WIDTH)
    (task,) = peek(store)
    if store.url != "memory:":
        with closing(opened_again(store)) as again:
            assert peek(again) == [task]
    with store.begin() as transaction:
        transaction.delete_by_name(QUEUE, ["job"], now=START)
    a_queue(store, "other")
    restore(store, task, queue="other")
    (moved,) = peek(store, queue="other")
    assert (moved.headers, moved.attempts) == (HEADERS, task.attempts)
    assert (moved.progress, moved.checkpoint) == (Progress(0.5, "half"), b"half")


TRACED = replace(
    BAD_WIDTH, error_path="shop.errors.WidthError", traceback='Traceback:\n\t"ü"\n  File "a.py"\nWidthError: \\t'
)


def test_the_last_attempt_alone_has_its_traceback(store: Store) -> None:
    a_queue(store, max_leases=20)
    add(store, NewTask(b"x", name="job"))
    for number in range(1, MAX_ATTEMPTS + 3):
        traced = replace(TRACED, traceback=f"{TRACED.traceback} {number}")
        release(store, work(store).token, traced)
        attempts = only(store).attempts
        assert attempts[-1].traceback == traced.traceback
        assert {one.traceback for one in attempts[:-1]} <= {""}
        assert {one.error_path for one in attempts} == {"shop.errors.WidthError"}
    assert [one.lease_number for one in attempts] == list(range(3, MAX_ATTEMPTS + 3))
    assert store.check().problems == ()
    work(store, seconds=1)
    expired = only(store, now=at(2)).attempts
    assert (expired[-1].outcome, expired[-1].traceback) == ("expired", "")
    assert {one.traceback for one in expired} == {""}
    release(store, work(store, now=at(2)).token, TRACED, now=at(2))
    assert only(store, now=at(2)).attempts[-1].traceback == TRACED.traceback


@pytest.mark.parametrize("failure", [TRACED, replace(TRACED, traceback="x" * MAX_TRACEBACK_CHARACTERS)])
def test_a_traceback_stays_with_a_dead_task_and_moves_with_it(store: Store, failure: Failure) -> None:
    a_queue(store, max_leases=1)
    add(store, NewTask(b"x", name="job"))
    release(store, work(store).token, failure)
    task = only(store)
    assert (task.state, task.attempts[-1].traceback) == (TaskState.DEAD, failure.traceback)
    a_queue(store, "other")
    restore(store, task, queue="other")
    (moved,) = peek(store, queue="other")
    assert moved.attempts == task.attempts


# -- history ---------------------------------------------------------------------------------------------------------


def history(store: Store, *, now: Instant = START, limit: int = 100, **settings: object) -> list[tuple[str, str]]:
    with store.read() as transaction:
        page = transaction.history(QUEUE, limit=limit, now=now, **settings)  # type: ignore[arg-type]
    return [(one.name, one.outcome) for one in page.leases]


def finish(store: Store, *names: str, now: Instant = START) -> None:
    add(store, *[NewTask(b"x", name=name, tag="a") for name in names])
    held = lease(store, len(names), tags=TagFilter.of("a"), now=now)
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(one.token) for one in held], now=now)


def test_a_finished_task_is_found_by_its_name(store: Store) -> None:
    add(store, NewTask(b"x", name="one", tag="a"))
    release(store, work(store, now=at(1)).token, BAD_WIDTH, now=at(2))
    held = work(store, now=at(5), worker="w-2")
    with store.begin() as transaction:
        transaction.delete(QUEUE, [Deletion(held.token)], now=at(8))
    finish(store, "two", "three", now=at(9))
    assert history(store, now=at(9), names=["one"]) == [("one", "deleted"), ("one", "released")]
    assert history(store, now=at(9), names=["never"]) == []
    with store.read() as transaction:
        done, failed = transaction.history(QUEUE, names=["one"], limit=9, now=at(9)).leases
    assert (done.added_at, done.leased_at, done.ended_at, done.worker) == (START, at(5), at(8), "w-2")
    assert (done.lease_number, done.tag, failed.reason) == (2, "a", BAD_WIDTH.text)


def test_history_is_told_from_the_newest_a_page_at_a_time(store: Store) -> None:
    finish(store, "a", "b")
    finish(store, "c")
    with store.read() as transaction:
        first = transaction.history(QUEUE, limit=2, now=START)
        rest = transaction.history(QUEUE, limit=2, before=first.next_before, now=START)
    assert sorted(one.name for one in (*first.leases, *rest.leases)) == ["a", "b", "c"]
    assert first.leases[0].name == "c"
    assert (first.next_before is None, rest.next_before) == (False, None)


def test_history_is_bounded_by_number_and_by_time(store: Store) -> None:
    a_queue(store, history_keep=3, history_seconds=60)
    for number in range(5):
        finish(store, f"t{number}", now=at(number))
    assert [name for name, _ in history(store, now=at(5))] == ["t4", "t3", "t2"]
    assert [name for name, _ in history(store, now=at(63))] == ["t4", "t3"]
    assert history(store, now=at(3600)) == []
    a_queue(store, history_keep=0)
    assert history(store, now=at(5)) == []


def test_history_survives_a_new_start(store: Store) -> None:
    finish(store, "one")
    if store.url != "memory:":
        with closing(opened_again(store)) as again:
            assert history(again) == [("one", "deleted")]
