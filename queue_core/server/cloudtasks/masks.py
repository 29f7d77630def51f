"""Parts of a message: field masks, and the partial answers that `fields=` asks for. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from queue_core.server.cloudtasks.failures import invalid
from queue_core.server.cloudtasks.json_codec import mask_path
from queue_core.server.cloudtasks.messages import MESSAGES, camel

MAX_FIELDS_CHARACTERS = 4000
MAX_DEPTH = 20

Wanted = dict[str, "Wanted"]
"""Fields to keep, and of each what to keep of it (nothing: all of it). `*` is every field."""


def check_mask(message: str, paths: Sequence[str], *, place: str) -> None:
    """Raise `ApiError` for a path that leads to no field."""
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
    """What the paths of a mask lead to; `*` is everything."""
    wanted: Wanted = {}
    for path in paths:
        at = wanted
        for part in path.split("."):
            at = at.setdefault(part if part == "*" else camel(part), {})
    kept = _kept(values, wanted)
    assert isinstance(kept, dict)
    return kept


def covers(paths: Sequence[str], path: str) -> bool:
    """Whether a mask names this field, a part of it, or what it is part of."""
    return any(one == "*" or one == path or one.startswith(f"{path}.") or path.startswith(f"{one}.") for one in paths)


def parse_fields(text: str) -> Wanted:
    """`a,b/c,d(e,f)` of the `fields` parameter. Raises `ApiError`."""
    if len(text) > MAX_FIELDS_CHARACTERS:
        raise invalid(f"fields must have at most {MAX_FIELDS_CHARACTERS} characters: {len(text)}")
    wanted, rest = _list(text, depth=0)
    if rest:
        raise _bad_fields(rest)
    return wanted


def partial(answer: Mapping[str, object], wanted: Wanted) -> dict[str, object]:
    """The wanted parts of an answer; in an array, of each of its members."""
    kept = _kept(answer, wanted)
    assert isinstance(kept, dict)
    return kept


def _kept(value: object, wanted: Wanted) -> object:
    if not wanted:
        return value
    if isinstance(value, list | tuple):
        return [_kept(one, wanted) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {
        name: _kept(one, wanted[name] if name in wanted else wanted["*"])
        for name, one in value.items()
        if name in wanted or "*" in wanted
    }


def _list(text: str, *, depth: int) -> tuple[Wanted, str]:
    """Terms up to the end or a closing bracket, and what is left from there."""
    if depth > MAX_DEPTH:
        raise invalid(f"fields goes more than {MAX_DEPTH} levels deep")
    wanted: Wanted = {}
    while True:
        at = wanted
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
            return wanted, text
        text = text[1:]


def _bad_fields(rest: str) -> Exception:
    return invalid(f"fields must be names as in a,b/c,d(e,f); it is not from {rest[:40]!r} on")
