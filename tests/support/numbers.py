"""Numbers that no field may fall over, and the places of numbers in requests as an OpenAPI document describes them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

Schema = Mapping[str, Any]

NUMBERS: Final = (
    "0",
    "-1",
    "0.000001",
    "1e305",
    "-1e305",
    "1e400",
    "NaN",
    "Infinity",
    "-Infinity",
    str((1 << 31) - 1),
    str(1 << 31),
    str((1 << 63) - 1),
    str(1 << 63),
    str(-(1 << 63)),
    str(1 << 64),
    "9" * 400,
    "9" * 5000,
    "-" + "9" * 400,
)
"""As JSON writes them, or would."""
MARK: Final = "@number@"


@dataclass(frozen=True, slots=True)
class NumberPlace:
    """A request with a number. `body`: its JSON with the mark in the number's place; None: it has none.

    Args:
        name: of its operation and its field.
        path: with its query.
    """

    name: str
    method: str
    path: str
    body: str | None

    def bytes_with(self, number: str) -> bytes | None:
        """Return the body with this number."""
        return None if self.body is None else self.body.replace(json.dumps(MARK), number).encode()

    def path_with(self, number: str) -> str:
        """Return the path with this number."""
        return self.path.replace(quote(MARK), quote(number))


def number_places(document: Schema, names: Mapping[str, str]) -> Iterator[NumberPlace]:
    """Yield a request for each number that an OpenAPI document's requests may have.

    Args:
        names: a value for each parameter in paths.
    """
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = path
            for name, value in names.items():
                where = where.replace(f"{{{name}}}", quote(value, safe=""))
            for parameter in operation["parameters"]:
                if parameter["in"] == "query" and _is_number(document, parameter["schema"]):
                    query = f"{where}?{parameter['name']}={quote(MARK)}"
                    yield NumberPlace(f"{operation['operationId']} {parameter['name']}", method.upper(), query, None)
            if "requestBody" in operation:
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                for field, body in _marked(document, schema, names, ()):
                    name = f"{operation['operationId']} {field}"
                    yield NumberPlace(name, method.upper(), where, json.dumps(body))


def _resolved(document: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def _options(document: Schema, schema: Schema) -> Sequence[Schema]:
    schema = _resolved(document, schema)
    choices = schema.get("anyOf") or schema.get("oneOf")
    return [one for choice in choices for one in _options(document, choice)] if choices else [schema]


def _is_number(document: Schema, schema: Schema) -> bool:
    return any(one.get("type") in ("number", "integer") for one in _options(document, schema))


def _marked(
    document: Schema, schema: Schema, names: Mapping[str, str], seen: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    """Yield a value of the schema for each number that it may have, which is the mark; and the number's name."""
    for one in _options(document, schema):
        title = str(one.get("title", ""))
        if one.get("type") in ("number", "integer"):
            yield "", MARK
        elif one.get("type") == "array":
            items = one.get("items") or next(iter(one.get("prefixItems", ())), None)
            for name, value in _marked(document, items, names, seen) if items else ():
                yield f"[]{name}", [value]
        elif one.get("type") == "object" and title not in seen:
            fields = one.get("properties", {})
            needed = {name: sample(document, fields[name], names, name) for name in one.get("required", ())}
            for field, of in fields.items():
                for name, value in _marked(document, of, names, (*seen, title)):
                    yield f"{field}{name and '.' + name}", {**needed, field: value}
            if isinstance(one.get("additionalProperties"), dict):
                for name, value in _marked(document, one["additionalProperties"], names, (*seen, title)):
                    yield f"*{name}", {"any": value}


def sample(document: Schema, schema: Schema, names: Mapping[str, str], name: str = "") -> Any:
    """Return a value of a schema: the simplest, and for a name of `names` that."""
    one = _options(document, schema)[0]
    if "const" in one or "enum" in one:
        return one.get("const", next(iter(one.get("enum", ())), None))
    match one.get("type"):
        case "array":
            return [sample(document, one["items"], names)] if "items" in one else []
        case "object":
            return {
                field: sample(document, one["properties"][field], names, field) for field in one.get("required", ())
            }
        case "number" | "integer":
            return max(one.get("minimum", 1), 1)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return names.get(name, "n-1")
