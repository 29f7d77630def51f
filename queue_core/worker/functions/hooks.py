"""Hooks around a worker's life, and the injection of their values into handlers by type.

A hook opens and closes what handlers share: a client, a model. This module runs hooks; it leases and logs nothing.
"""

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import update_wrapper
from types import CodeType
from typing import Annotated, Any, Final, Protocol, TypeVar, get_args, get_origin

from queue_core.attempts.error_text import name_of
from queue_core.errors import AppError
from queue_core.worker.context import Task
from queue_core.worker.functions.arguments import hints_of

T = TypeVar("T")
Hook = TypeVar("Hook", bound=Callable[..., object])


class InjectedMark:
    """The mark of a parameter that the worker fills in."""

    def __repr__(self) -> str:
        return "INJECTED"


INJECTED: Final[Any] = InjectedMark()
"""The default of an injected parameter: `client: Injected[HttpClient] = INJECTED`."""
Injected = Annotated[T, INJECTED]
"""The type of a parameter that is no argument of `add`: what an `on_start` hook returned, or the `Task` itself."""

_YIELDING: Final = (Generator, Iterator, Iterable, AsyncGenerator, AsyncIterator, AsyncIterable)


class HookWatch(Protocol):
    """Watches a hook that runs in the caller's thread, called by the code `until`."""

    def __call__(self, hook: Callable[..., object], *, until: CodeType) -> AbstractContextManager[None]: ...


class CoroutineRunner(Protocol):
    """A function that runs a coroutine in the event loop of the handlers and returns its value."""

    def __call__(self, coroutine: Coroutine[Any, Any, object], /) -> object:
        """Run it to its end."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """A generator hook that yielded, with the function that runs the rest of it."""

    name: str
    close: Callable[[CoroutineRunner], None]


class AppHooks:
    """The hooks of an app, and the values that its `on_start` hooks returned in this process, by type."""

    def __init__(self) -> None:
        self._start: list[Callable[..., object]] = []
        self._stop: list[Callable[..., object]] = []
        self._values: dict[object, object] = {}
        self._opened: list[_Opened] = []

    def on_start(self, hook: Hook) -> Hook:
        """Register a hook: plain, async, or a generator that yields once."""
        self._start.append(hook)
        return hook

    def on_stop(self, hook: Hook) -> Hook:
        """Register a hook: plain or async."""
        if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
            raise AppError(f"on_stop {_name(hook)} must not yield; a generator is a hook of on_start")
        self._stop.append(hook)
        return hook

    @property
    def need_loop(self) -> bool:
        """Return whether a hook is async."""
        return any(
            inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook)
            for hook in (*self._start, *self._stop)
        )

    def check(self, functions: Iterable[Callable[..., object]]) -> None:
        """Raise `AppError` where a handler or a hook needs a value that no `on_start` hook returns."""
        provided: dict[object, str] = {}
        unknown: list[str] = []
        for hook in self._start:
            self._check_needs(injections_of(hook, skip=0), provided, unknown, name=f"on_start {_name(hook)}")
            try:
                kind = _provided(hook)
            except AppError as error:  # known to type checkers only: its value is for nobody
                unknown.append(f"; {error}")
                continue
            if kind is None:
                continue
            if kind in provided:
                raise AppError(f"on_start hooks {provided[kind]} and {_name(hook)} both return {_shown(kind)}")
            provided[kind] = _name(hook)
        for hook in self._stop:
            self._check_needs(injections_of(hook, skip=0), provided, unknown, name=f"on_stop {_name(hook)}")
        for function in functions:
            if isinstance(function, InjectedCall):
                needs = {name: kind for name, kind in function.needs().items() if kind is not Task}
                self._check_needs(needs, provided, unknown, name=_name(function))

    def start(self, run: CoroutineRunner, watch: HookWatch) -> None:
        """Run the `on_start` hooks in order, each watched. Raises `AppError` for one that fails, after closing those
        before it."""
        self._values.clear()
        self._opened.clear()
        for hook in self._start:
            try:
                with watch(hook, until=_RUN_CODE):
                    value = self._run_start(hook, run)
            except KeyboardInterrupt:  # Ctrl-C
                raise
            except BaseException as error:
                failed = AppError(f"on_start {_name(hook)} failed: {name_of(type(error))}")
                for _, later in self._close(run):
                    failed.add_note(f"and then its clean-up failed: {name_of(type(later))}")
                raise failed from error
            with suppress(AppError):  # `check` said what is wrong, if its value is needed
                kind = _provided(hook)
                if kind is not None:
                    self._values[kind] = value

    def stop(self, run: CoroutineRunner) -> Iterator[tuple[str, BaseException]]:
        """Run the `on_stop` hooks in order, then the rest of the generators, last first; yield those that failed."""
        for hook in self._stop:
            try:
                value = hook(**self.arguments(injections_of(hook, skip=0)))
                if inspect.iscoroutine(value):
                    run(value)
            except BaseException as error:  # noqa: BLE001  the others must run
                yield f"on_stop {_name(hook)}", error
        yield from self._close(run)
        self._values.clear()

    def arguments(self, needs: Mapping[str, object], *, task: Task | list[Task] | None = None) -> dict[str, object]:
        """Return the values for injected parameters. Raises `AppError` when there is none."""
        found: dict[str, object] = {}
        for name, kind in needs.items():
            if kind is Task:
                found[name] = task
            elif kind in self._values:
                found[name] = self._values[kind]
            else:
                raise AppError(f"parameter {name}: no on_start hook has returned {_shown(kind)} in this process")
        return found

    def injected(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return the handler, or one that gets injected parameters after its task, if it has any."""
        names = injected_names(function, skip=1)
        return InjectedCall(function, self) if names and not isinstance(function, InjectedCall) else function

    def _run_start(self, hook: Callable[..., object], run: CoroutineRunner) -> object:
        made = hook(**self.arguments(injections_of(hook, skip=0)))
        if inspect.isgenerator(made):
            value = next(made)
            self._opened.append(_Opened(_name(hook), lambda _: _finish(made)))
            return value
        if inspect.isasyncgen(made):
            value = run(_awaited(anext(made)))
            self._opened.append(_Opened(_name(hook), lambda run: _finish_async(made, run)))
            return value
        return run(made) if inspect.iscoroutine(made) else made

    def _close(self, run: CoroutineRunner) -> list[tuple[str, BaseException]]:
        failed: list[tuple[str, BaseException]] = []
        while self._opened:
            opened = self._opened.pop()
            try:
                opened.close(run)
            except BaseException as error:  # noqa: BLE001  the others must be closed
                failed.append((f"on_start {opened.name}", error))
        return failed

    @staticmethod
    def _check_needs(
        needs: Mapping[str, object], provided: Mapping[object, str], unknown: Iterable[str], *, name: str
    ) -> None:
        for parameter, kind in needs.items():
            if kind not in provided:
                known = ", ".join(map(_shown, provided)) or "none returns a value"
                raise AppError(
                    f"{name}: parameter {parameter}: no on_start hook before it returns {_shown(kind)}; known: {known}"
                    f"{''.join(unknown)}"
                )


