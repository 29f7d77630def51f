"""Errors cross the wire unchanged, each with its status."""

import json

import pytest

from queue_core import errors
from queue_core.client.http.problem_types import ERRORS, error_of, problem_type
from queue_core.errors import (
    InvalidRequestError,
    LeaseLostError,
    OutcomeUnknownError,
    QueueError,
    StoreUnavailableError,
)
from queue_core.server.base.problems import TITLES, problem_of, refusal, status_of


@pytest.mark.parametrize("kind", ERRORS.values(), ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_what_it_was(kind: type[QueueError]) -> None:
    problem = problem_of(kind("lease time must be in [0, 604800] s: 9"))
    told = json.loads(problem.body())
    assert told["status"] == problem.status == status_of(kind)
    assert told["title"] == TITLES[problem.status]
    back = error_of(told, status=problem.status)
    assert type(back) is kind
    assert str(back) == "lease time must be in [0, 604800] s: 9"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        pytest.param(errors.InvalidQueueNameError, 422, id="a request that can't be right"),
        pytest.param(errors.TaskTooLargeError, 413, id="too large"),
        pytest.param(errors.UnknownQueueError, 404, id="unknown queue"),
        pytest.param(errors.LeaseLostError, 409, id="lease lost"),
        pytest.param(errors.WorkerRetiredError, 410, id="worker retired"),
        pytest.param(errors.UnauthenticatedError, 401, id="no token"),
        pytest.param(errors.PermissionDeniedError, 403, id="wrong role"),
        pytest.param(errors.StoreUnavailableError, 503, id="store away"),
        pytest.param(errors.StoreFullError, 507, id="disk full"),
        pytest.param(errors.StoreReadOnlyError, 500, id="read-only"),
        pytest.param(OutcomeUnknownError, 503, id="outcome unknown"),
    ],
)
def test_the_status_tells_what_the_caller_can_do(kind: type[QueueError], status: int) -> None:
    assert status_of(kind) == status


def test_a_problem_type_is_a_name_for_good() -> None:
    assert problem_type(LeaseLostError) == "urn:towline:problem:lease-lost"


def test_lost_tokens_cross_the_wire() -> None:
    problem = problem_of(LeaseLostError("gone", tokens=["1.2", "3.4"]))
    back = error_of(json.loads(problem.body()), status=409)
    assert isinstance(back, LeaseLostError)
    assert back.tokens == ("1.2", "3.4")


def test_a_limit_is_told_as_a_number() -> None:
    told = json.loads(problem_of(errors.TaskTooLargeError("too large")).body())
    assert (told["limit"], told["unit"]) == (1 << 20, "bytes")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        pytest.param(418, InvalidRequestError, id="the caller's mistake"),
        pytest.param(503, StoreUnavailableError, id="try again"),
        pytest.param(502, QueueError, id="a proxy's failure"),
    ],
)
def test_a_foreign_problem_is_an_error_of_its_status(status: int, kind: type[QueueError]) -> None:
    back = error_of(json.loads(refusal(status, "nobody-knows", "what").body()), status=status)
    assert type(back) is kind
