"""Whatever a handler raises costs its task one attempt, and ends it: an exception's own code can't stop a worker."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from queue_core.attempts import error_text
from queue_core.attempts.attempt import MAX_TRACEBACK_CHARACTERS
from queue_core.attempts.error_text import MAX_RAW_CHARACTERS
from queue_core.attempts.failures import failure_of
from queue_core.attempts.redaction import redacted_traceback
from queue_core.local import LocalQueue, LocalQueues
from queue_core.task import NewTask, QueueSpec
from queue_core.worker.app import App
from queue_core.worker.context import Task
from tests.support.eventually import eventually
from tests.support.fleet.workers import both_kinds, memory_queues, plain_or_async, running_worker


class BrokenError(BaseException):
    """What code of an exception raises that is no `Exception`."""


def _with_property(name: str) -> type[BaseException]:
    def read(_self: object) -> object:
        raise BrokenError

    return type("PropertyError", (Exception,), {name: property(read)})


def _with_method(name: str, *, module: str = __name__) -> type[BaseException]:
    def call(*_: object, **__: object) -> object:
        raise BrokenError

    return type("MethodError", (Exception,), {name: call, "__module__": module})


class _HostileClass(type):
    """Reading anything of a class of this kind raises."""

    def __getattribute__(cls, name: str) -> object:
        raise BrokenError


def _of_a_hostile_class() -> BaseException:
    class HostileClassError(Exception, metaclass=_HostileClass):
        pass

    return HostileClassError("x")


class HostileText(str):
    __slots__ = ()

    def __getitem__(self, _: object) -> str:
        raise BrokenError

    def __format__(self, _: str) -> str:
        raise BrokenError

    def __str__(self) -> str:
        raise BrokenError


class HostileTextError(Exception):
    def __str__(self) -> str:
        return HostileText("fine")


class HostileArgument:
    def __repr__(self) -> str:
        raise BrokenError


class HugeError(Exception):
    def __str__(self) -> str:
        return "x" * 5_000_000


class WrongTypeError(Exception):
    __str__ = cast("Callable[[BaseException], str]", lambda _: 7)


def _deep_chain() -> BaseException:
    error: BaseException = ValueError("the first")
    for number in range(5_000):
        after = ValueError(number)
        after.__cause__ = error
        error = after
    return error


def _deep_group() -> BaseException:
    error: Exception = _with_property("__cause__")()
    for _ in range(500):
        error = ExceptionGroup("group", [error, _with_method("__str__")()])
    return error


def _loop() -> BaseException:
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    return one


HOSTILE: dict[str, Callable[[], BaseException]] = {
    **{
        f"property {name}": lambda name=name: _with_property(name)()  # type: ignore[misc]
        for name in (
            "errors",
            "args",
            "__notes__",
            "__cause__",
            "__context__",
            "__suppress_context__",
            "__traceback__",
            "__class__",
            "__dict__",
        )
    },
    **{
        f"method {name}": lambda name=name: _with_method(name)()  # type: ignore[misc]
        for name in ("__str__", "__repr__", "__getattribute__", "__getattr__", "__hash__", "__eq__", "__bool__")
    },
    "errors of pydantic's kind": _with_method("errors", module="pydantic.made_up"),
    "class": _of_a_hostile_class,
    "text": HostileTextError,
    "argument": lambda: ValueError(HostileArgument()),
    "huge": HugeError,
    "no text": WrongTypeError,
    "notes that are none": lambda: _noted(7),
    "notes of others": lambda: _noted([HostileText("a"), HostileArgument()]),
    "deep chain": _deep_chain,
    "deep group": _deep_group,
    "loop": _loop,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": lambda: StopIteration(7),
    "StopAsyncIteration": StopAsyncIteration,
    "BaseException": lambda: BrokenError("x"),
    "base group": lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), SystemExit(1)]),
}


def _noted(notes: object) -> BaseException:
    error = ValueError("noted")
    error.__dict__["__notes__"] = notes
    return error


@pytest.fixture
def store() -> Iterator[tuple[LocalQueues, LocalQueue]]:
    queues, queue = memory_queues()
    queues.put_queue(QueueSpec("q", max_leases=2, retry_min_seconds=0, retry_max_seconds=0))
    yield queues, queue
    queues.close()


@both_kinds
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("name", HOSTILE)
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