class InjectedCall:
    """A handler with parameters after its task that the worker fills in."""

    def __init__(self, function: Callable[..., object], hooks: AppHooks) -> None:
        self._function = function
        self._hooks = hooks
        self._needs: dict[str, object] | None = None
        update_wrapper(self, function)

    def needs(self) -> dict[str, object]:
        """Return the types of the injected parameters by name. Raises `AppError` for one without a type."""
        if self._needs is None:
            self._needs = self.read_needs()
        return self._needs

    def read_needs(self) -> dict[str, object]:
        """Read the annotations."""
        return injections_of(self._function, skip=1)

    def __call__(self, task: Task | list[Task]) -> object:
        return self._function(task, **self._hooks.arguments(self.needs(), task=task))


def injected_names(function: Callable[..., object], *, skip: int, marked: bool = False) -> list[str]:
    """Return the parameters to inject, after the first `skip`: those marked by `INJECTED`, or without a default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except (TypeError, ValueError):  # a built-in function
        return []
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return [one.name for one in named if one.default is INJECTED or (one.default is one.empty and not marked)]


def injections_of(function: Callable[..., object], *, skip: int, marked: bool = False) -> dict[str, object]:
    """Return the types of the parameters to inject by name. Raises `AppError` for one without a type."""
    names = injected_names(function, skip=skip, marked=marked)
    if not names:
        return {}
    hints = hints_of(function if inspect.isroutine(function) else type(function).__call__, names)
    untyped = [name for name in names if name not in hints]
    if untyped:
        raise AppError(f"{_name(function)}: parameter {untyped[0]} needs the type of what is to be injected")
    return {name: _unmarked(hints[name]) for name in names}


def is_marked(hint: object) -> bool:
    """Return whether an annotation is `Injected[...]`."""
    return get_origin(hint) is Annotated and INJECTED in get_args(hint)[1:]


def _unmarked(hint: object) -> object:
    return get_args(hint)[0] if is_marked(hint) else hint


def _provided(hook: Callable[..., object]) -> object | None:
    """Return the type that a hook returns or yields; None: nothing is injected."""
    kind = hints_of(hook, ["return"]).get("return")
    if (inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook)) and get_origin(kind) in _YIELDING:
        kind = get_args(kind)[0]
    return None if kind is type(None) else kind


def _finish(generator: Iterator[object]) -> None:
    try:
        next(generator)
    except StopIteration:
        return
    raise AppError("a hook must yield once")


def _finish_async(generator: AsyncIterator[object], run: CoroutineRunner) -> None:
    try:
        run(_awaited(anext(generator)))
    except StopAsyncIteration:
        return
    raise AppError("a hook must yield once")


async def _awaited(awaitable: Awaitable[object]) -> object:
    return await awaitable


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


def _shown(kind: object) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


_RUN_CODE: Final = AppHooks._run_start.__code__  # noqa: SLF001  where the user's part of a stack begins
