"""The OpenAPI 3.1 document, generated from the table of endpoints and their models."""

import re
from collections.abc import Sequence

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core.core_schema import DataclassField, DataclassSchema, ModelField, TypedDictField, TypedDictSchema

from queue_core.server.base.problems import TITLES
from queue_core.server.schemas import ProblemOut, response
from queue_core.server.v1.endpoint import Endpoint
from queue_core.verbs.wire import Json

REF = "#/components/schemas/{model}"
_IN_PATH = re.compile(r"{(\w+)}")
_PROBLEM: Json = {
    "description": "What went wrong, as RFC 9457 has it.",
    "content": {"application/problem+json": {"schema": {"$ref": REF.format(model="ProblemOut")}}},
}


def document(endpoints: Sequence[Endpoint], *, version: str) -> Json:
    """Return the document of these endpoints."""
    requests = dict.fromkeys(endpoint.takes for endpoint in endpoints if endpoint.takes)
    _, of_requests = models_json_schema([(model, "validation") for model in requests], ref_template=REF)
    responses = dict.fromkeys([*(endpoint.answers for endpoint in endpoints), response(ProblemOut)])
    answers, of_responses = TypeAdapter.json_schemas(
        [(one, "serialization", one.adapter) for one in responses], ref_template=REF, schema_generator=_ResponseSchema
    )
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        answer = answers[endpoint.answers, "serialization"]
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, answer)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Towline", "version": version, "description": "Pull queues: add, lease, delete."},
        "paths": paths,
        "components": {
            "schemas": of_requests.get("$defs", {}) | of_responses["$defs"],
            "responses": {"Problem": _PROBLEM},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


class _ResponseSchema(GenerateJsonSchema):
    """JSON schemas of responses, which have all their members (those with defaults too) and no others.

    Only the members of a `TypedDict` that are `NotRequired` may be absent.
    """

    def field_is_required(
        self,
        field: ModelField | DataclassField | TypedDictField,
        total: bool,  # noqa: FBT001 - pydantic's
    ) -> bool:
        return field["type"] != "typed-dict-field" or field.get("required", total)

    def typed_dict_schema(self, schema: TypedDictSchema) -> Json:
        return {"additionalProperties": False, **super().typed_dict_schema(schema)}

    def dataclass_schema(self, schema: DataclassSchema) -> Json:
        return {"additionalProperties": False, **super().dataclass_schema(schema)}


def _operation(endpoint: Endpoint, answer: object) -> Json:
    content: Json = {"application/json": {"schema": answer}}
    if any(parameter.name == "follow" for parameter in endpoint.query):
        content["text/event-stream"] = {"schema": {"type": "string"}}
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _IN_PATH.findall(endpoint.path)
    ]
    parameters += [
        {"name": one.name, "in": "query", "schema": one.schema, "description": one.description}
        for one in endpoint.query
    ]
    operation: Json = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": endpoint.summary, "content": content},
            **{str(status): {"$ref": "#/components/responses/Problem"} for status in TITLES},
        },
    }
    if endpoint.permission is not None:
        operation["security"] = [{}, {"bearer": []}]
    if endpoint.takes is not None:
        schema = {"$ref": REF.format(model=endpoint.takes.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation
