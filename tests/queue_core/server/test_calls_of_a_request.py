"""How many functions a server calls for one request, which `tests.bench.calls` prints."""

import pytest

from tests.bench.calls import count_requests

MOST = {"add": 230, "exchange": 282}
"""Calls of Python functions on 3.11; later versions make fewer."""


@pytest.mark.parametrize("with_tokens", [False, True], ids=["without tokens", "with tokens"])
def test_a_request_on_the_fast_path_calls_no_more_functions(with_tokens: bool) -> None:
    counted = count_requests(with_tokens=with_tokens, counted=50)
    assert {verb: calls.python for verb, calls in counted.items() if calls.python > MOST[verb]} == {}
    assert all(calls.python > 100 for calls in counted.values()), "the server's thread was counted"
