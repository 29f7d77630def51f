"""The schedules that a program declares for its own functions; a supervisor adds their tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from queue_core.errors import AppError, QueueError
from queue_core.task import NewTask
from queue_core.worker.context import Seconds, seconds_of
from queue_core.worker.functions.function import Function

if TYPE_CHECKING:
    from queue_core.schedules.schedule import CatchUp, Overlap, Schedule


@dataclass(frozen=True, slots=True)
class Periodic:
    """The arguments of one `@app.periodic`."""

    function: Callable[..., object]
    name: str
    cron: str | None
    every: float | None
    timezone: str
    catch_up: "CatchUp"
    overlap: "Overlap"
    payload: object


class PeriodicFunctions:
    """The functions of an app that have a schedule."""

    def __init__(self) -> None:
        self._tasks: dict[int, tuple[str, str | None]] = {}
        self._found: dict[str, Periodic] = {}

    def note_task(self, function: Callable[..., object], queue: str, tag: str | None) -> None:
        """Note the queue and the tag of a function's tasks."""
        self._tasks[id(function)] = queue, tag

    def add(
        self,
        function: Callable[..., object],
        *,
        name: str | None,
        cron: str | None,
        every: Seconds | None,
        timezone: str,
        catch_up: "CatchUp",
        overlap: "Overlap",
        payload: object,
    ) -> None:
        """Declare a schedule of a function. Raises `AppError` for one that can't be, and for a second of its name."""
        if id(function) not in self._tasks and not isinstance(function, Function):
            shown = getattr(function, "__qualname__", repr(function))
            raise AppError(
                f"{shown} is no function of this app yet: write @app.periodic above its @app.function or @app.task"
            )
        own_name = str(getattr(function, "__name__", "")) if name is None else name
        try:
            seconds = None if every is None else seconds_of(every)
        except ValueError as error:
            raise AppError(f"every of schedule {own_name!r}: {error}") from None
        found = Periodic(function, own_name, cron, seconds, timezone, catch_up, overlap, payload)
        self._schedule(found, NewTask(), origin="")
        if own_name in self._found:
            raise AppError(f"two schedules are called {own_name!r}: give one another name, @app.periodic(name=...)")
        self._found[own_name] = found

    def schedules(self, *, origin: str) -> "list[Schedule]":
        """Return the schedules. Raises `AppError` for arguments that don't fit their function."""
        return [self._schedule(one, _task(one), origin=origin) for one in self._found.values()]

    def _schedule(self, one: Periodic, task: NewTask, *, origin: str) -> "Schedule":
        from queue_core.schedules.check import check_schedule  # most programs have no schedule
        from queue_core.schedules.schedule import Schedule

        queue, tag = self._target(one.function)
        try:
            return check_schedule(
                Schedule(
                    one.name,
                    queue,
                    one.cron,
                    one.every,
                    one.timezone,
                    task.payload,
                    tag,
                    catch_up=one.catch_up,
                    origin=origin,
                    max_leases=task.max_leases,
                    overlap=one.overlap,
                )
            )
        except QueueError as error:
            raise AppError(str(error)) from None

    def _target(self, function: Callable[..., object]) -> tuple[str, str | None]:
        """Return the queue and the tag of a function's tasks."""
        return (function.queue, function.tag) if isinstance(function, Function) else self._tasks[id(function)]


def _task(one: Periodic) -> NewTask:
    """Return a task of it as the function makes it: its payload has a function's arguments, else what is given."""
    from queue_core.config.schedules import payload_bytes

    given = one.payload
    if isinstance(one.function, Function):
        if given is not None and not isinstance(given, dict):
            raise AppError(f"payload of schedule {one.name!r}: give the arguments of {one.name} as a dict")
        try:
            made: NewTask = one.function.task(**(given or {}))
            return made
        except QueueError as error:
            fix = "give them: @app.periodic(payload={...})"
            raise AppError(f"schedule {one.name!r}: {error}; {fix}") from None
    if isinstance(given, bytes):
        return NewTask(given)
    try:
        return NewTask(payload_bytes(given))  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise AppError(f"payload of schedule {one.name!r} has no JSON form: {error}") from None
