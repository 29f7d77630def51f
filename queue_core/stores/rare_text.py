"""The rare fields of a task as the one text that a store keeps, and back (ADR 131)."""

from json import JSONEncoder

from pydantic_core import from_json

from queue_core.rare_fields import FIELDS, HEADERS, HasRareFields, T, set_rare_json

_OTHERS = tuple(field for field in FIELDS if field is not HEADERS)
_MARK = "="
"""Before the name of each other field among the headers: no header's name has it."""
_MARKED = f'"{_MARK}'
_written = JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def rare_text(task: HasRareFields) -> str | None:
    """Return the rare fields of a task as a store keeps them; None for none.

    It is a JSON object of the headers, as it was before there were other fields; these stand among them, marked.
    """
    kept: dict[str, object] = dict(task.headers or {})
    for field in _OTHERS:
        if value := getattr(task, field.name):
            kept[f"{_MARK}{field.name}"] = field.as_json(value)
    return _written(kept) if kept else None


def set_rare_text(task: T, text: str) -> T:
    """Set the rare fields of a task that was just made from what `rare_text` returned, and return it.

    A field of a later version is left out.
    """
    kept: dict[str, object] = from_json(text)
    if _MARKED in text:
        set_rare_json(task, {field.name: kept.get(f"{_MARK}{field.name}") for field in _OTHERS})
        kept = dict(headers_of(text))
    if kept:
        setattr(task, HEADERS.name, kept)
    return task


def headers_of(text: str) -> dict[str, str]:
    """Return the headers alone of what `rare_text` returned."""
    kept: dict[str, str] = from_json(text)
    return {name: one for name, one in kept.items() if not name.startswith(_MARK)} if _MARKED in text else kept
