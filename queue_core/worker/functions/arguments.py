"""Arguments of a function as JSON: written at `add`, read by the worker, checked by pydantic at both ends.

pydantic is imported at the first use, so a worker with raw tasks only never loads it. No error quotes a value.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, Final, NoReturn, NotRequired, TypeAlias, get_type_hints

from queue_core.errors import AppError, InvalidArgumentsError
from queue_core.worker.functions.fidelity import PLAIN, difference, is_rounded

if TYPE_CHECKING:
    from pydantic import ConfigDict, ValidationError
    from pydantic_core import ErrorDetails
    from pydantic_core.core_schema import CoreConfig

    _Parts: TypeAlias = "list[tuple[_JsonObject, dict[str, object]]]"

MAX_PROBLEMS: Final = 3
"""Problems that one error names at most."""
MAX_NAME_CHARACTERS: Final = 64
"""Longest name of an unknown argument that an error quotes."""
_CURE: Final = "annotate the parameter with that very type, or give a value that JSON can carry"
"""What to do about a value that would arrive as another."""
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
        given = [(named, values)]
        if extras and extra is not None:
            given.append((extra, extras))
        given = [(kind, kind.listed(part)) for kind, part in given]
        try:
            checked = [(kind, kind.check(part)) for kind, part in given]
        except ValidationError as error:
            self._refuse(error)
        if len(checked) == 1 and (payload := self._plain_payload(*checked[0])) is not None:
            return payload
        for (_, part), (_, result) in zip(given, checked, strict=True):
            if is_rounded(part, result):
                raise InvalidArgumentsError(f"{self._name}: an integer is too large for a float to hold it exactly")
        try:
            return self._proven((kind.dump(part) for kind, part in checked), given, checked)
        except InvalidArgumentsError as error:
            refused = error
        # A validator that changes a value would change it again at the worker: then what was given travels.
        with suppress(InvalidArgumentsError):
            mixed = (kind.dump_given(part, result) for (kind, part), (_, result) in zip(given, checked, strict=True))
            return self._proven(mixed, given, checked)
        raise refused

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

    def _plain_payload(self, kind: "_JsonObject", checked: dict[str, object]) -> bytes | None:
        """Return the JSON of arguments that are texts and integers, at the least cost; None: `_proven` has to look."""
        for value in checked.values():
            if type(value) not in PLAIN:
                return None
        try:
            payload = kind.dump(checked)
            arrived = self.decode(payload)
        except Exception:  # noqa: BLE001  `_proven` says why
            return None
        for name, value in checked.items():
            other = arrived.get(name)
            if type(value) is not type(other) or value != other:
                return None
        return payload if len(checked) == len(arrived) else None

    def _proven(self, parts: Iterator[bytes], given: "_Parts", checked: "_Parts") -> bytes:
        """Return the JSON of all parts, from which the worker will read the checked values and no others.

        Raises `InvalidArgumentsError`. The items of an `Iterable` are read once, so they are checked anew.
        """
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        try:
            payload = reduce(_joined, parts)
            arrived = self.decode(payload)
            if any(kind.is_lazy for kind, _ in given):
                checked = [(kind, kind.check(part)) for kind, part in given]
            wanted = {name: value for _, part in checked for name, value in part.items()}
            told = self._difference(wanted, arrived)
        except ValidationError as error:
            self._refuse(error)
        except (PydanticSerializationError, UnicodeError):
            raise InvalidArgumentsError(
                f"{self._name}: an argument has no JSON form; annotate its parameter with a type that pydantic knows"
            ) from None
        except InvalidArgumentsError:
            raise
        except Exception as error:  # noqa: BLE001  a validator raises what it likes
            raise InvalidArgumentsError(
                f"{self._name}: a validator fails on what would arrive: {type(error).__name__}"
            ) from None
        if told is not None:
            raise InvalidArgumentsError(f"{self._name}: {told}; {_CURE}")
        return payload

    def _difference(self, wanted: dict[str, object], arrived: dict[str, object]) -> str | None:
        """Return how the arguments that would arrive differ; None: they are the same."""
        if wanted.keys() != arrived.keys():
            return "other arguments would arrive"
        for name, value in wanted.items():
            told = difference(value, arrived[name], place=self._shown_name(name))
            if told is not None:
                return told
        return None

    def _shown_name(self, name: str) -> str:
        is_shown = name in self.signature.parameters or (name.isidentifier() and len(name) <= MAX_NAME_CHARACTERS)
        return name if is_shown else "[...]"

    @cached_property
    def _types(self) -> "tuple[_JsonObject, _JsonObject | None]":
        """The form of the named arguments, and that of all others of a function that takes `**kwargs`."""
        from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
        from typing_extensions import TypedDict

        hints = hints_of(self._function, self.signature.parameters)
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


def hints_of(function: Callable[..., object], names: Iterable[str]) -> dict[str, Any]:
    """Return the annotations of these parameters, or of "return", as types; others may be known to type checkers only.

    Raises `AppError` for names that are unknown at run time.
    """
    found = _annotations(function)
    wanted = {name: found[name] for name in names if name in found}
    if not wanted:
        return {}

    def holder() -> None:
        """Carry the annotations that are asked for."""

    holder.__annotations__ = wanted
    if types := getattr(function, "__type_params__", ()):
        holder.__type_params__ = types  # type: ignore[attr-defined]
    try:
        return get_type_hints(holder, getattr(inspect.unwrap(function), "__globals__", None), include_extras=True)
    except NameError as error:
        name = getattr(function, "__qualname__", repr(function))
        raise AppError(f"{name}: {error} at run time, in an annotation: import it outside TYPE_CHECKING") from None


def _annotations(function: Callable[..., object]) -> dict[str, Any]:
    if sys.version_info >= (3, 14):  # they are evaluated when they are read
        from annotationlib import Format, get_annotations

        return get_annotations(function, format=Format.FORWARDREF)
    return dict(getattr(function, "__annotations__", {}))


class _JsonObject:
    """A mapping of arguments, and its form as JSON."""

    def __init__(self, kind: Any, config: "ConfigDict | None") -> None:
        from pydantic import TypeAdapter
        from pydantic_core import SchemaSerializer

        self.adapter: TypeAdapter[dict[str, object]] = TypeAdapter(kind, config=config)
        # The adapter's own serializer ignores the settings of a TypedDict.
        self._serializer = SchemaSerializer(self.adapter.core_schema, {**_ROOT_FORM})

    @cached_property
    def is_lazy(self) -> bool:
        """Return whether a type is an `Iterable`, whose items are checked as they are read."""
        return _contains_type(self.adapter.core_schema, "generator")

    def listed(self, values: dict[str, object]) -> dict[str, object]:
        """Return the values; iterators that can be read once are read where the type is an `Iterable`."""
        if not self.is_lazy:
            return values
        return {name: [*value] if isinstance(value, Iterator) else value for name, value in values.items()}

    def check(self, values: dict[str, object]) -> dict[str, object]:
        """Return the values as the annotations make them. Raises `ValidationError`."""
        return self.adapter.validate_python(values)

    def dump(self, checked: dict[str, object]) -> bytes:
        """Return checked values as JSON."""
        return self._serializer.to_json(checked, by_alias=True, round_trip=True, warnings="error")

    def dump_given(self, given: dict[str, object], checked: dict[str, object]) -> bytes:
        """Return values as JSON as they were given, but those whose types have a serializer of their own as checked.

        Such a serializer may mask a value, as that of `SecretStr` does.
        """
        from pydantic_core import to_json

        raw = {name: value for name, value in given.items() if name in self._plain_names or self._are_all_plain}
        own = {name: value for name, value in checked.items() if name not in raw}
        text = to_json(raw, by_alias=True, round_trip=True, bytes_mode="base64", inf_nan_mode="strings")
        return _joined(self.dump(own), text)

    @cached_property
    def _plain_names(self) -> frozenset[str]:
        """The names of the fields without a serializer of their own."""
        schema: Any = self.adapter.core_schema
        fields = schema.get("schema", schema).get("fields", {}) if isinstance(schema, Mapping) else {}
        return frozenset(name for name, field in fields.items() if not _has_serializer(field))

    @cached_property
    def _are_all_plain(self) -> bool:
        return not _has_serializer(self.adapter.core_schema)

    def load(self, payload: bytes) -> dict[str, object]:
        """Return the values of a JSON text, checked."""
        return self.adapter.validate_json(payload)


def _joined(first: bytes, more: bytes) -> bytes:
    """Return one JSON object with the entries of both."""
    return more if first == b"{}" else first if more == b"{}" else first[:-1] + b"," + more[1:]


def _contains_type(schema: object, kind: str) -> bool:
    """Return whether a core schema has a part of this type."""
    if isinstance(schema, Mapping):
        return schema.get("type") == kind or any(_contains_type(part, kind) for part in schema.values())
    return isinstance(schema, list | tuple) and any(_contains_type(part, kind) for part in schema)


def _has_serializer(schema: object) -> bool:
    """Return whether a part of a core schema is written by a function, left out, or defined elsewhere."""
    if isinstance(schema, Mapping):
        form = schema.get("serialization")
        is_own = isinstance(form, Mapping) and str(form.get("type")).startswith("function-")
        if is_own or schema.get("serialization_exclude") or schema.get("type") == "definition-ref":
            return True
        return any(_has_serializer(part) for part in schema.values())
    return isinstance(schema, list | tuple) and any(_has_serializer(part) for part in schema)


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
