"""Arguments as JSON: what the producer gives is what the function gets, and no error quotes a value."""

import inspect
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    Json,
    PrivateAttr,
    SecretStr,
    field_serializer,
    field_validator,
)
from pydantic_core import core_schema
from typing_extensions import TypedDict

from queue_core.errors import AppError, InvalidArgumentsError
from queue_core.worker.functions.arguments import ArgumentsFormat

SECRET = "hunter2-hunter2"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Size:
    width: int
    data: bytes = b""


class Picture(BaseModel):
    path: Path
    data: bytes = b""
    colour: Colour = Colour.RED
    of: date | None = Field(default=None, alias="from")

    @field_validator("path")
    @classmethod
    def _quotes(cls, value: Path) -> Path:
        if value.name == SECRET:
            raise ValueError(f"never {value}")
        return value


class Point(NamedTuple):
    x: int
    y: float


class Options(TypedDict, total=False):
    depth: bytes


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats(allow_nan=False)),
    (bool, st.booleans()),
    (str, TEXTS),
    (bytes, st.binary(max_size=40)),
    (None, st.none()),
    (datetime, st.datetimes(min_value=datetime(1900, 1, 1), timezones=st.sampled_from([UTC]))),  # noqa: DTZ001
    (date, st.dates(min_value=date(1900, 1, 1))),
    (time, st.times()),
    (timedelta, st.timedeltas(min_value=timedelta(days=-1000), max_value=timedelta(days=1000))),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Path, TEXTS.filter(lambda text: "\x00" not in text).map(Path)),
    (Colour, st.sampled_from(Colour)),
    (Literal["a", 3], st.sampled_from(["a", 3])),
    (Size, st.builds(Size, st.integers(), st.binary(max_size=5))),
    (Point, st.builds(Point, st.integers(), st.floats(allow_nan=False))),
    (Options, st.fixed_dictionaries({}, optional={"depth": st.binary(max_size=5)})),
    (
        Picture,
        st.builds(
            lambda data, colour, day: Picture.model_validate(
                {"path": "a", "data": data, "colour": colour, "from": day}
            ),
            TEXTS.map(str.encode),
            st.sampled_from(Colour),
            st.none() | st.dates(),
        ),
    ),
]


