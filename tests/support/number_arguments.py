"""Every number and text that a class's public methods take, alone or within their values, found by its annotations."""

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from queue_core.admission import Rate, TagLimits
from queue_core.client import schedules_over_http as _schedules
from queue_core.client.asynchronous.client import AsyncQueue
from queue_core.clock import Instant
from queue_core.schedules.report import Schedules
from queue_core.schedules.schedule import Schedule
from queue_core.task import ANY, NewTask, Progress, QueueSpec, TagFilter
from queue_core.verbs import Deletion, ObservationQuery, Renewal, criteria
from queue_core.verbs.registration import Registration

TOKEN: Final = "1.1"
"""Of a lease that is over."""
SAMPLES: Final[Mapping[type, Any]] = {
    NewTask: NewTask(b"x"),
    Renewal: Renewal(TOKEN),
    Deletion: Deletion(TOKEN),
    QueueSpec: QueueSpec("made"),
    Rate: Rate(1.0),
    TagLimits: TagLimits(),
    ObservationQuery: ObservationQuery("q"),
    criteria.Search: criteria.Search(),
    Schedule: Schedule("s", "q", every=60.0),
    Progress: Progress(0.5),
}
"""A right value of each class whose numbers are given."""
IsSought: TypeAlias = Callable[[object], bool]
_MAPPINGS: Final = (dict, collections.abc.Mapping)
_LISTS: Final = (list, tuple, frozenset, collections.abc.Sequence, collections.abc.Iterable)
_IMPORTED_LATE: Final = {
    **vars(criteria),
    **vars(_schedules),
    "AsyncQueue": AsyncQueue,
    "Instant": Instant,
    "LeasingWorker": object,
    "Registration": Registration,
    "Schedules": Schedules,
}
"""Names in annotations that a module imports for type checkers alone."""


@dataclass(frozen=True, slots=True)
class NumberArgument:
    """A number that a method takes.

    Args:
        within: where in the argument it is: "" for the argument itself, else as `[].then[].eta`.
        made: makes the argument of a number.
    """

    method: str
    argument: str
    within: str
    made: Callable[[Any], object]

    @property
    def name(self) -> str:
        """As `add tasks[].eta`."""
        return f"{self.method} {self.argument}{self.within}"

    @property
    def field(self) -> str:
        """The last part of its name."""
        return (self.within.rpartition(".")[2] if self.within else self.argument).removesuffix("[]")


def text_arguments(of: type, *, without: Collection[str] = ()) -> Iterator[NumberArgument]:
    """Yield every text of a class's public methods, as `number_arguments` does with numbers."""
    yield from _arguments(of, _is_text, without=without)


def number_arguments(of: type, *, without: Collection[str] = ()) -> Iterator[NumberArgument]:
    """Yield every number of a class's public methods, but of those `without`."""
    yield from _arguments(of, _is_number, without=without)


def _is_number(hint: object) -> bool:
    return hint in (int, float, Instant)


def _is_text(hint: object) -> bool:
    """Return whether a value of this type is a text, or one of a few texts."""
    of_literal = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
    return hint is str or any(isinstance(value, str) for value in of_literal)


def _arguments(of: type, is_sought: IsSought, *, without: Collection[str]) -> Iterator[NumberArgument]:
    for method, function in inspect.getmembers(of, inspect.isfunction):
        if method.startswith("_") or method in without:
            continue
        hints = typing.get_type_hints(function, localns=_IMPORTED_LATE)
        for argument in inspect.signature(function).parameters:
            for within, made in _found(hints.get(argument, object), is_sought):
                yield NumberArgument(method, argument, within, made)


def _found(hint: object, is_sought: IsSought) -> Iterator[tuple[str, Callable[[Any], object]]]:
    """Yield where a value of this type has one that is sought, and what makes such a value of that."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for option in typing.get_args(hint):
            yield from _found(option, is_sought)
    elif is_sought(hint):
        yield "", lambda number: number
    elif typing.get_args(hint)[1:] == (TagFilter,):  # a queue, and the tags to wait for
        yield from (
            (f"[0]{within}", _with_any_tag(made)) for within, made in _found(typing.get_args(hint)[0], is_sought)
        )
    elif typing.get_origin(hint) in _LISTS:
        for within, made in _found(typing.get_args(hint)[0], is_sought):
            yield f"[]{within}", _listed(made)
    elif typing.get_origin(hint) in _MAPPINGS:
        yield from ((f"[]{within}", _named(made)) for within, made in _found(typing.get_args(hint)[1], is_sought))
    elif isinstance(hint, type) and hint in SAMPLES:
        hints = typing.get_type_hints(hint, localns=_IMPORTED_LATE)
        for field in dataclasses.fields(hint):
            for within, made in _found(hints[field.name], is_sought):
                yield f".{field.name}{within}", _member(hint, field.name, made)


def _listed(made: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda number: [made(number)]


def _with_any_tag(made: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda value: (made(value), ANY)


def _named(made: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda value: {"k": made(value)}


def _member(kind: type, field: str, made: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda number: replace(SAMPLES[kind], **{field: made(number)})
