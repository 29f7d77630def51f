"""Arguments of a function as JSON: written at `add`, read by the worker, checked by pydantic at both ends.

pydantic is imported at the first use, so a worker with raw tasks only never loads it. No error quotes a value.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn, NotRequired, get_type_hints

from queue_core.errors import AppError, InvalidArgumentsError

if TYPE_CHECKING:
    from pydantic import ConfigDict, ValidationError
    from pydantic_core import ErrorDetails
    from pydantic_core.core_schema import CoreConfig

MAX_PROBLEMS: Final = 3
"""Problems that one error names at most."""
MAX_NAME_CHARACTERS: Final = 64
"""Longest name of an unknown argument that an error quotes."""
_INJECTED: Final = "the worker injects it"
"""Why an injected parameter can't be given."""
_QUOTING: Final = frozenset(("value_error", "assertion_error", "union_tag_invalid"))
"""Types of pydantic's errors whose text may quote the value."""
_FORM: "Final[ConfigDict]" = {"ser_json_bytes": "base64", "val_json_bytes": "base64", "ser_json_inf_nan": "strings"}
_ROOT_FORM: "Final[CoreConfig]" = {"ser_json_bytes": "base64", "ser_json_inf_nan": "strings"}


def signature_of(function: Callable[..., object], *, injected: Iterable[str]) -> inspect.Signature:
    """Return the signature without the injected parameters.

    Raises `AppError` for parameters that have no name to travel by, and for injected ones in the way of others.
    """
    name, left_out = function.__qualname__, frozenset(injected)
    signature = inspect.signature(function)
    kept: list[inspect.Parameter] = []
    shifted = ""
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            star = "*" if parameter.kind == parameter.VAR_POSITIONAL else ""
            cure = "take a list" if star else "take out the /"
            raise AppError(f"{name}: parameter {star}{parameter.name} has no name to travel by: {cure}")
        if type(parameter.default).__name__ == "FieldInfo":  # pydantic is not loaded for a name
            raise AppError(
                f"{name}: the default of {parameter.name} is a pydantic Field, which the function would get as it is: "
                f"write {parameter.name}: Annotated[..., Field(...)] and a plain default"
            )
        if parameter.name in left_out:
            shifted = shifted or (parameter.name if parameter.kind == parameter.POSITIONAL_OR_KEYWORD else "")
            continue
        if shifted and parameter.kind == parameter.POSITIONAL_OR_KEYWORD:
            raise AppError(f"{name}: injected parameter {shifted} must come after {parameter.name}, or after a *")
        kept.append(parameter)
    return signature.replace(parameters=kept)