def annotations(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Types made of other types, each with a strategy for its values."""
    return st.one_of(
        inner.map(lambda one: (list[one[0]], st.lists(one[1], max_size=3))),
        inner.map(lambda one: (tuple[one[0], int], st.tuples(one[1], st.integers()))),
        inner.map(lambda one: (dict[str, one[0]], st.dictionaries(TEXTS, one[1], max_size=3))),
        inner.map(lambda one: (one[0] | None if one[0] is not None else None, st.none() | one[1])),
        inner.map(lambda one: (Annotated[one[0], Field(description="something")], one[1])),
    )


TYPED = st.recursive(st.sampled_from(TYPES), annotations, max_leaves=3)


def function_of(*kinds: object, extra: object = inspect.Parameter.empty) -> Callable[..., object]:
    """A function with a required parameter of the first type, and others with defaults."""

    def function(**_given: object) -> None: ...

    names = [f"p{number}" for number in range(len(kinds))]
    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=inspect.Parameter.empty if first else 0
        )
        for name, first in zip(names, [True, *[False] * len(kinds)], strict=False)
    ]
    hints = dict(zip(names, kinds, strict=True))
    if extra is not inspect.Parameter.empty:
        parameters.append(inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD))
        hints["others"] = extra
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = hints
    return function


@given(st.data())
def test_what_is_given_is_what_arrives(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(TYPED, min_size=1, max_size=3))
    form = ArgumentsFormat(function_of(*(kind for kind, _ in kinds)))
    values = {f"p{number}": data.draw(strategy) for number, (_, strategy) in enumerate(kinds)}
    for name in [*values][1:]:
        if data.draw(st.booleans()):
            del values[name]
    payload = form.encode((), values)
    assert json.loads(payload).keys() == values.keys()
    assert form.decode(payload) == values
    assert form.encode(tuple(values.values())[:1], dict([*values.items()][1:])) == payload


@given(st.data())
def test_other_keywords_arrive_with_their_type(data: st.DataObject) -> None:
    kind, strategy = data.draw(TYPED)
    form = ArgumentsFormat(function_of(int, extra=kind))
    others = data.draw(st.dictionaries(TEXTS.filter(lambda name: name not in ("p0", "others")), strategy, max_size=3))
    payload = form.encode((7,), others)
    assert form.decode(payload) == {"p0": 7, **others}


@given(st.binary(max_size=60) | TEXTS.map(lambda text: json.dumps({"p0": text, text: 1}).encode()))
def test_garbage_never_ends_in_any_other_error(payload: bytes) -> None:
    for extra in (inspect.Parameter.empty, int):
        form = ArgumentsFormat(function_of(int, extra=extra))
        try:
            assert isinstance(form.decode(payload)["p0"], int)
        except InvalidArgumentsError as error:
            assert error.__cause__ is None


def test_a_parameter_without_a_type_takes_anything_that_is_json() -> None:
    def function(anything, more=None) -> None: ...  # type: ignore[no-untyped-def]

    form = ArgumentsFormat(function)
    value = {"a": [1, None, 2.5, "x", True]}
    assert form.decode(form.encode((value,), {})) == {"anything": value}
    with pytest.raises(InvalidArgumentsError, match="no JSON form"):
        form.encode((object(),), {})


def test_names_that_models_keep_for_themselves_are_names_of_parameters() -> None:
    def function(json: int, schema: int, _private: int, model_config: int, self: int) -> None: ...

    form = ArgumentsFormat(function)
    assert form.decode(form.encode((1, 2, 3, 4, 5), {})) == {
        "json": 1,
        "schema": 2,
        "_private": 3,
        "model_config": 4,
        "self": 5,
    }


def test_infinity_and_bytes_are_json_that_others_can_read() -> None:
    def function(number: float, data: bytes) -> None: ...

    payload = ArgumentsFormat(function).encode((float("inf"), b"\xff\x00"), {})
    assert json.loads(payload, parse_constant=pytest.fail) == {"number": "Infinity", "data": "_wA="}


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        pytest.param(int, SECRET, "p0: Input should be a valid integer", id="a number"),
        pytest.param(UUID, SECRET, "p0: Input should be a valid UUID", id="a uuid"),
        pytest.param(datetime, SECRET, "p0: Input should be a valid datetime", id="a time"),
        pytest.param(Colour, SECRET, "p0: Input should be 'red' or 'blue'", id="an enum"),
        pytest.param(list[int], [1, SECRET], r"p0\[1\]: Input should be a valid integer", id="within a list"),
        pytest.param(dict[str, int], {SECRET: SECRET}, r"p0\[...\]: Input should be a valid integer", id="by a key"),
        pytest.param(Size, {"width": SECRET}, "p0.width: Input should be a valid integer", id="a field"),
        pytest.param(Picture, {"path": SECRET}, "p0.path: its validator refuses it", id="a validator that quotes it"),
        pytest.param(Annotated[str, Field(max_length=3)], SECRET, "p0: String should have at most 3", id="a limit"),
        pytest.param(Size, SECRET, "p0: Input should be", id="no dataclass"),
        pytest.param(Picture, SECRET, "p0: Input should be", id="no model"),
    ],
)
def test_errors_name_the_field_and_the_reason_but_never_the_value(kind: object, value: object, told: str) -> None:
    form = ArgumentsFormat(function_of(kind))
    for attempt in (
        lambda: form.encode((value,), {}),
        lambda: form.decode(json.dumps({"p0": value}).encode()),
    ):
        with pytest.raises(InvalidArgumentsError, match=told) as raised:
            attempt()
        assert SECRET not in str(raised.value)
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__


def test_at_most_three_problems_are_told() -> None:
    form = ArgumentsFormat(function_of(list[int]))
    with pytest.raises(InvalidArgumentsError, match=r"p0\[2\].*; and 7 more$"):
        form.encode((["x"] * 10,), {})


def test_a_value_that_cannot_come_back_is_refused_by_the_producer() -> None:
    class OneWay(BaseModel):
        name: str = Field(validation_alias="in", serialization_alias="out")

    form = ArgumentsFormat(function_of(OneWay))
    with pytest.raises(InvalidArgumentsError):
        form.encode((OneWay.model_validate({"in": "x"}),), {})


def test_a_type_without_a_json_form_is_told_with_its_function() -> None:
    class HttpClient:
        """Nothing that pydantic knows."""

    def function(client: HttpClient) -> None: ...

    with pytest.raises(AppError, match=r"function: .*injected.*HttpClient"):
        ArgumentsFormat(function).prepare()


def test_an_annotation_that_is_unknown_at_run_time_is_told() -> None:
    def function(client: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(AppError, match="Nowhere"):
        ArgumentsFormat(function).prepare()


class Bigger(Picture):
    width: int = 0


@dataclass(frozen=True)
class Boxed(Size):
    depth: int = 0


class Level(IntEnum):
    LOW = 1


class Word(str):
    """A text with a class of its own."""

    __slots__ = ()


class Price(BaseModel):
    cents: Annotated[int, BeforeValidator(lambda euros: int(float(euros) * 100))]


class Marked(BaseModel):
    name: str = ""
    hidden: int = Field(default=0, exclude=True)
    _mark: int = PrivateAttr(default=0)


class Shifted(BaseModel):
    number: int

    @field_serializer("number")
    def _more(self, number: int) -> int:
        return number + 1


class Always:
    """A class that is equal to anything, and has a JSON form that loses its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda given: given if isinstance(given, cls) else cls(0),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda given: given.number),
        )


