"""App: the handlers of a program's tasks, by queue and tag. Knows no queue and runs nothing."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from queue_core.errors import AppError
from queue_core.limits import MAX_TAGS_PER_LEASE, MAX_TASKS_PER_LEASE, check_queue_name, check_tag
from queue_core.task import ANY, UNTAGGED, TagFilter
from queue_core.worker.context import Dead, Retry

HandlerFunction = TypeVar("HandlerFunction", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Handler:
    """One function and what it handles. `batch` None: one task a call; else a list of up to so many, of one tag."""

    function: Callable[..., object]
    queue: str
    tag: str | None
    batch: int | None
    is_async: bool
    on: Mapping[type[Exception], Retry | Dead] = field(default_factory=dict, hash=False)

    @property
    def display_name(self) -> str:
        """How logs and errors call it."""
        return str(getattr(self.function, "__qualname__", repr(self.function)))

    def translate(self, error: BaseException) -> BaseException:
        """What an exception of it stands for: itself, unless it was registered `on` another."""
        return next((meant for kind, meant in self.on.items() if isinstance(error, kind)), error)


@dataclass(frozen=True, slots=True)
class LeaseOffer:
    """What a free slot asks the queue for: up to `count` tasks of `tags`.

    `tops_up`: some of these tags are handled in batches and others are not. A slot then leases one task, and only
    when its tag is a batch handler's, the rest of a batch.
    """

    tags: TagFilter
    count: int = 1
    tops_up: bool = False


class App:
    """Collects handlers:

        app = App()

        @app.task(queue="thumbs", tag="resize")
        def resize(task: Task) -> None: ...

    A handler without a tag takes the untagged tasks of its queue and those of every tag that has no handler of its own.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str | None], Handler] = {}

    def task(
        self,
        *,
        queue: str,
        tag: str | None = None,
        batch: int | None = None,
        on: Mapping[type[Exception], Retry | Dead] | None = None,
    ) -> Callable[[HandlerFunction], HandlerFunction]:
        """Register a function, plain or async, called with a `Task`.

        When it returns None the task is deleted; a `NewTask`, or a list of them, is added in the same step as the
        delete. When it raises, the task is given back: after the queue's back-off, or as `Retry` and `Dead` say.

        Args:
            batch: call it with a list of up to so many tasks of one tag, in [1, 1000]. All of them are deleted when it
                returns None; it may return a list with one entry per task, each as above. When it raises, all are
                given back.
            on: what exceptions of these classes stand for, the first that fits: `on={TooManyRequests: Retry(30)}`.

        Raises `AppError` for a second handler of the same queue and tag, and for a batch out of range.
        """
        check_queue_name(queue)
        if tag is not None:
            check_tag(tag)
        if batch is not None and not 1 <= batch <= MAX_TASKS_PER_LEASE:
            raise AppError(f"batch must be in [1, {MAX_TASKS_PER_LEASE}] tasks: {batch}")

        def register(function: HandlerFunction) -> HandlerFunction:
            handler = Handler(function, queue, tag, batch, _is_async(function), dict(on or {}))
            first = self._handlers.setdefault((queue, tag), handler)
            if first is not handler:
                shown = "without a tag" if tag is None else f"of tag {tag!r}"
                raise AppError(
                    f"queue {queue!r} has two handlers {shown}: {first.display_name} and {handler.display_name}; "
                    "give each a tag of its own"
                )
            return function

        return register

    @property
    def queues(self) -> tuple[str, ...]:
        """Queues that have handlers, by name."""
        return tuple(sorted({queue for queue, _ in self._handlers}))

    def handler(self, queue: str, tag: str | None) -> Handler | None:
        """Who handles a task of this tag: its own handler, else the queue's handler without a tag."""
        return self._handlers.get((queue, tag)) or self._handlers.get((queue, None))

    def serving(self, queue: str, tags: TagFilter) -> list[Handler]:
        """The handlers a worker needs that is to lease `tags`. Raises `AppError` for a tag nobody handles."""
        if tags.kind == "any":
            found = [handler for (name, _), handler in self._handlers.items() if name == queue]
            if not found:
                raise AppError(f"no handler for queue {queue!r}; the app has some for: {', '.join(self.queues) or '-'}")
            return found
        wanted: list[str | None] = [None] if tags.kind == "untagged" else list(tags.tags)
        handlers = {tag: self.handler(queue, tag) for tag in wanted}
        missing = [repr(tag) if tag else "untagged tasks" for tag, handler in handlers.items() if handler is None]
        if missing:
            raise AppError(
                f"no handler for {', '.join(missing)} in queue {queue!r}; "
                "add @app.task(...) for each, or one without a tag for the rest"
            )
        return list(dict.fromkeys(handler for handler in handlers.values() if handler is not None))

    def offer(self, queue: str, tags: TagFilter) -> LeaseOffer:
        """What a worker that is to serve `tags` asks for: never a task that has no handler here.

        Raises `AppError` where a handler is missing, or the tags are more than one lease can name.
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


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
