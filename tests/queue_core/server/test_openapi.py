"""The OpenAPI document: generated requests against it find no failure and no answer that it does not describe."""

import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from queue_core.server.app import openapi_json, served_endpoints
from queue_core.server.callers.auth import REQUIRED_ROLES
from tests.support.servers import RunningServer, a_server

DOCUMENT = json.loads(openapi_json())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
SCHEMA.config.phases.coverage.enabled = SCHEMA.config.phases.examples.enabled = False  # seconds of each collection
CHECKS = (not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with a_server() as running:
        yield running


@SCHEMA.parametrize()
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_the_document_describes_every_answer(case: schemathesis.Case, server: RunningServer) -> None:
    if case.query and "follow" in case.query:
        del case.query["follow"]  # goes on for ever
    if isinstance(case.body, dict) and "wait_seconds" in case.body:
        case.body["wait_seconds"] = 0.0
    case.call_and_validate(base_url=server.url, checks=CHECKS, headers={"host": "localhost"})


def test_every_path_is_in_the_document() -> None:
    assert DOCUMENT["openapi"].startswith("3.1")
    for endpoint in served_endpoints():
        operation = DOCUMENT["paths"][endpoint.path][endpoint.method.lower()]
        assert ("requestBody" in operation) == (endpoint.takes is not None)


def test_every_permission_is_known_and_every_operation_has_its_own_name() -> None:
    endpoints = served_endpoints()
    assert {endpoint.permission for endpoint in endpoints} - {None} == set(REQUIRED_ROLES) - {"operate", "kill"}
    names = [endpoint.name for endpoint in endpoints]
    assert len(names) == len(set(names))
