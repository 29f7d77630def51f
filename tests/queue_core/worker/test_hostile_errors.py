"""Whatever a handler raises costs its task one attempt, and ends it: an exception's own code can't stop a worker."""

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from structlog.testing import capture_logs

from queue_core.attempts import error_text
from queue_core.attempts.attempt import MAX_TRACEBACK_CHARACTERS
from queue_core.attempts.error_text import MAX_RAW_CHARACTERS, without_traceback
from queue_core.attempts.failures import failure_of
from queue_core.attempts.redaction import redacted_traceback
from queue_core.client.local_calls import LocalQueue, LocalQueues
from queue_core.errors import AppError
from queue_core.task import NewTask, QueueSpec
from queue_core.worker import events
from queue_core.worker.app import App, load_app
from queue_core.worker.context import Task
from queue_core.worker.lifecycle import EXIT_OK
from queue_core.worker.runner import Runner
from queue_core.worker.settings import WorkerSettings
from tests.support.eventually import eventually
from tests.support.fleet.odd_exceptions import HOSTILE, ODD_REASONS, dead_of
from tests.support.fleet.workers import both_kinds, memory_queues, plain_or_async, running_worker


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues()
    queues.put_queue(QueueSpec("q", max_leases=2, retry_min_seconds=0, retry_max_seconds=0))
    yield queues, queue
    queues.close()


@both_kinds
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("name", [one for one in HOSTILE if not one.startswith("Dead")])
def test_whatever_a_handler_raises_costs_one_attempt(
    store: tuple[LocalQueues, LocalQueue], kind: str, name: str, concurrency: int
) -> None:
    queues, queue = store
    app, numbers = App(), list[int]()

    def handle(task: Task) -> None:
        if task.text == "after":
            return
        numbers.append(task.lease_number)
        raise HOSTILE[name]()

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add(b"hostile")
    with running_worker(app, queues.queue, concurrency=concurrency):
        eventually(lambda: queue.stats().dead == 1)
        queue.add(b"after")
        eventually(lambda: queue.stats().deleted_total == 1)
    assert numbers == [1, 2]
    (dead,) = queue.peek().tasks
    assert [attempt.outcome for attempt in dead.attempts] == ["raised", "raised"]


@both_kinds
@pytest.mark.parametrize("name", [one for one in HOSTILE if one != "KeyboardInterrupt"])
def test_whatever_a_hook_of_the_start_raises_refuses_the_app(
    store: tuple[LocalQueues, LocalQueue], kind: str, name: str
) -> None:
    queues, _ = store
    app = App()
    app.task(queue="q")(lambda _task: None)

    def begin() -> None:
        raise HOSTILE[name]()

    async def begin_async() -> None:
        begin()

    app.on_start(begin if kind == "plain" else begin_async)
    runner = Runner(app, WorkerSettings("", queue="q"), open_queue=queues.queue)
    with pytest.raises(AppError, match="failed: "):
        runner.start()


@both_kinds
def test_whatever_hooks_of_the_end_raise_the_others_run(store: tuple[LocalQueues, LocalQueue], kind: str) -> None:
    queues, _ = store
    app, ran = App(), list[str]()
    app.task(queue="q")(lambda _task: None)

    def register(name: str) -> None:
        def end() -> None:
            ran.append(name)
            raise HOSTILE[name]()

        async def end_async() -> None:
            end()

        app.on_stop(end if kind == "plain" else end_async)

    names = [one for one in HOSTILE if kind == "plain" or one not in ("KeyboardInterrupt", "SystemExit")]
    for name in names:
        register(name)
    with capture_logs() as logs, running_worker(app, queues.queue) as worker:
        worker.runner.drain("the test")
        assert worker.wait() == EXIT_OK
    assert ran == names
    assert len([entry for entry in logs if entry["event"] == events.HOOK_FAILED]) == len(names)


@pytest.mark.parametrize("name", [one for one in HOSTILE if one != "KeyboardInterrupt"])
def test_a_module_that_raises_such_a_thing_is_refused_with_its_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = f"odd_{[*HOSTILE].index(name)}"
    (tmp_path / f"{module}.py").write_text(
        f"from tests.support.fleet.odd_exceptions import HOSTILE\nraise HOSTILE[{name!r}]()\n"
    )
    with pytest.raises(AppError, match=module):
        load_app(f"{module}:app")


@both_kinds
@pytest.mark.parametrize("reason", ODD_REASONS)
def test_a_handler_that_gives_its_task_up_does_so_whatever_its_reason_is(
    store: tuple[LocalQueues, LocalQueue], kind: str, reason: str
) -> None:
    queues, queue = store
    app = App()

    def handle(task: Task) -> None:
        raise dead_of(reason)

    app.task(queue="q")(plain_or_async(kind, handle))
    queue.add(b"hostile")
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 1)
    (dead,) = queue.peek().tasks
    assert [attempt.outcome for attempt in dead.attempts] == ["raised"]
    assert dead.reason


