"""Field masks, and partial responses by the parameter `fields`. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from queue_core.google.cloudtasks.failures import invalid
from queue_core.google.cloudtasks.json_codec import mask_path
from queue_core.google.cloudtasks.messages import MESSAGES, camel

MAX_FIELDS_CHARACTERS = 4000
"""Longest `fields` parameter."""
MAX_DEPTH = 20
"""Deepest nesting in it."""

FieldTree = dict[str, "FieldTree"]
"""Fields to keep, each with the fields to keep below it (empty: all). `*` stands for every field."""


def check_mask(message: str, paths: Sequence[str], *, place: str) -> None:
    """Raise `CloudTasksError` for a path without a field."""
    for path in paths:
        if path == "*":
            continue
        at = message
        for part in path.split("."):
            field = MESSAGES.get(at, {}).get(camel(part))
            if field is None:
                raise invalid(f"{place}: a {message} has no field {path!r}")
            at = field.of


def masked(values: Mapping[str, object], paths: Iterable[str]) -> dict[str, object]:
    """Return the fields that the paths of a mask name; `*` names all."""
    selected: FieldTree = {}
    for path in paths:
        at = selected
        for part in path.split("."):
            at = at.setdefault(part if part == "*" else camel(part), {})
    result = _select(values, selected)
    assert isinstance(result, dict)
    return result


def covers(paths: Sequence[str], path: str) -> bool:
    """Return whether a mask names this field, a field below it, or one above it."""
    return any(one == "*" or one == path or one.startswith(f"{path}.") or path.startswith(f"{one}.") for one in paths)


def parse_fields(text: str) -> FieldTree:
    """Parse a `fields` parameter such as `a,b/c,d(e,f)`. Raises `CloudTasksError`."""
    if len(text) > MAX_FIELDS_CHARACTERS:
        raise invalid(f"fields must have at most {MAX_FIELDS_CHARACTERS} characters: {len(text)}")
    selected, rest = _list(text, depth=0)
    if rest:
        raise _bad_fields(rest)
    return selected


def partial(answer: Mapping[str, object], selected: FieldTree) -> dict[str, object]:
    """Return the selected fields of a response; of an array, those of each member."""
    result = _select(answer, selected)
    assert isinstance(result, dict)
    return result


def _select(value: object, selected: FieldTree) -> object:
    if not selected:
        return value
    if isinstance(value, list | tuple):
        return [_select(one, selected) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: _select(one, selected[name] if name in selected else selected["*"])
        for name, one in value.items()
        if name in selected or "*" in selected
    }


def _list(text: str, *, depth: int) -> tuple[FieldTree, str]:
    """Parse terms up to the end or a closing bracket; return them and the rest of the text."""
    if depth > MAX_DEPTH:
        raise invalid(f"fields goes more than {MAX_DEPTH} levels deep")
    selected: FieldTree = {}
    while True:
        at = selected
        while True:
            size = next((index for index, letter in enumerate(text) if letter in ",/.()"), len(text))
            name, text = text[:size].strip(), text[size:]
            if not name:
                raise _bad_fields(text)
            at = at.setdefault(name if name == "*" else camel(mask_path(name)), {})
            if text[:1] not in ("/", "."):
                break
            text = text[1:]
        if text.startswith("("):
            inner, text = _list(text[1:], depth=depth + 1)
            if not text.startswith(")"):
                raise _bad_fields(text)
            at.update(inner)
            text = text[1:]
        if not text.startswith(","):
            return selected, text
        text = text[1:]


def _bad_fields(rest: str) -> Exception:
    return invalid(f"fields must be names as in a,b/c,d(e,f); invalid from {rest[:40]!r} on")
