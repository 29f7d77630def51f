"""Messages about invalid settings: pydantic's errors rewritten with the value, the limit and the fix."""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, get_args, get_origin

from pydantic import BaseModel, PlainSerializer, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from queue_core.attempts.secret_forms import MASK, is_secret_name, masked_logins, masked_text
from queue_core.config.store_urls import masked

_MAX_SHOWN_CHARS: Final = 60
_URL: Final = re.compile(r"[A-Za-z][\w+.-]*://")
_HOME: Final = re.compile(r"(?:unix:)?~[\w.-]*(?:/|$)")


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """A problem with one setting: its path in the document, and a message with a remedy."""

    path: tuple[str | int, ...]
    message: str


def problems_of(
    error: ValidationError,
    *,
    model: type[BaseModel],
    prefix: tuple[str | int, ...] = (),
    leave_out: Collection[str] = (),
) -> list[SettingProblem]:
    """Return every problem in `error`, its path under `prefix`.

    `model` is the validated model; unknown keys are compared with its fields. Problems whose pydantic type is in
    `leave_out` are skipped.
    """
    return [
        SettingProblem((*prefix, *_place(details)), _message(details, model))
        for details in error.errors(include_url=False)
        if details["type"] not in leave_out
    ]


def home_problems(
    value: object, *, path: tuple[str | int, ...] = (), leave_out: Collection[str] = ()
) -> list[SettingProblem]:
    """Return a problem for each path that begins with `~`, which only a shell expands.

    Values under a key of `leave_out` are skipped.
    """
    if isinstance(value, str):
        if not _HOME.match(value):
            return []
        return [SettingProblem(path, f"{_shown(value)}: ~ is a folder for a shell only: write the full path")]
    inner: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, Mapping):
        inner = [(str(key), item) for key, item in value.items() if key not in leave_out]
    elif isinstance(value, list):
        inner = enumerate(value)
    return [one for key, item in inner for one in home_problems(item, path=(*path, key), leave_out=leave_out)]


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return `", did you mean 'slo'?"` when a known word is close to `word`, else ""."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f", did you mean '{close[0]}'?" if close else ""


def _place(details: ErrorDetails) -> tuple[str | int, ...]:
    # pydantic marks an error in a mapping's key with this extra part.
    return tuple(part for part in details["loc"] if part != "[key]")


def _message(details: ErrorDetails, model: type[BaseModel]) -> str:
    loc = details["loc"]
    if details["type"] == "extra_forbidden":
        owner = _model_at(model, loc[:-1])
        return f"unknown setting{did_you_mean(str(loc[-1]), _keys(owner) if owner else ())}"
    field = _field_at(model, loc)
    if details["type"] == "missing":
        return f"is required{_described(field)}"
    context: Mapping[str, object] = details.get("ctx", {})
    if details["type"] == "string_pattern_mismatch" and field is not None and field.examples:
        return f"must look like {field.examples[0]} ({context['pattern']}): {_input(details)}"
    if details["type"] == "value_error":  # our own message, which includes the value
        return masked_logins(str(context["error"]))
    template = _TEMPLATES.get(details["type"])
    if template is None:
        return f"{details['msg']}: {_input(details)}"
    write = _writer_of(field)
    shown = MASK if _is_secret(details) else write(details["input"])
    return template({key: write(value) for key, value in context.items()}, shown)


def _input(details: ErrorDetails) -> str:
    return MASK if _is_secret(details) else _shown(details["input"])


def _is_secret(details: ErrorDetails) -> bool:
    """Return whether a setting may have a secret: a variable of workers, and one whose name says so."""
    names = [str(part) for part in details["loc"]]
    return "env" in names[:-1] or (bool(names) and is_secret_name(names[-1]))


def _described(field: FieldInfo | None) -> str:
    return f": {field.description.rstrip('.')}" if field and field.description else ""


def _writer_of(field: FieldInfo | None) -> Callable[[object], str]:
    """Return how to show a value of the field: as its type writes it in a file ("30s"), where defined."""
    annotated = [*field.metadata, *_metadata_inside(field.annotation)] if field else []
    for item in annotated:
        if isinstance(item, PlainSerializer):
            write = item.func
            return lambda value: str(write(value)) if _is_number(value) else _shown(value)  # type: ignore[call-arg]
    return _shown


def _metadata_inside(annotation: object) -> list[object]:
    return [item for kind in get_args(annotation) for item in getattr(kind, "__metadata__", ())]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _field_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> FieldInfo | None:
    owner = _model_at(model, loc[:-1]) if loc else None
    return _named(owner, loc[-1]) if owner else None


def _model_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Return the model that holds the field at the end of `loc`, or None if the path leaves the models.

    A key of a mapping or an index of a list of models leads to the model of its items.
    """
    inside: type[BaseModel] | None = None
    for part in loc:
        if inside is not None:
            model, inside = inside, None
            continue
        field = _named(model, part)
        found = _model_in(field.annotation) if field else None
        if field is None or found is None:
            return None
        if get_origin(field.annotation) in {dict, tuple}:
            inside = found
        else:
            model = found
    return model


def _named(model: type[BaseModel], key: str | int) -> FieldInfo | None:
    """Return the field of this name or alias."""
    return next((f for name, f in model.model_fields.items() if key == (f.alias or name)), None)


def _keys(model: type[BaseModel]) -> list[str]:
    """Return the keys that a document may use: the fields' aliases or names."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: object) -> type[BaseModel] | None:
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = masked(text) if _URL.match(text) else masked_text(text)  # before it is cut
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def _must(phrase: str) -> Callable[[Mapping[str, object], str], str]:
    return lambda context, shown: f"{phrase.format_map(context)}: {shown}"


# Message templates by pydantic's error type.
_TEMPLATES: Final[Mapping[str, Callable[[Mapping[str, object], str], str]]] = {
    "int_type": _must("must be a whole number"),
    "int_from_float": _must("must be a whole number"),
    "int_parsing": _must("must be a whole number"),
    "string_type": _must("must be text (in quotes, if it looks like a number or a truth value)"),
    "bool_type": _must("must be true or false"),
    "tuple_type": _must("must be a list, such as [first, second]"),
    "list_type": _must("must be a list, such as [first, second]"),
    "dict_type": _must("must be a mapping of keys to values"),
    "model_type": _must("must be a mapping of settings"),
    "greater_than": _must("must be more than {gt}"),
    "greater_than_equal": _must("must be at least {ge}"),
    "less_than": _must("must be less than {lt}"),
    "less_than_equal": _must("must be at most {le}"),
    "literal_error": _must("must be {expected}"),
    "string_pattern_mismatch": _must("must match {pattern}"),
    "string_too_short": lambda _context, _shown: "must not be empty",
    "string_too_long": _must("must be at most {max_length} characters"),
    "too_short": lambda _context, _shown: "must not be empty: leave it out instead",
}
