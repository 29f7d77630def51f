"""App: the handlers and functions of a program by queue and tag; `load_app` imports them. An add opens queues."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from queue_core.attempts.error_text import is_kind, name_of, parts_of, text_of
from queue_core.attempts.failures import place_in, shown_path
from queue_core.errors import AppError, AppImportError
from queue_core.limits import (
    MAX_LEASE_SECONDS,
    MAX_TAGS_PER_LEASE,
    MAX_TASKS_PER_LEASE,
    check_queue_name,
    check_tag,
    shown_value,
)
from queue_core.task import ANY, UNTAGGED, TagFilter
from queue_core.worker.context import Backoff, Dead, Retry, Seconds, seconds_of
from queue_core.worker.functions.arguments import refuse_generator
from queue_core.worker.functions.function import Function
from queue_core.worker.functions.hooks import AppHooks, Hook
from queue_core.worker.functions.periodic import PeriodicFunctions
from queue_core.worker.functions.queues import AppQueues

if TYPE_CHECKING:
    from queue_core.client.queue import Queue, Queues
    from queue_core.schedules.schedule import CatchUp, Overlap, Schedule

P = ParamSpec("P")
R = TypeVar("R")
_SHOWN_TAGS = 10
HandlerFunction = TypeVar("HandlerFunction", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and the tasks it handles. `batch` None: one task per call; else a list of up to `batch` of one tag."""

    function: Callable[..., object]
    queue: str
    tag: str | None
    batch: int | None
    is_async: bool
    on: Mapping[type[Exception], Retry | Dead] = field(default_factory=dict, hash=False)
    timeout_seconds: float | None = None
    retry: Backoff | None = None

    @property
    def display_name(self) -> str:
        """The name in logs and errors."""
        return str(getattr(self.function, "__qualname__", repr(self.function)))

    @property
    def place(self) -> str:
        """The line at which the function begins, as `tasks.py:14`; "" for a callable without code."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return "" if code is None else place_in([(code.co_filename, code.co_firstlineno)])

    def translate(self, error: BaseException) -> BaseException:
        """Return the `Retry` or `Dead` registered for this error with `on`, else the error; one of these stays."""
        if is_kind(error, (Retry, Dead)):
            return error
        return next((meant for kind, meant in self.on.items() if is_kind(error, kind)), error)


@dataclass(frozen=True, slots=True)
class LeaseOffer:
    """The lease that a worker requests from the queue: up to `count` tasks of `tags`.

    `tops_up`: the batch sizes of these tags differ. One task is leased then, and if its handler takes batches, the
    rest of a batch of its tag by a second lease.
    """

    tags: TagFilter
    count: int = 1
    tops_up: bool = False


class App:
    """A registry of handlers:

        app = App()

        @app.task(queue="thumbs", tag="resize")
        def resize(task: Task) -> None: ...

        @app.function(queue="thumbs")
        def convert(path: str, width: int = 200) -> None: ...

        convert.add("cat.jpg")

    A handler without a tag takes the untagged tasks of its queue and those of every tag that has no handler of its own.
    """

    def __init__(self, place: str | Path | None = None) -> None:
        """Args:
        place: the queues that its functions are added to: a settings file, or the URL of a store or a server. None:
            those that commands find, by TOWLINE_URL, TOWLINE_STORE or ./towline.yaml. Opened at the first add. In a
            worker they are the queues it leases from.
        """
        self._handlers: dict[tuple[str, str | None], Handler] = {}
        self._queues = AppQueues(place)
        self._periodic = PeriodicFunctions()
        self.hooks = AppHooks()

    def task(
        self,
        *,
        queue: str,
        tag: str | None = None,
        batch: int | None = None,
        on: Mapping[type[Exception], Retry | Dead] | None = None,
        timeout: Seconds | None = None,
        retry: Backoff | None = None,
    ) -> Callable[[HandlerFunction], HandlerFunction]:
        """Register a function, plain or async, called with a `Task`.

        When it returns None the task is deleted; a returned `NewTask`, or a list of them, is added in the same
        transaction. When it raises, the task is released: after the queue's back-off, or as `Retry` and `Dead` define.

        Args:
            batch: largest number of tasks of one tag per call, in [1, 1000]; the function gets a list. All are deleted
                when it returns None; it may return a list with one entry per task, each as above. When it raises, all
                are released.
            on: maps exception classes to a `Retry` or `Dead`, by the first match: `on={TooManyRequests: Retry(30)}`.
            timeout: how long one call may take, in seconds or as "30s"; None: as long as the queue's `max_lease`. An
                async function is cancelled then; a plain one can't be ended, so its task is given up, with the stack as
                its error, and the worker is replaced.
            retry: how its failed tasks are retried; None: as the queue's settings say.

        Raises `AppError` for a second handler of the same queue and tag, for a function that yields, and for settings
        out of range or of a wrong type.
        """
        check_queue_name(queue)
        if tag is not None:
            check_tag(tag)
        if batch is not None and not 1 <= batch <= MAX_TASKS_PER_LEASE:
            raise AppError(f"batch must be in [1, {MAX_TASKS_PER_LEASE}] tasks: {shown_value(batch)}")
        _check_retries(on, retry)
        timeout_seconds = None if timeout is None else _timeout_of(timeout)
        if timeout_seconds is not None and not 0 < timeout_seconds <= MAX_LEASE_SECONDS:
            raise AppError(f"timeout must be in (0, {MAX_LEASE_SECONDS:.0f}] s (7 days): {timeout_seconds:g} s")

        def register(function: HandlerFunction) -> HandlerFunction:
            refuse_generator(function)
            called = self.hooks.injected(function)
            handler = Handler(called, queue, tag, batch, _is_async(function), dict(on or {}), timeout_seconds, retry)
            first = self._handlers.setdefault((queue, tag), handler)
            if first is not handler:
                shown = "without a tag" if tag is None else f"of tag {tag!r}"
                raise AppError(
                    f"queue {queue!r} has two handlers {shown}: {_names_of(first, handler)}; give each a tag of its own"
                )
            self._periodic.note_task(function, queue, tag)
            return function

        return register

    def function(
        self,
        *,
        queue: str,
        tag: str | None = None,
        on: Mapping[type[Exception], Retry | Dead] | None = None,
        timeout: Seconds | None = None,
        retry: Backoff | None = None,
    ) -> Callable[[Callable[P, R]], Function[P, R]]:
        """Make a function, plain or async, a task: `resize.add("cat.jpg", width=400)`.

        Its arguments travel as a JSON object by parameter name, checked against the annotations by pydantic: at `add`,
        and again by the worker, where a task that doesn't fit is dead at once. A default that was not given is not
        stored. It may return tasks to hand over to, as a handler does; any other value is dropped.

        Args:
            tag: the tag of its tasks; None: the function's name.
            on, timeout: see `task`.
            retry: see `task`; `retry.attempts` is the `max_leases` of its tasks.

        Raises `AppError` for positional-only parameters and for `*args`, and as `task` does.
        """

        def register(function: Callable[P, R]) -> Function[P, R]:
            _check_retries(on, retry)
            made = Function(function, self._queues, queue=queue, tag=tag, retry=retry)
            self.task(queue=queue, tag=made.tag, on=on, timeout=timeout, retry=retry)(made.handler(self.hooks))
            return made

        return register

    def periodic(
        self,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str = "UTC",
        catch_up: "CatchUp" = "skip",
        overlap: "Overlap" = "queue",
        name: str | None = None,
        payload: object = None,
    ) -> Callable[[HandlerFunction], HandlerFunction]:
        """Add a task of the function at recurring times: written above its `@app.function` or `@app.task`.

            @app.periodic(cron="0 3 * * *", timezone="Europe/Vienna")
            @app.function(queue="reports")
            def nightly() -> None: ...

        A supervisor adds the tasks, each once; `towline schedules` lists them. It imports the applications of pools
        whose workers are processes of its host; schedules of others belong into the settings file.

        Args:
            cron: when, as in crontab(5), on the wall clock of `timezone`; a sixth field in front is of seconds.
            every: time between two tasks in place of `cron`, in whole seconds or as "10s".
            catch_up: how to make up for times over a minute ago: "skip" adds no task, "last" one, "all" one for each.
            overlap: "skip" adds no task while that of the last tick is waiting or running; "queue" adds it.
            name: the schedule's name, by which its tasks are named; None: the function's.
            payload: the function's arguments as a dict; of a raw task bytes, text, or what has a JSON form.

        Raises `AppError` for a function that is no task of this app, and for settings that can't be.
        """

        def register(function: HandlerFunction) -> HandlerFunction:
            self._periodic.add(
                function,
                name=name,
                cron=cron,
                every=every,
                timezone=timezone,
                catch_up=catch_up,
                overlap=overlap,
                payload=payload,
            )
            return function

        return register

    def schedules(self, *, origin: str = "") -> "list[Schedule]":
        """Return the schedules of its functions. Raises `AppError` for arguments that don't fit their function."""
        return self._periodic.schedules(origin=origin)

    def on_start(self, hook: Hook) -> Hook:
        """Register a hook that each worker process runs before its first lease; an async one in the handlers' loop.

        The value it returns is injected into handlers and hooks by its return annotation. A generator yields the value;
        the rest of it runs at the end. When it fails, the worker is refused as one with a broken app.
        """
        return self.hooks.on_start(hook)

    def on_stop(self, hook: Hook) -> Hook:
        """Register a hook that each worker process runs after its last task, also when it drains."""
        return self.hooks.on_stop(hook)

    def queue(self, name: str) -> "Queue":
        """Return one of the queues that the app adds to; create it with default settings if it doesn't exist."""
        return self._queues.queue(name)

    @contextmanager
    def bound_to(self, queues: "Queues", *, values: dict[str, object] | None = None) -> Iterator[None]:
        """Add to `queues` within the block, in all threads: for tests. `values` collects what functions return."""
        with self._queues.bound_to(queues, values=values):
            yield

    def close(self) -> None:
        """Close the connections that adding functions opened; the next add opens new ones."""
        self._queues.close()

    def prepare(self, handlers: Iterable[Handler]) -> None:
        """Read the annotations of handlers and hooks. Raises `AppError` for those that a worker can't serve."""
        self.hooks.check(handler.function for handler in handlers)

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues that have handlers, sorted."""
        return tuple(sorted({queue for queue, _ in self._handlers}))

    def handler(self, queue: str, tag: str | None) -> Handler | None:
        """Return the handler of this tag, else the queue's handler without a tag, else None."""
        return self._handlers.get((queue, tag)) or self._handlers.get((queue, None))

    def serving(self, queue: str, tags: TagFilter) -> list[Handler]:
        """Return the handlers for tasks of `tags`. Raises `AppError` for a tag without a handler."""
        if tags.kind == "any":
            found = [handler for (name, _), handler in self._handlers.items() if name == queue]
            if not found:
                raise AppError(f"no handler for queue {queue!r}; the app has some for: {', '.join(self.queues) or '-'}")
            return found
        wanted: list[str | None] = [None] if tags.kind == "untagged" else list(tags.tags)
        handlers = {tag: self.handler(queue, tag) for tag in wanted}
        missing = [repr(tag) if tag else "untagged tasks" for tag, handler in handlers.items() if handler is None]
        if missing:
            known = sorted(repr(tag) for name, tag in self._handlers if name == queue and tag is not None)
            others = f"the app has handlers for {', '.join(known[:_SHOWN_TAGS])}; " if known else ""
            if not known and self._handlers:
                others = f"the app has some for: {', '.join(map(repr, self.queues))}; "
            raise AppError(
                f"no handler for {', '.join(missing)} in queue {queue!r}; {others}"
                "add @app.task(...) for each, or one without a tag for the rest"
            )
        return list(dict.fromkeys(handler for handler in handlers.values() if handler is not None))

    def offer(self, queue: str, tags: TagFilter) -> LeaseOffer:
        """Return the lease to request for `tags`, limited to tasks that have a handler here.

        Raises `AppError` where a handler is missing, or when there are more tags than one lease can name.
        """
        handlers = self.serving(queue, tags)
        if tags == ANY and self.handler(queue, None) is None:
            own = sorted(handler.tag for handler in handlers if handler.tag is not None)
            if len(own) > MAX_TAGS_PER_LEASE:
                raise AppError(
                    f"{len(own)} tags have handlers, one lease names at most {MAX_TAGS_PER_LEASE}; "
                    "add a handler without a tag, or split the tags between pools"
                )
            tags = TagFilter.of(*own)
        sizes = {handler.batch for handler in handlers}
        if sizes == {None}:
            return LeaseOffer(tags)
        if len(sizes) > 1:
            return LeaseOffer(tags, tops_up=True)
        size = sizes.pop() or 1
        return LeaseOffer(tags if tags == UNTAGGED else TagFilter.oldest(*tags.tags), size)