Cents = Annotated[int, BeforeValidator(lambda euros: int(euros.replace(".", "")))]
Shout = Annotated[str, AfterValidator(lambda text: text + "!")]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MARKED = Marked(name="a")
MARKED._mark = 1


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        pytest.param(
            Picture, Bigger(path=Path("a"), width=3), "of type Bigger, it would arrive as Picture", id="model"
        ),
        pytest.param(list[Picture], [Bigger(path=Path("a"))], r"value\[0\]: of type Bigger", id="models in a list"),
        pytest.param(Size, Boxed(1, depth=2), "of type Boxed, it would arrive as Size", id="dataclass"),
        pytest.param(dict[str, Size], {"a": Boxed(1)}, r"value\[...\]: of type Boxed", id="dataclasses in a dict"),
        pytest.param(Price, Price.model_validate({"cents": "1.50"}), "value.cents: another int", id="validated twice"),
        pytest.param(Marked, MARKED, "another int", id="a private attribute"),
        pytest.param(Marked, Marked(hidden=1), "value.hidden: another int", id="a field left out of its JSON"),
        pytest.param(Shifted, Shifted(number=1), "value.number: another int", id="a serializer that changes"),
        pytest.param(Always, Always(3), "value.number: another int", id="a class that is equal to anything"),
        pytest.param(str | datetime, NOON, "of type datetime, it would arrive as str", id="a union by its first type"),
        pytest.param(str | float, float("inf"), "of type float, it would arrive as str", id="infinity in a union"),
        pytest.param(SecretStr, "abc", "another str", id="a secret in clear text"),
        pytest.param(float, 2**53 + 1, "too large for a float", id="an integer that a float rounds"),
        pytest.param(list[float], [2**53 + 1], "too large for a float", id="one in a list"),
        pytest.param(dict, {1: "a"}, "a key: of type int, it would arrive as str", id="keys of a plain dict"),
        pytest.param(dict[int | str, int], {1: 1, "1": 2}, "1 of 2 entries", id="keys that are one in JSON"),
        pytest.param(Sequence[int], (1, 2), "of type tuple, it would arrive as list", id="a tuple as a sequence"),
        pytest.param(Iterable[Picture], [Bigger(path=Path("a"))], "of type Bigger", id="items that are read late"),
        pytest.param(Any, (1, 2), "of type tuple, it would arrive as list", id="any: a tuple"),
        pytest.param(Any, {1}, "of type set", id="any: a set"),
        pytest.param(Any, {1: "a"}, "of type int, it would arrive as str", id="any: keys"),
        pytest.param(Any, NOON, "of type datetime", id="any: a datetime"),
        pytest.param(Any, Decimal("1.5"), "of type Decimal", id="any: a decimal"),
        pytest.param(Any, UUID(int=1), "of type UUID", id="any: a uuid"),
        pytest.param(Any, b"a", "of type bytes", id="any: bytes"),
        pytest.param(Any, Path("a"), "Path, it would arrive as str", id="any: a path"),
        pytest.param(Any, float("nan"), "of type float", id="any: NaN"),
        pytest.param(Any, Word("a"), "of type Word", id="any: a class of text"),
        pytest.param(Any, Level.LOW, "of type Level", id="any: an enum"),
        pytest.param(Any, Size(1), "of type Size", id="any: a dataclass"),
        pytest.param(object, [NOON], r"value\[0\]: of type datetime", id="object"),
        pytest.param(Any, 10**5000, "out of range", id="any: an integer that no reader takes"),
        pytest.param(Any, "\ud800", "no JSON form", id="any: half a character"),
        pytest.param(Any, (number for number in [1]), "of type generator", id="any: a generator"),
    ],
)
def test_what_would_arrive_as_something_else_is_refused_without_its_value(
    kind: object, value: object, told: str
) -> None:
    def function(value: object) -> None: ...

    for annotations in ({"value": kind}, {} if kind is Any else {"value": kind}):
        function.__annotations__ = annotations
        with pytest.raises(InvalidArgumentsError, match=told) as raised:
            ArgumentsFormat(function).encode((value,), {})
        assert raised.value.__cause__ is None
    with pytest.raises(InvalidArgumentsError, match=told.removeprefix("value")):
        ArgumentsFormat(function_of(int, extra=kind)).encode((1,), {"value": value})


