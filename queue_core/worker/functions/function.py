"""Function: a function of the program that can be added as a task, and called by a worker with its arguments."""

import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from queue_core.clock import Instant
from queue_core.errors import AppError, InvalidArgumentsError, InvalidEtaError, InvalidRequestError
from queue_core.task import NewTask
from queue_core.worker.context import Backoff, Dead, Seconds, Task, seconds_of
from queue_core.worker.functions.arguments import ArgumentsFormat, hints_of, refuse_generator
from queue_core.worker.functions.hooks import INJECTED, AppHooks, InjectedCall, injected_names, injections_of, is_marked

if TYPE_CHECKING:
    from datetime import datetime

    from queue_core.verbs import Added
    from queue_core.worker.functions.queues import AppQueues

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """The settings of one task besides its arguments. `connection`: see `Queue.add`."""

    queue: str
    tag: str
    name: str | None = None
    eta: Instant | None = None
    delay_seconds: float | None = None
    headers: Mapping[str, str] | None = None
    max_leases: int | None = None
    priority: int = 0
    connection: object | None = None


class FunctionAdder(Generic[P]):
    """The verbs that add a task of one function, with the settings of `with_`."""

    def __init__(self, form: ArgumentsFormat, queues: "AppQueues", options: TaskOptions) -> None:
        self._form = form
        self._queues = queues
        self._options = options

    def add(self, /, *args: P.args, **kwargs: P.kwargs) -> "Added":
        """Add a task with these arguments; when this returns it is durable.

        Raises `InvalidArgumentsError` for arguments that don't fit the annotations, and as `Queue.add` does.
        """
        options = self._options
        task = self._task(args, kwargs)
        queue = self._queues.queue(options.queue, joins_transaction=options.connection is not None)
        return queue.add(task, connection=options.connection)[0]

    async def add_async(self, /, *args: P.args, **kwargs: P.kwargs) -> "Added":
        """Add a task without blocking the event loop: see `add`."""
        import asyncio  # a program that never does this should not load it

        return await asyncio.to_thread(self.add, *args, **kwargs)

    def task(self, /, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Return the task instead of adding it: a handler returns it to hand over in one step with its deletion."""
        if self._options.connection is not None:
            raise InvalidRequestError("a task has no connection of its own: give it to the add, or leave it out")
        return replace(self._task(args, kwargs), queue=self._options.queue)

    def with_(
        self,
        *,
        delay: Seconds | None = None,
        eta: "Instant | datetime | None" = None,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        queue: str | None = None,
        max_leases: int | None = None,
        priority: int | None = None,
        connection: object | None = None,
    ) -> "FunctionAdder[P]":
        """Return the same verbs for tasks with these settings; a setting left out stays as it was.

        Args:
            delay: time until the first lease, in seconds or as "10m".
            eta: the instant before which it is not leased, or a `datetime` with a time zone.
            name: a name that makes the add idempotent.
            queue: another queue whose workers have this function's tag.
            max_leases: leases after which the task is dead, in place of `retry.attempts` and the queue's.
            priority: 0 to 9; a task of higher priority is leased before all of lower.
            connection: your connection to the store's database, with an open transaction: see `Queue.add`.
        """
        if headers is not None and not isinstance(headers, Mapping):
            raise InvalidRequestError(f"headers must be a map of text to text: {type(headers).__name__}")
        given: dict[str, Any] = {
            "delay_seconds": None if delay is None else seconds_of(delay),
            "eta": eta if eta is None or isinstance(eta, int) else _instant(eta),
            "name": name,
            "headers": headers,
            "queue": queue,
            "max_leases": max_leases,
            "priority": priority,
            "connection": connection,
        }
        given = {setting: value for setting, value in given.items() if value is not None}
        return FunctionAdder(self._form, self._queues, replace(self._options, **given))

    def _task(self, args: tuple[object, ...], kwargs: dict[str, object]) -> NewTask:
        options = self._options
        return NewTask(
            self._form.encode(args, kwargs),
            name=options.name,
            tag=options.tag,
            eta=options.eta,
            delay_seconds=options.delay_seconds,
            max_leases=options.max_leases,
            headers=dict(options.headers) if options.headers is not None else None,
            priority=options.priority,
        )


class Function(FunctionAdder[P], Generic[P, R]):
    """A function that workers call: `resize.add("cat.jpg")` adds a task, `resize("cat.jpg")` calls it here and now."""

    def __init__(
        self, function: Callable[P, R], queues: "AppQueues", *, queue: str, tag: str | None, retry: Backoff | None
    ) -> None:
        """Raises `AppError` for a function whose arguments can't travel as JSON."""
        if not inspect.isfunction(function):
            raise AppError(f"@app.function takes a function made by def, not {type(function).__name__}: {function!r}")
        self._function: Callable[P, R] = function
        self._injected = injected_names(function, skip=0, marked=True)
        refuse_generator(function)
        own_tag = function.__name__ if tag is None else tag
        options = TaskOptions(queue, own_tag, max_leases=retry.attempts if retry is not None else None)
        super().__init__(ArgumentsFormat(function, injected=self._injected), queues, options)
        update_wrapper(self, function)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself. Raises `TypeError` for an injected parameter that is not given."""
        if self._injected:
            given = inspect.signature(self._function).bind_partial(*args, **kwargs).arguments
            missing = [name for name in self._injected if given.get(name, INJECTED) is INJECTED]
            if missing:
                raise TypeError(f"{self._function.__name__}() needs {missing[0]}=...: only a worker injects it")
        return self._function(*args, **kwargs)

    @property
    def tag(self) -> str:
        """The tag of its tasks."""
        return self._options.tag

    @property
    def queue(self) -> str:
        """The queue of its tasks."""
        return self._options.queue

    def handler(self, hooks: AppHooks) -> "FunctionCall":
        """Return the handler for its tasks."""
        kind = AsyncFunctionCall if inspect.iscoroutinefunction(self._function) else FunctionCall
        return kind(self._function, self._form, hooks, self._queues)

    def __repr__(self) -> str:
        return f"Function({self._function.__qualname__}, queue={self.queue!r}, tag={self.tag!r})"


class FunctionCall(InjectedCall):
    """The handler of a function's tasks: it reads the arguments and calls the function.

    A task whose arguments don't fit is dead at once: it would never fit. A returned value that is no task is dropped.
    """

    def __init__(
        self, function: Callable[..., object], form: ArgumentsFormat, hooks: AppHooks, queues: "AppQueues"
    ) -> None:
        super().__init__(function, hooks)
        self._form = form
        self._queues = queues

    def read_needs(self) -> dict[str, object]:
        """See `InjectedCall`; read the other annotations too."""
        needs = injections_of(self._function, skip=0, marked=True)
        for name, hint in hints_of(self._function, inspect.signature(self._function).parameters).items():
            if is_marked(hint) and name not in needs:
                raise AppError(f"{self._function.__qualname__}: injected parameter {name} needs the default INJECTED")
        self._form.prepare()
        return needs

    def __call__(self, task: Task | list[Task]) -> object:
        return self._kept(task, self._function(**self._arguments(task)))

    def _arguments(self, task: Task | list[Task]) -> dict[str, object]:
        assert isinstance(task, Task)  # functions take no batches
        injected = self._hooks.arguments(self.needs(), task=task)
        try:
            return {**self._form.decode(task.payload), **injected}
        except InvalidArgumentsError as error:
            raise Dead(str(error)) from None

    def _kept(self, task: Task | list[Task], value: object) -> object:
        """Return the tasks in a returned value; a coroutine or generator, none of which was run, stays an error."""
        assert isinstance(task, Task)
        self._queues.keep_value(task, value)
        entries = value if isinstance(value, list | tuple) else [value]
        is_unrun = inspect.iscoroutine(value) or inspect.isgenerator(value) or inspect.isasyncgen(value)
        return value if is_unrun or any(isinstance(entry, NewTask) for entry in entries) else None


class AsyncFunctionCall(FunctionCall):
    """The same for an async function."""

    async def __call__(self, task: Task | list[Task]) -> object:
        called = self._function(**self._arguments(task))
        assert isinstance(called, Coroutine)
        return self._kept(task, await called)


def _instant(moment: "datetime") -> Instant:
    """Return a moment as an instant. Raises `InvalidEtaError` for one without a time zone, and for anything else."""
    from datetime import UTC, datetime, timedelta

    if not isinstance(moment, datetime):
        raise InvalidEtaError(f"eta must be a datetime(..., tzinfo=UTC), or whole microseconds since 1970: {moment!r}")
    with suppress(TypeError):
        return Instant((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
    raise InvalidEtaError(f"eta needs a time zone: datetime(..., tzinfo=UTC): {moment.isoformat()}")
