"""The OpenAPI 3.1 document, made from the table of endpoints and the models they name."""

import re
from collections.abc import Sequence

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from queue_core.http_api.values import Json
from queue_core.server import answers
from queue_core.server.endpoints import Endpoint
from queue_core.server.problems import TITLES

REF = "#/components/schemas/{model}"
_IN_PATH = re.compile(r"{(\w+)}")
_PROBLEM: Json = {
    "description": "What went wrong, as RFC 9457 has it.",
    "content": {"application/problem+json": {"schema": {"$ref": REF.format(model="ProblemOut")}}},
}


def document(endpoints: Sequence[Endpoint], *, version: str) -> Json:
    """The whole document."""
    models: list[type[BaseModel]] = [endpoint.takes for endpoint in endpoints if endpoint.takes]
    models += [endpoint.answers for endpoint in endpoints if isinstance(endpoint.answers, type)]
    models.append(answers.ProblemOut)
    _, schema = models_json_schema([(model, "validation") for model in dict.fromkeys(models)], ref_template=REF)
    schemas = dict(schema["$defs"])
    for endpoint in endpoints:
        if isinstance(endpoint.answers, TypeAdapter):
            own = endpoint.answers.json_schema(ref_template=REF)
            schemas[own["title"]] = own
    paths: dict[str, Json] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Towline", "version": version, "description": "Pull queues: add, lease, delete."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {"Problem": _PROBLEM},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> Json:
    answered = endpoint.answers
    model = answered.__name__ if isinstance(answered, type) else answered.json_schema()["title"]
    content: Json = {"application/json": {"schema": {"$ref": REF.format(model=model)}}}
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
