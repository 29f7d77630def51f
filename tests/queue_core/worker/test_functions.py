"""Functions as tasks: how they are added, handed over and called, and what becomes of arguments that don't fit."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Annotated

import pytest
from pydantic import Field

from queue_core import (
    INJECTED,
    App,
    AppError,
    Backoff,
    Dead,
    Injected,
    InvalidArgumentsError,
    InvalidEtaError,
    InvalidRequestError,
    InvalidTagError,
    NewTask,
    QueueSpec,
    Retry,
    Task,
    TaskState,
)
from queue_core.testing import MemoryQueues, run_until_empty

HERE = "tests/queue_core/worker/test_functions.py"


@pytest.fixture
def queues() -> MemoryQueues:
    return MemoryQueues(QueueSpec("thumbs"))


def test_an_added_function_is_called_with_its_arguments(queues: MemoryQueues) -> None:
    app, calls = App(), []

    @app.function(queue="thumbs")
    def resize(path: str, width: int = 200) -> None:
        calls.append((path, width))

    with app.bound_to(queues):
        added = resize.add("cat.jpg", width=400)
    assert (added.name, added.status) == ("_1", "added")
    (task,) = queues.queue("thumbs").peek(payload_bytes=100).tasks
    assert (task.tag, task.payload) == ("resize", b'{"path":"cat.jpg","width":400}')
    run_until_empty(app, queues=queues)
    assert calls == [("cat.jpg", 400)]


def test_a_function_stays_a_function() -> None:
    app = App()

    @app.function(queue="thumbs")
    def double(number: int) -> int:
        """Return twice the number."""
        return 2 * number

    @app.function(queue="thumbs")
    async def triple(number: int) -> int:
        return 3 * number

    assert (double(2), double(number=3), asyncio.run(triple(3))) == (4, 6, 9)
    assert (double.__name__, double.__doc__, double.queue, double.tag) == (
        "double",
        "Return twice the number.",
        "thumbs",
        "double",
    )


def test_a_default_that_was_not_given_is_that_of_the_worker(queues: MemoryQueues) -> None:
    producer, app, calls = App(), App(), []

    @producer.function(queue="thumbs", tag="resize")
    def old(path: str, width: int = 200) -> None: ...

    @app.function(queue="thumbs", tag="resize")
    def new(path: str, width: int = 300) -> None:
        calls.append(width)

    run_until_empty(app, [old.task("a"), old.task("b", width=200)], queues=queues)
    assert calls == [300, 200]


def test_settings_of_one_task_are_given_with_it(queues: MemoryQueues) -> None:
    app = App()

    @app.function(queue="thumbs", retry=Backoff("1s", "5m", attempts=5))
    def resize(path: str) -> None: ...

    assert resize.task("a") == NewTask(b'{"path":"a"}', tag="resize", queue="thumbs", max_leases=5)
    with_all = resize.with_(delay="10m", name="cat", headers={"trace": "1"}, queue="other", max_leases=2)
    assert with_all.task("a") == NewTask(
        b'{"path":"a"}',
        name="cat",
        tag="resize",
        delay_seconds=600.0,
        queue="other",
        max_leases=2,
        headers={"trace": "1"},
    )
    assert with_all.with_(name="dog").task("a").delay_seconds == 600.0
    moment = datetime(1970, 1, 1, 0, 0, 1, 7, tzinfo=UTC) + timedelta(days=20_000)
    assert resize.with_(eta=moment).task("a").eta == 20_000 * 86_400_000_000 + 1_000_007
    with pytest.raises(InvalidEtaError, match="time zone"):
        resize.with_(eta=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidEtaError, match="'2030-01-01'"):
        resize.with_(eta="2030-01-01")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="headers must be a map"):
        resize.with_(headers="trace")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="connection"):
        resize.with_(connection=object()).task("a")
    with app.bound_to(queues):
        assert [resize.with_(name="cat", headers={"trace": "1"}).add("a").status for _ in range(2)] == [
            "added",
            "exists",
        ]
        with pytest.raises(InvalidRequestError, match="connection"):
            resize.with_(connection=object()).add("a")
    (task,) = queues.queue("thumbs").peek().tasks
    assert (task.name, task.max_leases, dict(task.headers or {})) == ("cat", 5, {"trace": "1"})


def test_a_function_is_added_from_an_event_loop(queues: MemoryQueues) -> None:
    app = App()

    @app.function(queue="thumbs")
    async def resize(path: str) -> None: ...

    with app.bound_to(queues):
        added = asyncio.run(resize.with_(name="cat").add_async("cat.jpg"))
    assert (added.name, queues.queue("thumbs").stats().ready) == ("cat", 1)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_functions_add_and_hand_over_to_each_other(kind: str) -> None:
    app, seen = App(), []

    @app.function(queue="pages")
    def count(page: int) -> int:
        seen.append(page)
        return page  # no task: dropped

    def read(pages: int) -> list[NewTask] | None:
        count.add(0)
        return [count.task(page) for page in range(1, pages)] or None

    async def read_async(pages: int) -> list[NewTask] | None:
        await asyncio.sleep(0)
        return read(pages)

    book = app.function(queue="books", tag="read")(read if kind == "plain" else read_async)
    outcomes = run_until_empty(app, [book.task(3), book.task(1)])
    assert sorted(seen) == [0, 0, 1, 2]
    assert [outcome.error for outcome in outcomes] == [None] * 6
    assert [outcome.result for outcome in outcomes if outcome.queue == "pages"] == seen


def test_a_coroutine_that_nobody_awaits_is_a_failure() -> None:
    app = App()

    async def later() -> None: ...

    @app.function(queue="q", retry=Backoff(0, attempts=1))
    def forgetful() -> object:
        return later()

    (outcome,) = run_until_empty(app, forgetful.task())
    assert isinstance(outcome.error, TypeError)


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(
    ("payload", "told"),
    [
        pytest.param(b"\xff", "resize: Invalid JSON", id="no JSON"),
        pytest.param(b"[1]", "resize: Input should be an object", id="no object"),
        pytest.param(b"{}", "resize: path: is missing", id="an argument is missing"),
        pytest.param(b'{"path":"a","width":"secret"}', "resize: width: Input should be a valid integer", id="a type"),
        pytest.param(b'{"path":"a","old":"secret"}', "resize: old: no such parameter", id="an older producer"),
    ],
)
def test_a_task_that_does_not_fit_is_dead_at_once(queues: MemoryQueues, payload: bytes, told: str, kind: str) -> None:
    app = App()

    def resize(path: str, width: int = 200) -> None: ...

    async def resize_async(path: str, width: int = 200) -> None: ...

    resize_async.__qualname__ = resize.__qualname__ = "resize"
    app.function(queue="thumbs", tag="resize")(resize if kind == "plain" else resize_async)
    (outcome,) = run_until_empty(app, NewTask(payload, queue="thumbs", tag="resize"), queues=queues)
    assert isinstance(outcome.error, Dead)
    assert outcome.attempts == 1
    (dead,) = queues.queue("thumbs").peek(states=frozenset({TaskState.DEAD})).tasks
    assert dead.reason.startswith(told)
    assert "secret" not in dead.reason


def test_a_task_without_a_payload_calls_a_function_without_arguments() -> None:
    app, calls = App(), []

    @app.function(queue="q")
    def clean(days: int = 7) -> None:
        calls.append(days)

    run_until_empty(app, NewTask(tag="clean"))
    assert calls == [7]


def test_errors_of_a_function_are_those_of_a_handler() -> None:
    app, calls = App(), []

    @app.function(queue="q", on={ConnectionError: Retry("1m")}, retry=Backoff(0, attempts=2))
    def fetch(error: str) -> None:
        calls.append(error)
        if error == "busy" and calls.count("busy") < 4:
            raise ConnectionError
        if error == "wrong":
            raise ValueError

    busy, wrong = run_until_empty(app, [fetch.task("busy"), fetch.task("wrong")])[::-1]
    assert (busy.error, busy.attempts) == (None, 4)
    assert (type(wrong.error), wrong.attempts) == (ValueError, 2)


def test_a_function_may_get_its_task() -> None:
    app, seen = App(), []

    @app.function(queue="q")
    def note(text: str, task: Injected[Task] = INJECTED) -> None:
        seen.append((text, task.name))

    run_until_empty(app, note.with_(name="first").task("a"))
    assert seen == [("a", "first")]
    with pytest.raises(TypeError, match="task="):
        note("b")


def test_a_function_that_no_worker_could_call_is_refused_when_it_is_made() -> None:
    app = App()

    def splat(*paths: str) -> None: ...

    def slash(path: str, /) -> None: ...

    def between(task: Injected[Task] = INJECTED, path: str = "") -> None: ...

    def filled(width: int = Field(3, gt=0)) -> None: ...

    def pages(count: int) -> Iterator[int]:
        yield from range(count)

    async def async_pages(count: int) -> AsyncIterator[int]:
        yield count

    for function, told in (
        (splat, "paths"),
        (slash, "path"),
        (between, "must come after path"),
        (print, "def"),
        (filled, "Annotated"),
        (pages, "yields"),
        (async_pages, "yields"),
    ):
        with pytest.raises(AppError, match=told):
            app.function(queue="q")(function)
    with pytest.raises(InvalidTagError):
        app.function(queue="q", tag="")(lambda: None)
    app.function(queue="q", tag="taken")(lambda: None)
    with pytest.raises(AppError, match="two handlers"):
        app.function(queue="q", tag="taken")(lambda: None)


def test_a_producer_learns_of_wrong_arguments_before_anything_is_added(queues: MemoryQueues) -> None:
    app = App()

    @app.function(queue="thumbs")
    def resize(path: str, width: int = 200, task: Injected[Task] = INJECTED) -> None: ...

    wrong = resize.add
    with app.bound_to(queues):
        for call, told in (
            (wrong, "path: is missing"),
            (lambda: wrong("a", widht=3), "widht: no such parameter"),  # type: ignore[call-arg]
            (lambda: wrong("a", task=3), "task: the worker injects it"),
            (lambda: wrong("a", 1, 2), "too many positional arguments"),
            (lambda: wrong("a", path="b"), "multiple values for argument 'path'"),  # type: ignore[misc]
            (lambda: wrong("a", "wide"), "width: Input should be a valid integer"),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidArgumentsError, match=f"resize.*{told}"):
                call()
    assert queues.queue("thumbs").stats().added_total == 0


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"width": 3}, id="one is missing"),
        pytest.param({"path": "a", "widht": 3}, id="one is unknown"),
        pytest.param({"width": "wide", "task": 3}, id="all kinds"),
        pytest.param({"path": "a", "width": "wide"}, id="a type"),
        pytest.param({"path": "a", "width": 0}, id="a bound"),
    ],
)
def test_producer_and_worker_refuse_arguments_in_the_same_words(
    queues: MemoryQueues, arguments: dict[str, object]
) -> None:
    app = App()

    @app.function(queue="thumbs", tag="resize")
    def resize(path: str, width: Annotated[int, Field(gt=0)] = 200, *, task: Injected[Task] = INJECTED) -> None: ...

    with app.bound_to(queues), pytest.raises(InvalidArgumentsError) as refused:
        resize.add(**arguments)  # type: ignore[arg-type]
    task = NewTask(json.dumps(arguments).encode(), queue="thumbs", tag="resize")
    (outcome,) = run_until_empty(app, task, queues=queues)
    assert str(outcome.error) == str(refused.value)
    (dead,) = queues.queue("thumbs").peek(states=frozenset({TaskState.DEAD})).tasks
    assert dead.reason == str(refused.value)
    assert [one.place for one in dead.attempts] == [f"{HERE}:{inspect.unwrap(resize).__code__.co_firstlineno}"]


def test_a_task_that_does_not_fit_is_dead_although_all_errors_are_retried() -> None:
    app = App()

    @app.function(queue="q", on={Exception: Retry(1)})
    def resize(path: str) -> None: ...

    (outcome,) = run_until_empty(app, NewTask(tag="resize"))
    assert (type(outcome.error), outcome.attempts) == (Dead, 1)


def test_a_list_with_other_values_than_tasks_says_which() -> None:
    app = App()

    @app.function(queue="thumbs", retry=Backoff(attempts=1))
    def mixed() -> list[object]:
        return [NewTask(b"", tag="mixed"), 3]

    (outcome,) = run_until_empty(app, mixed.task())
    assert str(outcome.error).endswith("got a list of 2 with one of type int")


def test_a_generator_that_was_not_run_is_a_failure() -> None:
    app = App()

    def lines() -> Iterator[int]:
        yield 1

    @app.function(queue="thumbs", retry=Backoff(attempts=1))
    def read() -> object:
        return lines()

    (outcome,) = run_until_empty(app, read.task())
    assert isinstance(outcome.error, TypeError)


def test_no_name_of_a_parameter_is_in_the_way_of_the_verbs(queues: MemoryQueues) -> None:
    app, calls = App(), []

    @app.function(queue="thumbs")
    def note(self: int, task: int, queue: int, name: int, args: int, function: int) -> None:
        calls.append((self, task, queue, name, args, function))

    with app.bound_to(queues):
        note.add(self=1, task=2, queue=3, name=4, args=5, function=6)
        asyncio.run(note.with_(delay=0).add_async(self=1, task=2, queue=3, name=4, args=5, function=6))
        note(self=1, task=2, queue=3, name=4, args=5, function=6)
    run_until_empty(app, note.task(self=1, task=2, queue=3, name=4, args=5, function=6), queues=queues)
    assert calls == [(1, 2, 3, 4, 5, 6)] * 4