@both_kinds
@pytest.mark.parametrize("name", ["method __str__", "property __cause__", "MemoryError", "SystemExit"])
def test_a_batch_whose_handler_raises_such_a_thing_costs_each_of_its_tasks_one_attempt(
    store: tuple[LocalQueues, LocalQueue], kind: str, name: str
) -> None:
    queues, queue = store
    app = App()

    def handle(tasks: list[Task]) -> None:
        raise HOSTILE[name]()

    async def handle_async(tasks: list[Task]) -> None:
        raise HOSTILE[name]()

    app.task(queue="q", batch=3)(handle if kind == "plain" else handle_async)
    queue.add([NewTask(payload) for payload in (b"1", b"2", b"3")])
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 3)
    assert {len(task.attempts) for task in queue.peek().tasks} == {2}


@pytest.mark.parametrize("name", HOSTILE)
def test_every_exception_has_a_failure_and_a_traceback(name: str) -> None:
    error = HOSTILE[name]()
    failure, text = failure_of(error, payloads=[b"pay load"]), redacted_traceback(error, [b"pay load"])
    assert type(failure.error) is type(failure.message) is type(text) is str
    assert failure.outcome == "raised"
    assert len(text) < 20 * MAX_RAW_CHARACTERS


def test_what_an_error_that_can_not_be_reported_holds_is_let_go() -> None:
    """Where there is no memory, its handler's variables may hold all there is."""

    class Held:
        pass

    def fill() -> weakref.ref[Held]:
        held = Held()
        try:
            raise MemoryError  # noqa: TRY301
        except MemoryError as error:
            reported.append(error)
            return weakref.ref(held)

    reported = list[BaseException]()
    held = fill()
    assert held() is not None
    without_traceback(reported[0])
    assert held() is None


def test_a_text_that_hangs_is_left_and_not_made_again_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_text, "READ_SECONDS", 0.05)
    may_end, made = Event(), list[int]()

    class HangingError(Exception):
        def __str__(self) -> str:
            made.append(1)
            may_end.wait()
            return "at last"

    try:
        assert "took longer" in failure_of(HangingError()).message
        assert "an earlier one hangs" in failure_of(HangingError()).message
        assert failure_of(ValueError("another")).message == "another"
        assert made == [1]
    finally:
        may_end.set()
    eventually(lambda: failure_of(HangingError()).message == "at last")


class PaymentError(Exception):
    pass


@both_kinds
def test_the_whole_traceback_and_the_path_of_the_class_are_kept_with_the_last_attempt(
    store: tuple[LocalQueues, LocalQueue], kind: str
) -> None:
    queues, queue = store
    app = App()

    def pay(card: str) -> None:
        try:
            raise KeyError("ledger")  # noqa: TRY301
        except KeyError as error:
            raise PaymentError(f"card {card}") from error

    app.task(queue="q")(plain_or_async(kind, lambda task: pay(task.text)))
    queue.add(b"4711-0815-4711")
    with running_worker(app, queues.queue):
        eventually(lambda: queue.stats().dead == 1)
    first, last = queue.peek().tasks[0].attempts
    assert first.traceback == ""
    assert last.error_path == f"{__name__}.PaymentError"
    lines = last.traceback.splitlines()
    firsts = [lines[at + 1] for at, line in enumerate(lines) if line.startswith("Traceback")]
    assert len(firsts) == 2
    assert ["/tests/" in first for first in firsts] == [True, True], "the worker's own calls are left out"
    assert "KeyError: 'ledger'" in lines
    assert any(line.endswith("in pay") for line in lines)
    assert lines[-1] == f"{__name__}.PaymentError: card <payload>"


def test_calls_of_libraries_stay_where_the_users_code_made_them() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    calls = [line for line in failure_of(caught.value).traceback.splitlines() if line.startswith("  File ")]
    assert Path(__file__).name in calls[0]
    assert calls[-1].endswith("in raw_decode") or calls[-1].endswith("in decode")


def test_an_error_without_a_call_of_the_users_shows_where_a_library_raised_it() -> None:
    error = ValueError("x")
    try:
        json.loads("{")
    except ValueError as raised:
        assert raised.__traceback__ is not None
        error.__traceback__ = raised.__traceback__.tb_next
    calls = [line for line in failure_of(error).traceback.splitlines() if line.startswith("  File ")]
    assert calls[0].endswith("in loads")


def test_a_long_traceback_keeps_the_users_calls_and_its_end() -> None:
    def deep(number: int) -> None:
        if number:
            json.loads("[]", object_hook=None) if number % 2 else deep(number - 1)
        raise ValueError("y" * 15_000)

    with pytest.raises(ValueError, match="y") as caught:
        deep(40)
    text = failure_of(caught.value).traceback
    assert len(text) <= MAX_TRACEBACK_CHARACTERS
    assert text.rstrip().endswith("yyy")
    assert "in deep" in text