def refuse_generator(function: Callable[..., object]) -> None:
    """Raise `AppError` for a function that yields: a call of it would run none of its lines."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise AppError(f"{function.__qualname__} yields, so a call of it does nothing: return a list of tasks instead")


class ArgumentsFormat:
    """The JSON form of one function's arguments: an object by parameter name, without defaults that were not given."""

    def __init__(self, function: Callable[..., object], *, injected: Iterable[str] = ()) -> None:
        """Raises `AppError` for a function whose arguments can't travel; annotations are read at the first use."""
        self._function = function
        self._name = function.__qualname__
        self._injected = frozenset(injected)
        self.signature = signature_of(function, injected=self._injected)
        parameters = self.signature.parameters.values()
        self._extras = next((one.name for one in parameters if one.kind == one.VAR_KEYWORD), None)

    def prepare(self) -> None:
        """Read the annotations. Raises `AppError` for one that is unknown, or of a type that has no JSON form."""
        _ = self._types

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """Return the JSON of one call's arguments. Raises `InvalidArgumentsError`."""
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        named, extra = self._types
        known = self.signature.parameters.keys() - {self._extras}
        extras = {name: value for name, value in kwargs.items() if name not in known}
        try:
            mine = {name: value for name, value in kwargs.items() if name in known}
            values = self.signature.bind_partial(*args, **mine).arguments
        except TypeError as error:
            raise InvalidArgumentsError(f"{self._name}: {error}") from None
        if extra is None:
            values |= extras  # pydantic refuses them, in the words of the worker
        elif taken := self._injected & extras.keys():
            raise InvalidArgumentsError(f"{self._name}: {min(taken)}: {_INJECTED}")
        try:
            payload = named.dump(values)
            if extras and extra is not None:
                more = extra.dump(extras)
                payload = more if payload == b"{}" else payload[:-1] + b"," + more[1:]
        except ValidationError as error:
            self._refuse(error)
        except PydanticSerializationError:
            raise InvalidArgumentsError(
                f"{self._name}: an argument has no JSON form; annotate its parameter with a type that pydantic knows"
            ) from None
        self.decode(payload)  # a type whose JSON it does not read itself would make dead tasks
        return payload

    def decode(self, payload: bytes) -> dict[str, object]:
        """Return the arguments by name; an empty payload has none. Raises `InvalidArgumentsError` if they don't fit."""
        from pydantic import ValidationError

        named, extra = self._types
        payload = payload or b"{}"
        try:
            if extra is None:
                return named.load(payload)
            mine, others = self._parted(payload)
            return {**extra.load(others), **named.load(mine)}
        except ValidationError as error:
            self._refuse(error)

    @cached_property
    def _types(self) -> "tuple[_JsonObject, _JsonObject | None]":
        """The form of the named arguments, and that of all others of a function that takes `**kwargs`."""
        from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
        from typing_extensions import TypedDict

        hints = hints_of(self._function)
        fields: dict[str, Any] = {}
        for parameter in self.signature.parameters.values():
            if parameter.name != self._extras:
                hint = hints.get(parameter.name, Any)
                fields[parameter.name] = hint if parameter.default is parameter.empty else NotRequired[hint]
        make: Any = TypedDict  # its fields are known at run time only
        form = make("form", fields)
        form.__pydantic_config__ = {"extra": "forbid", **_FORM}
        try:
            named = _JsonObject(form, None)
            if self._extras is None:
                return named, None
            kind: Any = dict[str, hints.get(self._extras, Any)]  # type: ignore[misc]
            return named, _JsonObject(kind, _FORM)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            reason = str(error).split(". ")[0].splitlines()[0]
            raise AppError(f"{self._name}: a type can't travel as JSON; is it to be injected? {reason}") from None

    def _parted(self, payload: bytes) -> tuple[bytes, bytes]:
        """Return the JSON of the named arguments and of the others."""
        from pydantic_core import from_json, to_json

        try:
            found = from_json(payload)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            return payload, b"{}"  # validation says what is wrong with it
        if taken := self._injected & found.keys():
            raise InvalidArgumentsError(f"{self._name}: {min(taken)}: {_INJECTED}")
        names = self.signature.parameters.keys() - {self._extras}
        mine = {name: value for name, value in found.items() if name in names}
        return to_json(mine), to_json({name: value for name, value in found.items() if name not in names})

    def _refuse(self, error: "ValidationError") -> NoReturn:
        """Raise the error in words: the function, the field and the reason, never the value."""
        known = set(self.signature.parameters)
        for kind in self._types:
            if kind is not None:
                known.update(_field_names(kind.adapter.core_schema))
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        shown = [_shown(problem, known, self._injected) for problem in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            shown.append(f"and {len(problems) - MAX_PROBLEMS} more")
        raise InvalidArgumentsError(f"{self._name}: {'; '.join(shown)}") from None


def hints_of(function: Callable[..., object]) -> dict[str, Any]:
    """Return the annotations of a function as types. Raises `AppError` for names that are unknown at run time."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise AppError(f"{name}: {error} at run time, in an annotation: import it outside TYPE_CHECKING") from None


class _JsonObject:
    """A mapping of arguments, and its form as JSON."""

    def __init__(self, kind: Any, config: "ConfigDict | None") -> None:
        from pydantic import TypeAdapter
        from pydantic_core import SchemaSerializer

        self.adapter: TypeAdapter[dict[str, object]] = TypeAdapter(kind, config=config)
        # The adapter's own serializer ignores the settings of a TypedDict.
        self._serializer = SchemaSerializer(self.adapter.core_schema, {**_ROOT_FORM})

    def dump(self, values: dict[str, object]) -> bytes:
        """Return checked values as JSON."""
        checked = self.adapter.validate_python(values)
        return self._serializer.to_json(checked, by_alias=True, round_trip=True, warnings="error")

    def load(self, payload: bytes) -> dict[str, object]:
        """Return the values of a JSON text, checked."""
        return self.adapter.validate_json(payload)


def _shown(problem: "ErrorDetails", known: set[str], injected: frozenset[str]) -> str:
    """Return the field and the reason. A key that is no field's name may be data, so it is hidden."""
    kind, message, place = problem["type"], problem["msg"], problem["loc"]
    if kind == "missing":
        message = "is missing"
    elif kind == "extra_forbidden":
        message = _INJECTED if place[0] in injected else "no such parameter"
    elif kind in _QUOTING or not _is_builtin(kind):
        message = "its validator refuses it"
    elif kind.endswith("_parsing"):
        message = message.partition(",")[0]
    field = ""
    for number, part in enumerate(place):
        if isinstance(part, int):
            field += f"[{part}]"
        elif part in known or (number == 0 and part.isidentifier() and len(part) <= MAX_NAME_CHARACTERS):
            field += f".{part}" if field else part
        else:
            field += "[...]"
    return f"{field}: {message}" if field else message


def _is_builtin(kind: str) -> bool:
    from typing import get_args

    from pydantic_core.core_schema import ErrorType

    return kind in get_args(ErrorType)


def _field_names(schema: object) -> Iterator[str]:
    """Yield the names of all fields in a core schema."""
    if isinstance(schema, Mapping):
        fields = schema.get("fields")
        if isinstance(fields, Mapping):
            yield from (name for name in fields if isinstance(name, str))
        elif isinstance(fields, list):
            yield from (field["name"] for field in fields if isinstance(field, Mapping) and "name" in field)
        for part in schema.values():
            yield from _field_names(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from _field_names(part)
