"""JSON schemas in words: what a member of a request or an answer is."""

import json
from collections.abc import Mapping
from typing import Final

from tests.support.reference.markdown import code

Schema = Mapping[str, object]
REF: Final = "#/components/schemas/"


def in_words(schema: Schema) -> str:
    """Return the type and bounds of a schema; one that has a name is a link to it."""
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(REF)
        return f"[{name}](#{name.lower()})"
    for many in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(many, list):
            return " or ".join(dict.fromkeys(in_words(one) for one in many))
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return " ".join(code(json.dumps(one)) for one in _listed(schema["enum"]))
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        return f"list of {in_words(items)}" if isinstance(items, Mapping) else "list"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"names, each with {in_words(values)}" if isinstance(values, Mapping) else "object"
    return f"{_KINDS.get(str(kind), 'any')}{_bounds(schema)}"


_KINDS: Final = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}


def _bounds(schema: Schema) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if isinstance(high, int | float) and high >= 2**31 - 1:
        high = None
    if low is not None and high is not None:
        return f", {low:,} to {high:,}"
    if high is not None:
        return f", at most {high:,}"
    if low:
        return f", at least {low:,}"
    most = schema.get("maxLength")
    return f", at most {most:,} characters" if isinstance(most, int) else ""


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []
