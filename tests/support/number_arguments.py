"""Every number that a class's public methods take, alone or within the values they take, found by its annotations."""

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from queue_core.admission import Rate, TagLimits
from queue_core.client import schedules_over_http as _schedules
from queue_core.client.asynchronous.client import AsyncQueue
from queue_core.clock import Instant
from queue_core.schedules.report import Schedules
from queue_core.schedules.schedule import Schedule
from queue_core.task import NewTask, Progress, QueueSpec
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


def number_arguments(of: type, *, without: Collection[str] = ()) -> Iterator[NumberArgument]:
    """Yield every number of a class's public methods, but of those `without`."""
    for method, function in inspect.getmembers(of, inspect.isfunction):
        if method.startswith("_") or method in without:
            continue
        hints = typing.get_type_hints(function, localns=_IMPORTED_LATE)
        for argument in inspect.signature(function).parameters:
            for within, made in _numbers(hints.get(argument, object)):
                yield NumberArgument(method, argument, within, made)


def _numbers(hint: object) -> Iterator[tuple[str, Callable[[Any], object]]]:
    """Yield where a value of this type has a number, and what makes such a value of a number."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for option in typing.get_args(hint):
            yield from _numbers(option)
    elif hint in (int, float, Instant):
        yield "", lambda number: number
    elif typing.get_origin(hint) in _LISTS:
        for within, made in _numbers(typing.get_args(hint)[0]):
            yield f"[]{within}", _listed(made)
    elif isinstance(hint, type) and hint in SAMPLES:
        hints = typing.get_type_hints(hint, localns=_IMPORTED_LATE)
        for field in dataclasses.fields(hint):
            for within, made in _numbers(hints[field.name]):
                yield f".{field.name}{within}", _member(hint, field.name, made)


def _listed(made: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda number: [made(number)]


def _member(kind: type, field: str, made: Callable[[Any], object]) -> Callable[[Any], object]:
    return lambda number: replace(SAMPLES[kind], **{field: made(number)})