@pytest.mark.parametrize(
    ("kind", "value", "arrives"),
    [
        pytest.param(Cents, "1.50", 150, id="a validator before"),
        pytest.param(list[Cents], ["1.50"], [150], id="in a list"),
        pytest.param(Shout, "a", "a!", id="a validator after"),
        pytest.param(
            Price, {"cents": "1.50"}, Price.model_validate({"cents": "1.50"}), id="in a model given as a dict"
        ),
        pytest.param(Json[list[int]], "[1]", [1], id="a text of JSON"),
        pytest.param(int, "400", 400, id="a text for a number, as pydantic takes it"),
    ],
)
def test_a_validator_runs_once_whatever_it_does(kind: object, value: object, arrives: object) -> None:
    form = ArgumentsFormat(function_of(kind, Path))
    got = form.decode(form.encode((value, Path("a")), {}))
    assert got == {"p0": arrives, "p1": Path("a")}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(float, float("nan"), id="NaN"),
        pytest.param(float, -0.0, id="minus zero"),
        pytest.param(int, 2**64, id="beyond 64 bits"),
        pytest.param(Any, 10**100, id="any: beyond 64 bits"),
        pytest.param(dict[int, str], {1: "a"}, id="keys of a type"),
        pytest.param(dict[date, int], {date(2026, 1, 1): 1}, id="keys that are dates"),
        pytest.param(frozenset[Colour], frozenset(Colour), id="a frozenset"),
        pytest.param(set[tuple[int, ...]], {(1, 2), (3,)}, id="a set of tuples"),
        pytest.param(deque[int], deque([1, 2]), id="a deque"),
        pytest.param(Level, Level.LOW, id="an IntEnum"),
        pytest.param(int | str, "1", id="a text that looks like a number"),
        pytest.param(int | bool, True, id="a bool beside an int"),
        pytest.param(datetime, NOON.astimezone(ZoneInfo("Europe/Vienna")), id="a datetime of a zone"),
        pytest.param(Picture | Bigger, Bigger(path=Path("a"), width=2), id="a union of models"),
        pytest.param(Decimal, Decimal("1.50"), id="a decimal with its zeros"),
        pytest.param(Iterable[int], [1, 2], id="an iterable"),
    ],
)
def test_values_of_their_type_arrive_as_they_are(kind: object, value: object) -> None:
    form = ArgumentsFormat(function_of(kind))
    got = form.decode(form.encode((value,), {}))["p0"]
    if kind == Iterable[int]:
        assert isinstance(got, Iterable)
        got = [*got]
    assert type(got) is type(value)
    assert repr(got) == repr(value) or got == value


def test_a_secret_in_clear_text_never_travels_beside_a_validator() -> None:
    class Login(BaseModel):
        password: SecretStr

    form = ArgumentsFormat(function_of(Cents, Login))
    with pytest.raises(InvalidArgumentsError, match="would arrive"):
        form.encode(("1.50",), {"p1": {"password": SECRET}})


def test_names_for_type_checkers_only_are_no_matter_where_no_argument_travels_by_them() -> None:
    def function(number: int) -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
        raise NotImplementedError

    form = ArgumentsFormat(function)
    assert form.decode(form.encode((1,), {})) == {"number": 1}
