"""JSON Schemas of what Cloud Run and CREMA accept: unknown members are errors.

Cloud Run's are those of its own discovery document (run.v1), which Google's client library brings. CREMA's is that of
its sources: `metric-provider/api/crema_config.go`, read strictly, with KEDA's `ScaledObjectSpec` in it.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, cast

from googleapiclient import discovery_cache

from tests.support.platform_schemas import KEDA

Schema = dict[str, object]


@cache
def cloud_run(kind: str) -> Schema:
    """Return the schema of a kind of object, such as `WorkerPool`."""
    document = json.loads(discovery_cache.get_static_doc("run", "v1"))
    definitions = {name: _closed(one) for name, one in document["schemas"].items()}
    return {"$ref": f"#/definitions/{kind}", "definitions": definitions}


def _closed(schema: Mapping[str, Any]) -> Schema:
    """Return a schema of a discovery document as one of JSON Schema that allows no other members."""
    if "$ref" in schema:
        return {"$ref": f"#/definitions/{schema['$ref']}"}
    made: Schema = {key: schema[key] for key in ("type", "enum") if schema.get(key, "any") != "any"}
    if "properties" in schema:
        made["properties"] = {name: _closed(one) for name, one in schema["properties"].items()}
        made["additionalProperties"] = False
    if "additionalProperties" in schema:
        made["additionalProperties"] = _closed(schema["additionalProperties"])
    if "items" in schema:
        made["items"] = _closed(schema["items"])
    return made


def _part(*path: str) -> Schema:
    found: Any = KEDA["ScaledObject"]
    for name in path:
        found = found["properties"][name]
    return cast("Schema", found)


def _object(required: tuple[str, ...], **properties: object) -> Schema:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


_TEXT: Final[Schema] = {"type": "string", "minLength": 1}
_TARGET: Final[Schema] = {
    "type": "string",
    "pattern": r"^projects/[^/]+/locations/[^/]+/(services|worker[Pp]ools)/[^/]+$",  # WorkloadInfoParser.java
}
_TRIGGERS: Final = json.loads(json.dumps(_part("spec", "triggers")))
_TRIGGERS["items"]["properties"]["name"] = _TEXT
_SCALED: Final = _object(
    ("scaleTargetRef", "triggers"),
    scaleTargetRef=_object(("name",), name=_TARGET),
    minReplicaCount=_part("spec", "minReplicaCount"),
    maxReplicaCount=_part("spec", "maxReplicaCount"),
    triggers=_TRIGGERS,
    advanced=_part("spec", "advanced"),
)
_SECRETS: Final = _object(
    ("secrets",),
    secrets={
        "type": "array",
        "minItems": 1,
        "items": _object(("parameter", "id", "version"), parameter=_TEXT, id=_TEXT, version=_TEXT),
    },
)
CREMA: Final = _object(
    ("apiVersion", "kind", "spec"),
    apiVersion={"const": "crema/v1"},
    kind={"const": "CremaConfig"},
    spec=_object(
        ("scaledObjects", "triggerAuthentications"),
        pollingInterval={"type": "integer", "minimum": 1},
        scaledObjects={"type": "array", "minItems": 1, "items": _object(("spec",), spec=_SCALED)},
        triggerAuthentications={
            "type": "array",
            "items": _object(
                ("metadata", "spec"),
                metadata=_object(("name",), name=_TEXT),
                spec=_object(("gcpSecretManager",), gcpSecretManager=_SECRETS),
            ),
        },
    ),
)


def crema_problems(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what CREMA's own validator says of a configuration that its schema allows (`validator.go`)."""
    names = [one["metadata"]["name"] for one in config["spec"]["triggerAuthentications"]]
    if len(names) != len(set(names)):
        yield "triggerAuthentications: names must be unique"
    for scaled in config["spec"]["scaledObjects"]:
        for trigger in scaled["spec"]["triggers"]:
            if trigger.get("authenticationRef", {}).get("name", names[0]) not in names:
                yield f"{trigger['type']}: trigger authentication not found"
