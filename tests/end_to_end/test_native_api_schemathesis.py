"""The native API beside its own document: right requests, wrong ones and those at every bound, over two stores.

Every check of schemathesis but `positive_data_acceptance`: the document tells the form of a request, while ranges and
what goes together are checked by the verbs, whose refusals name the limit and the value. That such a refusal is what
the document says it is, the other checks see to.
"""

import json
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.specs.openapi import checks as openapi

from queue_core.limits import MAX_WAIT_SECONDS
from queue_core.server.app import openapi_json
from tests.support.servers import RunningServer, a_server
from tests.support.stores.stores import opened

DOCUMENT = json.loads(openapi_json())
OPERATIONS = [(path, method) for path, methods in DOCUMENT["paths"].items() for method in methods]
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
SCHEMA.config.generation.modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
REFUSALS = SCHEMA.config.checks.negative_data_rejection
REFUSALS.expected_statuses = [*REFUSALS.expected_statuses, "413"]  # a list that is too long by its bytes, too
CHECKS = (
    not_a_server_error,
    openapi.content_type_conformance,
    openapi.ensure_resource_availability,
    openapi.ignored_auth,
    openapi.missing_required_header,
    openapi.negative_data_rejection,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
    openapi.status_code_conformance,
    openapi.unsupported_method,
    openapi.use_after_free,
)
EXAMPLES = 8
"""Of each operation, besides those at the bounds of its members, which come to some thirty."""
SECONDS = 20.0


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with opened(request.param, tmp_path_factory.mktemp("api")) as store, a_server(store) as running:
        yield running


def _is_wait(value: object) -> bool:
    """Return whether a call would wait: what the document refuses is sent as it is."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_WAIT_SECONDS


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def answered(case: schemathesis.Case, server: RunningServer) -> None:
    if case.query and "follow" in case.query:
        del case.query["follow"]  # goes on for ever
    if isinstance(case.body, dict) and _is_wait(case.body.get("wait_seconds")):
        case.body["wait_seconds"] = 0.0
    case.call_and_validate(base_url=server.url, checks=CHECKS, headers={"host": "localhost"}, timeout=SECONDS)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_request_is_answered_as_the_document_says(path: str, method: str, server: RunningServer) -> None:
    """Its requests are made here: `SCHEMA.parametrize` makes those of all operations in each process that collects."""
    operation = SCHEMA[path][method]
    requests = build_operation_test(
        config=SCHEMA.config, operation=operation, test_func=answered, given_kwargs={}, feedback=NO_FEEDBACK
    )
    requests(server=server)