def _check_retries(on: object, retry: object) -> None:
    """Raise `AppError` for retries that would only fail once a task does."""
    if retry is not None and not isinstance(retry, Backoff):
        raise AppError(f"retry must be a Backoff, such as Backoff('1s', '5m', attempts=5): {retry!r}")
    if on is None:
        return
    if not isinstance(on, Mapping):
        raise AppError(f"on must map exception classes, such as {{Timeout: Retry('1m')}}: {on!r}")
    for kind, meant in on.items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise AppError(f"on must map exception classes, such as Timeout: {kind!r}")
        if not isinstance(meant, Retry | Dead):
            raise AppError(f"on must map {kind.__name__} to Retry(...) or Dead(...): {meant!r}")


def _timeout_of(timeout: Seconds) -> float:
    """Return a timeout in seconds. Raises `AppError` for what is none."""
    try:
        return seconds_of(timeout)
    except ValueError as error:
        raise AppError(f"timeout: {error}") from None


def _names_of(first: Handler, second: Handler) -> str:
    """Return the names of two handlers, with their modules where the names alone are the same."""
    names = [first.display_name, second.display_name]
    modules = [str(getattr(one.function, "__module__", "")) for one in (first, second)]
    if names[0] == names[1] and modules[0] != modules[1]:
        names = [f"{module}.{name}" for module, name in zip(modules, names, strict=True)]
    return " and ".join(names)


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def load_app(target: str, *, directory: Path | None = None, app_folder: Path | None = None) -> App:
    """Import and return the `App` that `target` names as `module:attribute`.

    Args:
        directory: first entry of the module path; by default the working directory, as with `python tasks.py`.
        app_folder: second entry of the module path: the folder of the settings file when `directory` links to it.

    Raises `AppImportError` when the module is missing or fails, or when the attribute is missing or no `App`.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise AppImportError(
            module=target or "''", reason="not of the form module:attribute", hint="write for example tasks:app"
        )
    if module_name.endswith(".py"):
        meant = module_name.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
        raise AppImportError(module=module_name, reason="a file, not a module", hint=f"write {meant}:{attribute}")
    root = str((directory or Path.cwd()).resolve())
    if root not in sys.path:
        sys.path.insert(0, root)
    roots = [root]
    if app_folder is not None and str(app_folder.resolve()) != root:
        roots.append(str(app_folder.resolve()))
        if roots[1] not in sys.path:
            sys.path.insert(sys.path.index(root) + 1, roots[1])
    module = _import(module_name, roots)
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise AppImportError(
                module=module_name, reason=f"it has no {attribute!r}", hint=_apps_in(module, module_name)
            )
        found = getattr(found, name)
    if not isinstance(found, App):
        raise AppImportError(
            module=module_name,
            reason=f"{attribute} is of type {type(found).__name__}, not an App",
            hint=_apps_in(module, module_name),
        )
    return found


def _import(module_name: str, roots: Sequence[str]) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            places = ", then in ".join(roots)
            raise AppImportError(
                module=module_name, reason="no such module", hint=f"it is looked for in {places} and on PYTHONPATH"
            ) from None
        raise AppImportError(
            module=module_name, reason=_describe(error), hint="install it into the worker's environment"
        ) from error
    except KeyboardInterrupt:  # Ctrl-C
        raise
    except BaseException as error:
        raise AppImportError(
            module=module_name, reason=_describe(error), hint=f"`python3 -c 'import {module_name}'` shows the same"
        ) from error


def _describe(error: BaseException) -> str:
    """Return the error's message and the last line of the user's code in its traceback."""
    if type(error) in (SyntaxError, IndentationError, TabError):
        assert isinstance(error, SyntaxError)
        place = shown_path(str(error.filename)) if error.filename else "?"
        return f"{place}:{error.lineno}: {error.msg}"
    calls = [(frame.f_code.co_filename, number or 0) for frame, number in traceback.walk_tb(parts_of(error).traceback)]
    lines = [line for line in reversed(calls) if "importlib" not in line[0]]
    place = place_in(lines) if len(lines) > 1 else ""
    said = f"{name_of(type(error))}: {text_of(error)}"
    return f"{place}: {said}" if place else said


def _apps_in(module: object, module_name: str) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return "write `app = App()` in it, and @app.task(...) on its handlers"
    return "name one of: " + ", ".join(f"{module_name}:{name}" for name in names)
